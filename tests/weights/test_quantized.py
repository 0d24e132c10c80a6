"""Quantised folders: every method against a writer that is not kt's, and broken folders against words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantized_writers import WAYS, compressed, fp8_block, fp8_rows, gptq
from safetensors.torch import save_file

from kt_core.errors import BadData, KTError, Unsupported
from kt_core.formats import quantized
from kt_core.models.spec import read_spec
from kt_core.plan import KERNEL_FORMATS
from kt_core.types import ModelFiles
from kt_core.weights import Weights, decode_matrix, open_weights

ROWS, COLS = 160, 320  # neither is a whole number of FP8 blocks; 320 divides by 64, not by 128
MODULE = "model.layers.0.mlp.up_proj"
CONFIG: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_size": COLS, "vocab_size": 8, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": ROWS, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip


def matrix(seed: int = 0, rows: int = ROWS, cols: int = COLS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(rows, 1, generator=generator) * 3 + 0.1
    weight = torch.randn(rows, cols, generator=generator) * spread
    weight[5::7] = weight[5::7].abs()  # the zero point of a group that has no negative number is 0
    return weight


def files(folder: Path, tensors: dict[str, torch.Tensor], settings: object, **config: Any) -> ModelFiles:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": settings} | config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return ModelFiles("x", str(folder), "safetensors", (str(folder / "model.safetensors"),))


def module(written: dict[str, torch.Tensor], name: str = MODULE) -> dict[str, torch.Tensor]:
    return {f"{name}.{end}": tensor for end, tensor in written.items()}


def opened(folder: Path, tensors: dict[str, torch.Tensor], settings: object, **config: Any) -> Weights:
    return open_weights(files(folder, tensors, settings, **config))


def is_mapped(array: np.ndarray) -> bool:
    """Whether the numbers are the file's own."""
    while array.base is not None and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


@pytest.mark.parametrize("name", WAYS)
def test_every_way_decodes_to_what_its_writer_meant(tmp_path, name):
    way = WAYS[name]
    tensors, decoded = way.write(matrix())
    weights = opened(tmp_path, module(tensors), way.settings)
    found = weights.matrix(f"{MODULE}.weight")
    assert (found.format, found.rows, found.cols) == (way.format, ROWS, COLS)
    assert is_mapped(found.data)
    # Two factors of NVFP4 may be multiplied in either order: three roundings of 2^-24 each.
    tolerance = 2e-7 if way.format == "NVFP4" else 0
    np.testing.assert_allclose(decode_matrix(found), decoded.numpy(), rtol=tolerance, atol=0)
    torch.testing.assert_close(weights.tensor(f"{MODULE}.weight"), decoded, rtol=tolerance, atol=0)
    assert weights.unused() == [] and "quantization_config" not in weights.config()
    assert weights.names() == {f"{MODULE}.weight"} | ({f"{MODULE}.bias"} if "bias" in tensors else set())


def test_every_way_of_the_contract_has_a_writer():
    assert {way.settings["quant_method"] for way in WAYS.values()} | {"mxfp4", "modelopt_fp4"} == set(
        quantized.methods()
    )
    assert {way.format for way in WAYS.values()} == {
        "FP8_BLOCK", "FP8_CHANNEL", "MXFP8", "MXFP4_HF", "NVFP4", "INT4", "GPTQ", "AWQ", "INT8_CHANNEL",
    }  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_the_spec_counts_weights_and_bytes(tmp_path, name):
    way = WAYS[name]
    tensors = module({k: v for k, v in way.write(matrix())[0].items() if k != "bias"})
    plain = {"model.embed_tokens.weight": torch.zeros(8, COLS), "model.norm.weight": torch.ones(COLS)}
    spec = read_spec(files(tmp_path, tensors | plain, way.settings))
    activations = ("input_scale", "k_scale")
    stored = sum(t.nbytes for n, t in tensors.items() if not n.endswith(activations))
    assert spec.formats == {way.format: stored, "F32": 9 * COLS * 4}
    assert spec.parameters == (ROWS + 9) * COLS
    assert set(spec.formats) <= set(KERNEL_FORMATS)  # so a plan takes it


@pytest.mark.parametrize(("group", "scale_type"), [(32, torch.float16), (64, torch.bfloat16), (160, torch.float16)])
def test_packed_int8_becomes_q8_0(tmp_path, group, scale_type):
    """Groups of a multiple of 32, with scales that float16 can hold; others are refused."""
    args = {"num_bits": 8, "type": "int", "strategy": "group", "group_size": group, "symmetric": True, "dynamic": False}
    tensors, decoded = compressed(matrix(), "pack-quantized", args, scale_type)
    groups = {"group_0": {"targets": ["Linear"], "weights": args}}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
    found = opened(tmp_path, module(tensors), settings).matrix(f"{MODULE}.weight")
    assert found.format == "Q8_0"
    np.testing.assert_array_equal(decode_matrix(found), decoded.numpy())
    tensors["weight_scale"] = (tensors["weight_scale"].float() * 2.0**-24).to(torch.bfloat16)
    with pytest.raises(Unsupported, match="float16"):
        opened(tmp_path, module(tensors), settings).matrix(f"{MODULE}.weight")


def test_stacked_fp8_experts(tmp_path):
    """Fused as transformers saves them: [E, 2I, H] with blocks that end at each expert."""
    experts = [(fp8_block(matrix(e, 512, 192)), fp8_block(matrix(9 + e, 192, 256))) for e in range(3)]
    prefix = "model.layers.0.mlp.experts"
    tensors = {}
    for part, index in (("gate_up_proj", 0), ("down_proj", 1)):
        tensors[f"{prefix}.{part}"] = torch.stack([e[index][0]["weight"] for e in experts])
        tensors[f"{prefix}.{part}_scale_inv"] = torch.stack([e[index][0]["weight_scale_inv"] for e in experts])
    weights = opened(tmp_path, tensors, WAYS["fp8-block"].settings, hidden_size=192)
    for index, (gate_up, down) in enumerate(experts):
        parts = [decode_matrix(weights.expert(prefix, index, part)) for part in ("gate", "up", "down")]
        np.testing.assert_array_equal(np.concatenate(parts[:2]), gate_up[1].numpy())
        np.testing.assert_array_equal(parts[2], down[1].numpy())
    fused = torch.stack([gate_up[1] for gate_up, _ in experts])
    assert torch.equal(weights.tensor(f"{prefix}.gate_up_proj"), fused) and weights.unused() == []


def test_stacked_blocks_that_cross_from_gate_to_up(tmp_path):
    tensors = fp8_block(matrix(0, 320, 192))[0]
    stacks = {"model.layers.0.mlp.experts.gate_up_proj": tensors["weight"][None]}
    stacks["model.layers.0.mlp.experts.gate_up_proj_scale_inv"] = tensors["weight_scale_inv"][None]
    down = fp8_block(matrix(1, 192, 160))[0]
    stacks["model.layers.0.mlp.experts.down_proj"] = down["weight"][None]
    stacks["model.layers.0.mlp.experts.down_proj_scale_inv"] = down["weight_scale_inv"][None]
    weights = opened(tmp_path, stacks, WAYS["fp8-block"].settings, hidden_size=192)
    with pytest.raises(BadData, match="row 160"):
        weights.expert("model.layers.0.mlp.experts", 0, "up")


def test_gpt_oss_experts(tmp_path):
    """Stacks of blocks, gate and up row by row; the model's own module has them transposed."""
    prefix = "model.layers.0.mlp.experts"
    stacks: dict[str, list[torch.Tensor]] = {}
    decoded: dict[str, list[torch.Tensor]] = {"gate_up_proj": [], "down_proj": []}
    for expert in range(3):
        for part, shape in (("gate_up_proj", (48, 64)), ("down_proj", (64, 32))):
            written, values = WAYS["fp4-v4"].write(matrix(expert, *shape))
            blocks = written["weight"].view(torch.uint8).reshape(shape[0], shape[1] // 32, 16)
            stacks.setdefault(f"{prefix}.{part}_blocks", []).append(blocks)
            stacks.setdefault(f"{prefix}.{part}_scales", []).append(written["scale"].view(torch.uint8))
            stacks.setdefault(f"{prefix}.{part}_bias", []).append(torch.randn(shape[0]))
            decoded[part].append(values)
    tensors = {name: torch.stack(parts) for name, parts in stacks.items()}
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    weights = opened(tmp_path, tensors, settings, model_type="gpt_oss", hidden_size=64)
    assert weights.experts(prefix) == 3
    for expert in range(3):
        gate_up = decoded["gate_up_proj"][expert].numpy()
        for part, expected in (("gate", gate_up[0::2]), ("up", gate_up[1::2]), ("down", decoded["down_proj"][expert])):
            found = weights.expert(prefix, expert, part)
            assert found.format == "MXFP4_HF" and is_mapped(found.data) and is_mapped(found.scales)
            np.testing.assert_array_equal(decode_matrix(found), np.asarray(expected))
    for part, values in decoded.items():
        assert torch.equal(weights.tensor(f"{prefix}.{part}"), torch.stack(values).transpose(1, 2))
        assert torch.equal(weights.tensor(f"{prefix}.{part}_bias"), tensors[f"{prefix}.{part}_bias"])
    assert weights.unused() == []


def test_names_of_other_families_are_renamed_with_their_scales(tmp_path):
    tensors = {}
    for part, shape in (("w1", (96, 64)), ("w3", (96, 64)), ("w2", (64, 96))):
        name = f"model.layers.0.block_sparse_moe.experts.0.{part}"
        tensors |= module(WAYS["mxfp8"].write(matrix(3, *shape))[0], name)
    weights = opened(tmp_path, tensors, WAYS["mxfp8"].settings, model_type="minimax_m2", hidden_size=64)
    assert {weights.expert("model.layers.0.mlp.experts", 0, p).format for p in ("gate", "up", "down")} == {"MXFP8"}
    assert weights.unused() == []


def test_groups_decide_by_name_then_pattern_then_class(tmp_path):
    """Experts in INT4, attention in FP8, one layer listed by name with another group size, the rest plain."""
    int4 = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True}
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "a": {"targets": ["Linear"], "weights": int4 | {"group_size": 32}},
            "b": {"targets": ["re:.*self_attn.*"], "weights": fp8},
            "c": {"targets": [MODULE], "weights": int4 | {"group_size": 64}},
        },
        "ignore": ["lm_head", "re:.*gate$"],
    }
    weight = matrix(0, 64, 128)
    expected = {}
    tensors = {"lm_head.weight": torch.zeros(8, 128), "model.layers.0.mlp.gate.weight": torch.zeros(4, 128)}
    for name, group, form in (
        ("mlp.down_proj", 32, "INT4"),
        ("mlp.up_proj", 64, "INT4"),
        ("self_attn.q_proj", 0, "FP8"),
    ):
        if group:
            written, decoded = compressed(weight, "pack-quantized", int4 | {"group_size": group}, torch.bfloat16)
        else:
            written, decoded = fp8_rows(weight)
        tensors |= module(written, f"model.layers.0.{name}")
        expected[f"model.layers.0.{name}.weight"] = (form, decoded)
    weights = opened(tmp_path, tensors, settings)
    for name, (form, decoded) in expected.items():
        assert weights.matrix(name).format.startswith(form)
        assert torch.equal(weights.tensor(name), decoded)
    assert weights.matrix("lm_head.weight").format == "F32"


def test_modelopt_settings_in_a_file_of_their_own(tmp_path):
    tensors, decoded = WAYS["modelopt-nvfp4"].write(matrix())
    model = files(tmp_path, module(tensors), None)
    content = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    torch.testing.assert_close(open_weights(model).tensor(f"{MODULE}.weight"), decoded, rtol=2e-7, atol=0)


def test_settings_of_the_text_part(tmp_path):
    tensors, decoded = WAYS["fp8-block"].write(matrix())
    inner = CONFIG | {"quantization_config": WAYS["fp8-block"].settings}
    weights = opened(tmp_path, module(tensors), None, text_config=inner)
    assert torch.equal(weights.tensor(f"{MODULE}.weight"), decoded)
    assert "quantization_config" not in weights.config()["text_config"]


def test_prediction_layers_are_skipped_with_their_scales(tmp_path):
    tensors = module(WAYS["fp8-block"].write(matrix())[0])
    extra = module(WAYS["fp8-block"].write(matrix())[0], "model.layers.1.mlp.up_proj")
    weights = opened(tmp_path, tensors | extra, WAYS["fp8-block"].settings, num_nextn_predict_layers=1)
    weights.matrix(f"{MODULE}.weight")
    assert weights.unused() == []


def test_a_bias_with_numbers_is_no_filler(tmp_path):
    tensors = module(WAYS["gptq-sym"].write(matrix())[0])
    tensors[f"{MODULE}.bias"][3] = 1
    weights = opened(tmp_path, tensors, WAYS["gptq-sym"].settings)
    weights.matrix(f"{MODULE}.weight")
    assert weights.unused() == [f"{MODULE}.bias"]


# What is wrong with numbers beside the weight shows when the weight is asked for.


def test_columns_in_another_order(tmp_path):
    tensors, _ = WAYS["gptq-sym"].write(matrix())
    order = tensors["g_idx"].clone()
    tensors["g_idx"][0], tensors["g_idx"][-1] = order[-1], order[0]
    weights = opened(tmp_path, module(tensors), WAYS["gptq-sym"].settings | {"desc_act": True})
    with pytest.raises(Unsupported, match="desc_act"):
        weights.matrix(f"{MODULE}.weight")


def test_rows_that_no_kernel_takes(tmp_path):
    tensors = module(WAYS["fp8-rows"].write(matrix(0, 32, 80))[0])
    expect(tmp_path, tensors, WAYS["fp8-rows"].settings, MODULE, "80 columns")
    tensors = gptq(matrix(0, 48, 64), 32, True, 0)[0]
    cut = {"qweight": tensors["qweight"][:, :44], "scales": tensors["scales"][:, :44], "qzeros": tensors["qzeros"]}
    expect(tmp_path, module(cut), WAYS["gptq_v2-sym"].settings, MODULE, "44")


def test_desc_act_in_plain_order_is_read(tmp_path):
    tensors, decoded = WAYS["gptq-sym"].write(matrix())
    weights = opened(tmp_path, module(tensors), WAYS["gptq-sym"].settings | {"desc_act": True})
    assert torch.equal(weights.tensor(f"{MODULE}.weight"), decoded)


def test_weight_shape_must_agree(tmp_path):
    tensors, _ = WAYS["ct-int4-g32"].write(matrix())
    tensors["weight_shape"][1] -= 3
    weights = opened(tmp_path, module(tensors), WAYS["ct-int4-g32"].settings)
    with pytest.raises(BadData, match="317"):
        weights.matrix(f"{MODULE}.weight")


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name, end", [("modelopt-nvfp4", "weight_scale_2"), ("ct-nvfp4", "weight_global_scale")])
def test_factors_must_be_numbers(tmp_path, name, end, value):
    tensors, _ = WAYS[name].write(matrix())
    tensors[end] = torch.full_like(tensors[end], value)
    weights = opened(tmp_path, module(tensors), WAYS[name].settings)
    with pytest.raises(BadData, match=end):
        weights.matrix(f"{MODULE}.weight")


def test_gptq_zero_points_less_one(tmp_path):
    """Matrix has 15 for a zero point of 0; a word's points do not disturb each other."""
    tensors, _ = gptq(matrix(), 32, False, 0)
    tensors["qzeros"] = torch.randint(-(2**31), 2**31, tensors["qzeros"].shape, dtype=torch.int64).to(torch.int32)
    weights = opened(tmp_path, module(tensors), WAYS["gptq_v2-asym"].settings)
    stored = weights.matrix(f"{MODULE}.weight").zeros.view(np.int32)
    theirs = tensors["qzeros"].numpy()
    for i in range(8):
        assert (((stored >> 4 * i) + 1 & 15) == (theirs >> 4 * i & 15)).all()


# Broken folders: one error that names the tensor, from the spec and from the weights alike.


def expect(folder: Path, tensors: dict[str, torch.Tensor], settings: object, *words: str, **config: Any) -> KTError:
    embedding = {"model.embed_tokens.weight": torch.zeros(8, COLS)}
    model = files(folder, tensors | embedding, settings, **config)
    texts = []
    for read in (open_weights, read_spec):
        with pytest.raises(KTError) as caught:
            read(model)
        assert isinstance(caught.value, BadData | Unsupported) and len(caught.value.lines()) >= 3
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
    for word in words:
        assert word in texts[0], (word, texts[0])
    return caught.value


NEEDED = [
    (name, end)
    for name in WAYS
    for end in (
        "weight_scale_inv",
        "weight_scale",
        "weight_scale_2",
        "weight_global_scale",
        "scales",
        "weight_zero_point",
    )
    if end in WAYS[name].write(matrix(0, 128, 128))[0]
]


@pytest.mark.parametrize("name, end", [*NEEDED, ("gptq-asym", "qzeros"), ("awq", "qzeros")])
def test_missing_sides(tmp_path, name, end):
    tensors = WAYS[name].write(matrix())[0]
    del tensors[end]
    error = expect(tmp_path, module(tensors), WAYS[name].settings, MODULE)
    assert end in str(error) or name.startswith("fp8-rows")  # whose scale has either name


@pytest.mark.parametrize("name, end", [*NEEDED, ("gptq-asym", "qzeros"), ("awq", "qzeros"), ("gptq-sym", "g_idx")])
def test_sides_of_another_type(tmp_path, name, end):
    tensors = WAYS[name].write(matrix())[0]
    tensors[end] = torch.zeros(tensors[end].shape, dtype=torch.int16)
    expect(tmp_path, module(tensors), WAYS[name].settings, f"{MODULE}.{end}", "I16")


@pytest.mark.parametrize("name, end", [*NEEDED, ("gptq-asym", "qzeros"), ("awq", "qzeros"), ("gptq-sym", "g_idx")])
def test_sides_of_another_shape(tmp_path, name, end):
    tensors = WAYS[name].write(matrix())[0]
    tensors[end] = torch.cat([tensors[end].reshape(-1).view(torch.uint8)] * 2).view(tensors[end].dtype)
    expect(tmp_path, module(tensors), WAYS[name].settings, f"{MODULE}.{end}", "expected")


@pytest.mark.parametrize("name", [name for name in WAYS if "weight_scale" in WAYS[name].write(matrix(0, 128, 128))[0]])
def test_scales_without_a_weight(tmp_path, name):
    tensors = WAYS[name].write(matrix())[0]
    tensors = {end: t for end, t in tensors.items() if end not in ("weight", "weight_packed")}
    expect(tmp_path, module(tensors), WAYS[name].settings, MODULE, "belongs to no quantised weight")


def test_all_problems_at_once(tmp_path):
    tensors = {}
    for layer in range(3):
        written = WAYS["ct-int4-g32"].write(matrix())[0]
        del written["weight_scale"]
        tensors |= module(written, f"model.layers.{layer}.mlp.up_proj")
    expect(tmp_path, tensors, WAYS["ct-int4-g32"].settings, *(f"layers.{n}.mlp.up_proj.weight_scale" for n in range(3)))


def test_a_weight_of_both_kinds(tmp_path):
    tensors = module(WAYS["ct-int4-g32"].write(matrix())[0]) | {f"{MODULE}.weight": torch.zeros(ROWS, COLS)}
    expect(tmp_path, tensors, WAYS["ct-int4-g32"].settings, f"{MODULE}.weight")


def test_a_packed_weight_that_is_ignored_or_of_no_group(tmp_path):
    tensors = module(WAYS["ct-int4-g32"].write(matrix())[0])
    settings = WAYS["ct-int4-g32"].settings
    expect(tmp_path, tensors, settings | {"ignore": ["re:.*up_proj"]}, f"{MODULE}.weight_packed")
    group = settings["config_groups"]["group_0"] | {"targets": ["re:.*attn.*"]}
    expect(tmp_path, tensors, settings | {"config_groups": {"g": group}}, f"{MODULE}.weight_packed")


@pytest.mark.parametrize(
    "settings",
    [
        [], [1], "fp8", 3, True, {"a": 1}, {"quant_method": None}, {"quant_method": ["fp8"]}, {"quant_method": "x" * 9999},
        {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "\x1b[31m"},
    ],
)  # fmt: skip
def test_methods_that_kt_does_not_read(tmp_path, settings):
    error = expect(tmp_path, {f"{MODULE}.weight": torch.zeros(ROWS, COLS)}, settings)
    assert "\x1b" not in str(error) and len(str(error)) < 1500
    if isinstance(settings, dict):
        assert "compressed-tensors" in str(error) and "gptq" in str(error)


SIZES = ["x", 0, -2, 10**30, 1 << 25, 1.5, True, [32], {}, 96, 7, 1 << 20]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["gptq-sym", "awq", "ct-int4-g32", "ct-int4-asym"])
def test_group_sizes_of_nonsense(tmp_path, name, size):
    settings = json.loads(json.dumps(WAYS[name].settings))
    if "config_groups" in settings:
        settings["config_groups"]["group_0"]["weights"]["group_size"] = size
    else:
        settings["group_size"] = size
    expect(tmp_path, module(WAYS[name].write(matrix())[0]), settings, "group")


@pytest.mark.parametrize(
    "name, changes",
    [
        ("gptq-sym", {"bits": 8}), ("gptq-sym", {"bits": None}), ("gptq-sym", {"checkpoint_format": "marlin"}),
        ("gptq-sym", {"sym": "yes"}), ("gptq-sym", {"dynamic": {"+:.*": {"bits": 8}}}), ("gptq-sym", {"dynamic": 3}),
        ("awq", {"version": "gemv"}), ("awq", {"bits": 3}), ("awq", {"zero_point": 1}),
        ("fp8-block", {"weight_block_size": [64, 64]}), ("fp8-block", {"weight_block_size": "128"}),
        ("fp8-block", {"weight_block_size": [1, 32]}), ("fp8-block", {"weight_block_size": None}),
        ("mxfp8", {"weight_block_size": [128, 128]}), ("modelopt-nvfp4", {"quant_algo": "W4A16_AWQ"}),
        ("ct-int4-g32", {"config_groups": None}), ("ct-int4-g32", {"config_groups": {}}),
        ("ct-int4-g32", {"config_groups": {"g": 1}}), ("ct-int4-g32", {"config_groups": {"g": {"weights": []}}}),
        ("ct-int4-g32", {"config_groups": {"g": {"targets": "Linear", "weights": {}}}}),
        ("ct-int4-g32", {"config_groups": {"g": {"targets": ["re:("], "weights": {}}}}),
        ("ct-int4-g32", {"config_groups": {"g": {"targets": [1], "weights": {}}}}),
        ("ct-int4-g32", {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float"}}}}),
        ("ct-int4-g32", {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 3}}}}),
        ("ct-int4-g32", {"ignore": 3}), ("ct-int4-g32", {"ignore": ["re:["]}),
        ("ct-int4-g32", {"sparsity_config": {"format": "sparse-24-bitmask"}}), ("ct-int4-g32", {"transform_config": {"a": 1}}),
        ("ct-fp8-block", {"config_groups": {"g": {"targets": ["Linear"], "weights": {"block_structure": [64, 1]}}}}),
        ("ct-int8", {"config_groups": {"g": {"targets": ["Linear"], "weights": {"symmetric": False}}}}),
    ],
)  # fmt: skip
def test_settings_that_kt_does_not_read(tmp_path, name, changes):
    expect(tmp_path, module(WAYS[name].write(matrix())[0]), WAYS[name].settings | changes)


def test_weights_that_are_no_matrices(tmp_path):
    settings = WAYS["gptq-sym"].settings
    for shape in ((), (8,), (0, 8), (2, 2, 2)):
        expect(tmp_path, {f"{MODULE}.qweight": torch.zeros(shape, dtype=torch.int32)}, settings, "qweight")
    blocks = {"model.layers.0.mlp.experts.down_proj_blocks": torch.zeros(2, 4, 3, 8, dtype=torch.uint8)}
    expect(tmp_path, blocks, {"quant_method": "mxfp4"}, "down_proj_blocks")


def test_modelopt_file_of_nonsense(tmp_path):
    for text in ("[]", "{", "[1]", '{"quantization": 3}', "3", "[" * 100_000):
        tmp_path.joinpath("hf_quant_config.json").write_text(text)
        tensors = {f"{MODULE}.weight": torch.zeros(ROWS, COLS)}
        if text == "[]":
            opened(tmp_path, tensors, None)
        else:
            expect(tmp_path, tensors, None, "hf_quant_config.json")


def changed(tensor: torch.Tensor, choice: int) -> torch.Tensor:
    """Another shape, type or size."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    types = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float8_e4m3fn)
    if choice < len(types):
        return flat[: flat.numel() // 8 * 8].view(types[choice])
    if tensor.dim() != 2:
        return torch.stack([tensor, tensor])
    shapes = (tensor.reshape(-1), tensor.T, tensor[None], tensor[:0], tensor[:1], torch.cat([tensor, tensor]))
    return shapes[choice - len(types)]


def test_any_change_ends_in_words_or_in_a_model(tmp_path):
    """Nothing but KTError comes out of a folder, however its tensors and settings were changed."""
    generator = np.random.default_rng(7)
    values = ["x", 0, -1, 1e300, None, [], {}, [128, 128], True, 10**30, [[1]], {"a": {"b": []}}]
    refused = 0
    for round in range(200):
        way = WAYS[list(WAYS)[round % len(WAYS)]]
        tensors = way.write(matrix(round, 32, 64))[0]
        settings = json.loads(json.dumps(way.settings))
        for _ in range(generator.integers(1, 3)):
            inner = [settings, *(g["weights"] for g in settings.get("config_groups", {}).values() if "weights" in g)]
            if generator.random() < 0.4:
                place = inner[generator.integers(len(inner))]
                place[list(place)[generator.integers(len(place))]] = values[generator.integers(len(values))]
                break
            end = list(tensors)[generator.integers(len(tensors))]
            if generator.random() < 0.2:
                del tensors[end]
                break
            tensors[end] = changed(tensors[end], int(generator.integers(13)))
        try:
            weights = opened(tmp_path, module(tensors) | {"model.norm.weight": torch.ones(4)}, settings)
            for name in weights.names():
                weights.tensor(name)
        except KTError as error:
            refused += 1
            assert isinstance(error, BadData | Unsupported)
    assert 100 < refused < 200  # some changes do no harm
