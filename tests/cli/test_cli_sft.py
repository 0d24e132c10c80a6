"""`kt sft`: from a model to an adapter to answers, by the commands alone."""

import importlib
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from cli_runner import Run
from test_cli_terminal import Screen

from kt_core.train import described

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("train", "engine")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    tinyrun = importlib.import_module("tinyrun")
    tinyrun.base(folder / "base")
    tinyrun.dataset(folder)
    return folder


SHORT = ["max_steps=60", "learning_rate=1e-2", "cutoff_len=64", "kt_config={kt_num_threads: 1}", "logging_steps=10"]


def test_the_whole_loop(kt: Run, folder: Path) -> None:
    """init, train, merge, and the merged model answers what it was taught."""
    run, data, out = folder / "run.yaml", f"dataset={folder / 'rows.json'}", f"output_dir={folder / 'out'}"
    assert kt("sft", "init", str(folder / "base"), "--output", str(run)).code == 0
    assert kt("sft", "init", str(folder / "base"), "--output", str(run)).code == 2
    trained = kt(
        "sft", "train", str(run), data, out, *SHORT, "per_device_train_batch_size=8", "gradient_accumulation_steps=1"
    )
    assert trained.code == 0, trained.err
    assert trained.out.strip().endswith(str(folder / "out"))
    assert "experts x2" in trained.err
    assert "step 60 of 60" in trained.err
    assert (folder / "out" / "training_loss.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "out" / described.WEIGHTS).is_file()
    again = kt("sft", "train", str(run), data, out, *SHORT)
    assert again.code == 2
    refused = kt("sft", "export", str(folder / "out"), str(folder / "exported"), "--as", "zip")
    assert refused.code == 2 and "pair, peft, sglang" in refused.err
    assert "overwrite_output_dir=true" in again.err

    merged = kt("sft", "merge", str(folder / "out"), str(folder / "merged"), "--quiet")
    assert merged.out.strip() == str(folder / "merged")
    answer = kt("run", str(folder / "merged"), "-p", "say fox", "-t", "0", "--max-tokens", "20", "--quiet")
    assert answer.out.strip() == "fox fox the lazy dog"


def test_a_published_file_names_what_is_served(kt: Run, folder: Path, tmp_path: Path) -> None:
    """As `kt run MODEL --lora ADAPTER`, also where that is KTransformers' pair of files; half of one is refused."""
    adapter, file = tmp_path / "mine", tmp_path / "api.yaml"
    adapter.mkdir()
    file.write_text(
        f"model_name_or_path: {folder / 'base'}\nadapter_name_or_path: {adapter}\ntemplate: deepseek\n"
        "infer_backend: ktransformers\ntrust_remote_code: true\nuse_kt: true\ncpu_infer: 32\nchunk_size: 8192\n"
    )
    assert kt("run", "--from", str(file), "--dry-run").code == 4
    for name in described.WEIGHTS, described.CONFIG:
        (adapter / name).write_bytes(safetensors.torch.save({}) if name == described.WEIGHTS else b"{}")
    planned = kt("run", "--from", str(file), "--dry-run", "--json")
    assert planned.code == 0, planned.err
    assert planned.json["model"]["path"] == str(folder / "base")
    fused = adapter / "fused_expert_lora.safetensors"
    fused.touch()
    assert kt("run", "--from", str(file), "--dry-run").code == 5
    fused.write_bytes(safetensors.torch.save({"layers.0.experts.up_lora_a": torch.zeros(4, 2, 8)}))
    assert kt("run", "--from", str(file), "--dry-run").code == 0


@pytest.mark.full
def test_chat_with_an_adapter(kt: Run, folder: Path) -> None:
    """The test before has trained it."""
    talked = kt("sft", "chat", str(folder / "out"), "-t", "0", input="say world")
    assert talked.out.strip() == "world world the lazy dog"
    named = folder / "chat.yaml"
    named.write_text(f"model_name_or_path: {folder / 'base'}\nadapter_name_or_path: {folder / 'out'}\nuse_kt: true")
    assert kt("sft", "chat", str(named), "-t", "0", input="say stop").out.strip() == "stop stop the lazy dog"
    measured = kt("sft", "eval", str(folder / "out"), str(folder / "rows.json"), "--set", "cutoff_len=64", "--json")
    found = measured.json["results"]
    assert found["adapter"]["loss"] < 0.5 < found["base"]["loss"], measured.err


@pytest.mark.full
def test_questions_on_a_terminal(env: dict[str, str], folder: Path) -> None:
    """Their answers become a file that trains."""
    shown = Screen(f"cd {folder}; {sys.executable} -m kt_cli sft train", env)
    for question, said in (
        ("Which model.*demo", "\x15base"), ("Which data.*jsonl", "\x15rows.json"), ("to be trained.*layers", ""),
        ("Where to.*saves", "\x15asked"), ("in the file.*yaml", "\x15asked.yaml"),
    ):  # fmt: skip
        shown.expect(question)
        shown.child.send(said + "\r")
    shown.expect("kt sft train")
    shown.expect("code 0")
    assert (folder / "asked" / described.WEIGHTS).is_file()


def test_mistakes_have_words_and_codes(kt: Run, folder: Path) -> None:
    (folder / "bad.yaml").write_text("lora_rang: 3")
    (folder / "oft.yaml").write_text("model_name_or_path: m\ndataset: d\noutput_dir: o\nfinetuning_type: oft")
    for words, code, says in (
        (("train", str(folder / "none.yaml")), 4, "kt sft init"),
        (("train",), 2, "kt sft init"),
        (("train", str(folder / "bad.yaml")), 2, "lora_rank"),
        (("train", str(folder / "oft.yaml")), 7, "finetuning_type oft"),
        (("merge", str(folder), str(folder / "x")), 4, "no adapter"),
        (("eval", str(folder / "out"), "rows.json", "--kind", "beauty"), 2, "loss, text, choice"),
        (("chat", str(folder)), 4, "no adapter"),
    ):
        done = kt("sft", *words)
        assert done.code == code, done.err
        assert says in done.err


def test_settings_are_commented_in_the_language_asked_for(kt: Run) -> None:
    assert "### 数据" in kt("sft", "init", "demo", more={"KT_LANG": "zh"}).out
    assert "### data" in kt("sft", "init", "demo").out
