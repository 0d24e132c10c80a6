"""Layer sizes of known models, from their published configurations, so that a bench can be asked for by name."""

import difflib
from dataclasses import dataclass

from kt_core.errors import UsageError


@dataclass(frozen=True)
class Cache:
    """What attention keeps of a token: `kv_heads` keys and values, for `heads` queries.

    One kv head is a latent: its values are the first columns of its keys.
    """

    heads: int
    kv_heads: int
    key_size: int
    value_size: int

    @property
    def is_latent(self) -> bool:
        return self.kv_heads == 1

    @property
    def columns(self) -> int:
        """Numbers that one kv head keeps of a token."""
        return self.key_size + (0 if self.is_latent else self.value_size)


NO_CACHE = Cache(0, 0, 0, 0)


@dataclass(frozen=True)
class Shape:
    """One layer. gate and up are [intermediate, hidden], down is [hidden, intermediate], of each expert.

    `heads_width` is the number of inputs of attention's output projection, heads times their value width.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    heads_width: int = 0
    cache: Cache = NO_CACHE


SHAPES: tuple[Shape, ...] = (
    Shape("deepseek-v2-lite", 2048, 1408, 64, 6, 2048, Cache(16, 1, 576, 512)),
    Shape("deepseek-v2", 5120, 1536, 160, 6, 16384, Cache(128, 1, 576, 512)),
    Shape("deepseek-v3", 7168, 2048, 256, 8, 16384, Cache(128, 1, 576, 512)),
    Shape("deepseek-v4-flash", 4096, 2048, 256, 6, 8192, Cache(64, 1, 512, 512)),
    Shape("deepseek-v4-pro", 7168, 3072, 384, 6, 16384, Cache(128, 1, 512, 512)),
    Shape("kimi-k2", 7168, 2048, 384, 8, 8192, Cache(64, 1, 576, 512)),
    Shape("moonlight-16b-a3b", 2048, 1408, 64, 6, 2048, Cache(16, 1, 576, 512)),
    Shape("glm-4.5", 5120, 1536, 160, 8, 12288, Cache(96, 8, 128, 128)),
    Shape("glm-4.5-air", 4096, 1408, 128, 8, 12288, Cache(96, 8, 128, 128)),
    Shape("glm-4.7-flash", 2048, 1536, 64, 4, 5120, Cache(20, 1, 576, 512)),
    Shape("glm-5", 6144, 2048, 256, 8, 16384, Cache(64, 1, 576, 512)),
    Shape("glm-5.3-flash", 4096, 2048, 288, 8, 16384, Cache(64, 1, 512, 512)),
    Shape("minimax-m2", 3072, 1536, 256, 8, 6144, Cache(48, 8, 128, 128)),
    Shape("minimax-m3", 6144, 3072, 128, 4, 8192, Cache(64, 4, 128, 128)),
    Shape("qwen2-57b-a14b", 3584, 2560, 64, 8, 3584, Cache(28, 4, 128, 128)),
    Shape("qwen3-30b-a3b", 2048, 768, 128, 8, 4096, Cache(32, 4, 128, 128)),
    Shape("qwen3-235b-a22b", 4096, 1536, 128, 8, 8192, Cache(64, 4, 128, 128)),
    Shape("qwen3-coder-480b-a35b", 6144, 2560, 160, 8, 12288, Cache(96, 8, 128, 128)),
    Shape("qwen3-next-80b-a3b", 2048, 512, 512, 10, 4096, Cache(16, 2, 256, 256)),
    Shape("qwen3.5-35b-a3b", 2048, 512, 256, 8, 4096, Cache(16, 2, 256, 256)),
    Shape("qwen3.5-122b-a10b", 3072, 1024, 256, 8, 8192, Cache(32, 2, 256, 256)),
    Shape("qwen3.5-397b-a17b", 4096, 1024, 512, 10, 8192, Cache(32, 2, 256, 256)),
    Shape("mixtral-8x7b", 4096, 14336, 8, 2, 4096, Cache(32, 8, 128, 128)),
    Shape("mixtral-8x22b", 6144, 16384, 8, 2, 6144, Cache(48, 8, 128, 128)),
    Shape("gpt-oss-20b", 2880, 2880, 32, 4, 4096, Cache(64, 8, 64, 64)),
    Shape("gpt-oss-120b", 2880, 2880, 128, 4, 4096, Cache(64, 8, 64, 64)),
    Shape("llama-4-scout", 5120, 8192, 16, 1, 5120, Cache(40, 8, 128, 128)),
    Shape("llama-4-maverick", 5120, 8192, 128, 1, 5120, Cache(40, 8, 128, 128)),
    Shape("olmoe-1b-7b", 2048, 1024, 64, 8, 2048, Cache(16, 16, 128, 128)),
    Shape("ernie-4.5-21b-a3b", 2560, 1536, 64, 6, 2560, Cache(20, 4, 128, 128)),
    Shape("dots.llm1", 4096, 1408, 128, 6, 4096, Cache(32, 32, 128, 128)),
    Shape("phi-3.5-moe", 4096, 6400, 16, 2, 4096, Cache(32, 8, 128, 128)),
)
# Models of one of the shapes above.
ALIASES = {
    "deepseek-v2.5": "deepseek-v2",
    "deepseek-r1": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3.2": "deepseek-v3",
    "kimi-k2-thinking": "kimi-k2",
    "kimi-k2.5": "kimi-k2",
    "kimi-k2.6": "kimi-k2",
    "glm-4.6": "glm-4.5",
    "glm-4.7": "glm-4.5",
    "glm-5.1": "glm-5",
    "glm-5.2": "glm-5",
    "minimax-m2.1": "minimax-m2",
    "minimax-m2.5": "minimax-m2",
    "minimax-m2.7": "minimax-m2",
    "qwen3-coder-30b-a3b": "qwen3-30b-a3b",
    "qwen3-vl-30b-a3b": "qwen3-30b-a3b",
    "qwen3-vl-235b-a22b": "qwen3-235b-a22b",
    "qwen3-coder-next": "qwen3-next-80b-a3b",
    "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
}


def find(name: str) -> Shape:
    """The shape of a model, by name or alias in any case. Raises UsageError that lists the known or near ones."""
    wanted = name.casefold().rpartition("/")[2].replace("_", "-")
    wanted = ALIASES.get(wanted, wanted)
    shapes = {shape.name: shape for shape in SHAPES}
    if wanted not in shapes:
        near = difflib.get_close_matches(wanted, [*shapes, *ALIASES], n=3, cutoff=0.6)
        key = "bench.unknown_shape_near" if near else "bench.unknown_shape"
        raise UsageError(key, name=name, near=", ".join(near), known=", ".join(shapes))
    return shapes[wanted]
