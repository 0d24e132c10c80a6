"""Safetensors headers: single files, and folders of shards with or without an index.

Layout: header length u64, a JSON object of that many bytes (name -> dtype, shape, data_offsets
relative to the end of the header), then the data without holes or overlaps.
"""

import json
import re
import struct
from pathlib import Path
from typing import Any, TypeGuard

from kt_core.errors import NotFound
from kt_core.formats.blocks import BY_SAFETENSORS, TensorInfo
from kt_core.formats.problems import Problems, disguise, file_size, shown

HEADER_LIMIT = 100_000_000  # bytes, the format's own limit
INDEX = "model.safetensors.index.json"
MAX_DIMS = 16  # no real tensor has more, and the product of unbounded lists takes quadratic time
_INT63 = (1 << 63) - 1


def read_header(path: str | Path) -> dict[str, TensorInfo]:
    """The tensors of one file. Raises NotFound; BadData listing every problem; Unsupported for unknown dtypes."""
    problems = Problems()
    tensors = _read(Path(path), problems)
    problems.raise_for(path, "safetensors")
    return tensors


def read_folder(folder: str | Path) -> dict[str, TensorInfo]:
    """The tensors of a model folder, from every shard that its index names, or from all its files.

    Raises as read_header does, with each problem's shard named, and NotFound for a folder without weights.
    """
    folder = Path(folder)
    problems = Problems()
    index = folder / INDEX
    weight_map = _read_index(index, problems) if index.exists() else {}
    names = sorted(set(weight_map.values())) or ([] if problems else _shards(folder, problems))
    tensors: dict[str, TensorInfo] = {}
    for name in names:
        path = folder / name
        if not path.exists():
            count = sum(file == name for file in weight_map.values())
            problems.add("formats.shard_missing", shard=name, count=count)
            continue
        own = Problems()
        found = _read(path, own)
        problems.extend(own, name)
        for tensor in found.keys() & tensors.keys():
            problems.add("formats.tensor_twice", tensor=tensor, first=Path(tensors[tensor].file).name, second=name)
        tensors.update(found)
        if not own:
            for tensor, file in weight_map.items():
                if file == name and tensor not in found:
                    problems.add("formats.not_in_shard", tensor=tensor, shard=name)
    problems.raise_for(folder, "safetensors")
    return tensors


_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


def _shards(folder: Path, problems: Problems) -> list[str]:
    """File names of a folder without an index; numbered shards must be complete."""
    names = sorted(f.name for f in folder.glob("*.safetensors"))
    if not names:
        raise NotFound("formats.no_safetensors", path=shown(str(folder)))
    if "model.safetensors" in names:
        return ["model.safetensors"]
    for match in filter(None, map(_SHARD_NAME.fullmatch, names)):
        stem, count = match["stem"], int(match["count"])
        wanted = [f"{stem}-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
        for missing in sorted(set(wanted) - set(names)):
            problems.add("formats.shard_missing", shard=missing, count="?")
        return [name for name in wanted if name in names]
    return names


def _read_index(path: Path, problems: Problems) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        problems.add("formats.bad_index", file=path.name)
        return {}
    if not isinstance(weight_map, dict) or not weight_map:
        problems.add("formats.bad_index", file=path.name)
        return {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            problems.add("formats.index_entry", tensor=tensor, file=str(file))
            return {}
    return weight_map


def _read(path: Path, problems: Problems) -> dict[str, TensorInfo]:
    size = file_size(path)
    with path.open("rb") as file:
        first = file.read(8)
        real = disguise(first + file.read(32))
        if real:
            problems.add("formats.not_safetensors", found=real)
            return {}
        if size < 8:
            problems.add("formats.ends_early", what="header length", needed=8, left=size, at=0)
            return {}
        length = struct.unpack("<Q", first)[0]
        if length > min(size - 8, HEADER_LIMIT):
            problems.add("formats.header_length", length=length, left=size - 8, limit=HEADER_LIMIT)
            return {}
        file.seek(8)
        entries = _parse_json(file.read(length), problems)
    start = 8 + length
    tensors = {}
    for name, entry in entries.items():
        info = _place(name, entry, str(path), start, problems)
        if info:
            tensors[name] = info
    _check_layout(list(tensors.values()), start, size, problems)
    return tensors


def _parse_json(text: bytes, problems: Problems) -> dict[str, Any]:
    """The header's entries without `__metadata__`; doubled names are a problem, not the last one's victory."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                problems.add("formats.duplicate_tensor", tensor=name)
            found[name] = value
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        problems.add("formats.bad_json", reason=str(error))
        return {}
    if not isinstance(header, dict):
        problems.add("formats.bad_json", reason=type(header).__name__)
        return {}
    header.pop("__metadata__", None)
    return header


def _place(name: str, entry: Any, file: str, start: int, problems: Problems) -> TensorInfo | None:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, span = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(dtype, str) or not _is_sizes(shape) or not _is_sizes(span) or len(span) != 2:
        problems.add("formats.bad_entry", tensor=name)
        return None
    block = BY_SAFETENSORS.get(dtype)
    if block is None:
        problems.unsupported("formats.unknown_dtype", tensor=name, dtype=dtype, known=" ".join(BY_SAFETENSORS))
        return None
    elements = 1
    for dimension in shape:
        elements *= dimension
    begin, end = span
    if elements > _INT63:
        problems.add("formats.too_large", tensor=name, shape=shape)
    elif elements % block.block_size or elements // block.block_size * block.block_bytes != end - begin:
        problems.add("formats.span", tensor=name, dtype=dtype, shape=shape, bytes=end - begin)
    else:
        return TensorInfo(name, block.name, tuple(shape), file, start + begin, end - begin)
    return None


def _is_sizes(value: Any) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or len(value) > MAX_DIMS:
        return False
    return all(type(number) is int and 0 <= number <= _INT63 for number in value)


def _check_layout(tensors: list[TensorInfo], start: int, size: int, problems: Problems) -> None:
    """The data is covered by the tensors without overlap or hole and ends where the file ends."""
    whole = not problems  # a tensor that was refused leaves a hole that is no news
    placed = sorted(tensors, key=lambda t: (t.offset, t.nbytes))
    at, before = start, "header"
    for tensor in placed:
        if tensor.offset < at:
            problems.add("formats.overlap", first=before, second=tensor.name)
        elif tensor.offset > at and whole:
            problems.add("formats.hole", at=at, bytes=tensor.offset - at, tensor=tensor.name)
        if tensor.offset + tensor.nbytes >= at:
            at, before = tensor.offset + tensor.nbytes, tensor.name
    if at > size:
        outside = [t.name for t in placed if t.offset + t.nbytes > size]
        problems.add("formats.truncated", expected=at, actual=size, count=len(outside), tensor=outside[0])
    elif at < size and whole:
        problems.add("formats.trailing", bytes=size - at, at=at)
