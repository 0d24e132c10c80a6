"""Every stored number format by name: how many bytes hold how many elements.

Names are ggml's for the types that GGUF files hold, and safetensors' for the rest. A format
listed here can be counted and read in a header; which ones can be decoded or computed with is
decided by `kt_core.weights.decode` and `kt_core.kernels`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Block:
    """`block_bytes` bytes hold `block_size` consecutive elements of a row."""

    name: str
    block_size: int
    block_bytes: int
    ggml_id: int | None = None
    safetensors_dtype: str | None = None


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is row-major, outermost dimension first; `offset` counts from the file's start."""

    name: str
    format: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int


_BLOCKS = (
    Block("F32", 1, 4, 0, "F32"),
    Block("F16", 1, 2, 1, "F16"),
    Block("BF16", 1, 2, 30, "BF16"),
    Block("F64", 1, 8, 28, "F64"),
    Block("I8", 1, 1, 24, "I8"),
    Block("I16", 1, 2, 25, "I16"),
    Block("I32", 1, 4, 26, "I32"),
    Block("I64", 1, 8, 27, "I64"),
    Block("Q4_0", 32, 18, 2),
    Block("Q4_1", 32, 20, 3),
    Block("Q5_0", 32, 22, 6),
    Block("Q5_1", 32, 24, 7),
    Block("Q8_0", 32, 34, 8),
    Block("Q8_1", 32, 40, 9),
    Block("Q2_K", 256, 84, 10),
    Block("Q3_K", 256, 110, 11),
    Block("Q4_K", 256, 144, 12),
    Block("Q5_K", 256, 176, 13),
    Block("Q6_K", 256, 210, 14),
    Block("Q8_K", 256, 292, 15),
    Block("IQ2_XXS", 256, 66, 16),
    Block("IQ2_XS", 256, 74, 17),
    Block("IQ3_XXS", 256, 98, 18),
    Block("IQ1_S", 256, 50, 19),
    Block("IQ4_NL", 32, 18, 20),
    Block("IQ3_S", 256, 110, 21),
    Block("IQ2_S", 256, 82, 22),
    Block("IQ4_XS", 256, 136, 23),
    Block("IQ4_K", 256, 144, 139),  # of ik_llama.cpp
    Block("IQ1_M", 256, 56, 29),
    Block("TQ1_0", 256, 54, 34),
    Block("TQ2_0", 256, 66, 35),
    Block("MXFP4", 32, 17, 39),
    Block("GGML_NVFP4", 64, 36, 40),  # NVFP4 is the layout with scales beside the numbers
    Block("Q1_0", 128, 18, 41),
    Block("BOOL", 1, 1, None, "BOOL"),
    Block("U8", 1, 1, None, "U8"),
    Block("U16", 1, 2, None, "U16"),
    Block("U32", 1, 4, None, "U32"),
    Block("U64", 1, 8, None, "U64"),
    Block("C64", 1, 8, None, "C64"),
    Block("F8_E4M3", 1, 1, None, "F8_E4M3"),
    Block("F8_E5M2", 1, 1, None, "F8_E5M2"),
    Block("F8_E8M0", 1, 1, None, "F8_E8M0"),
    Block("F4", 2, 1, None, "F4"),
    Block("F6_E2M3", 4, 3, None, "F6_E2M3"),
    Block("F6_E3M2", 4, 3, None, "F6_E3M2"),
)

FORMATS: dict[str, Block] = {block.name: block for block in _BLOCKS}
BY_GGML_ID: dict[int, Block] = {block.ggml_id: block for block in _BLOCKS if block.ggml_id is not None}
BY_SAFETENSORS: dict[str, Block] = {b.safetensors_dtype: b for b in _BLOCKS if b.safetensors_dtype is not None}


def nbytes(format: str, elements: int) -> int:
    """Bytes that `elements` values take. Raises ValueError for an unknown format or a broken block."""
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; known: {', '.join(FORMATS)}")
    block = FORMATS[format]
    if elements % block.block_size:
        raise ValueError(f"{elements} elements are not a whole number of {format} blocks of {block.block_size}")
    return elements // block.block_size * block.block_bytes
