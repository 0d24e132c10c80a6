"""Data sets of several files: folders, repositories of the hub, tables; and what is said where they are not to be had."""

import json
import sys
from types import ModuleType, SimpleNamespace

import huggingface_hub
import pytest

from kt_core.errors import BadData, EnvironmentProblem, KTError, NotFound, UsageError
from kt_core.train.data import load
from kt_core.train.settings import Settings, check, settings
from kt_core.train.tables import trained_on
from kt_core.train.trainer import arguments

ROWS = [{"instruction": f"say {n}", "input": "", "output": str(n)} for n in range(4)]


def test_files_of_several_splits_and_forms():
    assert trained_on(["a.json", "b.json"]) == ["a.json", "b.json"]
    assert trained_on(["data/train-1.parquet", "data/train-0.parquet", "data/test.parquet"]) == [
        "data/train-0.parquet", "data/train-1.parquet",
    ]  # fmt: skip
    assert trained_on(["train.jsonl", "train.parquet", "constraint.json"]) == ["train.jsonl"]
    assert trained_on([]) == []


def test_a_folder(tmp_path):
    (tmp_path / "set" / "data").mkdir(parents=True)
    for name, rows in (("train-0", ROWS[:2]), ("train-1", ROWS[2:]), ("test", ROWS)):
        (tmp_path / "set" / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "set" / "dataset_info.json").write_text("{}")
    assert [sample.messages[-1]["content"] for sample in load(str(tmp_path / "set"), "")] == list("0123")
    assert len(load(str(tmp_path / "set"), "", 3)) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="No data"):
        load(str(tmp_path / "empty"), "")


def test_a_repository_of_the_hub(tmp_path, monkeypatch):
    (tmp_path / "train.json").write_text(json.dumps(ROWS))
    asked = []

    def listed(_, name, repo_type):
        asked.append((name, repo_type))
        if name == "no/such":
            raise OSError("404 Client Error\nand more")
        return [".gitattributes", "README.md", "train.json", "test.json"]

    monkeypatch.setattr(huggingface_hub, "HfApi", type("Api", (), {"list_repo_files": listed}))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repo, name, repo_type: str(tmp_path / name))
    assert len(load("owner/name", "nowhere")) == 4
    (tmp_path / "dataset_info.json").write_text(json.dumps({"mine": {"hf_hub_url": "owner/other"}, "odd": {}}))
    assert len(load("mine", str(tmp_path), 2)) == 2
    assert asked == [("owner/name", "dataset"), ("owner/other", "dataset")]
    with pytest.raises(NotFound, match="404 Client Error"):
        load("no/such", "")
    with pytest.raises(UsageError, match="neither a file"):
        load("odd", str(tmp_path))


def test_tables_are_pyarrows(tmp_path, monkeypatch):
    """With a stand-in for it: what is asked of it, and what it cannot read."""
    for name in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(EnvironmentProblem, match="pip install pyarrow"):
        load(str(tmp_path / "a.parquet"), "")

    def read_table(file):
        if "bad" in file.name:
            raise ValueError("not a Parquet file")
        return SimpleNamespace(to_pylist=lambda: ROWS)

    root, ipc, parquet = (ModuleType(name) for name in ("pyarrow", "pyarrow.ipc", "pyarrow.parquet"))
    root.ipc, root.parquet, parquet.read_table = ipc, parquet, read_table
    for module in (root, ipc, parquet):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert len(load(str(tmp_path / "a.parquet"), "")) == 4
    (tmp_path / "bad.parquet").touch()
    with pytest.raises(BadData, match="not a Parquet file"):
        load(str(tmp_path / "bad.parquet"), "")


def test_files_that_are_no_text(tmp_path):
    for name in ("a.json", "a.jsonl", "a.txt"):
        (tmp_path / name).write_bytes(b"[\x92\xff")
        with pytest.raises(BadData, match="cannot be read"):
            load(str(tmp_path / name), "")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"lr_scheduler_type": "wavy"}, "wavy is not a valid"),
        ({"optim": "adamx"}, "adamx is not a valid"),
        ({"report_to": "wandb"}, "report_to names wandb"),
        ({"gradient_accumulation_steps": 0}, "The least is 1"),
        ({"learning_rate": float("nan")}, "The least is 0"),
        ({"val_size": -1}, "The least is 0"),
    ],
)
def test_values_that_nobody_takes(tmp_path, more, says):
    needed = Settings(model_name_or_path="m", dataset="d", output_dir=str(tmp_path / "out"), use_cpu=True)
    with pytest.raises(KTError, match=says):
        arguments(check(settings(vars(needed) | more)))
