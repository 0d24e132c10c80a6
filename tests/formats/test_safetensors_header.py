"""Safetensors headers and folders: sound files from the safetensors package, and every kind of damage."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from kt_core.errors import BadData, KTError, NotFound, Unsupported
from kt_core.formats import safetensors as reader

DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64, "I8": torch.int8,
    "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def build(header: object, data: int = 0, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + bytes(data)


def entry(dtype="F32", shape=(2,), span=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


def test_reads_back_what_the_safetensors_package_wrote(tmp_path):
    path = tmp_path / "a.safetensors"
    torch.manual_seed(0)
    tensors = {f"t.{name}": torch.randint(0, 2, (3, 5)).to(dtype) for name, dtype in DTYPES.items()}
    tensors |= {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 4)}
    save_file(tensors, path, metadata={"format": "pt"})
    header = reader.read_header(path)
    assert set(header) == set(tensors)
    raw = path.read_bytes()
    for name, tensor in tensors.items():
        info = header[name]
        assert info.shape == tuple(tensor.shape)
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        assert raw[info.offset : info.offset + info.nbytes] == data
    assert all(header[f"t.{name}"].format == name for name in DTYPES)


DEEP = b'{"a":' * 100_000
DAMAGE = {
    "empty": (b"", "header length"),
    "seven bytes": (bytes(7), "header length"),
    "a gguf file": (b"GGUF" + bytes(60), "GGUF"),
    "an html page": (b"<!DOCTYPE html><html>", "HTML"),
    "a git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    "header longer than the file": (build({}, length=100), "length is 100"),
    "huge header": (build({}, length=1 << 62), "4611686018427387904"),
    "no json": (build(b"{nonsense"), "not valid JSON"),
    "not utf-8": (build(b'{"\xff\xfe": 1}'), "not valid JSON"),
    "deep json": (build(DEEP), "not valid JSON"),
    "a list": (build([1]), "not valid JSON"),
    "same name twice": (build(b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), 8), "a appears twice"),
    "entry is a number": (build({"a": 3}), "tensor a lacks"),
    "no shape": (build({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, 8), "tensor a lacks"),
    "negative shape": (build({"a": entry(shape=(-2,))}, 8), "tensor a lacks"),
    "shape of floats": (build({"a": entry(shape=(2.0,))}, 8), "tensor a lacks"),
    "shape of truths": (build({"a": entry(shape=(True,), span=(0, 4))}, 4), "tensor a lacks"),
    "three offsets": (build({"a": entry(span=(0, 4, 8))}, 8), "tensor a lacks"),
    "wrapping shape": (build({"a": entry(shape=(1 << 40, 1 << 40))}, 8), "impossible"),
    "span and shape disagree": (build({"a": entry(shape=(3,))}, 8), "does not take 8 bytes"),
    "span backwards": (build({"a": entry(span=(8, 0))}, 8), "does not take -8 bytes"),
    "outside": (build({"a": entry(shape=(200,), span=(0, 800))}, 8), "truncated"),
    "overlap": (build({"a": entry(), "b": entry(span=(4, 12))}, 12), "b overlaps a"),
    "hole": (build({"a": entry(), "b": entry(span=(12, 20))}, 20), "belong to no tensor"),
    "trailing": (build({"a": entry()}, 12), "belong to no tensor"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage(tmp_path, case):
    content, words = DAMAGE[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadData) as caught:
        reader.read_header(path)
    assert words in str(caught.value), str(caught.value)
    assert all(caught.value.lines())


def test_unknown_dtype_is_unsupported_and_all_problems_come_at_once(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(build({"a": entry("F3")}, 8))
    with pytest.raises(Unsupported, match=r"F3.*BF16"):
        reader.read_header(path)
    path.write_bytes(build({"a": entry("F3"), "b": entry(shape=(3,)), "c": 1}, 8))
    with pytest.raises(BadData) as caught:
        reader.read_header(path)
    assert all(words in str(caught.value) for words in ("F3", "tensor b", "tensor c"))


def test_truncation_names_both_sizes(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(100), "b": torch.zeros(50)}, path)
    size = path.stat().st_size
    os.truncate(path, size - 100)
    with pytest.raises(BadData, match=f"at least {size} bytes, found {size - 100}"):
        reader.read_header(path)


def write_folder(folder: Path) -> dict[str, str]:
    shards = {"model-00001-of-00002.safetensors": ("a", "b"), "model-00002-of-00002.safetensors": ("c",)}
    weight_map = {}
    for file, names in shards.items():
        save_file({name: torch.full((4,), ord(name), dtype=torch.float32) for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / reader.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


def test_folder_with_index(tmp_path):
    weight_map = write_folder(tmp_path)
    found = reader.read_folder(tmp_path)
    assert {name: Path(info.file).name for name, info in found.items()} == weight_map


def test_folder_without_index(tmp_path):
    write_folder(tmp_path)
    (tmp_path / reader.INDEX).unlink()
    assert set(reader.read_folder(tmp_path)) == {"a", "b", "c"}
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(BadData, match="model-00002-of-00002"):
        reader.read_folder(tmp_path)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(NotFound, match="safetensors"):
        reader.read_folder(tmp_path)


def test_folder_problems_name_the_shard(tmp_path):
    write_folder(tmp_path)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    kept = second.read_bytes()
    second.write_bytes(kept[:-1])
    with pytest.raises(BadData, match=f"{second.name}: .*truncated"):
        reader.read_folder(tmp_path)
    second.write_bytes(kept[:9] + b"\xff" + kept[10:])
    with pytest.raises(BadData, match=f"{second.name}: .*JSON"):
        reader.read_folder(tmp_path)
    second.unlink()
    with pytest.raises(BadData, match=f"shard {second.name} is missing"):
        reader.read_folder(tmp_path)
    save_file({"other": torch.zeros(1)}, second)
    with pytest.raises(BadData, match=f"tensor c is not in {second.name}"):
        reader.read_folder(tmp_path)
    save_file({"c": torch.zeros(1), "a": torch.zeros(4)}, second)
    with pytest.raises(BadData, match=f"tensor a is in both {first.name} and {second.name}"):
        reader.read_folder(tmp_path)


@pytest.mark.parametrize("index", [b"", b"[]", b'{"weight_map": []}', b'{"weight_map": {}}', b"{" * 9000, b"\xff"])
def test_bad_index(tmp_path, index):
    write_folder(tmp_path)
    (tmp_path / reader.INDEX).write_bytes(index)
    with pytest.raises(BadData, match="index"):
        reader.read_folder(tmp_path)


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "", 7, None])
def test_index_cannot_leave_the_folder(tmp_path, file):
    write_folder(tmp_path)
    (tmp_path / reader.INDEX).write_text(json.dumps({"weight_map": {"a": file}}))
    with pytest.raises(BadData, match="not a file name"):
        reader.read_folder(tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "a.safetensors"
    save_file({"a.weight": torch.zeros(4, 3), "b": torch.ones(2, dtype=torch.bfloat16)}, path)
    return path, path.read_bytes()


@settings(max_examples=400, deadline=2000, derandomize=True)
@given(edits=st.lists(st.tuples(st.integers(0, 250), st.integers(0, 255)), max_size=4), cut=st.integers(0, 400))
def test_any_damage_is_an_error_in_words_or_agrees_with_the_safetensors_package(tiny, edits, cut):
    path, content = tiny
    damaged = bytearray(content[: len(content) - cut] if cut < 250 else content)
    for at, value in edits:
        if at < len(damaged):
            damaged[at] = value
    target = path.with_name("damaged.safetensors")
    target.write_bytes(damaged)
    try:
        header = reader.read_header(target)
    except KTError as error:
        assert isinstance(error, (BadData, Unsupported)) and all(error.lines())
    else:
        with safe_open(target, "pt") as reference:
            assert set(reference.keys()) == set(header)
