"""ModelSpec from headers: sums against the tensors, and nonsense settings refused in words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kt_core.errors import BadData, KTError
from kt_core.models.files import local_files
from kt_core.models.spec import examples, read_spec
from kt_core.types import ModelFiles

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "vocab_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 256,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}

MARKS = {"attention": "self_attn", "embedding": "embed_tokens", "other": "gate"}  # a part -> a word of its tensors


def mixtral_tensors(layers: int = 2, experts: int = 4, vocab: int = 128) -> dict[str, np.ndarray]:
    tensors = {"model.embed_tokens.weight": np.zeros((vocab, 64), np.float32)}
    for layer in range(layers):
        p = f"model.layers.{layer}."
        tensors[p + "self_attn.q_proj.weight"] = np.zeros((64, 64), np.float32)
        tensors[p + "block_sparse_moe.gate.weight"] = np.zeros((experts, 64), np.float32)
        for e in range(experts):
            for w in ("w1", "w3"):
                tensors[f"{p}block_sparse_moe.experts.{e}.{w}.weight"] = np.zeros((32, 64), np.float16)
            tensors[f"{p}block_sparse_moe.experts.{e}.w2.weight"] = np.zeros((64, 32), np.float16)
    return tensors


def folder(path: Path, config: object, tensors: dict[str, np.ndarray] | None = None) -> ModelFiles:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    save_file(tensors if tensors is not None else mixtral_tensors(), path / "model.safetensors")
    return local_files(path)


def test_sums_are_those_of_the_tensors(tmp_path: Path) -> None:
    tensors = mixtral_tensors()
    spec = read_spec(folder(tmp_path, MIXTRAL))
    experts = sum(t.nbytes for n, t in tensors.items() if ".experts." in n)
    sizes = {part: sum(t.nbytes for n, t in tensors.items() if mark in n) for part, mark in MARKS.items()}
    assert spec.bytes_by_part == {"experts": experts} | sizes
    assert spec.parameters == sum(t.size for t in tensors.values())
    assert spec.formats == {"F16": experts, "F32": sum(sizes.values())}
    assert (spec.experts, spec.experts_per_token, spec.layers, spec.context) == (4, 2, 2, 256)
    assert spec.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4  # layers, key and value, heads, width, float32


def test_shared_experts_are_not_routed_ones(tmp_path: Path) -> None:
    tensors = mixtral_tensors() | {"model.layers.0.mlp.shared_experts.up_proj.weight": np.zeros((32, 64), np.float32)}
    base, more = read_spec(folder(tmp_path / "a", MIXTRAL)), read_spec(folder(tmp_path / "b", MIXTRAL, tensors))
    assert more.bytes_by_part["experts"] == base.bytes_by_part["experts"]
    assert more.bytes_by_part["shared"] == 32 * 64 * 4 and "shared" not in base.bytes_by_part


def test_latent_attention_caches_the_latent(tmp_path: Path) -> None:
    config = MIXTRAL | {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert read_spec(folder(tmp_path, config)).kv_bytes_per_token == 2 * (512 + 64) * 4


@pytest.mark.parametrize("field", ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])
def test_every_name_of_the_expert_count_is_read(tmp_path: Path, field: str) -> None:
    config = {k: v for k, v in MIXTRAL.items() if k != "num_local_experts"} | {field: 4}
    assert read_spec(folder(tmp_path, config)).experts == 4


def test_text_settings_inside_a_larger_model(tmp_path: Path) -> None:
    config = {"model_type": "some_vl", "text_config": MIXTRAL}
    spec = read_spec(folder(tmp_path, config))
    assert spec.family == "some_vl" and spec.hidden == 64


def test_packed_weights_count_as_the_weights_they_hold(tmp_path: Path) -> None:
    tensors = mixtral_tensors()
    before = read_spec(folder(tmp_path / "a", MIXTRAL)).parameters
    tensors["model.layers.0.x.weight_packed"] = np.zeros((16, 8), np.int32)
    tensors["model.layers.0.x.weight_scale"] = np.zeros((16, 2), np.float16)
    weights = {"num_bits": 4, "group_size": 32, "strategy": "group"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    config = MIXTRAL | {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}
    spec = read_spec(folder(tmp_path / "b", config, tensors))
    assert spec.parameters == before + 16 * 64 and spec.formats["INT4"] == 16 * (8 * 4 + 2 * 2)


@pytest.mark.parametrize(
    "config",
    [
        "not json",
        "",
        "[]",
        "{}",
        '"text"',
        "[" * 100_000,
        "{" + '"a":{' * 50_000,
        json.dumps({**MIXTRAL, "model_type": 3}),
        {k: v for k, v in MIXTRAL.items() if k != "hidden_size"},
        {k: v for k, v in MIXTRAL.items() if k != "max_position_embeddings"},
        {**MIXTRAL, "hidden_size": -64},
        {**MIXTRAL, "hidden_size": 10**30},
        {**MIXTRAL, "hidden_size": 64.5},
        {**MIXTRAL, "hidden_size": True},
        {**MIXTRAL, "hidden_size": "64"},
        {**MIXTRAL, "num_hidden_layers": 0},
        {**MIXTRAL, "num_hidden_layers": 3},
        {**MIXTRAL, "vocab_size": 127},
        {**MIXTRAL, "num_experts_per_tok": 5},
        {**MIXTRAL, "num_experts_per_tok": 0},
        {**MIXTRAL, "num_local_experts": 8},
        {**MIXTRAL, "num_key_value_heads": -1},
        {**MIXTRAL, "head_dim": 0},
        {**MIXTRAL, "kv_lora_rank": 512},
    ],
)
def test_nonsense_settings_are_refused_in_words(tmp_path: Path, config: object) -> None:
    with pytest.raises(BadData) as caught:
        read_spec(folder(tmp_path, config))
    assert "config.json" in str(caught.value) and caught.value.lines()[1]


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    with pytest.raises(KTError) as caught:
        read_spec(folder(tmp_path, {**MIXTRAL, "hidden_size": -1, "vocab_size": 0, "num_hidden_layers": "two"}))
    for field in ("hidden_size", "vocab_size", "num_hidden_layers"):
        assert field in str(caught.value)


@pytest.mark.parametrize("text", ["Infinity", "-Infinity", "NaN", "1e999"])
def test_numbers_must_be_finite(tmp_path: Path, text: str) -> None:
    config = json.dumps({**MIXTRAL, "rms_norm_eps": 0.5, "rope": {"factor": 0.25}})
    for name, value in (("rms_norm_eps", "0.5"), ("rope.factor", "0.25")):
        with pytest.raises(BadData, match=name):
            read_spec(folder(tmp_path / name, config.replace(value, text)))


def test_a_list_may_hold_infinity(tmp_path: Path) -> None:
    """Published models of Mamba layers say so: time_step_limit."""
    assert read_spec(folder(tmp_path / "m", {**MIXTRAL, "time_step_limit": [0.0, float("inf")]})).layers == 2


def test_examples_name_tensors_of_a_format(tmp_path: Path) -> None:
    found = examples(folder(tmp_path, MIXTRAL), ["F16"])
    assert len(found["F16"]) == 2 and all(".experts." in n for n in found["F16"])


@pytest.mark.model
def test_demo_and_its_source(smollm2_gguf: Path, demo_file: Path) -> None:
    dense, made = read_spec(local_files(smollm2_gguf)), read_spec(local_files(demo_file))
    assert (dense.family, dense.experts, dense.parameters) == ("llama", 0, 134_515_008)
    assert (made.family, made.experts, made.experts_per_token) == ("glm4_moe", 16, 8)
    assert made.context == dense.context == 8192
    assert made.kv_bytes_per_token == dense.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4
    expert_elements = 29 * 16 * 3 * 576 * 128
    assert made.bytes_by_part["experts"] == expert_elements * 20 // 32  # Q4_1: 20 bytes hold 32
