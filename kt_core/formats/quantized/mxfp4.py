"""gpt-oss: stacks of experts as `X_blocks` uint8 [E, N, K/32, 16] and `X_scales` uint8 [E, N, K/32]."""

from collections.abc import Iterator
from dataclasses import replace

from kt_core.formats.quantized._layouts import mxfp4
from kt_core.formats.quantized._weight import Quantized, Reader

METHODS = ("mxfp4",)


def read(reader: Reader) -> Iterator[Quantized | None]:
    for name, blocks in reader.named("_blocks"):
        shape = blocks.shape
        if blocks.format != "U8" or len(shape) != 4 or shape[-1] != 16:
            reader.fits(blocks, ((*shape[:2], shape[2] if len(shape) > 2 else 1, 16),), ("U8",))
            continue
        yield mxfp4(reader, name, replace(blocks, shape=(*shape[:2], 16 * shape[2])), f"{name}_scales")
