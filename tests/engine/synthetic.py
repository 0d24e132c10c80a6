"""A model of Qwen3-30B-A3B's shapes with fewer layers whose weights are random bits: for speed alone.

The shapes and formats are those of the file that peers were measured with: experts and attention in one format, embedding
and head in another for Q4_K_M. All experts of a layer are stored once; packing gives each one its own memory.
"""

from typing import Any

import numpy as np
import torch

from kt_core.formats import FORMATS
from kt_core.weights import Matrix, decode

HIDDEN, HEADS, KV_HEADS, HEAD, EXPERTS, SLOTS, INNER, VOCAB = 2048, 32, 4, 128, 128, 8, 768, 151936
TYPES = {"q4km": ("Q4_K", "Q6_K"), "q8_0": ("Q8_0", "Q8_0"), "bf16": ("BF16", "BF16")}  # layers, embedding and head


def stored(format: str, rows: int, cols: int) -> Matrix:
    """Random bits, but scales of a size that keeps the model's numbers finite."""
    if format == "BF16":
        values = torch.randn(rows, cols, generator=torch.Generator().manual_seed(rows)) * 0.02
        return Matrix(format, rows, cols, values.bfloat16().view(torch.uint8).numpy().reshape(rows, -1))
    block = FORMATS[format]
    random = np.random.default_rng(rows)
    blocks = random.integers(0, 256, (rows * cols // block.block_size, block.block_bytes), np.uint8)
    # float16 scales and where they lie: Q4_K's of the minimum is 7.5 times that of the values, which centres them
    for at, scale in {"Q8_0": {0: 3e-4}, "Q4_K": {0: 1e-4, 2: 7.5e-4}, "Q6_K": {208: 2e-5}}[format].items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if format == "Q4_K":  # equal scales of all groups
        blocks[:, 4:16] = 0x21
    return Matrix(format, rows, cols, blocks.reshape(rows, -1))


class Synthetic:
    """What engine.loader.build asks of a checkpoint."""

    described_in = "synthetic"
    vision = False

    def __init__(self, kind: str, layers: int) -> None:
        layer, ends = TYPES[kind]
        self._layers = layers
        self._decoded: dict[int, torch.Tensor] = {}
        ones = torch.ones(HIDDEN)
        big = stored(ends, VOCAB // 16, HIDDEN)
        table = Matrix(ends, VOCAB, HIDDEN, np.tile(big.data, (16, 1)))
        sizes = {"q_proj": (HEADS * HEAD, HIDDEN), "k_proj": (KV_HEADS * HEAD, HIDDEN)}
        sizes |= {"v_proj": sizes["k_proj"], "o_proj": (HIDDEN, HEADS * HEAD)}
        self._parts = {"gate": stored(layer, INNER, HIDDEN), "down": stored(layer, HIDDEN, INNER)}
        self._parts["up"] = self._parts["gate"]
        attention = {name: stored(layer, *size) for name, size in sizes.items()}
        self._matrices = {"model.embed_tokens.weight": table, "lm_head.weight": table}
        self._tensors = {"model.norm.weight": ones}
        for index in range(layers):
            at = f"model.layers.{index}"
            self._matrices |= {f"{at}.self_attn.{name}.weight": matrix for name, matrix in attention.items()}
            self._tensors |= {f"{at}.{name}_layernorm.weight": ones for name in ("input", "post_attention")}
            self._tensors |= {f"{at}.self_attn.{name}_norm.weight": torch.ones(HEAD) for name in "qk"}
            router = torch.randn(EXPERTS, HIDDEN, generator=torch.Generator().manual_seed(index)) * 0.1
            self._tensors[f"{at}.mlp.gate.weight"] = router

    def config(self) -> dict[str, Any]:
        return {
            "model_type": "qwen3_moe", "hidden_size": HIDDEN, "intermediate_size": 6144, "num_hidden_layers": self._layers,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "num_experts": EXPERTS,
            "num_experts_per_tok": SLOTS, "moe_intermediate_size": INNER, "vocab_size": VOCAB, "norm_topk_prob": True,
            "max_position_embeddings": 32768, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            "tie_word_embeddings": False, "mlp_only_layers": [], "decoder_sparse_step": 1,
        }  # fmt: skip

    def tie(self, names: Any) -> None:
        """No name stands for another."""

    def names(self) -> set[str]:
        return self._matrices.keys() | self._tensors.keys()

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def matrix(self, name: str) -> Matrix:
        return self._matrices[name]

    def experts(self, prefix: str) -> int:
        return EXPERTS

    def expert(self, prefix: str, index: int, part: str) -> Matrix:
        return self._parts[part]

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        if name in self._tensors:
            return self._tensors[name].to(dtype)
        matrix = self._matrices[name]  # one for all layers: decoded once
        if id(matrix) not in self._decoded:
            parts = [decode(matrix.format, part) for part in np.array_split(matrix.data, max(1, matrix.rows // 4096))]
            self._decoded[id(matrix)] = torch.cat([torch.from_numpy(part).to(dtype) for part in parts])
        return self._decoded[id(matrix)].to(dtype)

    def forget_pages(self) -> None:
        """No file was read."""

    def nbytes(self, name: str) -> int:
        return 0

    def unused(self) -> list[str]:
        return []

    def decoded_bytes(self) -> int:
        """Stored bytes that one token reads: attention, its experts, routers and the head."""
        attention = sum(m.data.nbytes for name, m in self._matrices.items() if "self_attn" in name)
        experts = self._layers * SLOTS * sum(m.data.nbytes for m in self._parts.values())
        routers = self._layers * EXPERTS * HIDDEN * 4
        return attention + experts + routers + self._matrices["lm_head.weight"].data.nbytes
