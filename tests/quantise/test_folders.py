"""Folders: what is quantised and what is kept, in words that compressed-tensors and kt's reader take alike."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from quantized_writers import WAYS
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from kt_core.errors import BadData, Unsupported, UsageError
from kt_core.formats import safetensors
from kt_core.models import read_spec
from kt_core.models.files import local_files
from kt_core.quantise import layout, make, whole, write
from kt_core.weights import open_weights

METHODS = [
    ("int4", {}), ("int4", {"group": 64}), ("int4", {"zero_point": True}), ("int8", {}), ("fp8", {}), ("mxfp4", {}),
    ("moe_int4", {}), ("moe_int8", {}), ("int8", {"only": "other"}),
]  # fmt: skip


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def decompressed(folder: Path) -> dict[str, torch.Tensor]:
    """Every weight as compressed-tensors reads the folder, by the first group with a target that names its module."""
    tensors = stored(folder)
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    found = {}
    for name in list(tensors):
        module = re.sub(r"\.weight(_packed)?$", "", name)
        if not name.endswith((".weight", ".weight_packed")):
            continue
        groups = [
            g for g in settings["config_groups"].values() if any(names(target, module) for target in g["targets"])
        ]
        assert len(groups) + sum(names(one, module) for one in settings["ignore"]) <= 1, module
        if not groups:
            found[f"{module}.weight"] = tensors[name].float()
            continue
        weights = {
            k: getattr(torch, str(v)[6:]) if str(v).startswith("torch.") else v for k, v in groups[0]["weights"].items()
        }
        scheme = QuantizationScheme(targets=["Linear"], weights=weights)
        state = {key: tensors[f"{module}.{key}"] for key in _KEYS if f"{module}.{key}" in tensors}
        if state["weight_scale"].dtype != torch.uint8:
            state["weight_scale"] = state["weight_scale"].float()
        compressor = BaseCompressor.get_value_from_registry(groups[0]["format"])
        found[f"{module}.weight"] = compressor.decompress(state, scheme)["weight"].float()
    return found


_KEYS = ("weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape")


def names(target: str, module: str) -> bool:
    return bool(re.match(target[3:], module)) if target.startswith("re:") else target == module


@pytest.mark.parametrize(("method", "more"), METHODS, ids=str)
def test_others_read_the_same_numbers(folder, quantised, monkeypatch, method, more):
    monkeypatch.setattr(write, "AT_ONCE", 1 << 12)  # many pieces, even of tiny weights
    source = folder("qwen3moe", hidden_size=128, moe_intermediate_size=64)
    out = quantised(source, method, **more)
    before, after = stored(source), decompressed(out)
    assert after.keys() == {name for name in before if name.endswith(".weight")}
    ours = open_weights(local_files(out))
    for name, values in after.items():
        layered = "norm" not in name and "embed" not in name and "lm_head" not in name and ".mlp.gate." not in name
        taken = (
            layered
            and {"all": True, "experts": ".experts." in name, "other": ".experts." not in name}[
                more.get("only", "experts" if method.startswith("moe_") else "all")
            ]
        )
        off = float((values - before[name].float()).norm() / before[name].float().norm())
        assert (0.001 < off < 0.15) if taken else off == 0, name
        if ".experts." not in name:
            assert torch.equal(ours.tensor(name), values), name
    for prefix in {name.partition(".experts.")[0] + ".experts" for name in after if ".experts." in name}:
        each = [torch.cat([after[f"{prefix}.{e}.{part}_proj.weight"] for part in ("gate", "up")]) for e in range(6)]
        assert torch.equal(ours.tensor(f"{prefix}.gate_up_proj"), torch.stack(each))
    assert sum(read_spec(local_files(out)).formats.values()) == sum(t.nbytes for t in stored(out).values())


def test_overrides_shards_and_what_lies_beside(folder, quantised, monkeypatch):
    monkeypatch.setattr(layout, "SHARD", 1)  # a file for each layer, and one for what is outside of them
    source = folder("glm4moe", hidden_size=128)
    rules = (r"layers\.0\.=keep", "down_proj=int8", "q_proj=int4:64", "lm_head=fp8")
    out = quantised(source, "int4", overrides=rules)
    assert [path.name for path in sorted(out.glob("*.safetensors"))] == [
        f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    forms = {name: tensor.format for name, tensor in open_weights(local_files(out))._tensors.items()}
    assert forms["model.layers.0.self_attn.q_proj.weight"] == "BF16"
    assert forms["model.layers.1.mlp.experts.3.down_proj.weight"] == "Q8_0"
    assert forms["model.layers.1.mlp.experts.3.up_proj.weight"] == "INT4"
    assert forms["lm_head.weight"] == "FP8_CHANNEL"
    groups = json.loads((out / "config.json").read_text())["quantization_config"]
    assert groups["format"] == "mixed-precision"
    sizes = {g["weights"].get("group_size") for g in groups["config_groups"].values() if g["weights"]["num_bits"] == 4}
    assert sizes == {32, 64}
    decompressed(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    label = json.loads((out / "kt.json").read_text())
    assert label["method"] == "int4" and label["source"]["path"] == str(source)
    with safe_open(out / "model-00001-of-00003.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_back_to_bfloat16_and_between_methods(folder, quantised):
    """A quantised folder is a source like any other; what it holds is decoded exactly."""
    four = quantised(folder("qwen3moe", hidden_size=128, moe_intermediate_size=64), "int4", out="four")
    back, again = quantised(four, "bf16", out="back"), quantised(four, "int8", out="again")
    assert "quantization_config" not in json.loads((back / "config.json").read_text())
    expected = decompressed(four)
    for name, values in stored(back).items():
        assert torch.equal(values.float(), expected[name].bfloat16().float()), name
    off = {name: float((v - expected[name]).norm() / expected[name].norm()) for name, v in decompressed(again).items()}
    assert max(off.values()) < 0.007


@pytest.mark.parametrize("way", WAYS)
def test_every_quantised_form_is_a_source(way, tmp_path, quantised, monkeypatch):
    """Back to bfloat16 from whatever a folder holds, some rows at a time."""
    monkeypatch.setattr(write, "AT_ONCE", 1 << 14)
    monkeypatch.setattr(whole, "check", lambda *_: None)  # it is one weight of a model
    torch.manual_seed(1)
    written, decoded = WAYS[way].write(torch.randn(320, 256) * 0.1)
    source = tmp_path / "source"
    source.mkdir()
    module = "model.layers.0.self_attn.q_proj"
    save_file({f"{module}.{key}": tensor.contiguous() for key, tensor in written.items()}, source / "model.safetensors")
    config = {"model_type": "llama", "num_hidden_layers": 1, "quantization_config": WAYS[way].settings}
    (source / "config.json").write_text(json.dumps(config))
    out = quantised(source, "bf16")
    found = stored(out)[f"{module}.weight"]
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, decoded.bfloat16(), rtol=2**-7 if "nvfp4" in way else 0, atol=0)


def test_stacked_experts_become_single_ones(tmp_path, quantised, monkeypatch):
    """gpt-oss has gate and up row by row in stacks of MXFP4."""
    monkeypatch.setattr(whole, "check", lambda *_: None)  # it is one layer's experts
    prefix, tensors, values = "model.layers.0.mlp.experts", {}, {}
    for part, shape in (("gate_up_proj", (128, 64)), ("down_proj", (64, 64))):
        written = [WAYS["fp4-v4"].write(torch.randn(*shape)) for _ in range(2)]
        blocks = [w["weight"].view(torch.uint8).reshape(shape[0], shape[1] // 32, 16) for w, _ in written]
        tensors[f"{prefix}.{part}_blocks"] = torch.stack(blocks)
        tensors[f"{prefix}.{part}_scales"] = torch.stack([w["scale"].view(torch.uint8) for w, _ in written])
        tensors[f"{prefix}.{part}_bias"] = torch.randn(2, shape[0])
        values[part] = [decoded for _, decoded in written]
    source = tmp_path / "source"
    source.mkdir()
    save_file(tensors, source / "model.safetensors")
    settings = {"quant_method": "mxfp4"}
    config = {"model_type": "gpt_oss", "hidden_size": 64, "num_hidden_layers": 1, "quantization_config": settings}
    (source / "config.json").write_text(json.dumps(config))
    out = quantised(source, "int8")
    found = decompressed(out)
    for index in range(2):
        for part, expected in (
            ("gate", values["gate_up_proj"][index][0::2]),
            ("up", values["gate_up_proj"][index][1::2]),
        ):
            weight = found[f"{prefix}.{index}.{part}_proj.weight"]
            assert float((weight - expected).norm() / expected.norm()) < 0.01
    assert torch.equal(stored(out)[f"{prefix}.down_proj_bias"], tensors[f"{prefix}.down_proj_bias"])


def test_refusals(folder, job, quantised, tmp_path):
    source = folder("llama", hidden_size=64)
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="there already"):
        make.prepare(job(source, "int4"))
    with pytest.raises(UsageError, match="Nothing in"):
        make.prepare(job(source, "moe_int4", out="other"))
    with pytest.raises(UsageError, match="int4, int8"):
        job(source, "int5")
    for rule in ("x", "=int4", "x=int9", "x=int8:32", "x=int4:48", "x=Q4_K", "(=int4"):
        with pytest.raises(UsageError, match="--override"):
            job(source, "int4", overrides=(rule,))
    for rule in ("no_such_weight=int8", "embed_tokens=int8", "mlp.gate.weight=int8"):  # embeddings and routers stay
        with pytest.raises(UsageError, match=r"found by the rule.*_proj"):
            make.prepare(job(source, "int4", overrides=("down_proj=int8", rule), out="idle"))
    with pytest.raises(UsageError, match=r"found by the rule down_proj.*blk"):
        make.prepare(job(source, "Q8_0", overrides=("down_proj=Q6_K",), out="idle"))


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])  # one that is copied too
def test_numbers_that_are_not_finite(folder, quantised, name):
    source = folder("llama")
    path = source / "model.safetensors"
    place = safetensors.read_header(path)[name].offset
    data = bytearray(path.read_bytes())
    data[place : place + 2] = np.array([0x7FC0], "<u2").tobytes()
    path.write_bytes(data)
    with pytest.raises(BadData, match=re.escape(name)):
        quantised(source, "int4")


FP8_WAYS = [way for way in WAYS if WAYS[way].format.startswith("FP8")]


@pytest.mark.parametrize(
    ("way", "options"),
    [
        *((way, {"only": "experts"}) for way in FP8_WAYS),
        ("fp8-block", {"overrides": ("q_proj=keep",)}),
        ("fp8-rows", {"method": "fp8"}),
    ],
    ids=str,
)
def test_fp8_that_is_left_alone_stays_as_it_is(way, options, tmp_path, quantised, monkeypatch):
    """The same numbers and scales, some rows at a time, under compressed-tensors' names; decoded, the same weight."""
    monkeypatch.setattr(write, "AT_ONCE", 1 << 14)
    monkeypatch.setattr(whole, "check", lambda *_: None)  # they are some weights of a model
    torch.manual_seed(1)
    source, prefix = tmp_path / "source", "model.layers.0"
    source.mkdir()
    written, decoded = WAYS[way].write(torch.randn(256, 256) * 0.1)
    tensors = {f"{prefix}.self_attn.q_proj.{key}": tensor.contiguous() for key, tensor in written.items()}
    for part in ("gate", "up", "down"):
        tensors[f"{prefix}.mlp.experts.0.{part}_proj.weight"] = torch.randn(64, 64).bfloat16()
    save_file(tensors, source / "model.safetensors")
    config = {"model_type": "qwen3_moe", "num_hidden_layers": 1, "quantization_config": WAYS[way].settings}
    (source / "config.json").write_text(json.dumps(config))
    options = {"method": "int4"} | options
    out = quantised(source, options.pop("method"), **options)
    found = stored(out)
    numbers = found[f"{prefix}.self_attn.q_proj.weight"]
    assert torch.equal(numbers.view(torch.uint8), written["weight"].view(torch.uint8))
    assert found[f"{prefix}.self_attn.q_proj.weight_scale"].dtype == torch.float32
    assert torch.equal(open_weights(local_files(out)).tensor(f"{prefix}.self_attn.q_proj.weight"), decoded)
    assert torch.equal(decompressed(out)[f"{prefix}.self_attn.q_proj.weight"], decoded)


ODD = {
    "an expert without a projection": (
        "model.layers.1.mlp.experts.4.up_proj.weight",
        None,
        r"expert 4 .* lacks its up matrix",
    ),
    "an expert without any": ("model.layers.1.mlp.experts.2", None, "expert 2"),
    "a missing projection": ("model.layers.0.self_attn.k_proj.weight", None, r"1 are missing.*0\.self_attn\.k_proj"),
    "a missing norm": ("model.layers.1.input_layernorm.weight", None, r"1\.input_layernorm"),
    "a long expert": ("model.layers.1.mlp.experts.4.up_proj.weight", (64, 64), r"experts\.4\.up has the wrong shape"),
    "a turned one": (
        "model.layers.1.mlp.experts.4.down_proj.weight",
        (32, 64),
        r"experts\.4\.down.*\[32, 64\].*\[64, 32\]",
    ),
    "a wide projection": ("model.layers.0.self_attn.q_proj.weight", (128, 96), r"q_proj\.weight has the wrong shape"),
    "a long norm": ("model.norm.weight", (65,), r"\[65\].*\[64\]"),
}


@pytest.mark.parametrize("method", ["int4", "moe_int4", "Q8_0"])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_missing_or_odd_is_refused_for_every_output(kind, method, folder, job, tmp_path):
    """Before anything is written, in the words of loading the model."""
    prefix, shape, words = ODD[kind]
    source = folder("qwen3moe")
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.startswith(prefix)]:
        del tensors[name]
    if shape:
        tensors[prefix] = torch.zeros(shape, dtype=torch.bfloat16)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadData, match=words):
        make.prepare(job(source, method))
    assert [path.name for path in tmp_path.iterdir()] == [source.name]


@pytest.mark.parametrize("family", ["mixtral", "glm4moe"])
def test_stacks_with_a_missing_or_odd_part_are_refused(family, folder, quantised, job):
    """Of a GGUF file's experts, for folders made of it."""
    file = next(quantised(folder(family), "GGUF_BF16", out="file").glob("*.gguf"))
    data = file.read_bytes()
    for name, words in (("blk.1.ffn_up_exps.weight", "ffn_up_exps"), ("blk.0.attn_k.weight", "attn_k")):
        other = file.with_name("other.gguf")
        other.write_bytes(data.replace(name.encode(), name.replace("blk", "xxx").encode()))
        with pytest.raises(BadData, match=words):
            make.prepare(job(other, "int4"))
        other.unlink()


def test_a_pipe_is_no_file_of_weights(tmp_path, folder):
    source = folder("llama")
    (source / "model.safetensors").unlink()
    os.mkfifo(source / "model.safetensors")
    with pytest.raises(BadData, match=r"model\.safetensors"):
        local_files(source)


def test_folders_split_over_numa_nodes_are_refused(tmp_path, folder, job):
    source = folder("llama")
    save_file({"blk.0.ffn_up_exps.3.numa.1.weight": torch.zeros(4)}, source / "model.safetensors")
    with pytest.raises(Unsupported, match="kt quant"):
        make.prepare(job(source, "int4"))
    with pytest.raises(Unsupported, match="kt quant"):
        open_weights(local_files(source))


def test_what_is_foretold(folder, job, quantised):
    figures = make.figures(make.prepare(job(folder("qwen3moe", hidden_size=128, moe_intermediate_size=64), "int4")))
    by_form = {row["to"]: row for row in figures["rows"]}
    assert by_form.keys() == {"INT4 g32", "BF16"}
    assert by_form["INT4 g32"]["before"] == 2 * by_form["INT4 g32"]["weights"]
    assert 4.5 <= 8 * by_form["INT4 g32"]["after"] / by_form["INT4 g32"]["weights"] < 4.6
    assert figures["seconds"] > 0 and figures["memory"] > make.RUNTIME
