"""Rotary embedding on the CPU."""

import torch

from kt_core.kernels.native import dtype_name, load, plain

Tables = tuple[torch.Tensor, torch.Tensor]


def tables(inverse_frequencies: torch.Tensor, length: int, scaling: float = 1.0) -> Tables:
    """cos and sin of position * frequency, each times `scaling`: two float32 [length, pairs].

    transformers' rotary modules hold both for every kind (`inv_freq`, `attention_scaling`), so all kinds are
    rotated alike; a kind whose frequencies follow the length (dynamic, longrope) needs new tables when they
    change. Angles are float32 products, as there.
    """
    positions = torch.arange(length, dtype=torch.float32)
    angles = positions[:, None] * inverse_frequencies.to("cpu", torch.float32)[None, :]
    return angles.cos() * scaling, angles.sin() * scaling


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    tables: Tables,
    interleaved: bool = False,
    first: int = 0,
    tier: str | None = None,
) -> None:
    """Rotate columns first .. first + 2 * pairs - 1 of every head of x [T, heads, size] in place.

    Pair i is columns i and i + pairs, or interleaved 2 i and 2 i + 1, both counted from `first`; it stays where it
    is: (a, b) becomes (a cos - b sin, b cos + a sin) of row positions[t] of the tables [length, pairs] float32.
    x is float32 or bfloat16 with adjacent heads, its tokens may be strided; positions [T] int64.
    Raises ValueError for other shapes or dtypes, or a position beyond the tables.
    """
    dtype = dtype_name(x)
    cosine, sine = (plain(table) for table in tables)
    if cosine.dim() != 2 or cosine.shape != sine.shape or {cosine.dtype, sine.dtype} != {torch.float32}:
        raise ValueError("expected two float32 tables [length, pairs]")
    if x.dim() != 3 or first < 0 or first + 2 * cosine.shape[1] > x.shape[2]:
        raise ValueError(f"expected x [T, heads, at least {first + 2 * cosine.shape[1]}], got {tuple(x.shape)}")
    if x.stride(2) != 1 or (x.shape[1] > 1 and x.stride(1) != x.shape[2]) or x.is_neg():
        raise ValueError("x is changed in place: its heads must be adjacent in memory")
    if positions.shape != (x.shape[0],) or positions.dtype != torch.int64 or positions.device.type != "cpu":
        raise ValueError(f"expected positions [{x.shape[0]}] int64 on the CPU, got {tuple(positions.shape)}")
    positions = plain(positions)
    sizes = (x.shape[0], x.shape[1], x.shape[2], first, cosine.shape[1])
    table = (cosine.data_ptr(), sine.data_ptr(), cosine.shape[0])
    load().rotate((x.data_ptr(), x.stride(0)), dtype, sizes, interleaved, table, positions.data_ptr(), tier or "")
