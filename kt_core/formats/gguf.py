"""GGUF headers, versions 2 and 3, little-endian, single files and split models.

Layout: magic, version u32, tensor count u64, key count u64; the keys (string, type u32, value);
the tensors (string, dimension count u32, dimensions u64 innermost first, type u32, offset u64);
padding to the alignment; the data, to which the offsets are relative.

No number of the file is trusted: a length is compared with the bytes that are left before anything
of that length is read or allocated, and Python's integers do not wrap. What follows a broken length
has no known place, so reading stops there; all other problems are collected first.
"""

import mmap
import re
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kt_core.errors import NotFound, UsageError
from kt_core.formats.blocks import BY_GGML_ID, TensorInfo
from kt_core.formats.problems import Problems, Stop, disguise, file_size, shown

MAGIC = b"GGUF"
HEADER_LIMIT = 1 << 27  # bytes; the largest published vocabularies take about 2^24
ARRAY_LIMIT = 1 << 22  # elements; the largest published vocabularies have about 2^18, their merges 2^19
KEY_LIMIT = 1 << 16  # published files have under 100
TENSOR_LIMIT = 1 << 20  # the largest published models have under 2^17, one tensor an expert included
ALIGNMENT_LIMIT = 1 << 20
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_NESTING = 4
_INT63 = (1 << 63) - 1
_SMALLEST_KEY = 13  # bytes of an entry with an empty key and a one-byte value
_SMALLEST_TENSOR = 24  # bytes of an entry with an empty name and no dimension

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_SMALLEST_VALUE = {_STRING: 8, _ARRAY: 12} | {t: struct.calcsize("<" + c) for t, c in _SCALARS.items()}


@dataclass(frozen=True)
class GGUFHeader:
    """All that a GGUF model says about itself. `path`, `version`, `alignment` and `data_offset` are the first part's."""

    path: str
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    alignment: int
    data_offset: int
    files: tuple[str, ...]


class _Cursor:
    """Reads forward through the header; every read is checked against `end` first."""

    def __init__(self, data: mmap.mmap, end: int) -> None:
        self.data = data
        self.at = 0
        self.end = end

    def skip(self, count: int, what: str) -> int:
        """Moves over `count` bytes and returns where they start."""
        start = self.at
        if count > self.end - start:
            raise Stop("formats.ends_early", what=what, needed=count, left=self.end - start, at=start)
        self.at = start + count
        return start

    def number(self, code: str, what: str) -> Any:
        start = self.skip(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self.data, start)[0]

    def bytes_(self, what: str) -> bytes:
        length = self.number("Q", what)
        start = self.skip(length, what)
        return self.data[start : start + length]

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], what)
        if kind == _STRING:
            return self.bytes_(what).decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array(what, depth)
        raise Stop("formats.value_type", what=what, type=kind)

    def array(self, what: str, depth: int) -> list[Any]:
        if depth == MAX_NESTING:
            raise Stop("formats.nesting", what=what, limit=MAX_NESTING)
        kind, count = self.number("I", what), self.number("Q", what)
        if kind not in _SMALLEST_VALUE:
            raise Stop("formats.value_type", what=what, type=kind)
        if count > ARRAY_LIMIT or count * _SMALLEST_VALUE[kind] > self.end - self.at:
            raise Stop("formats.array_length", what=what, count=count, limit=ARRAY_LIMIT, left=self.end - self.at)
        if kind in _SCALARS:
            start = self.skip(count * _SMALLEST_VALUE[kind], what)
            return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", self.data, start))
        if kind == _STRING:
            return self.strings(count, what)
        return [self.array(what, depth + 1) for _ in range(count)]

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings in a loop of its own: a vocabulary of 150,000 takes 0.13 s, through `value` 0.43 s."""
        data, at, end = self.data, self.at, self.end
        read_length = struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            start = at + 8
            length = read_length(data, at)[0] if start <= end else 8
            at = start + length
            if at > end:
                raise Stop("formats.ends_early", what=what, needed=length, left=max(0, end - start), at=start)
            found.append(str(data[start:at], "utf-8", "replace"))
        self.at = at
        return found


def read_header(path: str | Path) -> GGUFHeader:
    """The header of one GGUF file.

    Raises NotFound; BadData listing every problem found; Unsupported for a sound file of another version,
    byte order or tensor type.
    """
    path = Path(path)
    size = file_size(path)
    problems = Problems()
    header = None
    if size == 0:
        problems.add("formats.empty")
    else:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                header = _parse(path, data, size, problems)
            except Stop as stop:
                problems.add(stop.key, **stop.args_)
    problems.raise_for(path, "GGUF")
    assert header is not None
    return header


def _parse(path: Path, data: mmap.mmap, size: int, problems: Problems) -> GGUFHeader | None:
    if not _known_version(data, problems):
        return None
    cursor = _Cursor(data, min(size, HEADER_LIMIT))
    cursor.skip(4, "magic")
    version = cursor.number("I", "version")
    tensor_count, key_count = cursor.number("Q", "tensor count"), cursor.number("Q", "key count")
    left = cursor.end - cursor.at
    if key_count * _SMALLEST_KEY + tensor_count * _SMALLEST_TENSOR > left:
        raise Stop("formats.counts", keys=key_count, tensors=tensor_count, left=left)
    if key_count > KEY_LIMIT or tensor_count > TENSOR_LIMIT:
        raise Stop("formats.too_many", keys=key_count, tensors=tensor_count, limits=f"{KEY_LIMIT}, {TENSOR_LIMIT}")
    metadata, alignment = _read_metadata(cursor, key_count, problems)
    entries = [_read_tensor(cursor, problems) for _ in range(tensor_count)]
    data_offset = _aligned(cursor.at, alignment)
    _check_types(entries, problems)
    tensors: dict[str, TensorInfo] = {}
    for name, shape, type_id, offset in entries:
        if name in tensors:
            problems.add("formats.duplicate_tensor", tensor=name)
        if offset % alignment:
            problems.add("formats.misaligned", tensor=name, offset=offset, alignment=alignment)
        block = BY_GGML_ID.get(type_id)
        nbytes = _size(name, shape, type_id, problems)
        tensors[name] = TensorInfo(
            name, block.name if block else str(type_id), shape, str(path), data_offset + offset, nbytes
        )
    _check_layout(data, list(tensors.values()), data_offset, size, problems)
    return GGUFHeader(str(path), version, metadata, tensors, alignment, data_offset, (str(path),))


def _known_version(data: mmap.mmap, problems: Problems) -> bool:
    first = data[:24]
    if first[:4] != MAGIC:
        if first[:4] == MAGIC[::-1]:
            problems.unsupported("formats.big_endian")
        else:
            problems.add("formats.not_gguf", found=disguise(first) or repr(first[:4])[1:])
        return False
    if len(first) < 8:
        problems.add("formats.ends_early", what="version", needed=4, left=len(first) - 4, at=4)
        return False
    version = struct.unpack("<I", first[4:8])[0]
    if version in (2, 3):
        return True
    if version & 0xFFFF == 0:
        problems.unsupported("formats.big_endian")
    else:
        problems.unsupported("formats.version", version=version)
    return False


def _read_metadata(cursor: _Cursor, count: int, problems: Problems) -> tuple[dict[str, Any], int]:
    """(key -> value, alignment); the alignment is the default one when the file's own is unusable."""
    metadata: dict[str, Any] = {}
    alignment = DEFAULT_ALIGNMENT
    for index in range(count):
        key = _name(cursor, f"key {index}", problems)
        if not key:
            problems.add("formats.empty_key", index=index)
        if key in metadata:
            problems.add("formats.duplicate_key", name=key)
        kind = cursor.number("I", key)
        metadata[key] = cursor.value(kind, key)
        if key == "general.alignment":
            value = metadata[key]
            if kind != _UINT32:
                problems.add("formats.alignment_type", type=kind)
            elif not 0 < value <= ALIGNMENT_LIMIT or value & (value - 1):
                problems.add("formats.alignment_value", value=value, limit=ALIGNMENT_LIMIT)
            else:
                alignment = value
    return metadata, alignment


def _name(cursor: _Cursor, what: str, problems: Problems) -> str:
    raw = cursor.bytes_(what)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        problems.add("formats.not_utf8", what=what)
        return raw.decode("utf-8", "replace")


def _read_tensor(cursor: _Cursor, problems: Problems) -> tuple[str, tuple[int, ...], int, int]:
    """(name, row-major shape, type id, offset in the data)."""
    name = _name(cursor, "tensor name", problems)
    if not name:
        problems.add("formats.empty_tensor_name")
    dims = cursor.number("I", name)
    if dims > MAX_DIMS:
        raise Stop("formats.too_many_dims", tensor=name, dims=dims, limit=MAX_DIMS)
    shape = tuple(cursor.number("Q", name) for _ in range(dims))[::-1]
    return name, shape, cursor.number("I", name), cursor.number("Q", name)


def _size(name: str, shape: tuple[int, ...], type_id: int, problems: Problems) -> int:
    """Bytes of the tensor's data; 0 when they cannot be known, which has left a problem behind."""
    elements = 1
    for dimension in shape:
        elements *= dimension
    block = BY_GGML_ID.get(type_id)
    row = shape[-1] if shape else 1
    if 0 in shape:
        problems.add("formats.zero_dim", tensor=name, shape=list(shape))
    elif elements > _INT63 or (block and elements * block.block_bytes > _INT63):
        problems.add("formats.too_large", tensor=name, shape=list(shape))
    elif block and row % block.block_size:
        problems.add("formats.broken_rows", tensor=name, row=row, format=block.name, block=block.block_size)
    elif block:
        return elements // block.block_size * block.block_bytes
    return 0


def _check_types(entries: list[tuple[str, tuple[int, ...], int, int]], problems: Problems) -> None:
    """One problem for each unknown type id, with the tensors that have it."""
    unknown: dict[int, list[str]] = {}
    for name, _, type_id, _ in entries:
        if type_id not in BY_GGML_ID:
            unknown.setdefault(type_id, []).append(name)
    for type_id, names in unknown.items():
        listed = ", ".join(shown(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")
        problems.unsupported("formats.unknown_type", type=type_id, count=len(names), tensors=listed)
    if unknown:
        known = " ".join(f"{block.ggml_id}={block.name}" for block in BY_GGML_ID.values())
        problems.unsupported("formats.known_types", known=known)


def _check_layout(data: mmap.mmap, tensors: list[TensorInfo], start: int, size: int, problems: Problems) -> None:
    """Tensors lie inside the file, side by side, and nothing that looks like another model follows them."""
    outside = [tensor for tensor in tensors if tensor.offset + tensor.nbytes > size]
    if outside:
        expected = max(tensor.offset + tensor.nbytes for tensor in outside)
        problems.add("formats.truncated", expected=expected, actual=size, count=len(outside), tensor=outside[0].name)
    placed = sorted((t for t in tensors if t.nbytes), key=lambda t: t.offset)
    for first, second in pairwise(placed):
        if first.offset + first.nbytes > second.offset:
            problems.add("formats.overlap", first=first.name, second=second.name)
    end = max((tensor.offset + tensor.nbytes for tensor in placed), default=start)
    if not outside and size > end:
        again = data.find(MAGIC, end, min(size, end + ALIGNMENT_LIMIT))
        if again >= 0:
            problems.add("formats.joined", at=again)


def _aligned(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment


def read_model(path: str | Path) -> GGUFHeader:
    """The header of a whole model: a file, any part of a split model, or the folder that holds them.

    Parts are ordered by their own `split.no`, never by name or listing order. Raises as read_header does;
    NotFound for an empty folder; UsageError for a folder with several models; BadData for missing, doubled or
    disagreeing parts.
    """
    path = Path(path)
    if path.is_dir():
        path = _entry(path)
    header = read_header(path)
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return header
    return _merge(path, count, _parts(path, header, count))


_PART_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def _entry(folder: Path) -> Path:
    """The one model's file, or any of its parts."""
    files = sorted(f for f in folder.glob("*.gguf") if not f.name.startswith("mmproj"))
    if not files:
        raise NotFound("formats.no_gguf", path=shown(str(folder)))
    stems = {match["stem"] if (match := _PART_NAME.fullmatch(f.name)) else f.name for f in files}
    if len(stems) > 1 and not all(read_header(f).metadata.get("split.count", 1) == len(files) for f in files):
        raise UsageError("formats.several", path=shown(str(folder)), names=", ".join(shown(f.name) for f in files))
    return files[0]


def _parts(path: Path, header: GGUFHeader, count: int) -> list[GGUFHeader]:
    """Every file beside `path` that is a part of the same model, `path` itself included."""
    match = _PART_NAME.fullmatch(path.name)
    pattern = f"{_escaped(match['stem'])}-*-of-{match['count']}.gguf" if match else "*.gguf"
    others = [read_header(f) for f in sorted(path.parent.glob(pattern)) if f.name != path.name]
    return [header, *(h for h in others if h.metadata.get("split.count") == count)]


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


def _merge(path: Path, count: int, parts: list[GGUFHeader]) -> GGUFHeader:
    problems = Problems()
    by_number: dict[Any, GGUFHeader] = {}
    for part in parts:
        number = part.metadata.get("split.no")
        if number in by_number:
            names = f"{Path(part.path).name}, {Path(by_number[number].path).name}"
            problems.add("formats.same_part", number=number, names=names)
        by_number[number] = part
    wrong = [n for n in by_number if not isinstance(n, int) or not 0 <= n < count]
    if wrong:
        problems.add("formats.part_number", numbers=wrong, count=count)
    elif len(by_number) < count:
        missing = [n for n in range(min(count, len(by_number) + 10)) if n not in by_number]
        problems.add("formats.parts_missing", missing=[n + 1 for n in missing], found=len(by_number), count=count)
    problems.raise_for(path, "GGUF")
    ordered = [by_number[n] for n in range(count)]
    tensors: dict[str, TensorInfo] = {}
    for part in ordered:
        for name in part.tensors.keys() & tensors.keys():
            problems.add("formats.duplicate_tensor", tensor=name)
        tensors.update(part.tensors)
    promised = ordered[0].metadata.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        problems.add("formats.parts_disagree", promised=promised, found=len(tensors))
    problems.raise_for(path, "GGUF")
    return replace(ordered[0], tensors=tensors, files=tuple(part.path for part in ordered))
