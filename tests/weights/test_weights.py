"""Opening checkpoints: names, values and configs against transformers, for every family and layout."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_models as tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from kt_core.errors import BadData, KTError, NotFound, Unsupported
from kt_core.formats import gguf as gguf_format
from kt_core.models import families
from kt_core.types import ModelFiles
from kt_core.weights import open_weights
from kt_core.weights.decode import DECODERS

Q8_0, Q4_1 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_1
TOKENS = torch.tensor([[5, 17, 3, 88, 41, 2, 60, 9]])
MOE = ("mixtral", "qwen3moe", "glm4moe")


def opened(path: Path):
    kind = "safetensors" if path.is_dir() else "gguf"
    return open_weights(ModelFiles("x", str(path), kind, (str(path),)))


def rebuilt(weights) -> torch.nn.Module:
    """A transformers model from the weights' own config, every parameter read."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**weights.config()), dtype=torch.float32).eval()
    state = model.state_dict()
    assert set(state) == weights.names()
    with torch.no_grad():
        for name, value in state.items():
            assert name in weights
            value.copy_(weights.tensor(name))
    return model


def assert_same_model(weights, original) -> None:
    expected = original.state_dict()
    for name in expected:
        torch.testing.assert_close(weights.tensor(name), expected[name], rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(rebuilt(weights)(TOKENS).logits, original(TOKENS).logits, rtol=0, atol=1e-6)
    assert weights.unused() == []


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_gguf_gives_the_same_model(tmp_path, family):
    original = tiny.model(family)
    path = tiny.write_gguf(tmp_path / "m.gguf", family, tiny.gguf_tensors(family, original), original.config)
    assert_same_model(opened(path), original)


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_transformers_folder_gives_the_same_model(tmp_path, family):
    original = tiny.model(family)
    original.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert ("model.layers.0.block_sparse_moe.experts.0.w1.weight" in index) == (family == "mixtral")
    assert_same_model(opened(tmp_path), original)


_ROUTED = {"n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
OTHERS = {
    "olmoe": {"num_experts": 6, "intermediate_size": 32},
    "minimax_m2": {"num_local_experts": 6, "intermediate_size": 32, "head_dim": 16},
    "deepseek_v3": {"n_group": 2, "topk_group": 1, "num_key_value_heads": 4, **_ROUTED, **_LATENT},
}


@pytest.mark.parametrize("model_type", OTHERS)
def test_folders_of_further_families_give_the_same_model(tmp_path, model_type, monkeypatch):
    changes = {"model_type": model_type, "num_experts_per_tok": 3, **OTHERS[model_type]}
    monkeypatch.setitem(tiny.CONFIGS, model_type, changes)
    original = tiny.model(model_type)
    original.save_pretrained(tmp_path)
    assert_same_model(opened(tmp_path), original)


@pytest.mark.parametrize("family", MOE)
def test_fused_experts_in_a_folder(tmp_path, family):
    original = tiny.model(family)
    original.save_pretrained(tmp_path, save_original_format=False)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))
    assert_same_model(opened(tmp_path), original)


def test_one_tensor_an_expert_in_gguf(tmp_path):
    original = tiny.model("mixtral")
    tensors = tiny.gguf_tensors("mixtral", original, per_expert=True)
    assert "blk.0.ffn_gate.0.weight" in tensors
    assert_same_model(opened(tiny.write_gguf(tmp_path / "m.gguf", "mixtral", tensors, original.config)), original)
    del tensors["blk.1.ffn_up.4.weight"]
    with pytest.raises(BadData, match=r"blk\.1\.ffn_up\.4\.weight is missing"):
        opened(tiny.write_gguf(tmp_path / "m.gguf", "mixtral", tensors, original.config))


@pytest.mark.parametrize("family", MOE)
@pytest.mark.parametrize("source", ["gguf", "folder"])
def test_expert_matrices(tmp_path, family, source):
    original = tiny.model(family)
    if source == "gguf":
        tiny.write_gguf(tmp_path / "m.gguf", family, tiny.gguf_tensors(family, original), original.config)
        weights = opened(tmp_path / "m.gguf")
    else:
        original.save_pretrained(tmp_path)
        weights = opened(tmp_path)
    prefix = "model.layers.1.mlp.experts"
    assert weights.experts(prefix) == tiny.EXPERTS
    assert weights.experts("model.layers.7.mlp.experts") == 0
    assert weights.experts("model.layers.0.mlp.experts") == (0 if family == "glm4moe" else tiny.EXPERTS)
    gate_up = original.state_dict()[f"{prefix}.gate_up_proj"]
    gate, up = gate_up.chunk(2, dim=1)
    parts = {"gate": gate, "up": up, "down": original.state_dict()[f"{prefix}.down_proj"]}
    for part, stack in parts.items():
        for index in range(tiny.EXPERTS):
            matrix = weights.expert(prefix, index, part)
            assert (matrix.format, matrix.rows, matrix.cols) == ("F32", *stack[index].shape)
            assert matrix.data.tobytes() == stack[index].numpy().tobytes()
            assert not matrix.data.flags.writeable
    for index, part in ((tiny.EXPERTS, "gate"), (-1, "gate"), (0, "gate_up")):
        with pytest.raises(NotFound):
            weights.expert(prefix, index, part)


def test_quantised_rows_are_permuted_and_sliced_whole(tmp_path):
    original = tiny.model("mixtral")
    tensors = tiny.gguf_tensors("mixtral", original)
    types = {name: Q4_1 if "exps" in name else Q8_0 for name, array in tensors.items() if array.ndim > 1}
    weights = opened(tiny.write_gguf(tmp_path / "m.gguf", "mixtral", tensors, original.config, {"types": types}))

    def reference(name: str) -> np.ndarray:
        array = np.ascontiguousarray(tensors[name])
        return gguf.quants.dequantize(gguf.quants.quantize(array, types[name]), types[name])

    for hf, name, heads in (("q", "attn_q", tiny.HEADS), ("k", "attn_k", tiny.KV_HEADS)):
        wide = reference(f"blk.1.{name}.weight")
        expected = wide.reshape(heads, -1, 2, wide.shape[1]).swapaxes(1, 2).reshape(wide.shape)
        matrix = weights.matrix(f"model.layers.1.self_attn.{hf}_proj.weight")
        assert matrix.format == "Q8_0" and matrix.data.shape == (wide.shape[0], wide.shape[1] // 32 * 34)
        np.testing.assert_array_equal(weights.tensor(f"model.layers.1.self_attn.{hf}_proj.weight").numpy(), expected)
    down = reference("blk.1.ffn_down_exps.weight")
    np.testing.assert_array_equal(weights.tensor("model.layers.1.mlp.experts.down_proj").numpy(), down)
    assert weights.expert("model.layers.1.mlp.experts", 4, "down").format == "Q4_1"


def test_q_and_k_biases_are_permuted(tmp_path):
    original = tiny.model("llama", attention_bias=True)
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.gguf_tensors("llama", original), original.config)
    assert_same_model(opened(path), original)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_tied_embeddings(tmp_path, family):
    original = tiny.model(family, tie_word_embeddings=True)
    tensors = tiny.gguf_tensors(family, original)
    del tensors["output.weight"]
    weights = opened(tiny.write_gguf(tmp_path / "m.gguf", family, tensors, original.config))
    assert weights.config()["tie_word_embeddings"] is True
    assert torch.equal(weights.tensor("lm_head.weight"), original.state_dict()["model.embed_tokens.weight"])
    folder = tmp_path / "folder"
    original.save_pretrained(folder)
    weights = opened(folder)
    assert torch.equal(weights.tensor("lm_head.weight"), original.state_dict()["model.embed_tokens.weight"])


def test_a_lost_output_matrix_is_not_mistaken_for_a_tied_one(tmp_path):
    tiny.model("llama").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    weights = opened(tmp_path)
    assert "lm_head.weight" not in weights and "lm_head.weight" not in weights.names()
    with pytest.raises(NotFound, match=r"lm_head\.weight"):
        weights.matrix("lm_head.weight")


def test_llama3_rope_factors_are_used(tmp_path):
    scaling = {
        "rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }  # fmt: skip
    original = tiny.model("llama", rope_parameters=scaling)
    plain = 50000.0 ** -(torch.arange(0, 16, 2) / 16)
    factors = (plain / original.model.rotary_emb.inv_freq).numpy().astype(np.float32)
    tensors = tiny.gguf_tensors("llama", original)
    path = tmp_path / "m.gguf"
    weights = opened(tiny.write_gguf(path, "llama", tensors | {"rope_freqs.weight": factors}, original.config))
    assert weights.config()["rope_parameters"]["rope_type"] == "longrope"
    ids = torch.arange(200)[None] % tiny.VOCAB
    with torch.no_grad():
        expected, found = original(ids).logits, rebuilt(weights)(ids).logits
        unscaled = rebuilt(opened(tiny.write_gguf(path, "llama", tensors, original.config)))(ids).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    assert (unscaled - expected).abs().max() > 0.01
    assert weights.unused() == []
    bad = tensors | {"rope_freqs.weight": factors[:3]}
    with pytest.raises(Unsupported, match="rotary"):
        opened(tiny.write_gguf(path, "llama", bad, original.config))


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_keys(tmp_path, kind):
    rope = {"rope_type": kind, "rope_theta": 50000.0, "factor": 4.0}
    keys = {"qwen2.rope.scaling.type": kind, "qwen2.rope.scaling.factor": 4.0}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = 64
        keys["qwen2.rope.scaling.original_context_length"] = 64
    original = tiny.model("qwen2", rope_parameters=rope)
    tensors = tiny.gguf_tensors("qwen2", original)
    assert_same_model(
        opened(tiny.write_gguf(tmp_path / "m.gguf", "qwen2", tensors, original.config, {"keys": keys})), original
    )


def test_next_token_prediction_blocks_are_known_and_left_out(tmp_path):
    original = tiny.model("glm4moe")
    tensors = tiny.gguf_tensors("glm4moe", original)
    extra = {name.replace("blk.1.", "blk.2."): array for name, array in tensors.items() if name.startswith("blk.1.")}
    extra["blk.2.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    keys = {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    path = tmp_path / "m.gguf"
    for added in (extra, {}):
        weights = opened(tiny.write_gguf(path, "glm4moe", tensors | added, original.config, {"keys": keys}))
        assert weights.config()["num_hidden_layers"] == 2
        assert_same_model(weights, original)


def test_unknown_tensors_are_reported(tmp_path):
    original = tiny.model("llama")
    tensors = tiny.gguf_tensors("llama", original) | {"blk.0.strange.weight": np.zeros((2, 2), np.float32)}
    weights = opened(tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, original.config))
    for name in weights.names():
        weights.tensor(name)
    assert weights.unused() == ["blk.0.strange.weight"]


def test_unused_shrinks_with_use(tmp_path):
    original = tiny.model("llama")
    weights = opened(
        tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.gguf_tensors("llama", original), original.config)
    )
    assert len(weights.unused()) == len(weights.names())
    weights.matrix("model.layers.0.mlp.up_proj.weight")
    assert "blk.0.ffn_up.weight" not in weights.unused() and "blk.0.ffn_gate.weight" in weights.unused()


REFUSED = {
    "block count too large": (
        {"llama.block_count": 100000},
        "block_count is 100000, but the file has the tensors of 2",
    ),
    "block count too small": ({"llama.block_count": 1}, "block_count is 1, but the file has the tensors of 2"),
    "block count zero": ({"llama.block_count": 0}, "block_count is 0"),
    "block count as text": ({"llama.block_count": "2"}, "block_count is '2'"),
    "wrong width": ({"llama.embedding_length": 128}, "token_embd.weight has shape"),
    "wrong heads": ({"llama.attention.head_count": 8}, "blk.0.attn_q.weight has shape"),
    "no eps": ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "layer_norm_rms_epsilon is 0.0"),
    "eos outside": ({"tokenizer.ggml.eos_token_id": 96}, "eos_token_id is 96"),
    "key heads that do not divide": ({"llama.attention.head_count_kv": 3}, "attention sizes"),
    "odd head": ({"llama.attention.key_length": 15, "llama.attention.value_length": 15}, "attention sizes"),
    "context as a list": ({"llama.context_length": "many"}, "context_length is 'many'"),
    "four billion experts": ({"llama.expert_count": 4294967295, "llama.expert_used_count": 2}, "expert_count"),
    "experts that are not there": ({"llama.expert_count": 2147483647, "llama.expert_used_count": 2}, "ffn_gate_exps"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_metadata_that_contradicts_the_tensors(tmp_path, case):
    keys, words = REFUSED[case]
    original = tiny.model("llama")
    path = tiny.write_gguf(
        tmp_path / "m.gguf", "llama", tiny.gguf_tensors("llama", original), original.config, {"keys": keys}
    )
    with pytest.raises(BadData) as caught:
        opened(path)
    assert words in str(caught.value), str(caught.value)
    assert all(caught.value.lines())


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("llama", "llama.logit_scale", 8.0),
        ("qwen2", "qwen2.final_logit_softcapping", 30.0),
        ("llama", "llama.rope.scaling.type", "longrope"),
        ("mixtral", "llama.expert_gating_func", 2),
        ("qwen3moe", "qwen3moe.expert_weights_scale", 2.5),
        ("glm4moe", "glm4moe.expert_gating_func", 1),
        ("llama", "llama.attention.value_length", 32),
    ],
)
def test_settings_that_a_family_does_not_have_are_refused(tmp_path, family, key, value):
    original = tiny.model(family)
    tensors = tiny.gguf_tensors(family, original)
    with pytest.raises(Unsupported) as caught:
        opened(tiny.write_gguf(tmp_path / "m.gguf", family, tensors, original.config, {"keys": {key: value}}))
    assert all(caught.value.lines())


def test_expert_count_is_taken_from_the_file(tmp_path):
    original = tiny.model("mixtral", num_local_experts=4)
    tensors = tiny.gguf_tensors("mixtral", original)
    path = tmp_path / "m.gguf"
    weights = opened(tiny.write_gguf(path, "mixtral", tensors, original.config, {"keys": {"llama.expert_count": 4}}))
    assert (weights.config()["num_local_experts"], weights.config()["num_experts_per_tok"]) == (4, 3)
    assert_same_model(weights, original)
    with pytest.raises(BadData, match="ffn_gate_exps"):
        opened(tiny.write_gguf(path, "mixtral", tensors, original.config))


def test_missing_tensors_are_all_listed(tmp_path):
    original = tiny.model("llama")
    tensors = tiny.gguf_tensors("llama", original)
    del tensors["blk.1.attn_q.weight"], tensors["output_norm.weight"]
    with pytest.raises(BadData, match=r"output_norm.weight is missing; .*blk.1.attn_q.weight is missing"):
        opened(tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, original.config))


def test_unknown_architecture_lists_the_known(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(Unsupported, match=r"mamba.*glm4moe, llama, qwen2, qwen3, qwen3moe"):
        opened(tmp_path / "m.gguf")


def test_types_that_cannot_be_decoded_are_listed_before_reading(tmp_path, monkeypatch):
    monkeypatch.delitem(DECODERS, "MXFP4")  # a type that the gguf package can write
    original = tiny.model("llama")
    tensors = tiny.gguf_tensors("llama", original)
    types = {"blk.0.ffn_up.weight": gguf.GGMLQuantizationType.MXFP4}
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tensors, original.config, {"types": types})
    with pytest.raises(Unsupported, match=r"MXFP4.*blk.0.ffn_up.weight.*Q4_1"):
        opened(path)


def test_folder_without_or_with_bad_config(tmp_path):
    tiny.model("llama").save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    for content in (b"", b"[]", b"{" * 5000):
        config.write_bytes(content)
        with pytest.raises(BadData, match=r"config\.json"):
            opened(tmp_path)
    config.write_text(json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(Unsupported, match=r"bitsandbytes.*gptq"):
        opened(tmp_path)
    config.unlink()
    with pytest.raises(NotFound):
        opened(tmp_path)


def test_folder_with_a_lost_expert(tmp_path):
    tiny.model("qwen3moe").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadData, match=r"expert 3 of model\.layers\.1\.mlp\.experts lacks its up matrix"):
        opened(tmp_path)
    for part in ("gate", "up", "down"):
        tensors.pop(f"model.layers.0.mlp.experts.2.{part}_proj.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadData, match=r"expert 2 of model\.layers\.0\.mlp\.experts lacks its gate matrix"):
        opened(tmp_path)


@settings(max_examples=300, deadline=3000, derandomize=True)
@given(edits=st.lists(st.tuples(st.integers(24, 4500), st.integers(0, 255)), min_size=1, max_size=3))
def test_any_damage_to_the_header_is_an_error_in_words_or_harmless(tiny_mixtral, edits):
    damaged = bytearray(tiny_mixtral.read_bytes())
    for at, value in edits:
        damaged[at] = value
    target = tiny_mixtral.with_name("damaged.gguf")
    target.write_bytes(damaged)
    try:
        weights = opened(target)
        for name in weights.names():
            weights.tensor(name)
    except KTError as error:
        assert isinstance(error, (BadData, Unsupported)) and all(error.lines())


@pytest.fixture(scope="module")
def tiny_mixtral(tmp_path_factory):
    original = tiny.model("mixtral")
    path = tmp_path_factory.mktemp("tiny") / "m.gguf"
    return tiny.write_gguf(path, "mixtral", tiny.gguf_tensors("mixtral", original), original.config)


@pytest.mark.parametrize(
    "change",
    [{"num_hidden_layers": "2"}, {"num_nextn_predict_layers": "x"}, {"model_type": ["llama"]}, {"hidden_size": None}],
)
def test_odd_configs_do_not_crash_the_reader(tmp_path, change):
    tiny.model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    config.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "model.norm.weight" in opened(tmp_path).names()


def test_bfloat16_output_is_exact(tmp_path):
    original = tiny.model("llama").to(torch.bfloat16)
    original.save_pretrained(tmp_path)
    weights = opened(tmp_path)
    for name, value in original.state_dict().items():
        assert torch.equal(weights.tensor(name, torch.bfloat16), value)
    assert weights.matrix("lm_head.weight").format == "BF16"


def test_smollm2_equals_the_gguf_package_and_transformers(smollm2_gguf):
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    weights = opened(smollm2_gguf)
    config = weights.config()
    derived = load_gguf_checkpoint(str(smollm2_gguf))["config"]
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
                "intermediate_size", "max_position_embeddings", "rms_norm_eps", "bos_token_id", "eos_token_id",
                "pad_token_id", "tie_word_embeddings", "model_type"):  # fmt: skip
        assert config[key] == derived[key], key
    assert config["rope_parameters"]["rope_theta"] == derived["rope_theta"]
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert set(skeleton.state_dict()) == weights.names()
    names = families.gguf_names(gguf_format.read_model(smollm2_gguf))
    hf = {ggml: name for name, ggml in names.items()}
    for t in gguf.GGUFReader(str(smollm2_gguf)).tensors:
        expected = gguf.quants.dequantize(t.data, t.tensor_type)
        heads = {"attn_q": 9, "attn_k": 3}.get(t.name.split(".")[-2])
        if heads:
            expected = expected.reshape(heads, -1, 2, expected.shape[1]).swapaxes(1, 2).reshape(expected.shape)
        np.testing.assert_array_equal(weights.tensor(hf[t.name]).numpy(), expected, err_msg=t.name)
    assert weights.unused() == []
