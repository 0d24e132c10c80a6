"""The weights of a checkpoint, under the names that the output has, each with its place in the model."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.errors import Unsupported
from kt_core.formats import TensorInfo, gguf, safetensors
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.quantized import quantised, unquantised
from kt_core.models import families
from kt_core.models.parts import part_of
from kt_core.models.spec import check_config, described_in
from kt_core.types import ModelFiles
from kt_core.weights import Matrix, Weights, decode_matrix, names
from kt_core.weights.quantized import COLUMN_MAJOR
from kt_core.weights.store import read_config, refuse_converted

Floats = npt.NDArray[np.float32]
OUTSIDE = -1  # the layer of what is in none
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d{1,6})\.")
_BLOCK_ROWS = 128
_PARTS = ("gate", "up", "down")
# Published names of experts where they are not transformers' own: mixtral's.
_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


@dataclass(frozen=True)
class Weight:
    """One tensor of the output, before anything is done with it. `shape` is row-major, `format` as it is stored.

    `open` gives its matrices, one after another along the rows; `order`, if any, the source's row of each row. `places` says
    for each matrix where it lies in the checkpoint (names.Rows.place; a tensor's name alone: all of that).
    """

    name: str
    shape: tuple[int, ...]
    format: str
    part: str
    layer: int
    open: Callable[[], Sequence[Matrix]]
    places: tuple[str, ...]
    order: Callable[[], npt.NDArray[np.int64]] | None = None

    @property
    def cols(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def rows(self) -> int:
        count = 1
        for dimension in self.shape[:-1]:
            count *= dimension
        return count


@dataclass(frozen=True)
class Source:
    """A checkpoint that is open. `config` is transformers' configuration without what it says about storage; `unloadable` says
    why kt has no model for it, if so."""

    files: ModelFiles
    config: dict[str, Any]
    weights: tuple[Weight, ...]
    header: GGUFHeader | None
    forget: Callable[[], None]  # lets what was read leave this process's memory
    unloadable: Unsupported | None = None

    @property
    def layers(self) -> int:
        return int(self.config.get("text_config", self.config).get("num_hidden_layers", 0))


def open_source(files: ModelFiles, to_gguf: bool) -> Source:
    """The weights of a checkpoint, with the names of a GGUF file or of a Hugging Face folder.

    Raises what opening weights raises, BadData for a tensor that is missing or has another shape than the model's, and
    Unsupported for a family that has no GGUF form here.
    """
    header = gguf.read_model(files.path) if files.format == "gguf" else None
    if header is not None:
        config, tensors = families.gguf_config(header), dict(header.tensors)
    else:
        folder = read_config(Path(files.path))
        check_config(folder, described_in(files))
        tensors, config = quantised(safetensors.read_folder(files.path), folder, files.path), unquantised(folder)
        refuse_converted(tensors, files.path)
        if to_gguf:  # with what config.json leaves to transformers' defaults
            from kt_core.engine.config import model_config

            families.architecture(config)
            config = model_config(config, files.path).to_dict()
    from kt_core.quantise import whole  # with transformers, whose import takes seconds

    unloadable = whole.check(files, header)
    stored = Weights(tensors, names.as_stored(tensors), config, files.path)
    layers = int(config.get("text_config", config).get("num_hidden_layers", 0))
    made = _Maker(stored, config, layers)
    if header is not None and to_gguf:
        found = [made.whole(tensor) for tensor in tensors.values()]
    elif header is not None:
        families.gguf_names(header)
        found = list(made.from_names(names.from_gguf(header, config), files))
    elif to_gguf:
        found = list(made.for_gguf(names.from_safetensors(tensors, config), files))
    else:
        found = list(made.folder(tensors, files))
    return Source(files, config, tuple(found), header, made.forget, unloadable)


class _Maker:
    """Makes `Weight`s; `opened` are all views of the checkpoint that they read through."""

    def __init__(self, stored: Weights, config: dict[str, Any], layers: int) -> None:
        self.stored = stored
        self.config = config
        self.layers = layers
        self.opened = [stored]

    def forget(self) -> None:
        for weights in self.opened:
            weights.forget_pages()

    def weight(
        self, name: str, shape: tuple[int, ...], format: str, open: Callable[[], Sequence[Matrix]], *places: str
    ) -> Weight:
        match = _LAYER.search(name)
        layer = int(match[1]) if match else OUTSIDE
        return Weight(name, shape, format, part_of(name, self.layers), layer, open, places)

    def whole(self, tensor: TensorInfo, name: str = "") -> Weight:
        def opened() -> Sequence[Matrix]:
            return [self.stored.stored(tensor.name)]

        return self.weight(name or tensor.name, tensor.shape, tensor.format, opened, tensor.name)

    def named(self, map: names.NameMap, files: ModelFiles) -> Weights:
        tensors = {rows.tensor.name: rows.tensor for rows in map.parameters.values()}
        weights = Weights(tensors, map, self.config, files.path)
        self.opened.append(weights)
        return weights

    def folder(self, tensors: dict[str, TensorInfo], files: ModelFiles) -> Iterator[Weight]:
        """A folder's own names; experts that are stored in one tensor become one each."""
        stacks = {t.name for t in tensors.values() if len(t.shape) == 3 and ".experts." in t.name}
        map = names.from_safetensors(tensors, self.config) if stacks else names.NameMap()
        experts = {
            prefix: parts
            for prefix, parts in map.experts.items()
            if parts and any(rows.tensor.name in stacks for rows in parts[0].values())
        }
        taken = {rows.tensor.name for parts in experts.values() for expert in parts for rows in expert.values()}
        yield from (self.whole(tensor) for name, tensor in tensors.items() if name not in taken)
        yield from self._single(replace(map, experts=experts), self.named(map, files))

    def from_names(self, map: names.NameMap, files: ModelFiles) -> Iterator[Weight]:
        """A GGUF file's weights by transformers' published names."""
        weights = self.named(map, files)
        for name, rows in map.parameters.items():

            def opened(name: str = name) -> Sequence[Matrix]:
                return [weights.stored(name)]

            yield self.weight(name, rows.shape, rows.tensor.format, opened, rows.place)
        yield from self._single(map, weights)

    def _single(self, map: names.NameMap, weights: Weights) -> Iterator[Weight]:
        """Every expert's matrices, one tensor each."""
        mixtral = self.config.get("model_type") == "mixtral"
        for prefix, experts in map.experts.items():
            for index, parts in enumerate(experts):
                for part, rows in parts.items():
                    name = f"{prefix}.{index}.{part}_proj.weight"
                    if mixtral:
                        place = prefix.replace(".mlp.", ".block_sparse_moe.")
                        name = f"{place}.{index}.{_MIXTRAL[f'{part}_proj']}.weight"

                    def opened(prefix: str = prefix, index: int = index, part: str = part) -> Sequence[Matrix]:
                        return [weights.expert(prefix, index, part)]

                    yield self.weight(name, rows.shape, rows.tensor.format, opened, rows.place)

    def for_gguf(self, map: names.NameMap, files: ModelFiles) -> Iterator[Weight]:
        """A folder's weights by GGUF's names, experts stacked, rows in the order of the family."""
        weights = self.named(map, files)
        for hf, name in families.names_of(self.config).items():
            prefix, _, part = hf.rpartition(".")
            part = part.removesuffix("_proj")
            if part in _PARTS and prefix in map.experts:
                experts = map.experts[prefix]
                rows = experts[0][part]

                def opened(prefix: str = prefix, part: str = part, count: int = len(experts)) -> Sequence[Matrix]:
                    return [weights.expert(prefix, index, part) for index in range(count)]

                places = (expert[part].place for expert in experts)
                yield self.weight(name, (len(experts), *rows.shape), rows.tensor.format, opened, *places)
                continue
            if hf not in map.parameters:
                raise Unsupported("quantise.no_tensor", tensor=hf, model=files.path)
            found = map.parameters[hf]
            made = self.weight(name, found.shape, found.tensor.format, lambda hf=hf: [weights.stored(hf)], found.place)  # type: ignore[misc]
            heads = families.heads_of(self.config, hf)
            yield replace(made, order=lambda rows=made.rows, heads=heads: _alternating(rows, heads)) if heads else made  # type: ignore[misc]


def _alternating(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """For rows that alternate between the halves of each head: which row of one half after the other each one is."""
    order: npt.NDArray[np.int64] = np.arange(rows).reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
    return order


def floats(matrix: Matrix, first: int, count: int) -> Floats:
    """float32 [count, cols] of some rows. For FP8 blocks `first` must begin one."""
    if matrix.format in COLUMN_MAJOR:
        return decode_matrix(matrix)[first : first + count]
    window = slice(first, first + count)
    scales, zeros = matrix.scales, matrix.zeros
    if scales is not None and matrix.format == "FP8_BLOCK":
        scales = scales[first // _BLOCK_ROWS : -(-(first + count) // _BLOCK_ROWS)]
    elif scales is not None:
        scales = scales[window]
    zeros = zeros[window] if zeros is not None else None
    return decode_matrix(replace(matrix, rows=count, data=matrix.data[window], scales=scales, zeros=zeros))


def is_plain(tensor_format: str) -> bool:
    """Whether a safetensors file can hold the format as it is, without scales beside it."""
    return tensor_format in ("F32", "F16", "BF16", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL")
