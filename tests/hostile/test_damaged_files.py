"""Model folders of nonsense: every failure is a KTError with the code of a bad file, and blames the right file."""

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core.engine import loader
from kt_core.engine.tokenizer import end_tokens, load_tokenizer
from kt_core.errors import BadData, EnvironmentProblem, KTError, Unsupported
from kt_core.inject import read_rules
from kt_core.models.files import local_files
from kt_core.server.serve import listen, read_plan
from kt_core.types import ServerSettings
from kt_core.weights import open_weights


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def change(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def build(folder: Path) -> None:
    loader.build(open_weights(local_files(folder)), lambda *_: None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("decoder_sparse_step", 0), ("head_dim", None), ("hidden_act", "abc"), ("moe_intermediate_size", -3),
     ("moe_intermediate_size", 10**30), ("moe_intermediate_size", 0), ("num_local_experts", None),
     ("num_local_experts", [1, 2]), ("pad_token_id", 10**30)],
)  # fmt: skip
def test_a_config_that_transformers_chokes_on(folder, field, value):
    change(folder, **{field: value})
    with pytest.raises((BadData, Unsupported)):
        build(folder)


def test_a_wrong_type_in_the_config_is_not_blamed_on_the_tokenizer(folder):
    change(folder, attention_bias="abc")
    with pytest.raises(KTError) as failure:
        load_tokenizer(local_files(folder))
        build(folder)
    assert isinstance(failure.value, BadData) and failure.value.key != "weights.tokenizer"


def test_a_config_that_wants_tensors_which_are_not_there_is_bad_data(folder):
    """Exit code 5, not 4: the file that the user named was found."""
    change(folder, attention_bias=True)
    with pytest.raises(BadData):
        build(folder)


@pytest.mark.parametrize(
    "text", ['{"eos_token_id": [[1]]}', '{"eos_token_id": {"a": 1}}', "[" * 100_000, None],
    ids=["nested", "mapping", "deep", "folder"],
)  # fmt: skip
def test_a_generation_config_of_nonsense(folder, text):
    file = folder / "generation_config.json"
    file.mkdir() if text is None else file.write_text(text)
    files = local_files(folder)
    with pytest.raises(BadData):
        end_tokens(files, load_tokenizer(files))


def test_a_matrix_with_a_dimension_more_has_another_shape(folder):
    """docs/architecture.md: a tensor of another shape is an error."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    name = "model.layers.0.self_attn.k_proj.weight"
    rows, cols = header[name]["shape"]
    header[name]["shape"] = [2, rows // 2, cols]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(BadData):
        build(folder)


def test_an_index_that_names_an_impossible_file(folder):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(BadData):
        local_files(folder)


def test_a_linear_layer_with_a_forward_of_its_own_is_no_linear_layer(tmp_path):
    """Phi-MoE's router is a subclass of nn.Linear that returns three things."""
    sizes = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(1)
    config = AutoConfig.for_model("phimoe", **sizes, **heads, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    config.save_pretrained(tmp_path)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    ours = loader.build(open_weights(local_files(tmp_path)), lambda *_: None)
    ids = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        assert torch.allclose(ours(ids).logits, model(ids).logits, atol=1e-4)


RULE = "- match: {name: x}\n  replace: {class: %s}\n"


@pytest.mark.parametrize(
    "text",
    ["[" * 5000, "{a: " * 3000, RULE % '".foo"', RULE % '"..a.b"', RULE % "builtins.dict", RULE % "hostile_raises.X"],
    ids=["deep list", "deep mapping", "no module", "relative", "no signature", "module that raises"],
)
def test_a_rule_file_of_nonsense(tmp_path, text, monkeypatch):
    (tmp_path / "hostile_raises.py").write_text("raise RuntimeError('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(BadData):
        read_rules(file)


def test_a_deep_plan(tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("[" * 100_000)
    with pytest.raises(BadData):
        read_plan(file)


@pytest.mark.parametrize("ports", [None, "x", []])
def test_a_plan_with_an_impossible_number_of_ports(ports):
    with pytest.raises(KTError):
        listen(ServerSettings(port=0, ports=ports)).close()


@pytest.mark.parametrize("host", [5, "a..b"])
def test_a_plan_with_an_impossible_host(host):
    with pytest.raises(KTError):
        listen(ServerSettings(host=host, port=0)).close()


def test_a_config_that_leaves_layers_out_does_not_run_as_a_smaller_model(folder):
    change(folder, num_hidden_layers=1)
    with pytest.raises(BadData, match=r"layers\.1\."):
        build(folder)
    change(folder, num_hidden_layers=1, num_nextn_predict_layers=1)  # counted as layers that predict further tokens
    build(folder)


def test_broken_code_of_a_family_is_not_blamed_on_the_config(folder, monkeypatch):
    """With PYTHONOPTIMIZE=2 there are no docstrings, and transformers' own modules cannot be imported."""

    def broken(*_):
        raise ValueError("no docstring")

    monkeypatch.setattr(type(loader.MODEL_FOR_CAUSAL_LM_MAPPING), "__getitem__", broken)
    with pytest.raises(EnvironmentProblem, match="no docstring"):
        build(folder)


def test_a_tokenizer_that_fails_when_a_text_is_split(folder):
    """Its library does not notice when it reads the file, and then ends the thread in a way that is no Exception."""
    file = folder / "tokenizer.json"
    data = json.loads(file.read_text())
    data["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(data))
    with pytest.raises(BadData):
        load_tokenizer(local_files(folder))
