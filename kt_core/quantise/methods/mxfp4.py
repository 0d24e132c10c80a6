"""MXFP4: E2M1 numbers with a power of two for 32 of them, the one of two with the smaller error."""

from typing import Any

import numpy as np

from kt_core.quantise.methods import Bytes, Floats, Scheme, Stored, in_slices, raw

FORMAT = "mxfp4-pack-quantized"
GROUP = 32
LARGEST = 3.5 * 2.0**126  # what lies above would be 4 * 2^126, which float32 has no number for
VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
BETWEEN = (VALUES[1:] + VALUES[:-1]) / 2


def tensors(rows: int, cols: int, scheme: Scheme) -> tuple[Stored, ...]:
    return Stored("weight_packed", "U8", (rows, cols // 2)), Stored("weight_scale", "U8", (rows, cols // GROUP))


def encode(values: Floats, scheme: Scheme, importance: Floats | None = None) -> tuple[Bytes, ...]:
    parts = [_encoded(part, importance) for part in in_slices(values)]
    return raw(np.concatenate([p for p, _ in parts])), raw(np.concatenate([s for _, s in parts]))


def settings(scheme: Scheme) -> dict[str, Any]:
    return {
        "num_bits": 4,
        "type": "float",
        "symmetric": True,
        "strategy": "group",
        "group_size": GROUP,
        "scale_dtype": "torch.uint8",
        "zp_dtype": "torch.uint8",
        "dynamic": False,
    }


def _encoded(values: Floats, importance: Floats | None) -> tuple[Bytes, Bytes]:
    groups = values.reshape(len(values), -1, GROUP)
    weights = 1 if importance is None else importance.reshape(-1, GROUP)
    # The largest weight lies in 4 ... 8 of the first power, where 6 ... 8 is cut off, and in 2 ... 4 of the second.
    first = np.frexp(np.abs(groups).max(axis=-1))[1] - 3
    found = [_rounded(groups, first + step, weights) for step in (0, 1)]
    better = 4 * found[1][1] < found[0][1]  # squares in units of each one's power
    codes = np.where(better[..., None], found[1][0], found[0][0]).reshape(values.shape)
    power = np.clip(first + better + 127, 0, 254).astype(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, power


def _rounded(groups: Floats, power: np.ndarray[Any, Any], weights: Any) -> tuple[Bytes, Floats]:
    """Codes of E2M1 with these powers of two, and each group's squared error in units of its power."""
    scale = np.ldexp(np.float32(1), np.clip(power, -127, 127)).astype(np.float32)[..., None]
    x = groups / scale
    size = np.abs(x)
    code = np.zeros(x.shape, np.uint8)
    for border in BETWEEN:
        code += size > border
    off = VALUES[code] - size
    return code | (np.signbit(x).astype(np.uint8) << 3), (weights * off * off).sum(axis=-1)
