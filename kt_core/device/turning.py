"""The rotary embedding of queries and keys as one Triton kernel, in place of transformers' ten operations."""

from typing import Any

import torch
import triton
import triton.language as tl

HEADS = 4  # of a program


@triton.jit
def _turn(
    q, k, cos, sin, q_out, k_out, heads, keys, tokens, q_head, q_token, k_head, k_token, cos_token,
    HALF: tl.constexpr, WIDE: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """One program: H heads of a token, of the queries first and then of the keys. Results lie token by token."""
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query_blocks = tl.cdiv(heads, H)
    col = tl.arange(0, WIDE)[None, :]
    inside = col < HALF
    cos_at, sin_at = cos + token * cos_token + col, sin + token * cos_token + col
    c1 = tl.load(cos_at, mask=inside, other=0).to(tl.float32)
    c2 = tl.load(cos_at + HALF, mask=inside, other=0).to(tl.float32)
    s1 = tl.load(sin_at, mask=inside, other=0).to(tl.float32)
    s2 = tl.load(sin_at + HALF, mask=inside, other=0).to(tl.float32)
    if block < query_blocks:
        head = block * H + tl.arange(0, H)[:, None]
        seen = inside & (head < heads)
        at = q + head * q_head + token * q_token + col
        first = tl.load(at, mask=seen, other=0).to(tl.float32)
        second = tl.load(at + HALF, mask=seen, other=0).to(tl.float32)
        to = q_out + (token * heads + head) * 2 * HALF + col
        tl.store(to, (first * c1 - second * s1).to(q_out.dtype.element_ty), mask=seen)
        tl.store(to + HALF, (second * c2 + first * s2).to(q_out.dtype.element_ty), mask=seen)
    else:
        head = (block - query_blocks) * H + tl.arange(0, H)[:, None]
        seen = inside & (head < keys)
        at = k + head * k_head + token * k_token + col
        first = tl.load(at, mask=seen, other=0).to(tl.float32)
        second = tl.load(at + HALF, mask=seen, other=0).to(tl.float32)
        to = k_out + (token * keys + head) * 2 * HALF + col
        tl.store(to, (first * c1 - second * s1).to(k_out.dtype.element_ty), mask=seen)
        tl.store(to + HALF, (second * c2 + first * s2).to(k_out.dtype.element_ty), mask=seen)


def fits(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int) -> bool:
    """Whether `turned` takes these: one sequence on a GPU, all columns of its heads turned."""
    alike = unsqueeze_dim == 1 and q.is_cuda and q.dim() == k.dim() == 4 and len(q) == len(k) == 1 and cos.dim() == 3
    whole = alike and q.shape[-1] == k.shape[-1] == cos.shape[-1] == sin.shape[-1] and q.shape[-1] % 2 == 0
    rows = whole and q.shape[2] == k.shape[2] == cos.shape[1] == sin.shape[1] and len(cos) == len(sin) == 1
    return rows and all(part.stride(-1) == 1 for part in (q, k, cos, sin)) and cos.stride(1) == sin.stride(1)


def turned(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q [1, heads, T, size] and k likewise, cos and sin [1, T, size]; sums are float32, rounded once."""
    _, heads, tokens, size = q.shape
    keys = k.shape[1]
    q_out, k_out = (torch.empty(1, tokens, count, size, dtype=q.dtype, device=q.device) for count in (heads, keys))
    blocks = triton.cdiv(heads, HEADS) + triton.cdiv(keys, HEADS)
    if tokens:
        _turn[(tokens, blocks)](
            q, k, cos, sin, q_out, k_out, heads, keys, tokens, q.stride(1), q.stride(2), k.stride(1), k.stride(2),
            cos.stride(1), HALF=size // 2, WIDE=triton.next_power_of_2(size // 2), H=HEADS,
        )  # fmt: skip
    return q_out.transpose(1, 2), k_out.transpose(1, 2)
