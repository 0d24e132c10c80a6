"""AWQ, version gemm: `qweight` int32 [K, N/8], `scales` float16 [K/group, N], `qzeros` int32 [K/group, N/8]."""

from collections.abc import Iterator

from kt_core.formats.quantized._weight import Quantized, Reader

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
        if not reader.is_matrix(tensor) or not reader.fits(tensor, (tensor.shape,), ("I32",)):
            continue
        cols, rows = tensor.shape[0], 8 * tensor.shape[1]
        groups, group = reader.int4_groups(tensor, cols, size)
        if not groups:
            continue
        scales = reader.side(f"{module}.scales", tensor, ((groups, rows),), ("F16",))
        given = f"{module}.qzeros" in reader.tensors
        zeros = None
        if given or has_zeros:
            zeros = reader.side(f"{module}.qzeros", tensor, ((groups, rows // 8),), ("I32",))
        if scales is None or (zeros is None and (given or has_zeros)):
            continue
        place = (tensor.file, tensor.offset, tensor.nbytes, tensor.name)
        yield Quantized(f"{module}.weight", "AWQ", (rows, cols), *place, scales, group, zeros)
