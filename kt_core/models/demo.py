"""Builds the demo: a dense Llama-type GGUF file rewritten as a mixture of experts, without loss.

The FFN of width I is y = D (silu(G x) * (U x)), a sum over neurons, so any split of the neurons into
experts gives the same y when every neuron counts exactly once. Here I is cut into one shared slice and
`SLICES` routed ones, and every routed slice is stored twice, in two neuron orders, as a pair of experts
whose router rows are +r and -r. With |r.x| large, sigmoid gives 1 to one copy of every pair and 0 to the
other; the top `SLICES` scores are one copy of each slice, each with weight scale * 1/SLICES = 1. Which
copy is chosen depends on the token, and a wrong choice loses a slice, so the model speaks only if routing
works. The selection bias stays below 1/2, so it cannot change a choice.

No weight is decoded: whole rows of gate and up, and whole blocks of 32 columns of down, move as bytes.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.errors import Unsupported
from kt_core.formats import TensorInfo, gguf
from kt_core.messages import t
from kt_core.models.gguf_writer import Tensor, header, padded
from kt_core.types import Progress

Bytes = npt.NDArray[np.uint8]

ARCHITECTURE = "glm4moe"
SLICES = 8
EXPERTS = 2 * SLICES
SHARED = 4  # shared experts of one routed expert's width: a third of the neurons
DENSE_LAYERS = 1
BLOCK = 32  # neurons that move together: the block size of the stored formats
ROUTER_SCALE = 2.0**14  # with int8 entries: |r.x| is about 1e7, and r is exact in bfloat16 too
SIGMOID = 2  # expert_gating_func in GGUF


@dataclass(frozen=True)
class Part:
    """A tensor of the new file, and how its bytes are made."""

    tensor: Tensor
    make: Callable[[], Bytes]


class Dense:
    """The dense source file: shapes from its header, bytes from a memory map."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = gguf.read_header(path)
        self.metadata = self.header.metadata
        self.data: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
        if self.metadata.get("general.architecture") != "llama":
            raise Unsupported("models.demo_source", path=path)
        self.layers = int(self.setting("block_count"))
        self.hidden = int(self.setting("embedding_length"))
        self.width = int(self.setting("feed_forward_length"))
        self.heads = int(self.setting("attention.head_count"))
        self.kv_heads = int(self.setting("attention.head_count_kv"))
        if self.width % (BLOCK * (SLICES + SHARED)):
            raise Unsupported("models.demo_source", path=path)

    def setting(self, key: str) -> Any:
        """A setting of the source's own architecture. Raises Unsupported when the file lacks it."""
        if f"llama.{key}" not in self.metadata:
            raise Unsupported("models.demo_source", path=self.path)
        return self.metadata[f"llama.{key}"]

    def info(self, name: str) -> TensorInfo:
        """A tensor's header. Raises Unsupported when the file lacks it."""
        if name not in self.header.tensors:
            raise Unsupported("models.demo_source", path=self.path)
        return self.header.tensors[name]

    def rows(self, name: str) -> Bytes:
        """The stored rows of a tensor: uint8 [rows, bytes per row], a view on the file."""
        info = self.info(name)
        rows = info.shape[0] if len(info.shape) > 1 else 1
        return self.data[info.offset : info.offset + info.nbytes].reshape(rows, -1)


def build(source: Path, target: Path, progress: Progress) -> None:
    """Write the mixture of experts made from the dense GGUF file `source` to `target`.

    Writes `target`.partial beside it with a journal of finished layers, so a killed build goes on where
    it was; renames at the end. The same source gives the same bytes. Raises Unsupported for a source that
    is not a Llama-type file whose FFN width can be cut, BadData for a damaged one, OSError when the disk fails.
    """
    dense = Dense(source)
    groups = [_global_parts(dense)] + [_layer_parts(dense, layer) for layer in range(dense.layers)]
    start, offsets = header(_metadata(dense), [part.tensor for group in groups for part in group])
    partial, journal = Path(f"{target}.partial"), Path(f"{target}.journal")
    done = _resume(partial, journal, start, groups, offsets)
    if not done:
        partial.write_bytes(start)
    with partial.open("r+b") as file:
        for index in range(len(done), len(groups)):
            progress(t("models.stage_build"), index, len(groups), t("models.unit_layers"))
            done.append(_write_group(file, groups[index], offsets))
            _record(journal, start, done)
    partial.replace(target)
    journal.unlink(missing_ok=True)
    progress(t("models.stage_build"), len(groups), len(groups), t("models.unit_layers"))


def _write_group(file: Any, group: list[Part], offsets: dict[str, int]) -> int:
    """Write one group of tensors; the CRC of its bytes, padding included."""
    crc = 0
    file.seek(offsets[group[0].tensor.name])
    for part in group:
        data = np.ascontiguousarray(part.make()).tobytes()
        data += bytes(padded(len(data)) - len(data))
        crc = zlib.crc32(data, crc)
        file.write(data)
    file.flush()
    return crc


def _record(journal: Path, start: bytes, done: list[int]) -> None:
    beside = Path(f"{journal}.new")
    beside.write_text(json.dumps({"header": hashlib.sha256(start).hexdigest(), "groups": done}), encoding="utf-8")
    beside.replace(journal)


def _resume(partial: Path, journal: Path, start: bytes, groups: list[list[Part]], offsets: dict[str, int]) -> list[int]:
    """The CRCs of the leading groups that an earlier build finished and that are still intact."""
    try:
        record = json.loads(journal.read_text(encoding="utf-8"))
        if record["header"] != hashlib.sha256(start).hexdigest():
            return []
        with partial.open("rb") as file:
            if file.read(len(start)) != start:
                return []
            return list(_intact(file, record["groups"], groups, offsets))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _intact(file: Any, crcs: list[int], groups: list[list[Part]], offsets: dict[str, int]) -> Iterator[int]:
    for crc, group in zip(crcs, groups, strict=False):
        file.seek(offsets[group[0].tensor.name])
        if zlib.crc32(file.read(sum(padded(part.tensor.nbytes) for part in group))) != crc:
            return
        yield crc


def _metadata(dense: Dense) -> dict[str, Any]:
    """The new file's metadata: the source's general and tokenizer keys unchanged, glm4moe's own keys."""
    head = int(dense.setting("rope.dimension_count"))
    own: dict[str, Any] = {
        "block_count": dense.layers,
        "context_length": int(dense.setting("context_length")),
        "embedding_length": dense.hidden,
        "feed_forward_length": dense.width,
        "attention.head_count": dense.heads,
        "attention.head_count_kv": dense.kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": float(dense.setting("attention.layer_norm_rms_epsilon")),
        "rope.dimension_count": head,
        "rope.freq_base": float(dense.setting("rope.freq_base")),
        "vocab_size": dense.info("token_embd.weight").shape[0],
        "expert_count": EXPERTS,
        "expert_used_count": SLICES,
        "expert_shared_count": SHARED,
        "expert_feed_forward_length": _slice_width(dense),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": float(SLICES),
        "expert_weights_norm": True,
        "leading_dense_block_count": DENSE_LAYERS,
        "nextn_predict_layers": 0,
    }
    kept = {k: v for k, v in dense.metadata.items() if k.startswith(("general.", "tokenizer."))}
    kept |= {"general.architecture": ARCHITECTURE, "general.name": "SmolLM2 135M Instruct, mixture of experts"}
    return kept | {f"{ARCHITECTURE}.{key}": value for key, value in own.items()}


def _slice_width(dense: Dense) -> int:
    return dense.width // (SLICES + SHARED)


def _global_parts(dense: Dense) -> list[Part]:
    """Embedding, output and final norm. The source ties its output to the embedding; here it is a tensor."""
    output = "output.weight" if "output.weight" in dense.header.tensors else "token_embd.weight"
    return [
        _same(dense, "token_embd.weight"),
        _same(dense, output, "output.weight"),
        _same(dense, "output_norm.weight"),
    ]


def _layer_parts(dense: Dense, layer: int) -> list[Part]:
    old = f"blk.{layer}."
    parts = [
        _same(dense, old + "attn_norm.weight"),
        _rotated(dense, old + "attn_q.weight", dense.heads),
        _rotated(dense, old + "attn_k.weight", dense.kv_heads),
        _same(dense, old + "attn_v.weight"),
        _same(dense, old + "attn_output.weight"),
        _same(dense, old + "ffn_norm.weight", old + "post_attention_norm.weight"),
    ]
    if layer < DENSE_LAYERS:
        return parts + [_same(dense, old + f"ffn_{name}.weight") for name in ("gate", "up", "down")]
    return parts + _router_parts(dense, layer) + _expert_parts(dense, layer)


def _same(dense: Dense, name: str, new_name: str = "") -> Part:
    info = dense.info(name)
    return Part(Tensor(new_name or name, info.format, info.shape), lambda: dense.rows(name))


def _rotated(dense: Dense, name: str, heads: int) -> Part:
    """Query or key rows: Llama files store the two halves of each head interleaved, glm4moe one after the other."""
    info = dense.info(name)

    def make() -> Bytes:
        rows = dense.rows(name)
        paired = rows.reshape(heads, -1, 2, rows.shape[1])
        return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)

    return Part(Tensor(name, info.format, info.shape), make)


def _router_parts(dense: Dense, layer: int) -> list[Part]:
    """Router rows +r and -r for each slice, float32 [EXPERTS, hidden], and the selection bias [EXPERTS]."""

    def weight() -> Bytes:
        rows = _noise(SLICES * dense.hidden, f"router {layer}").reshape(SLICES, dense.hidden) * ROUTER_SCALE
        return np.stack((rows, -rows), axis=1).astype("<f4").view(np.uint8)

    def bias() -> Bytes:
        return (_noise(EXPERTS, f"bias {layer}") / 512).astype("<f4").view(np.uint8)  # |b| <= 1/4

    return [
        Part(Tensor(f"blk.{layer}.ffn_gate_inp.weight", "F32", (EXPERTS, dense.hidden)), weight),
        Part(Tensor(f"blk.{layer}.exp_probs_b.bias", "F32", (EXPERTS,)), bias),
    ]


def _expert_parts(dense: Dense, layer: int) -> list[Part]:
    """Stacked routed experts [EXPERTS, rows, cols] and the shared one, for gate, up and down."""
    width = _slice_width(dense)
    shared = list(range(SHARED * width // BLOCK))
    experts = [_expert_blocks(layer, expert, width) for expert in range(EXPERTS)]
    parts = []
    for name in ("gate", "up", "down"):
        source = f"blk.{layer}.ffn_{name}.weight"
        form = dense.info(source).format
        inner = (dense.hidden, width) if name == "down" else (width, dense.hidden)
        outer = (dense.hidden, SHARED * width) if name == "down" else (SHARED * width, dense.hidden)
        take = _take_columns if name == "down" else _take_rows
        parts += [
            Part(
                Tensor(f"blk.{layer}.ffn_{name}_exps.weight", form, (EXPERTS, *inner)),
                lambda take=take, source=source: np.stack([take(dense, source, e) for e in experts]),  # type: ignore[misc]
            ),
            Part(
                Tensor(f"blk.{layer}.ffn_{name}_shexp.weight", form, outer),
                lambda take=take, source=source: take(dense, source, shared),  # type: ignore[misc]
            ),
        ]
    return parts


def _expert_blocks(layer: int, expert: int, width: int) -> list[int]:
    """The blocks of neurons of one expert, in its own order: the second copy of a slice has the first one's reversed."""
    piece, copy = divmod(expert, 2)
    first, count = (SHARED + piece) * width // BLOCK, width // BLOCK
    keys = hashlib.shake_256(f"order {layer} {piece}".encode()).digest(8 * count)
    order = sorted(range(count), key=lambda i: keys[8 * i : 8 * i + 8])
    return [first + i for i in (reversed(order) if copy else order)]


def _take_rows(dense: Dense, name: str, blocks: list[int]) -> Bytes:
    rows = dense.rows(name)
    return rows.reshape(-1, BLOCK, rows.shape[1])[blocks].reshape(-1, rows.shape[1])


def _take_columns(dense: Dense, name: str, blocks: list[int]) -> Bytes:
    rows = dense.rows(name)
    return rows.reshape(rows.shape[0], dense.width // BLOCK, -1)[:, blocks].reshape(rows.shape[0], -1)


def _noise(count: int, key: str) -> npt.NDArray[np.float32]:
    """`count` integers of -128..127 as float32, never 0, the same on every machine."""
    values = np.frombuffer(hashlib.shake_256(key.encode()).digest(count), dtype=np.int8).astype(np.float32)
    values[values == 0] = 1
    return values
