"""Parts of a model by the names of its stored tensors: published checkpoints of many families, and GGUF files."""

import json
import sys
from pathlib import Path

import pytest
import torch

from kt_core.models.counting import counted
from kt_core.models.files import local_files
from kt_core.models.parts import part_of
from kt_core.models.spec import describe, read_spec

sys.path.insert(0, str(Path(__file__).parent.parent / "parity"))
from families import save

FAMILIES = (
    "deepseek_v2", "ernie4_5_moe", "glm4_moe", "gpt_oss", "granitemoehybrid", "hunyuan_v1_moe", "jamba", "llama4_text",
    "minimax_m2", "minimax_m3_vl_text", "mixtral", "qwen2_moe", "qwen3_next", "phimoe", "afmoe", "llama", "gemma3_text",
)  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_configuration_agree(family: str, tmp_path: Path) -> None:
    """The same weights by the names that publishers use and by the formulas for the configuration."""
    save(family, tmp_path, torch.float32)
    spec = read_spec(local_files(tmp_path))
    by_config = counted(json.loads((tmp_path / "config.json").read_text()))
    for part in ("experts", "shared", "dense", "embedding", "head"):
        assert spec.parameters_by_part.get(part, 0) == by_config.get(part, 0), part
    attention = spec.parameters_by_part["attention"]  # with its biases and decays, which the formulas leave out
    assert by_config["attention"] <= attention <= 1.2 * by_config["attention"]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.3.mlp.experts.17.gate_proj.weight_scale_inv", "experts"),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", "experts"),
        ("model.layers.3.mlp.shared_experts.gate_proj.weight", "shared"),
        ("model.layers.3.mlp.shared_expert_gate.weight", "other"),
        ("model.layers.3.mlp.gate.weight", "other"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "other"),
        ("model.layers.3.mlp.gate_proj.weight", "dense"),
        ("model.layers.3.block_sparse_moe.experts.0.w1.weight", "experts"),
        ("model.layers.3.self_attn.indexer.wq_b.weight", "attention"),
        ("model.layers.3.self_attn.kv_a_layernorm.weight", "other"),
        ("model.layers.61.mlp.experts.0.down_proj.weight", "mtp"),
        ("model.layers.61.shared_head.head.weight", "mtp"),
        ("mtp.layers.0.mlp.experts.0.down_proj.weight", "mtp"),
        ("model.visual.blocks.99.attn.qkv.weight", "vision"),
        ("vision_tower.encoder.layers.70.mlp.fc1.weight", "vision"),
        ("multi_modal_projector.linear_1.weight", "vision"),
        ("language_model.model.layers.3.self_attn.q_proj.weight", "attention"),
        ("model.language_model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("backbone.layers.3.mixer.in_proj.weight", "attention"),
        ("token_embd.weight", "embedding"),
        ("output.weight", "head"),
        ("output_norm.weight", "other"),
        ("blk.3.attn_output.weight", "attention"),
        ("blk.3.attn_norm.weight", "other"),
        ("blk.3.ffn_gate_exps.weight", "experts"),
        ("blk.3.ffn_gate.7.weight", "experts"),
        ("blk.3.ffn_gate_shexp.weight", "shared"),
        ("blk.3.ffn_gate_inp.weight", "other"),
        ("blk.3.ffn_down.weight", "dense"),
        ("blk.3.ssm_in.weight", "attention"),
        ("blk.61.nextn.eh_proj.weight", "mtp"),
        ("v.blk.0.attn_q.weight", "vision"),
    ],
)  # fmt: skip
def test_names(name: str, part: str) -> None:
    assert part_of(name, 61) == part


def test_a_way_of_quantising_that_kt_does_not_read(tmp_path: Path) -> None:
    """Sizes come from the configuration then, and the answer says so."""
    save("mixtral", tmp_path, torch.float32)
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"quantization_config": {"quant_method": "hqq", "bits": 3}})
    )
    found = describe(local_files(tmp_path))
    assert not found.exact and found.experts == 4 and found.parameters_by_part["experts"] == 2 * 4 * 3 * 64 * 96
