"""GPTQ: `qweight` int32 [K/8, N], `scales` [K/group, N], `qzeros` int32 [K/group, N/8], `g_idx` int32 [K].

The first checkpoint format stores zero points less one, gptq_v2 as they are.
"""

from collections.abc import Iterator
from dataclasses import replace

from kt_core.formats.quantized._layouts import columns
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
        cols = 8 * tensor.shape[0]
        found = columns(reader, module, "GPTQ", (tensor.shape[1], cols), size, FLOATS, not symmetric)
        order = reader.tensors.get(f"{module}.g_idx")
        if order or settings.get("desc_act"):
            order = reader.side(f"{module}.g_idx", tensor, ((cols,),), ("I32",))
        if found:
            yield replace(found, zeros_as_they_are=version == "gptq_v2", order=order)


def _no_exceptions(reader: Reader) -> bool:
    """`dynamic` may leave modules out ("-:pattern"), which shows in their names; other bits or groups are not read."""
    rules = reader.settings.get("dynamic") or {}
    others = [rule for rule in rules if not str(rule).startswith("-:")] if isinstance(rules, dict) else [rules]
    return not others or reader.only("dynamic", ("-:...",), others[0])
