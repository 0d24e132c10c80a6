"""NVIDIA ModelOpt: NVFP4 (`weight` uint8, `weight_scale` E4M3, `weight_scale_2`) and FP8 with a scale for a matrix."""

from collections.abc import Iterator

from kt_core.formats.quantized._layouts import fp8, nvfp4
from kt_core.formats.quantized._weight import Quantized, Reader

METHODS = ("modelopt", "modelopt_fp4")
ALGORITHMS = ("NVFP4", "FP8", "MIXED_PRECISION")


def read(reader: Reader) -> Iterator[Quantized | None]:
    if not reader.only("quant_algo", ALGORITHMS, reader.settings.get("quant_algo", ALGORITHMS[0])):
        return
    for module, tensor in reader.named(".weight"):
        name, scales = tensor.name, f"{module}.weight_scale"
        if tensor.format == "U8":
            yield nvfp4(reader, name, tensor, scales, f"{module}.weight_scale_2")
        elif tensor.format == "F8_E4M3":
            yield fp8(reader, name, tensor, scales, None)
