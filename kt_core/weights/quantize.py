"""Rounding float weights to our own INT4 and to Q8_0, to nearest: no value is off by more than half a step."""

import numpy as np
import numpy.typing as npt
import torch

from kt_core.weights.matrix import Matrix

GROUPS = (32, 64, 128)
FORMATS = ("INT4", "Q8_0")
AT_ONCE = 1 << 22  # values; bounds the float copies in memory

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


def quantize(weight: torch.Tensor, format: str, group: int = 128, zero_point: bool = False) -> Matrix:
    """weight [N, K], any float dtype, as a Matrix of `format`: INT4 with one bfloat16 scale a group, or Q8_0.

    For every value |decoded - value| <= scale / 2 of its group (and float32's own rounding). With zero_point the 16 steps
    of an INT4 group lie from its smallest value to its largest, 0 included, instead of around 0. Q8_0 has groups of 32.
    Raises ValueError for another format, group or shape, a K that is no multiple of the group, and values that are
    not finite or, for Q8_0's float16 scales, above 8.3e6.
    """
    if format not in FORMATS:
        raise ValueError(f"cannot quantise to {format!r}. Known: {', '.join(FORMATS)}")
    if format == "INT4" and group not in GROUPS:
        raise ValueError(f"INT4 has groups of {', '.join(map(str, GROUPS))}, not {group}")
    group = 32 if format == "Q8_0" else group
    if weight.dim() != 2 or not weight.numel() or weight.shape[1] % group:
        raise ValueError(f"expected [N, K] with K a multiple of {group}, got {tuple(weight.shape)}")
    rows, cols = weight.shape
    parts = []
    step = max(1, AT_ONCE // cols)
    for first in range(0, rows, step):
        values = weight[first : first + step].detach().to("cpu", torch.float32).contiguous().numpy()
        if not np.isfinite(values).all():
            raise ValueError("cannot quantise values that are not finite")
        parts.append(_q8_0(values) if format == "Q8_0" else _int4(values, group, zero_point))
    if format == "Q8_0":
        return Matrix("Q8_0", rows, cols, np.concatenate([part[0] for part in parts]))
    data, scales, zeros = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Matrix("INT4", rows, cols, data, scales, zeros if zero_point else None, scale_format="BF16", group=group)


def _int4(values: Floats, group: int, zero_point: bool) -> tuple[Bytes, ...]:
    """Nibbles, scales and zero points of [rows, cols]."""
    grouped = values.reshape(len(values), -1, group)
    low, high = grouped.min(axis=-1), grouped.max(axis=-1)
    if zero_point:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = _bf16_above(high / 15 - low / 15)
        zero = np.rint(_divided(-low, scale))
    else:  # the last step on either side reaches half a step beyond 7 and -8
        scale = _bf16_above(np.maximum(high / np.float32(7.5), low / np.float32(-8.5)))
        zero = np.full_like(scale, 8)
    q = np.rint(_divided(grouped, scale[..., None])) + zero[..., None]
    nibbles = np.clip(q, 0, 15).astype(np.uint8).reshape(values.shape)
    halves = (scale.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
    return _packed(nibbles), halves, _packed(zero.astype(np.uint8))


def _q8_0(values: Floats) -> tuple[Bytes, ...]:
    """Blocks of a float16 scale and 32 int8, as ggml lays them out."""
    blocks = values.reshape(len(values), -1, 32)
    top = np.abs(blocks).max(axis=-1)
    if top.max() > 127 * 65504.0:
        raise ValueError("values above 8.3e6 do not fit Q8_0's float16 scales")
    half = (top / 127).astype(np.float16)
    short = half.astype(np.float32) * np.float32(127.5) < top  # rounded down too far: only where it is subnormal
    half = np.where(short, np.nextafter(half, np.float16(np.inf)), half)
    q = np.clip(np.rint(_divided(blocks, half.astype(np.float32)[..., None])), -127, 127).astype(np.int8)
    packed = np.concatenate([half[..., None].view(np.uint8), q.view(np.uint8)], axis=-1)
    return (packed.reshape(len(values), -1),)


def _bf16_above(x: Floats) -> Floats:
    """The smallest bfloat16 values not below x >= 0, as float32."""
    above: Floats = ((x.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    return above


def _divided(x: Floats, scale: Floats) -> Floats:
    """x / scale, 0 where the scale is 0: all of that group is 0."""
    y: Floats = np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)
    return y


def _packed(nibbles: Bytes) -> Bytes:
    """[rows, n] to [rows, ceil(n / 2)] bytes, the first of two in the low nibble."""
    even = np.pad(nibbles, ((0, 0), (0, nibbles.shape[1] % 2)))
    both: Bytes = even[:, ::2] | (even[:, 1::2] * np.uint8(16))
    return both
