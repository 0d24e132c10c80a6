"""Opening a checkpoint: one memory map a file, weights by transformers' parameter names."""

import json
import math
import mmap
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kt_core.errors import BadData, NotFound, Unsupported
from kt_core.formats import TensorInfo, gguf, safetensors
from kt_core.formats.gguf import GGUFHeader
from kt_core.formats.problems import Problems, shown
from kt_core.formats.quantized import Quantized, quantised, unquantised
from kt_core.messages import t
from kt_core.models import families
from kt_core.models.spec import described_in
from kt_core.types import ModelFiles
from kt_core.weights import names as name_maps
from kt_core.weights import quantized
from kt_core.weights.decode import DECODERS, decode, decode_matrix
from kt_core.weights.matrix import Matrix
from kt_core.weights.names import NameMap, Rows

DECODED_AT_ONCE = 1 << 24  # elements; bounds the float32 copy while a large table is decoded

# Fused parameters of an experts module -> the parts of one expert that they hold, in order.
_FUSED = {"gate_up_proj": ("gate", "up"), "up_proj": ("up",), "down_proj": ("down",)}
_CONVERTED = re.compile(r"blk\.\d+\..*\.numa\.\d+\.")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Weights:
    """A checkpoint under the names of transformers' state dict; nothing is read before it is asked for.

    Routed experts have two faces: `expert(prefix, index, part)` for kernels, and the fused parameters
    `prefix.gate_up_proj` [E, 2I, H] and `prefix.down_proj` [E, H, I] for transformers' own modules.
    """

    def __init__(
        self, tensors: dict[str, TensorInfo], names: NameMap, config: dict[str, Any], described_in: str
    ) -> None:
        self.described_in = described_in  # the file that `config` comes from
        self.vision = False  # whether the names are those of the class that looks at images
        self._tensors = tensors
        self._rows = names.parameters
        self._experts = names.experts
        self._skipped = names.skipped
        self._interleaved = names.interleaved
        self._turned = names.turned
        self._config = config
        self._maps: dict[str, npt.NDArray[np.uint8]] = {}
        self._used: set[str] = set()
        self._same: dict[str, str] = {}

    def tie(self, names: Mapping[str, str]) -> None:
        """Let each parameter and its value here stand for the other one where the checkpoint holds only one of them."""
        both = {**{source: target for target, source in names.items()}, **names}
        self._same |= {name: other for name, other in both.items() if name not in self and other in self}

    def config(self) -> dict[str, Any]:
        """The model's config.json as a dict of its own, without what it says about quantisation."""
        copy: dict[str, Any] = json.loads(json.dumps(unquantised(self._config)))
        return copy

    def names(self) -> set[str]:
        """Every parameter that `tensor` knows, a tied output matrix and fused experts included."""
        fused = {f"{prefix}.{part}" for prefix in self._experts for part in ("gate_up_proj", "down_proj")}
        return self._rows.keys() | fused | ({_HEAD} if self._tied else set())

    def __contains__(self, name: str) -> bool:
        prefix, _, part = name.rpartition(".")
        fused = part in _FUSED and prefix in self._experts
        return name in self._rows or fused or (name == _HEAD and self._tied) or name in self._same

    def matrix(self, name: str) -> Matrix:
        """A 2-D weight in its stored form. Raises NotFound, with near names, and BadData for other dimensions."""
        return self._two_dimensions(name, self._find(name))

    def stored(self, name: str) -> Matrix:
        """A parameter in its stored form, of any dimensions, seen as rows of its last one. Raises NotFound."""
        return self._matrix(self._find(name))

    def experts(self, prefix: str) -> int:
        """Routed experts under `prefix` ("model.layers.3.mlp.experts"); 0 when there are none."""
        return len(self._experts.get(prefix, ()))

    def expert(self, prefix: str, index: int, part: str) -> Matrix:
        """One expert's "gate" or "up" [I, H] or "down" [H, I]. Raises NotFound, and BadData for other dimensions."""
        experts = self._experts.get(prefix, [])
        if not 0 <= index < len(experts) or part not in experts[index]:
            raise NotFound("weights.no_expert", prefix=shown(prefix), index=index, part=shown(part), count=len(experts))
        return self._two_dimensions(f"{prefix}.{index}.{part}", experts[index][part])

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a parameter that is stored as one. Raises NotFound."""
        return self._find(name).shape

    def expert_shapes(self, prefix: str, index: int) -> dict[str, tuple[int, ...]]:
        """Part -> shape of one expert's matrices. Raises KeyError and IndexError."""
        return {part: rows.shape for part, rows in self._experts[prefix][index].items()}

    def place(self, name: str) -> str:
        """Where in the checkpoint a parameter begins: names.Rows.place. Raises NotFound."""
        return self._find(name).place

    def expert_place(self, prefix: str, index: int, part: str) -> str:
        """The same of an expert's matrix. Raises KeyError and IndexError."""
        return self._experts[prefix][index][part].place

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The decoded parameter in its own shape, rounded to `dtype`. Raises NotFound."""
        prefix, _, part = name.rpartition(".")
        if name not in self._rows and prefix in self._experts and part in _FUSED:
            return self._fused(prefix, _FUSED[part], dtype)
        rows = self._find(name)
        return self._decoded(self._matrix(rows), dtype).reshape(rows.shape)

    def nbytes(self, name: str) -> int:
        """Bytes that the parameter takes in the checkpoint. Raises NotFound."""
        prefix, _, part = name.rpartition(".")
        if name in self._rows or prefix not in self._experts:
            found = [self._find(name)]
        else:
            found = [expert[p] for expert in self._experts[prefix] for p in _FUSED[part] if p in expert]
        return sum(rows.tensor.nbytes * math.prod(rows.shape) // max(1, math.prod(rows.tensor.shape)) for rows in found)

    def unused(self) -> list[str]:
        """Checkpoint weights, by their names there, that nobody asked for and no family declares needless.

        Nor is a bias of zeros beside a GPTQ weight one: some writers give every layer one.
        """
        return sorted(n for n in self._tensors.keys() - self._used - self._skipped if not self._is_filler(n))

    @cached_property
    def _tied(self) -> bool:
        return _HEAD not in self._rows and _EMBEDDING in self._rows and _ties_embeddings(self._config)

    def _find(self, name: str) -> Rows:
        if name == _HEAD and self._tied:
            name = _EMBEDDING
        while name in self._same:
            name = self._same[name]
        if name not in self._rows:
            near = sorted(known for known in self._rows if known.rsplit(".", 2)[-2:] == name.rsplit(".", 2)[-2:])[:3]
            raise NotFound("weights.no_tensor", name=shown(name), near=", ".join(near) or "-")
        return self._rows[name]

    def _two_dimensions(self, name: str, rows: Rows) -> Matrix:
        if len(rows.shape) != 2:
            raise BadData("weights.not_matrix", name=shown(name), shape=list(rows.shape))
        return self._matrix(rows)

    def _matrix(self, rows: Rows) -> Matrix:
        tensor = rows.tensor
        self._used.add(tensor.name)
        if isinstance(tensor, Quantized):
            if rows.count > tensor.shape[-2]:
                raise BadData("weights.not_matrix", name=shown(tensor.name), shape=list(tensor.shape))
            return quantized.matrix(tensor, rows.first, rows.count, rows.step, self._bytes)
        total = max(1, int(np.prod(tensor.shape[:-1], dtype=np.int64)))
        data = self._bytes(tensor).reshape(total, -1)[rows.first : rows.first + rows.count]
        if rows.heads:
            data = _halves(data, rows)
        if rows.across:
            data = _columns(data, rows.cols, *rows.across, rows.shape[0])
            return Matrix(tensor.format, data.shape[0], rows.count, data)
        return Matrix(tensor.format, rows.count, rows.cols, data)

    def forget_pages(self) -> None:
        """What was read of the files leaves this process's memory, and is read again where it is asked for again."""
        for data in self._maps.values():
            if hasattr(mmap, "MADV_DONTNEED"):
                data._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def _bytes(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        if tensor.file not in self._maps:
            self._maps[tensor.file] = np.memmap(tensor.file, np.uint8, "r")
        return np.asarray(self._maps[tensor.file][tensor.offset : tensor.offset + tensor.nbytes])

    def _is_filler(self, name: str) -> bool:
        weight = self._tensors.get(f"{name.removesuffix('.bias')}.weight")
        gptq = isinstance(weight, Quantized) and weight.format == "GPTQ" and name.endswith(".bias")
        return gptq and not self._bytes(self._tensors[name]).any()

    def _decoded(self, matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
        out = torch.empty(matrix.rows, matrix.cols, dtype=dtype)
        if not out.numel():
            return out
        if matrix.scales is not None:
            out[:] = torch.from_numpy(decode_matrix(matrix))
            return out
        step = max(1, DECODED_AT_ONCE // max(1, matrix.cols))
        for first in range(0, matrix.rows, step):
            part = decode(matrix.format, matrix.data[first : first + step])
            out[first : first + step] = torch.from_numpy(part)
        return out

    def _fused(self, prefix: str, parts: tuple[str, ...], dtype: torch.dtype) -> torch.Tensor:
        stored = self._experts[prefix][0][parts[0]]
        if stored.across and not self._turned:  # as transformers holds it
            whole = Rows(stored.tensor, 0, int(np.prod(stored.tensor.shape[:-1])), stored.tensor.shape)
            return self._decoded(self._matrix(whole), dtype).reshape(whole.shape)

        def fuse(expert: int) -> torch.Tensor:
            matrices = [self._decoded(self.expert(prefix, expert, part), dtype) for part in parts]
            return torch.stack(matrices, dim=1).flatten(0, 1).T if self._interleaved else torch.cat(matrices)

        return torch.stack([fuse(expert) for expert in range(self.experts(prefix))])


def _halves(data: npt.NDArray[np.uint8], rows: Rows) -> npt.NDArray[np.uint8]:
    """Rows of each head from alternating order to one half after the other; a copy of whole rows.

    A 1-D bias is one row of `cols` elements: there the elements move, so only byte-sized formats can be reordered.
    """
    if len(rows.shape) == 1:
        size = data.shape[-1] // rows.cols
        elements = data.reshape(rows.heads, rows.cols // rows.heads // 2, 2, size)
        return np.ascontiguousarray(elements.swapaxes(1, 2)).reshape(data.shape)
    grouped = data.reshape(rows.heads, rows.count // rows.heads // 2, 2, data.shape[-1])
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(data.shape)


def _columns(data: npt.NDArray[np.uint8], cols: int, first: int, step: int, count: int) -> npt.NDArray[np.uint8]:
    """`count` columns, every step-th, of rows of `cols` whole elements as rows; a copy."""
    size = data.shape[-1] // cols
    elements = data.reshape(-1, cols, size)[:, first::step][:, :count]
    return np.ascontiguousarray(elements.swapaxes(0, 1)).reshape(elements.shape[1], -1)


def _ties_embeddings(config: dict[str, Any]) -> bool:
    """config.json leaves out what equals the class's default, so transformers is asked when it says nothing."""
    if "tie_word_embeddings" in config:
        return bool(config["tie_word_embeddings"])
    from transformers import CONFIG_MAPPING

    model_type = str(config.get("model_type"))
    return model_type in CONFIG_MAPPING and bool(CONFIG_MAPPING[model_type]().tie_word_embeddings)


def open_weights(files: ModelFiles, header: GGUFHeader | None = None, vision: bool = False) -> Weights:
    """Opens a GGUF model, whose `header` is read unless it is given, or a transformers folder; with `vision`, for the
    family's class that looks at images.

    Raises what the format readers and families raise, and Unsupported, listing every tensor type at once, when a
    tensor is stored in a form that cannot be decoded.
    """
    if files.format == "gguf":
        header = header or gguf.read_model(files.path)
        config, tensors = families.gguf_config(header), header.tensors
        names = name_maps.from_gguf(header, config)
    else:
        config = read_config(Path(files.path))
        stored = safetensors.read_folder(files.path)
        refuse_converted(stored, files.path)
        tensors = quantised(stored, config, files.path)
        names = name_maps.from_safetensors(tensors, config, vision)
    problems = Problems()
    name_maps.check_experts(names, problems)
    plain = [t for name, t in tensors.items() if name not in names.skipped and not isinstance(t, Quantized)]
    _check_formats(plain, problems)
    problems.raise_for(files.path, files.format)
    weights = Weights(tensors, names, config, str(described_in(files)))
    weights.vision = vision
    return weights


def refuse_converted(tensors: Iterable[str], path: str) -> None:
    """Raises Unsupported for experts that were split over NUMA nodes when they were converted: other bytes than any
    published format's, and no whole model."""
    if name := next(filter(_CONVERTED.match, tensors), None):
        raise Unsupported("weights.converted", path=shown(path), tensor=shown(name))


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises NotFound or BadData."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes(), object_hook=_infinity)
    except FileNotFoundError:
        raise NotFound("formats.no_file", path=shown(str(path))) from None
    except OSError as error:
        reason = t("models.config_unreadable", reason=error.strerror or error)
        raise BadData("weights.config", path=shown(str(path)), reason=reason) from None
    except (ValueError, RecursionError) as error:
        reason = t("models.config_not_json", reason=shown(str(error)))
        raise BadData("weights.config", path=shown(str(path)), reason=reason) from None
    if not isinstance(config, dict):
        raise BadData("weights.config", path=shown(str(path)), reason=t("models.config_not_object"))
    return config


def _infinity(fields: dict[str, Any]) -> Any:
    """transformers writes numbers that JSON lacks as {"__float__": "Infinity"}."""
    return float(fields["__float__"]) if fields.keys() == {"__float__"} else fields


def _check_formats(tensors: list[TensorInfo], problems: Problems) -> None:
    """One problem for each format that cannot be decoded, with the tensors that have it."""
    unknown: dict[str, list[str]] = {}
    for tensor in tensors:
        if tensor.format not in DECODERS:
            unknown.setdefault(tensor.format, []).append(tensor.name)
    for format, names in unknown.items():
        listed = ", ".join(shown(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")
        problems.unsupported("weights.undecodable", format=format, count=len(names), tensors=listed)
    if unknown:
        problems.unsupported("formats.known_types", known=", ".join(DECODERS))
