"""Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

`general.type` is "adapter", `adapter.type` "lora", `adapter.lora.alpha` a number. For a tensor of the model there are
`<tensor>.lora_a` [rank, in] and `<tensor>.lora_b` [out, rank], for stacked experts with one more dimension in front.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kt_core.errors import BadData, KTError, Unsupported
from kt_core.formats import TensorInfo
from kt_core.formats.gguf import read_header
from kt_core.models.families import _shared
from kt_core.weights import decode

SUFFIX = ".gguf"
_NAME = re.compile(r"blk\.(\d{1,6})\.(.+\.weight)\.lora_([ab])$")
_STACK = "_exps.weight"
_PARTS = {
    gguf: hf for part in (_shared.ATTENTION, _shared.DENSE, _shared.SHARED, _shared.ROUTER) for hf, gguf in part.items()
}
_EXPERTS = {gguf: hf for hf, gguf in _shared.EXPERTS.items()}
# Rows of q and k lie in another order there, which the file's own numbers do not tell.
_ALTERNATE = {"llama": ("attn_q.weight", "attn_k.weight")}


def file_of(path: Path) -> Path | None:
    """The GGUF file that `path` is, or that a folder holds in place of other forms; else None."""
    if path.suffix.lower() == SUFFIX and path.is_file():
        return path
    found = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() and not (path / "adapter_config.json").exists() else []
    return found[0] if len(found) == 1 else None


def read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], bytes]:
    """A configuration as PEFT's, tensors under PEFT's names, and the file's bytes.

    Raises BadData for a damaged file or one that is a model, Unsupported for tensors that no layer of kt's has.
    """
    try:
        header = read_header(file)
    except KTError as error:
        raise BadData("lora.damaged", file=file, reason=str(error).splitlines()[-1]) from error
    about = header.metadata
    alpha = about.get("adapter.lora.alpha")
    if about.get("general.type") != "adapter" or about.get("adapter.type") != "lora":
        raise BadData("lora.damaged", file=file, reason=f"general.type: {about.get('general.type')}")
    if not isinstance(alpha, int | float):
        raise BadData("lora.damaged", file=file, reason="adapter.lora.alpha")
    alternate = _ALTERNATE.get(str(about.get("general.architecture")), ())
    data = file.read_bytes()
    tensors: dict[str, torch.Tensor] = {}
    for tensor in header.tensors.values():
        found = _NAME.fullmatch(tensor.name)
        if found is None or found[2] not in {**_PARTS, **_EXPERTS} or found[2] in alternate:
            raise Unsupported("lora.tensor", folder=file, name=tensor.name)
        _add(tensors, tensor, data, f"model.layers.{found[1]}.", found[2], found[3].upper())
    ranks = [t.shape[0] for name, t in tensors.items() if name.endswith("lora_A.weight")]
    base = about.get("general.base_model.0.repo_url")
    config = {"peft_type": "LORA", "r": max(ranks, default=1), "lora_alpha": alpha, "base_model_name_or_path": base}
    return config, tensors, data


def _add(found: dict[str, torch.Tensor], tensor: TensorInfo, data: bytes, at: str, part: str, side: str) -> None:
    raw = np.frombuffer(data, np.uint8, tensor.nbytes, tensor.offset)
    values = torch.from_numpy(decode(tensor.format, raw.reshape(-1, tensor.nbytes))).reshape(tensor.shape)
    if not part.endswith(_STACK):
        found[f"{at}{_PARTS[part].removesuffix('.weight')}.lora_{side}.weight"] = values
        return
    experts, _, projection = _EXPERTS[part].rpartition(".")
    for index, matrix in enumerate(values):
        found[f"{at}{experts}.{index}.{projection}.lora_{side}.weight"] = matrix
