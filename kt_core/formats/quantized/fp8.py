"""E4M3 weights with scales of blocks (DeepSeek-V3, Qwen3), rows or 32 numbers (MXFP8); FP4 experts of DeepSeek-V4.

The scale of `X.weight` is `X.weight_scale_inv`, `X.weight_scale` or `X.scale`, and is multiplied in spite of the first
name. `modules_to_not_convert` needs no reading: what it lists has no scale.
"""

from collections.abc import Iterator

from kt_core.formats.quantized._layouts import BLOCK, BLOCKS, MX, fp8, mxfp4
from kt_core.formats.quantized._weight import Quantized, Reader, Shape

METHODS = ("fp8", "mxfp8")


def read(reader: Reader) -> Iterator[Quantized | None]:
    block = _block(reader)
    for name, tensor in reader.tensors.items():
        sides = (f"{name}_scale_inv", f"{name}_scale", f"{name.removesuffix('weight')}scale")
        scales = next((side for side in sides if side in reader.tensors and side != name), sides[0])
        if tensor.format == "F8_E4M3":
            of_rows = block is None or (block == () and scales == sides[1])
            yield fp8(reader, name, tensor, scales, None if of_rows else block or BLOCK)
        elif tensor.format in ("I8", "U8") and name.endswith(".weight") and scales in reader.tensors:
            yield mxfp4(reader, name, tensor, scales)


def _block(reader: Reader) -> Shape | None:
    """Rows and columns that share a scale; None where a row, or the matrix, has one; () when nothing is said."""
    default = MX if reader.settings.get("quant_method") == "mxfp8" else ()
    value = reader.settings.get("weight_block_size", list(default))
    if value is None or value == []:
        return None if value is None else ()
    return (value[0], value[1]) if reader.only("weight_block_size", tuple(map(list, BLOCKS)), value) else None
