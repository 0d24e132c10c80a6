"""gpt-oss keeps its experts transposed, gate and up in turn: kernels get [out, in], transformers what it holds."""

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core.errors import Unsupported
from kt_core.models import resolve
from kt_core.weights import decode, open_weights

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
KEY = "model.layers.0.mlp.experts"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_faces(tmp_path, dtype):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **SMALL), dtype=dtype)
    model.save_pretrained(tmp_path)
    weights, state = open_weights(resolve(str(tmp_path))), model.state_dict()
    assert weights.experts(KEY) == 3
    for index in range(3):
        both, down = (state[f"{KEY}.{name}"][index].float().T for name in ("gate_up_proj", "down_proj"))
        for part, expected in (("gate", both[::2]), ("up", both[1::2]), ("down", down)):
            m = weights.expert(KEY, index, part)
            values = decode(m.format, np.ascontiguousarray(m.data))
            assert np.array_equal(values.reshape(m.rows, m.cols), expected.numpy())
    for name, expected in state.items():
        assert torch.equal(weights.tensor(name), expected.float()), name
    assert not weights.unused()


def test_blocks_cannot_be_transposed(tmp_path):
    from safetensors.torch import load_file, save_file

    AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt_oss", **SMALL)).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{KEY}.down_proj"] = tensors[f"{KEY}.down_proj"].to(torch.float8_e4m3fn)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(Unsupported, match="down_proj"):
        open_weights(resolve(str(tmp_path)))
