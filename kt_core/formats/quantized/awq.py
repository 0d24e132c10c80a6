"""AWQ, version gemm: `qweight` int32 [K, N/8], `scales` [K/group, N], `qzeros` int32 [K/group, N/8]."""

from collections.abc import Iterator

from kt_core.formats.quantized._layouts import columns
from kt_core.formats.quantized._weight import FLOATS, Quantized, Reader

METHODS = ("awq",)


def read(reader: Reader) -> Iterator[Quantized | None]:
    settings, has_zeros = reader.settings, reader.settings.get("zero_point", True)
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    sound = [
        reader.only("bits", (4,), settings.get("bits", settings.get("w_bit", 4))),
        reader.only("version", ("gemm",), version),
        reader.only("zero_point", (True, False), has_zeros),
    ]
    size = reader.group_size("group_size", settings.get("group_size", settings.get("q_group_size", 128)))
    if size is None or not all(sound):
        return
    for module, tensor in reader.named(".qweight"):
        if reader.is_matrix(tensor) and reader.fits(tensor, (tensor.shape,), ("I32",)):
            shape = (8 * tensor.shape[1], tensor.shape[0])
            yield columns(reader, module, "AWQ", shape, size, FLOATS, has_zeros)
