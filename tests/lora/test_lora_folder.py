"""What an adapter's folder says, beside PEFT's own reading of it; and folders that are none."""

import copy
import json

import made
import pytest
import tinymodel
import torch
from peft import LoraConfig, get_peft_model

from kt_core import lora
from kt_core.errors import BadData, KTError, NotFound, Unsupported
from kt_core.models.gguf_writer import Tensor, header

SHAPES = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.0.mlp.experts.2.up_proj": (32, 64)}


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 4, "lora_alpha": 12},
        {"r": 4, "lora_alpha": 12, "use_rslora": True},
        {"r": 4, "rank_pattern": {"k_proj": 2}, "alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 3, "o_proj": 5}},
    ],
    ids=["plain", "rslora", "patterns"],
)
def test_changes_are_pefts(tmp_path, settings):
    config = LoraConfig(target_modules=["q_proj", "k_proj", "o_proj"], **settings)
    model = get_peft_model(copy.deepcopy(tinymodel.model()), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    found = lora.read(tmp_path)
    changes = {
        name.removeprefix("base_model.model."): module.get_delta_weight("default").detach()
        for name, module in model.named_modules()
        if hasattr(module, "get_delta_weight")
    }
    assert found.linears.keys() == changes.keys() and not found.experts
    for name, pair in found.linears.items():
        torch.testing.assert_close(pair.scale * (pair.b @ pair.a), changes[name])


def test_experts_and_bytes(tmp_path):
    changes = made.save(tmp_path, SHAPES, 0)
    found = lora.read(tmp_path)
    pair = found.experts["model.layers.0.mlp.experts"][2, "up"]
    torch.testing.assert_close(pair.scale * (pair.b @ pair.a), changes["model.layers.0.mlp.experts.2.up_proj"])
    assert found.nbytes == 4 * 3 * (64 + 64) + 2 * 3 * (32 + 64)


def test_the_digest_is_of_what_decides(tmp_path):
    digests = set()
    for place, (seed, alpha) in enumerate([(0, 6.0), (1, 6.0), (0, 3.0)]):
        made.save(tmp_path / str(place), SHAPES, seed, alpha=alpha)
        digests.add(lora.read(tmp_path / str(place)).digest)
    assert len(digests) == 3
    made.save(tmp_path / "again", SHAPES, 0)
    assert lora.read(tmp_path / "again").digest in digests


def _config(folder, **changes):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def _tensors(**tensors):
    def write(folder):
        made.save_file(tensors, folder / "adapter_model.safetensors")

    return write


NAME = "base_model.model.x.lora_{}.weight"
DAMAGES = {
    "no weights": (lambda f: (f / "adapter_model.safetensors").unlink(), NotFound, "lora.none"),
    "no config": (lambda f: (f / "adapter_config.json").unlink(), NotFound, "lora.none"),
    "cut": (lambda f: (f / "adapter_model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}"), BadData, "lora.damaged"),
    "no json": (lambda f: (f / "adapter_config.json").write_text("{"), BadData, "lora.damaged"),
    "a list": (lambda f: (f / "adapter_config.json").write_text("[]"), BadData, "lora.damaged"),
    "alpha": (lambda f: _config(f, lora_alpha="x"), BadData, "lora.damaged"),
    "another kind": (lambda f: _config(f, peft_type="IA3"), Unsupported, "lora.kind"),
    "dora": (lambda f: _config(f, use_dora=True), Unsupported, "lora.kind"),
    "bias": (lambda f: _config(f, bias="all"), Unsupported, "lora.kind"),
    "whole modules": (lambda f: _config(f, modules_to_save=["lm_head"]), Unsupported, "lora.kind"),
    "half": (_tensors(**{NAME.format("A"): torch.ones(2, 3)}), BadData, "lora.half"),
    "other half": (_tensors(**{NAME.format("B"): torch.ones(2, 3)}), BadData, "lora.half"),
    "a vector": (_tensors(**{"base_model.model.x.lora_magnitude_vector": torch.ones(2)}), Unsupported, "lora.tensor"),
    "ranks": (
        _tensors(**{NAME.format("A"): torch.ones(2, 3), NAME.format("B"): torch.ones(5, 4)}), BadData, "lora.shapes"
    ),
    "whole numbers": (
        _tensors(**{NAME.format("A"): torch.ones(2, 3).int(), NAME.format("B"): torch.ones(5, 2)}), BadData,
        "lora.shapes",
    ),
    "nan": (
        _tensors(**{NAME.format("A"): torch.ones(2, 3) * torch.nan, NAME.format("B"): torch.ones(5, 2)}), BadData,
        "lora.not_finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_adapter(tmp_path, damage):
    made.save(tmp_path, SHAPES, 0)
    harm, kind, key = DAMAGES[damage]
    harm(tmp_path)
    with pytest.raises(KTError) as caught:
        lora.read(tmp_path)
    assert isinstance(caught.value, kind) and caught.value.key == key
    assert all(caught.value.lines()[:1])


GGUF = {
    "blk.0.attn_q.weight": ("model.layers.0.self_attn.q_proj", (64, 64), 0),
    "blk.1.ffn_down.weight": ("model.layers.1.mlp.down_proj", (64, 96), 0),
    "blk.1.ffn_up_shexp.weight": ("model.layers.1.mlp.shared_experts.up_proj", (32, 64), 0),
    "blk.2.ffn_gate_exps.weight": ("model.layers.2.mlp.experts", (32, 64), 3),
}


def _gguf(file, architecture="qwen3moe", names=GGUF, **about):
    """As llama.cpp's converter writes an adapter; returns A and B by the model's names."""
    kept, tensors, written = {}, [], []
    for name, (_, (rows, cols), experts) in names.items():
        for side, shape in (("a", (4, cols)), ("b", (rows, 4))):
            kept[name, side] = torch.randn((experts, *shape) if experts else shape).half()
            tensors.append(Tensor(f"{name}.lora_{side}", "F16", tuple(kept[name, side].shape)))
            written.append(kept[name, side])
    metadata = {"general.architecture": architecture, "general.type": "adapter", "adapter.type": "lora"}
    head, offsets = header(metadata | {"adapter.lora.alpha": 6.0} | about, tensors)
    data = bytearray(head)
    for tensor, values in zip(tensors, written, strict=True):
        data += bytes(offsets[tensor.name] - len(data)) + values.numpy().tobytes()
    file.write_bytes(data + bytes(-len(data) % 32))
    return kept


def test_an_adapter_of_llama_cpp(tmp_path):
    kept = _gguf(tmp_path / "style.gguf")
    for path in (tmp_path, tmp_path / "style.gguf"):
        found = lora.read(path)
        for name, (module, _, experts) in GGUF.items():
            a, b = (kept[name, side].float() for side in "ab")
            if not experts:
                pair = found.linears[module]
                assert torch.equal(pair.a, a) and torch.equal(pair.b, b) and pair.scale == 1.5
            for index in range(experts):
                pair = found.experts[module][index, "gate"]
                assert torch.equal(pair.a, a[index]) and torch.equal(pair.b, b[index]) and pair.scale == 1.5


def test_gguf_files_that_are_no_adapter_of_these(tmp_path):
    file = tmp_path / "x.gguf"
    for about, error in (
        ({"general.type": "model"}, BadData),
        ({"adapter.lora.alpha": "much"}, BadData),
        ({"architecture": "llama"}, Unsupported),  # its q and k lie in another order
        ({"names": {"output.weight": ("lm_head", (64, 64), 0)}}, Unsupported),
    ):
        _gguf(file, **about)
        with pytest.raises(error):
            lora.read(file)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadData, match="damaged"):
        lora.read(tmp_path)
