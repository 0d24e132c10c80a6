"""GGUF headers: sound files from an independent writer, and every kind of damage."""

import os
import resource
import shutil
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import BadData, KTError, NotFound, Unsupported, UsageError
from kt_core.formats import FORMATS, nbytes
from kt_core.formats import gguf as reader

U8, I32, U32, F32, STRING, ARRAY = 0, 5, 4, 6, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def u32(name: str, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def tensor(name: str, dims: tuple[int, ...], type_id: int = 0, offset: int = 0) -> bytes:
    """`dims` innermost first, as in the file."""
    head = text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return head + struct.pack("<IQ", type_id, offset)


def build(
    keys: list[bytes],
    tensors: list[bytes],
    data: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    align: int = 32,
) -> bytes:
    tensor_count, key_count = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % align) + bytes(data)


def read(tmp_path: Path, content: bytes) -> reader.GGUFHeader:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return reader.read_header(path)


def write_tiny(path: Path, split: tuple[int, int] | None = None, tensors: int = 3, seed: int = 0) -> dict:
    """A sound file from the gguf package; returns name -> array."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), "llama")
    if split:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
        writer.add_int32("split.tensors.count", tensors * split[1])
    arrays = {}
    for index in range(tensors):
        name = f"blk.{seed}.t{index}.weight"
        arrays[name] = rng.standard_normal((4 + index, 32)).astype(np.float32)
        if index == 1:
            packed = gguf.quants.quantize(arrays[name], gguf.GGMLQuantizationType.Q8_0)
            arrays[name] = packed
            writer.add_tensor(name, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, arrays[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return arrays


def test_blocks_agree_with_the_gguf_package():
    ours = {"NVFP4": "GGML_NVFP4"}  # the plain name is another layout's
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        found = FORMATS[ours.get(kind.name, kind.name)]
        assert (found.block_size, found.block_bytes, found.ggml_id) == (block, size, kind.value), kind
    assert nbytes("Q4_1", 64) == 40
    with pytest.raises(ValueError, match="whole number"):
        nbytes("Q4_1", 33)
    with pytest.raises(ValueError, match="known: F32"):
        nbytes("Q9", 32)


def test_reads_back_what_the_gguf_package_wrote(tmp_path):
    path = tmp_path / "a.gguf"
    arrays = write_tiny(path)
    writer_keys = {"general.architecture": "llama"}
    header = reader.read_header(path)
    assert header.version == 3 and header.alignment == 32 and header.files == (str(path),)
    assert writer_keys.items() <= header.metadata.items()
    assert set(header.tensors) == set(arrays)
    raw = path.read_bytes()
    for name, array in arrays.items():
        info = header.tensors[name]
        assert raw[info.offset : info.offset + info.nbytes] == array.tobytes()
    assert header.tensors["blk.0.t1.weight"].format == "Q8_0"
    assert header.tensors["blk.0.t1.weight"].shape == (5, 32)


def test_every_value_type(tmp_path):
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    values = {
        "add_uint8": 200, "add_int8": -5, "add_uint16": 60000, "add_int16": -300, "add_uint32": 1 << 31,
        "add_int32": -7, "add_uint64": 1 << 63, "add_int64": -(1 << 62), "add_float32": 0.5, "add_float64": 0.1,
        "add_bool": True, "add_string": "héllo 世界",
    }  # fmt: skip
    for method, value in values.items():
        getattr(writer, method)(f"k.{method}", value)
    arrays = {"k.ints": [1, -2, 3], "k.strings": ["a", "", "世"], "k.floats": [0.5, 1.5], "k.nested": [[1, 2], [3]]}
    for name, value in arrays.items():
        writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = reader.read_header(path).metadata
    assert {name.removeprefix("k."): metadata[name] for name in metadata if name.startswith("k.add")} == values
    assert {name: metadata[name] for name in arrays} == arrays


def test_version_2_is_read(tmp_path):
    header = read(tmp_path, build([u32("a", 1)], [tensor("t", (4,))], data=16, version=2))
    assert header.version == 2 and header.tensors["t"].nbytes == 16


BIG = (1 << 42) + 1
DAMAGE = {
    "empty": (b"", "empty"),
    "three bytes": (b"GGU", "magic"),
    "not gguf": (b"PK\x03\x04" + bytes(50), "zip"),
    "only magic": (b"GGUF", "version"),
    "no counts": (b"GGUF\x03\0\0\0", "tensor count"),
    "too many tensors": (build([], [], counts=(1 << 60, 0)), "1152921504606846976 tensors"),
    "too many keys": (build([], [], counts=(0, 1 << 60)), "1152921504606846976 keys"),
    "string longer than the file": (build([struct.pack("<Q", 1 << 63) + b"abcdef"], [], data=64), "key 0"),
    "value string too long": (build([key("k", STRING, struct.pack("<Q", 1 << 40))], [], data=64), "k:"),
    "array too long": (build([key("k", ARRAY, struct.pack("<IQ", U32, 1 << 62))], [], data=64), "4611686018427387904"),
    "string array too long": (build([key("k", ARRAY, struct.pack("<IQ", STRING, 99))], [], data=64), "99 elements"),
    "string in an array too long": (
        build([key("k", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + struct.pack("<Q", 1 << 40))], [], data=64),
        "k: needs 1099511627776 bytes",
    ),
    "array of unknown type": (build([key("k", ARRAY, struct.pack("<IQ", 77, 1))], [], data=64), "value type 77"),
    "unknown value type": (build([key("k", 13, bytes(8))], [], data=64), "value type 13"),
    "deep nesting": (build([key("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 20)], [], data=64), "nested"),
    "empty key": (build([u32("", 1)], []), "empty name"),
    "key is not text": (build([text(b"\xff\xfe") + struct.pack("<II", U32, 1)], []), "UTF-8"),
    "same key twice": (build([u32("a", 1), u32("a", 2)], []), "a appears twice"),
    "same tensor twice": (build([], [tensor("t", (4,)), tensor("t", (4,), 0, 32)], data=64), "t appears twice"),
    "empty tensor name": (build([], [tensor("", (4,))], data=16), "empty name"),
    "zero dimension": (build([], [tensor("t", (4, 0))], data=16), "dimension of zero"),
    "dimension that wraps": (build([], [tensor("blk.0.w", (BIG, 1 << 22))], data=16), "blk.0.w"),
    "bytes that wrap": (build([], [tensor("t", ((1 << 62) + 1, 1))], data=16), "impossible dimensions"),
    "five dimensions": (build([], [tensor("t", (1, 1, 1, 1, 1))], data=16), "5 dimensions"),
    "2^32-1 dimensions": (build([], [text("t") + b"\xff\xff\xff\xff" + bytes(40)]), "4294967295 dimensions"),
    "rows that break a block": (build([], [tensor("t", (33,), 3)], data=64), "33 elements"),
    "alignment as int32": (build([key("general.alignment", I32, struct.pack("<i", 32))], []), "value type 5"),
    "alignment 0": (build([u32("general.alignment", 0)], []), "alignment is 0"),
    "alignment 3": (build([u32("general.alignment", 3)], []), "alignment is 3"),
    "alignment 2^31": (build([u32("general.alignment", 1 << 31)], []), "2147483648"),
    "misaligned tensor": (build([], [tensor("t", (4,), 0, 4)], data=64), "offset 4"),
    "tensor outside": (build([], [tensor("t", (4,), 0, 1 << 40)], data=64), "truncated"),
    "offset that wraps": (build([], [tensor("t", (4,), 0, (1 << 64) - 32)], data=64), "truncated"),
    "overlap": (build([], [tensor("a", (16,)), tensor("b", (4,), 0, 32)], data=64), "b overlaps a"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage(tmp_path, case):
    content, words = DAMAGE[case]
    with pytest.raises(BadData) as caught:
        read(tmp_path, content)
    assert words in str(caught.value), str(caught.value)
    assert all(caught.value.lines())


def test_big_endian_and_versions_are_unsupported(tmp_path):
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    for content, words in (
        (big, "big-endian"),
        (build([], [], version=1), "version 1"),
        (b"FUGG" + big[4:], "big-end"),
    ):
        with pytest.raises(Unsupported) as caught:
            read(tmp_path, content)
        assert words in str(caught.value)


def test_unknown_types_are_listed_with_their_tensors(tmp_path):
    known = [tensor(f"t{b.ggml_id}", (256,), b.ggml_id, 2048 * i) for i, b in enumerate(_ggml())]
    odd = [tensor("odd.weight", (256,), 99, 2048 * len(known)), tensor("odd2", (256,), 31, 2048 * len(known) + 32)]
    header = read(tmp_path, build([], known, data=2048 * len(known)))
    assert len(header.tensors) == len(known)
    with pytest.raises(Unsupported) as caught:
        read(tmp_path, build([], known + odd, data=2048 * (len(known) + 2)))
    for words in ("type 99", "odd.weight", "type 31", "odd2", "3=Q4_1"):
        assert words in str(caught.value)


def _ggml():
    return [block for block in FORMATS.values() if block.ggml_id is not None]


def test_all_problems_at_once_and_capped(tmp_path):
    bad = [tensor(f"zero{i}", (0,)) for i in range(3)] + [tensor("odd", (33,), 3), tensor("off", (4,), 0, 1)]
    with pytest.raises(BadData) as caught:
        read(tmp_path, build([u32("", 1), u32("general.alignment", 3)], bad, data=64))
    for words in ("zero0", "zero2", "odd", "off", "empty name", "alignment is 3"):
        assert words in str(caught.value)
    with pytest.raises(BadData) as caught:
        read(tmp_path, build([], [tensor(f"zero{i}", (0,)) for i in range(50)]))
    assert "and 30 more" in str(caught.value) and str(caught.value).count("dimension of zero") == 20


def test_names_from_the_file_cannot_control_the_terminal(tmp_path):
    with pytest.raises(BadData) as caught:
        read(tmp_path, build([], [tensor("\x1b[2Jt" + "x" * 500, (0,))]))
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 700


@pytest.mark.parametrize("part", [1, 100, 0.1, 0.9])
def test_truncated_file_names_both_sizes(tmp_path, part):
    path = tmp_path / "a.gguf"
    write_tiny(path)
    size = path.stat().st_size
    kept = size - part if part >= 1 else int(size * (1 - part))
    os.truncate(path, kept)
    with pytest.raises(BadData) as caught:
        reader.read_header(path)
    assert str(kept) in str(caught.value) or "bytes at byte" in str(caught.value)


def test_truncated_data_names_expected_size(tmp_path):
    path = tmp_path / "a.gguf"
    write_tiny(path, tensors=1)
    end = max(t.offset + t.nbytes for t in reader.read_header(path).tensors.values())
    os.truncate(path, end - 1)
    with pytest.raises(BadData, match=f"{end} bytes, found {end - 1}"):
        reader.read_header(path)


def test_missing_and_folder(tmp_path):
    with pytest.raises(NotFound):
        reader.read_header(tmp_path / "none.gguf")
    with pytest.raises(NotFound):
        reader.read_model(tmp_path)


def write_split(folder: Path, count: int = 3) -> dict:
    arrays = {}
    for number in reversed(range(count)):
        path = folder / f"m-{number + 1:05}-of-{count:05}.gguf"
        arrays |= write_tiny(path, (number, count), seed=number)
    return arrays


@pytest.mark.parametrize("entry", ["", "m-00001-of-00003.gguf", "m-00003-of-00003.gguf"])
def test_split_model_from_any_entry(tmp_path, entry):
    arrays = write_split(tmp_path)
    header = reader.read_model(tmp_path / entry)
    assert [Path(f).name for f in header.files] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert header.path == header.files[0]
    for name, array in arrays.items():
        info = header.tensors[name]
        assert Path(info.file).read_bytes()[info.offset :][: info.nbytes] == array.tobytes()


def test_split_model_with_own_names_and_links(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    write_split(tmp_path / "blobs")
    for name, blob in (("z", 1), ("a", 2), ("k", 3)):
        (tmp_path / "model" / f"{name}.gguf").symlink_to(tmp_path / "blobs" / f"m-0000{blob}-of-00003.gguf")
    for entry in ("", "k.gguf"):
        header = reader.read_model(tmp_path / "model" / entry)
        assert [Path(f).name for f in header.files] == ["z.gguf", "a.gguf", "k.gguf"]


def test_split_model_with_missing_doubled_or_disagreeing_parts(tmp_path):
    write_split(tmp_path)
    first, second, third = (tmp_path / f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3))
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(BadData, match=r"only 2 of 3 parts are there; missing: \[2\]"):
        reader.read_model(third)
    shutil.copy(first, second)
    with pytest.raises(BadData, match="part number 0 appears twice"):
        reader.read_model(first)
    second.write_bytes(kept)
    write_tiny(third, (2, 3), tensors=2, seed=2)
    with pytest.raises(BadData, match="hold 8 tensors, but the first part promises 9"):
        reader.read_model(first)


def test_joined_parts_are_explained(tmp_path):
    write_split(tmp_path)
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join((tmp_path / f"m-0000{n}-of-00003.gguf").read_bytes() for n in (1, 2)))
    with pytest.raises(BadData, match="llama-gguf-split --merge"):
        reader.read_model(joined)


def test_folder_with_several_models(tmp_path):
    write_tiny(tmp_path / "a.gguf")
    assert reader.read_model(tmp_path).path.endswith("a.gguf")
    write_tiny(tmp_path / "b.gguf")
    with pytest.raises(UsageError, match=r"a\.gguf, b\.gguf"):
        reader.read_model(tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "a.gguf"
    write_tiny(path)
    return path, path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        build([key("k", ARRAY, struct.pack("<IQ", U8, 1 << 33))], []),
        build([key("k", ARRAY, struct.pack("<IQ", STRING, 1 << 31))], []),
        build([], [], counts=(0, 1 << 23)),
        build([], [], counts=(1 << 22, 0)),
        build([struct.pack("<Q", 1 << 33)], []),
    ],
)
def test_a_large_file_does_not_make_large_claims_true(tmp_path, content):
    """Everything claimed here would fit into the (sparse) file; reading it would take gigabytes or minutes."""
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    os.truncate(path, 1 << 36)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(BadData):
        reader.read_header(path)
    assert time.monotonic() - start < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


@settings(max_examples=400, deadline=2000, derandomize=True)
@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4), cut=st.integers(0, 2000))
def test_any_damage_is_an_error_in_words_or_harmless(tiny, edits, cut):
    path, content = tiny
    damaged = bytearray(content[: len(content) - cut] if cut < 1500 else content)
    for at, value in edits:
        if at < len(damaged):
            damaged[at] = value
    target = path.with_name("damaged.gguf")
    target.write_bytes(damaged)
    try:
        header = reader.read_model(target)
    except KTError as error:
        assert isinstance(error, (BadData, Unsupported)) and all(error.lines())
    else:
        assert all(t.offset + t.nbytes <= len(damaged) for t in header.tensors.values())


def test_smollm2_is_read_as_the_gguf_package_reads_it(smollm2_gguf):
    header = reader.read_model(smollm2_gguf)
    reference = gguf.GGUFReader(str(smollm2_gguf))
    assert len(header.tensors) == 272
    for t in reference.tensors:
        info = header.tensors[t.name]
        assert (info.format, info.shape[::-1]) == (t.tensor_type.name, tuple(t.shape.tolist()))
        assert (info.offset, info.nbytes) == (t.data_offset, t.n_bytes)
    for name, field in reference.fields.items():
        if not name.startswith("GGUF.") and not name.endswith((".tokens", ".merges", ".token_type")):
            assert header.metadata[name] == field.contents()
    tokens = reference.fields["tokenizer.ggml.tokens"]
    for at in (0, 1, 2, 17, 40000, 49151):
        assert header.metadata["tokenizer.ggml.tokens"][at] == bytes(tokens.parts[tokens.data[at]]).decode()
