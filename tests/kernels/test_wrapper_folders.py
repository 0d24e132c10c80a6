"""KTMoEWrapper over quantised folders: the method of their format, and rounding them once more online."""

import json

import cases
import pytest
import torch
from quantized_writers import WAYS
from safetensors.torch import save_file
from test_wrapper import RANDOM_BLOCKS

from kt_core.kernels import METHODS, KTMoEWrapper, reference
from kt_core.weights import decode_matrix
from kt_core.weights.quantize import quantize

EXPERTS, SIZE = 3, 128
FOLDERS = {
    "fp8-block": "FP8",
    "ct-fp8-rows": "FP8_PERCHANNEL",
    "ct-int4-g32": "RAWINT4",
    "gptq-sym": "GPTQ_INT4",
    "mxfp8": "MXFP8",
    "ct-nvfp4": "NVFP4",
}


def write(folder, way):
    """A folder with the experts of layer 2 and nothing else. Returns what its weights mean: expert -> three parts."""
    generator = torch.Generator().manual_seed(6)
    tensors, meant = {}, {}
    for expert in range(EXPERTS):
        meant[expert] = []
        for part in ("gate", "up", "down"):
            written, values = WAYS[way].write(torch.randn(SIZE, SIZE, generator=generator) * 0.1)
            prefix = f"model.layers.2.mlp.experts.{expert}.{part}_proj"
            tensors |= {f"{prefix}.{end}": tensor.contiguous() for end, tensor in written.items()}
            meant[expert].append(values.float())
    config = {"model_type": "qwen3_moe", "hidden_size": SIZE, "num_hidden_layers": 3}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": WAYS[way].settings}))
    save_file(tensors, folder / "model.safetensors")
    return meant


@pytest.mark.parametrize("way", FOLDERS)
def test_quantised_folders(tmp_path, way):
    meant = write(tmp_path, way)
    ids, weights = torch.tensor([[0, 2], [1, 0], [2, 1]]), torch.rand(3, 2)
    x = torch.from_numpy(cases.inputs(3, SIZE))
    for name in (FOLDERS[way], "AMXINT8", "AMXINT4", "BF16"):
        method = METHODS[name]
        layer = KTMoEWrapper(2, EXPERTS, 2, SIZE, SIZE, weight_path=tmp_path, method=name)
        layer.load_weights()
        parts = {}
        for expert, three in meant.items():
            if method.quantises and method.format != METHODS[FOLDERS[way]].format:
                three = [torch.from_numpy(decode_matrix(quantize(w, method.format, method.group))) for w in three]
            if name == "BF16":
                three = [w.bfloat16().float() for w in three]
            parts[expert] = tuple((method.format, w.numpy()) for w in three)
        expected = reference.experts(x.numpy(), ids.numpy(), weights.numpy(), parts, "silu")
        error, text = cases.worst(layer.forward(x, ids, weights).numpy(), expected)
        assert error <= RANDOM_BLOCKS, (name, text)
