"""GPTQ: `qweight` int32 [K/8, N], `scales` [K/group, N], `qzeros` int32 [K/group, N/8], `g_idx` int32 [K].

The first checkpoint format stores zero points less one, gptq_v2 as they are.
"""

from collections.abc import Iterator

from kt_core.formats.quantized._weight import FLOATS, Quantized, Reader

METHODS = ("gptq",)


def read(reader: Reader) -> Iterator[Quantized | None]:
    settings, symmetric = reader.settings, reader.settings.get("sym", True)
    version = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    sound = [
        reader.only("bits", (4,), settings.get("bits")),
        reader.only("checkpoint_format", ("gptq", "gptq_v2"), version),
        reader.only("sym", (True, False), symmetric),
        _no_exceptions(reader),
    ]
    size = reader.group_size("group_size", settings.get("group_size", 128))
    if size is None or not all(sound):
        return
    for module, tensor in reader.named(".qweight"):
        if not reader.is_matrix(tensor) or not reader.fits(tensor, (tensor.shape,), ("I32",)):
            continue
        cols, rows = 8 * tensor.shape[0], tensor.shape[1]
        groups, group = reader.int4_groups(tensor, cols, size)
        if not groups or not reader.groups(tensor, rows, 8):
            continue
        scales = reader.side(f"{module}.scales", tensor, ((groups, rows),), FLOATS)
        has_zeros = f"{module}.qzeros" in reader.tensors or not symmetric
        zeros = reader.side(f"{module}.qzeros", tensor, ((groups, rows // 8),), ("I32",)) if has_zeros else None
        order = reader.tensors.get(f"{module}.g_idx")
        if order or settings.get("desc_act"):
            order = reader.side(f"{module}.g_idx", tensor, ((cols,),), ("I32",))
        if scales is None or (zeros is None and has_zeros):
            continue
        place = (tensor.file, tensor.offset, tensor.nbytes, tensor.name)
        as_they_are = version == "gptq_v2"
        yield Quantized(
            f"{module}.weight", "GPTQ", (rows, cols), *place, scales, group, zeros, as_they_are, order=order
        )


def _no_exceptions(reader: Reader) -> bool:
    """`dynamic` may leave modules out ("-:pattern"), which shows in their names; other bits or groups are not read."""
    rules = reader.settings.get("dynamic") or {}
    others = [rule for rule in rules if not str(rule).startswith("-:")] if isinstance(rules, dict) else [rules]
    return not others or reader.only("dynamic", ("-:...",), others[0])
