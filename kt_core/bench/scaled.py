"""Random weights of the formats with scales beside the data: any bits but NaN, scales that are ordinary numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from kt_core.weights import Matrix

Bytes = npt.NDArray[np.uint8]

# Kinds of scales, and sizes of groups, that take turns with the seed and the shape.
KINDS = {
    "FP8_BLOCK": ("F32", "BF16"),
    "FP8_CHANNEL": ("F32", "BF16", "F16"),
    "MXFP8": ("E8M0",),
    "MXFP4_HF": ("E8M0",),
    "NVFP4": ("E4M3",),
    "INT4": ("BF16", "F16", "F32"),
    "GPTQ": ("F16", "BF16", "F32"),
    "AWQ": ("F16", "BF16"),
    "INT8_CHANNEL": ("F32", "BF16", "F16"),
}
GROUPS = {"MXFP8": 32, "MXFP4_HF": 32, "NVFP4": 16, "FP8_BLOCK": 128}
FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16}


def random_scales(kind: str, shape: tuple[int, int], rng: np.random.Generator, size: float) -> Bytes:
    """Numbers from size / 4 to size, uint8 [rows, bytes of a row]."""
    if kind == "E8M0":
        top = int(np.log2(size)) + 127
        return rng.integers(top - 2, top + 1, shape, dtype=np.uint8)
    if kind == "E4M3":
        return rng.integers(0x20, 0x38, shape, dtype=np.uint8)  # 1/8 to 1
    values = (rng.uniform(0.25, 1, shape) * size).astype(np.float32)
    if kind == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(shape[0], -1)
    return values.astype(FLOATS[kind]).view(np.uint8).reshape(shape[0], -1)


def random_group(cols: int, seed: int) -> int:
    """A multiple of 32 that divides cols; -1 is all of them."""
    fitting = [group for group in (64, 128, 96, -1, 32) if cols % group == 0]
    return fitting[(seed + cols // 32) % len(fitting)]


def random_matrix(
    format: str, rows: int, cols: int, seed: int = 0, group: int | None = None, zeros: bool | None = None
) -> Matrix:
    """group and zeros (of INT4, GPTQ and AWQ): as asked, or taking turns too."""
    rng = np.random.default_rng(seed)
    kind = KINDS[format][(seed + rows + cols // 32) % len(KINDS[format])]

    def bits(*shape: int) -> Bytes:
        return rng.integers(0, 256, shape, dtype=np.uint8)

    if format in ("INT8_CHANNEL", "FP8_CHANNEL", "FP8_BLOCK", "MXFP8"):
        data = bits(rows, cols)
        size = 2.0**-10 if format == "INT8_CHANNEL" else 2.0**-8  # E4M3 reaches 448
        if format != "INT8_CHANNEL":
            data[data % 128 == 127] = 0x38
        shape = {"FP8_BLOCK": (-(-rows // 128), -(-cols // 128)), "MXFP8": (rows, cols // 32)}.get(format, (rows, 1))
        return Matrix(format, rows, cols, data, random_scales(kind, shape, rng, size), scale_format=kind)
    if format in ("MXFP4_HF", "NVFP4"):
        scales = random_scales(kind, (rows, cols // GROUPS[format]), rng, 2.0**-5)
        factor = 0.0371 if format == "NVFP4" else 1.0
        return Matrix(format, rows, cols, bits(rows, cols // 2), scales, scale_format=kind, multiplier=factor)
    return _random_int4(format, rows, cols, kind, group or random_group(cols, seed), zeros, seed)


def _random_int4(format: str, rows: int, cols: int, kind: str, group: int, zeros: bool | None, seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    groups = 1 if group == -1 else cols // group
    # float32 scales times zero points are not exact, and a kernel may round them apart
    usual = kind != "F32" and (seed + rows // 2) % 2 == 0 and (format == "INT4" or rows % 8 == 0)
    with_zeros = format == "AWQ" or (usual if zeros is None else zeros)
    shapes = {
        "INT4": ((rows, cols // 2), (rows, groups), (rows, -(-groups // 2))),
        "GPTQ": ((cols // 8, 4 * rows), (groups, rows), (groups, rows // 2)),
        "AWQ": ((cols, rows // 2), (groups, rows), (groups, rows // 2)),
    }[format]
    data, points = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in (shapes[0], shapes[2]))
    scales = random_scales(kind, shapes[1], rng, 2.0**-6)
    return Matrix(format, rows, cols, data, scales, points if with_zeros else None, scale_format=kind, group=group)
