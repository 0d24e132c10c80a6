"""Figures against transformers' eager model and float64."""

import json
import re
import shutil
from pathlib import Path

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file
from tinymodel import tokenizer
from transformers import AutoModelForCausalLM

from kt_core import messages
from kt_core.errors import BadData, NotFound, UsageError
from kt_core.formats.texts import read_text
from kt_core.models.files import local_files
from kt_core.quality import job as jobs
from kt_core.quality import judge
from kt_core.quality.job import Job, Subject
from kt_core.quantise import make
from kt_core.quantise.job import Job as QuantiseJob

SETTINGS = {"threads": 1, "pools": [{"threads": 1}], "tier": None, "kv_dtype": "float32"}
WINDOW = 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A float32 model whose kernels round nothing, and precisions of it."""
    root = tmp_path_factory.mktemp("quality")
    built = tiny_models.model("qwen3moe", vocab_size=len(tokenizer()))
    built.save_pretrained(root / "source")
    tokenizer().save_pretrained(root / "source")
    found = {"source": root / "source"}
    for method in ("int8", "int4"):
        done = QuantiseJob(local_files(root / "source"), method, str(root / method), method)
        found[method] = make.run(make.prepare(done), lambda *_: None)
    words = " ".join(f"{word} {index}" for index in range(60) for word in ("the quick brown fox", "hello world"))
    (root / "text.txt").write_text(words)
    found["text"] = root / "text.txt"
    return found


@pytest.fixture
def job(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def made(*names: str, versus: bool = True, **more) -> Job:
        subjects = tuple(Subject(local_files(folders[name]), SETTINGS) for name in names)
        given = {"text": str(folders["text"]), "tokens": 200, "window": WINDOW} | more
        return Job.parse(Job(subjects, versus, **given).dumped())

    return made


def figures(job: Job) -> list[dict]:
    return list(judge.rows(job, lambda *_: None))


def test_a_model_that_computes_no_numbers_is_refused(folders, job, tmp_path, monkeypatch) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folders["source"], broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, broken / "model.safetensors")
    monkeypatch.setitem(folders, "broken", broken)
    with pytest.raises(BadData, match="norm"):
        figures(job("broken", versus=False))


def windows(folders) -> torch.Tensor:
    ids = tokenizer().encode(folders["text"].read_text(), add_special_tokens=False)[:200]
    return torch.tensor(ids[: 200 // WINDOW * WINDOW]).reshape(-1, WINDOW)


@torch.no_grad()
def reference(folders, name: str) -> torch.Tensor:
    """float64 log-probabilities [windows, tokens, vocab] of the folder as transformers computes it."""
    model = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32).eval()
    return model(windows(folders)).logits.double().log_softmax(-1)


def test_perplexity_is_that_of_transformers(folders, job):
    (row,) = figures(job("source", versus=False))
    expected, ids = reference(folders, "source"), windows(folders)
    surprise = -expected[:, :-1].gather(2, ids[:, 1:, None]).mean()
    assert row["perplexity"] == pytest.approx(float(surprise.exp()), rel=1e-4)
    assert row["tokens"] == ids.numel() and "kl_divergence" not in row
    assert row["bytes"] == sum(path.stat().st_size for path in folders["source"].glob("*.safetensors"))
    assert row["prefill"] > 0 and row["decode"] > 0


def test_a_token_that_has_no_numbers_is_told(folders, job, tmp_path, monkeypatch):
    """What loading tries out does not meet every row of the embedding."""
    broken = tmp_path / "broken"
    shutil.copytree(folders["source"], broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.embed_tokens.weight"][int(windows(folders)[0, 5])] = torch.nan
    save_file(tensors, broken / "model.safetensors")
    monkeypatch.setitem(folders, "broken", broken)
    with pytest.raises(BadData, match="not finite"):
        figures(job("broken", versus=False))


def test_speed_of_a_short_window(job):
    (row,) = figures(job("source", versus=False, window=16))
    assert row["prefill"] > 0 and row["decode"] > 0


def test_a_model_beside_itself_differs_in_nothing(job, folders):
    folders["again"] = folders["source"]
    _, row = figures(job("source", "again"))
    assert row["kl_divergence"] == 0 and row["top1"] == 1 and row["layer_error"] == {"mean": 0, "worst": 0}


def test_divergence_of_other_precisions(folders, job):
    source, eight, four = figures(job("source", "int8", "int4"))
    assert "kl_divergence" not in source
    p = reference(folders, "source")
    q = torch.cat([*_logits(folders, "int4")])
    expected = (p.exp() * (p - q)).sum(-1)
    # The kernels round activations to int8 as well, so theirs is not the decoded weights' alone.
    assert four["kl_divergence"] == pytest.approx(float(expected.mean()), rel=0.3)
    assert 0 < eight["kl_divergence"] < four["kl_divergence"] / 20 and four["kl_divergence"] < four["kl_p99"]
    assert eight["top1"] > four["top1"] > 0.2
    for row, low, high in ((eight, 0.004, 0.04), (four, 0.06, 0.3)):
        assert len(row["layer_errors"]) == tiny_models.LAYERS
        assert low < row["layer_error"]["mean"] <= row["layer_error"]["worst"] < high


@torch.no_grad()
def _logits(folders, name: str):
    """Of transformers' module over the weights that kt decodes."""
    from kt_core.weights import open_weights

    weights = open_weights(local_files(folders[name]))
    model = AutoModelForCausalLM.from_pretrained(folders["source"], dtype=torch.float32).eval()
    model.load_state_dict({key: weights.tensor(key) for key in model.state_dict()})
    for ids in windows(folders):
        yield model(ids[None]).logits.double().log_softmax(-1)


def test_choices(folders, job, tmp_path):
    questions = [
        ("hello", ["world", "fox jumps"]),
        ("the quick", ["brown fox", "dog"]),
        ("stop and", ["go", "think", "the"]),
    ]
    model = AutoModelForCausalLM.from_pretrained(folders["source"], dtype=torch.float32).eval()
    encode = lambda text: tokenizer().encode(text, add_special_tokens=False)  # noqa: E731
    best = []
    for question, choices in questions:
        scores = []
        for choice in choices:
            before, after = encode(question), encode(" " + choice)
            with torch.no_grad():
                found = model(torch.tensor([before + after])).logits[0].log_softmax(-1)
            scores.append(float(sum(found[len(before) - 1 + i, token] for i, token in enumerate(after))) / len(after))
        best.append(max(range(len(scores)), key=scores.__getitem__))
    lines = [{"question": q, "choices": c, "answer": a} for (q, c), a in zip(questions, best, strict=True)]
    lines[0]["answer"] = 1 - best[0]  # one is called wrong
    lines[1]["answer"] = "AB"[best[1]]
    lines[2]["answer"] = questions[2][1][best[2]]
    file = tmp_path / "questions.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    (row,) = figures(job("source", versus=False, questions=str(file)))
    assert row["accuracy"] == pytest.approx(2 / 3)


def test_what_cannot_be_judged(job, folders, tmp_path):
    with pytest.raises(UsageError, match="too short"):
        figures(job("source", tokens=40))
    with pytest.raises(NotFound):
        read_text(tmp_path / "nowhere")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(BadData, match="UTF-8"):
        read_text(tmp_path / "bytes")


def test_a_text_that_is_too_short_is_told_before_loading(job, folders, monkeypatch):
    """By the tokenizer alone; so are models that read a text as different tokens."""
    monkeypatch.setattr(judge, "Model", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(UsageError, match="too short"):
        figures(job("source", "int8", tokens=40))
    tokens = iter([list(range(100)), list(range(1, 101))])
    monkeypatch.setattr(judge, "encoded", lambda *_: next(tokens))
    with pytest.raises(UsageError, match="different tokens"):
        figures(job("source", "int8", tokens=100))


def test_a_mark_that_begins_a_file_is_no_part_of_it(tmp_path):
    (tmp_path / "q").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert [question.answer for question in jobs.read_questions(tmp_path / "q")] == [1]
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbfa text")
    assert read_text(tmp_path / "t") == "a text"


def test_questions_alone_give_the_accuracy(job, tmp_path):
    """Without a text; a question longer than a window loses its beginning, a choice never its end."""
    file = tmp_path / "questions.jsonl"
    long = "the quick brown fox " * 40
    lines = [{"question": q, "choices": ["a", "b " * 90], "answer": 0} for q in ("hello", long)]
    file.write_text("\n".join(map(json.dumps, lines)))
    (row,) = figures(job("source", versus=False, text="", questions=str(file)))
    assert 0 <= row["accuracy"] <= 1 and row.keys() == {"name", "bytes", "accuracy"}


GOOD = {"question": "2 + 2 =", "choices": ["3", "4", "5"], "answer": 1}
ODD = [
    ("{", "not JSON from character 2"), ("[]", "not an object"), ('"text"', "not an object"), ("null", "not an object"),
    ("[" * 100_000, "not JSON"), ('{"answer": ' + "9" * 5000 + "}", "not JSON"),
    ({"question": "\ud800 a"}, "half of a character"), ({"question": None}, "question is missing"), ({"question": 3}, "question is missing"), ({"question": " "}, "question is"),
    ({"choices": None}, "at least 2"), ({"choices": []}, "at least 2"), ({"choices": ["3"]}, "at least 2"),
    ({"choices": "345"}, "at least 2"), ({"choices": {"a": 1}}, "at least 2"),
    ({"choices": ["3", ""]}, "neither a text"), ({"choices": ["3", None]}, "neither"), ({"choices": ["3", ["4"]]}, "neither"),
    ({"choices": ["3", True]}, "neither"), ({"choices": ["4", "4 "]}, "the same"),
    ({"answer": None}, "answer is missing; it is a number from 0 to 2, a letter from A to C"),
    *(({"answer": odd}, "none of the choices; it is a number from 0 to 2, a letter from A to C")
      for odd in (3, -1, 1.0, True, "D", "AB", "", "seven", [1], {"index": 1})),
]  # fmt: skip


@pytest.mark.parametrize(("odd", "words"), ODD, ids=[str(odd)[:40] for odd, _ in ODD])
def test_an_odd_question_is_refused_in_words(odd, words, tmp_path):
    """With its line, empty ones counted, and what is expected; nothing of Python is in it, in neither language."""
    line = odd if isinstance(odd, str) else json.dumps(GOOD | odd)
    (tmp_path / "q").write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    for language in ("en", "zh"):
        messages.set_language(language)
        try:
            with pytest.raises(BadData) as refused:
                jobs.read_questions(tmp_path / "q")
            text = str(refused.value)
        finally:
            messages.set_language(None)
        assert not re.search(r"Error|Exception|None|NoneType|<class|\btuple|\bdict\b|Traceback", text)
        assert ("Line 3" if language == "en" else "第 3 行") in text
        assert language == "zh" or words in text


@pytest.mark.parametrize("answer", [1, "B", "4"])
def test_an_answer_is_an_index_a_letter_or_the_choice(answer, tmp_path):
    """A character that ends lines in other texts ends none of JSON."""
    line = json.dumps(GOOD | {"answer": answer, "question": "a\u2028b"}, ensure_ascii=False)
    (tmp_path / "q").write_text(f"{line}\r\n\n", encoding="utf-8")
    assert [question.answer for question in jobs.read_questions(tmp_path / "q")] == [1]
