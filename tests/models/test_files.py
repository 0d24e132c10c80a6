"""Which files make up a model, and what is refused."""

import json
from pathlib import Path

import pytest

from kt_core.errors import BadData, NotFound, Unsupported, UsageError
from kt_core.models.files import local_files, near

INDEX = "model.safetensors.index.json"


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"x")


def test_any_part_or_the_folder_gives_all_parts_in_order(tmp_path: Path) -> None:
    names = [f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    touch(tmp_path, *names)
    for path in (tmp_path, tmp_path / names[1]):
        files = local_files(path)
        assert [Path(f).name for f in files.files] == names
        assert files.path == files.files[0]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "m-00001-of-00003.gguf", "m-00003-of-00003.gguf")
    with pytest.raises(BadData, match="m-00002-of-00003"):
        local_files(tmp_path)


def test_hugging_face_folder_and_its_shards(tmp_path: Path) -> None:
    touch(tmp_path, "config.json", "b.safetensors", "a.safetensors")
    files = local_files(tmp_path)
    assert files.format == "safetensors" and [Path(f).name for f in files.files] == ["a.safetensors", "b.safetensors"]
    index = tmp_path / INDEX
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "c.safetensors"}}))
    with pytest.raises(BadData, match=r"c\.safetensors"):
        local_files(tmp_path)
    for bad in ("[", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"x": "../a.safetensors"}}', "[" * 100_000):
        index.write_text(bad)
        with pytest.raises(BadData) as caught:
            local_files(tmp_path)
        what, why, next_step = caught.value.lines()
        assert INDEX in what and ("weight_map" in why or "JSON" in why) and next_step == "Download the file again."


def test_what_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(BadData):
        local_files(tmp_path)
    with pytest.raises(NotFound):
        local_files(tmp_path / "none")
    touch(tmp_path, "a.txt", "a.gguf", "b.gguf")
    with pytest.raises(Unsupported):
        local_files(tmp_path / "a.txt")
    with pytest.raises(UsageError, match=r"a\.gguf, b\.gguf"):
        local_files(tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    touch(old, "config.json", "pytorch_model.bin")
    with pytest.raises(Unsupported):
        local_files(old)


def test_near_names() -> None:
    assert near("DMEO", ["demo", "smollm2"]) == "demo"
    assert near("zzz", ["demo", "smollm2"]) == ""
