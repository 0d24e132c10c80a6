"""Checkpoints of real shapes whose weights are random, for speed alone: all experts of a projection are the same bytes, and each
gets its own memory when it is packed."""

from typing import Any

import torch
from synthetic import stored
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core.bench.scaled import random_matrix
from kt_core.kernels.policy import WITH_SCALES
from kt_core.weights import Matrix

ROPE = {"rope_type": "default", "rope_theta": 1e6}
# What differs from the configuration classes' own defaults, which for glm4_moe are GLM-4.5-Air's and for deepseek_v3 its own
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        "vocab_size": 151936, "norm_topk_prob": True, "rope_parameters": ROPE,
    },
    "lite": {
        "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 102400, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "rope_parameters": ROPE,
    },
    "air": {"model_type": "glm4_moe"},
    "v3": {"model_type": "deepseek_v3", "first_k_dense_replace": 1},
}  # fmt: skip


class Shaped:
    """What engine.loader.build asks of a checkpoint. `form`: a format of kt_core.formats or of those with scales."""

    described_in, vision = "random", False

    def __init__(self, shape: str, form: str, layers: int | None = None) -> None:
        changed = {**SHAPES[shape], "max_position_embeddings": 32768, "tie_word_embeddings": False}
        self._config = changed | ({"num_hidden_layers": layers} if layers else {})
        full = AutoConfig.for_model(**self._config)
        self._config["num_hidden_layers"], self.vocabulary = full.num_hidden_layers, full.vocab_size
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(full)
        self._shapes = {name: p.shape for name, p in model.state_dict().items() if ".experts." not in name}
        self._some = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0)) * 0.02
        self.count = getattr(full, "n_routed_experts", None) or full.num_experts
        hidden, inner = full.hidden_size, full.moe_intermediate_size
        make = random_matrix if form in WITH_SCALES else stored
        self._first, self._down = make(form, inner, hidden), make(form, hidden, inner)
        self.per_token = full.num_experts_per_tok

    def config(self) -> dict[str, Any]:
        return self._config

    def tie(self, names: Any) -> None:
        """No name stands for another."""

    def names(self) -> set[str]:
        return set(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def experts(self, prefix: str) -> int:
        return int(self.count)

    def expert(self, prefix: str, index: int, part: str) -> Matrix:
        return self._down if part == "down" else self._first

    def matrix(self, name: str) -> Matrix:
        values = self.tensor(name, torch.bfloat16)
        return Matrix("BF16", *values.shape, values.view(torch.uint8).numpy().reshape(values.shape[0], -1))

    def tensor(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        shape = self._shapes[name]
        if "norm" in name:
            return torch.ones(shape, dtype=dtype)
        begin = sum(map(ord, name)) % 4096  # so that layers and routers differ
        part = self._some[begin:].to(dtype)
        return part.repeat(-(-shape.numel() // len(part)))[: shape.numel()].view(shape)

    def forget_pages(self) -> None:
        """No file was read."""

    def nbytes(self, name: str) -> int:
        return 0

    def unused(self) -> list[str]:
        return []

    def token_bytes(self, layers: int, there: int, tokens: float = 1) -> tuple[float, float]:
        """Bytes of experts that the CPU reads for so many tokens, in so many layers with `there` experts of each on the device, all
        asked evenly, and bytes of bfloat16 weights and experts that the device does."""
        expert = sum(
            m.data.nbytes + (0 if m.scales is None else m.scales.nbytes) for m in (self._first, self._first, self._down)
        )
        asked, part = layers * self.per_token * tokens * expert, there / self.count
        table = sum(s.numel() for name, s in self._shapes.items() if "embed" in name)
        others = 2 * (sum(shape.numel() for shape in self._shapes.values()) - table)
        return asked * (1 - part), others + asked * part
