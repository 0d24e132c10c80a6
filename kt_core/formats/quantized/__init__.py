"""Quantised Hugging Face folders: one file for each method, from headers and `quantization_config` to weights.

A method's file names the values of `quant_method` that it reads (METHODS) and has `read(reader)`, which yields a
`Quantized` for each weight, or None where a problem was noted. Its layout is one of those of `kt_core.weights.Matrix`.
"""

import importlib
import json
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kt_core.errors import Unsupported
from kt_core.formats.blocks import TensorInfo
from kt_core.formats.problems import Problems, shown
from kt_core.formats.quantized._weight import KERNEL_GROUP, Quantized, Reader, said

__all__ = ["KERNEL_GROUP", "Quantized", "methods", "quantised", "stored_bytes", "unquantised"]

# Scales of activations and of a quantised cache: kt rounds activations itself and keeps an unquantised cache.
ACTIVATIONS = re.compile(
    r"\.(input_scale|input_global_scale|input_zero_point|activation_scale|output_scale|output_zero_point|input_amax"
    r"|[qkv]_scale|[qkv]_zero_point|[kv]_proj\.[kv]_scale|prob_output_scale)$"
)
_SIDES = re.compile(
    r"(\.(weight_packed|weight_shape|weight_zero_point|weight_g_idx|weight_global_scale|qweight|qzeros|scales|g_idx)"
    r"|[._]scale_inv|\.weight_scale(_2)?|_blocks)$"
)
_BESIDE = "hf_quant_config.json"  # where ModelOpt's older exports say what config.json does not


def methods() -> dict[str, ModuleType]:
    """Each known quant_method with the file that reads it."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    files = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {method: file for file in files for method in file.METHODS}


def quantised(tensors: Mapping[str, TensorInfo], config: dict[str, Any], folder: str | Path) -> dict[str, TensorInfo]:
    """The checkpoint's weights by name: a `Quantized` in place of each group of tensors that is one weight.

    Tensors without a part in quantisation stay as they are, and scales of activations are left out. Without a
    quantization_config nothing changes. Raises Unsupported for a method or setting that kt does not read, BadData
    listing every problem for settings of nonsense, missing tensors, wrong shapes and types.
    """
    problems = Problems()
    settings = _settings(config, Path(folder), problems)
    problems.raise_for(folder, "safetensors")
    if not settings:
        return dict(tensors)
    method, known = settings.get("quant_method", "modelopt" if "quant_algo" in settings else None), methods()
    if not isinstance(method, str) or method not in known:
        raise Unsupported(
            "formats.quant_method", path=shown(str(folder)), method=shown(said(method)), known=", ".join(known)
        )
    kept = {name: tensor for name, tensor in tensors.items() if not ACTIVATIONS.search(name)}
    found = [weight for weight in known[method].read(Reader(kept, settings, problems)) if weight]
    for weight in found:
        if weight.shape[-1] % KERNEL_GROUP:
            problems.unsupported("formats.kernel_cols", tensor=weight.data, cols=weight.shape[-1], step=KERNEL_GROUP)
    if not problems:
        for weight in found:
            for name in (weight.data, *(tensor.name for tensor in weight.beside)):
                kept.pop(name, None)
        twice = [weight.name for weight in found if weight.name in kept]
        for name in [*filter(_SIDES.search, kept), *twice]:
            problems.add("formats.orphan", tensor=name)
    problems.raise_for(folder, "safetensors")
    return kept | {weight.name: weight for weight in found}


def stored_bytes(tensor: TensorInfo) -> int:
    """Bytes of the tensor with all that belongs to it."""
    beside = tensor.beside if isinstance(tensor, Quantized) else ()
    return tensor.nbytes + sum(side.nbytes for side in beside)


def unquantised(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the model itself, without what describes its storage."""
    inner = {"text_config": unquantised(config["text_config"])} if isinstance(config.get("text_config"), dict) else {}
    return {key: value for key, value in config.items() if key != "quantization_config"} | inner


def _settings(config: dict[str, Any], folder: Path, problems: Problems) -> dict[str, Any]:
    """quantization_config, of the whole model or of its text part; {} when there is none."""
    text = config.get("text_config")
    found = config.get("quantization_config")
    if found in (None, {}) and isinstance(text, dict):
        found = text.get("quantization_config")
    if found in (None, {}):
        found = _beside(folder / _BESIDE, problems)
    if isinstance(found, dict):
        return found
    problems.add("formats.quant_value", field="quantization_config", value=said(found), expected="{...}")
    return {}


def _beside(path: Path, problems: Problems) -> Any:
    """What ModelOpt's own file says; {} when there is none."""
    try:
        content = json.loads(path.read_bytes()) if path.exists() else {}
        return content.get("quantization", {}) | {"quant_method": "modelopt"} if content else {}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        problems.add("formats.quant_value", field=path.name, value=str(error), expected="{...}")
        return {}
