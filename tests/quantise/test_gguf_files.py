"""GGUF files: names, order and metadata as llama.cpp's own tools have them, numbers as the gguf package reads them."""

import re

import gguf
import numpy as np
import pytest
import tiny_models
import torch
from transformers import AutoModelForCausalLM

from kt_core.engine.loader import build
from kt_core.engine.tokenizer import load_tokenizer
from kt_core.errors import Unsupported
from kt_core.formats import gguf as headers
from kt_core.models.files import local_files
from kt_core.quantise import make, write
from kt_core.weights import open_weights

SIZES = {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256}
TEXTS = ("hello world, the quick fox", "stop  and\ngo 123<|end|>é", "")


def read(folder):
    """The file's types and dequantised tensors by name."""
    reader = gguf.GGUFReader(next(folder.glob("*.gguf")))
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in reader.tensors}
    return {t.name: t.tensor_type.name for t in reader.tensors}, values


def of(family):
    return {k: v for k, v in SIZES.items() if k in tiny_models.CONFIGS[family] or k != "moe_intermediate_size"}


@pytest.mark.parametrize("family", tiny_models.CONFIGS)
def test_every_family(family, folder, quantised, monkeypatch):
    """bfloat16 loses nothing, so the file must hold what the converter's rules make of the model; and it comes back."""
    monkeypatch.setattr(write, "AT_ONCE", 1 << 12)
    source = folder(family)
    out = quantised(source, "GGUF_BF16")
    types, values = read(out)
    built = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    expected = tiny_models.gguf_tensors(family, built)
    assert values.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(values[name], array, err_msg=name)
        matrix = array.ndim > 1 and "ffn_gate_inp" not in name
        assert types[name] == ("BF16" if matrix else "F32"), name
    writer = gguf.GGUFWriter("/dev/null", tiny_models.ARCH[family])
    tiny_models.add_metadata(writer, family, built.config)
    found = headers.read_model(next(out.glob("*.gguf"))).metadata
    ours = ("bos", "eos")  # add_metadata has other ones than this tokenizer
    for key, value in writer.kv_data[0].items():
        if not key.startswith(tuple(f"tokenizer.ggml.{name}" for name in ours)):
            assert found[key] == pytest.approx(value.value), key
    back = quantised(next(out.glob("*.gguf")), "bf16", out="back")
    again = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32)
    for name, tensor in built.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_the_engine_computes_the_same_from_file_and_folder(folder, quantised):
    source = folder("qwen3moe")
    out = quantised(source, "GGUF_BF16")
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        logits = [build(open_weights(local_files(p)), lambda *_: None)(ids).logits for p in (source, out)]
    assert torch.equal(*logits)


def test_the_tokenizer_goes_there_and_back(folder, quantised):
    source = folder("llama")
    out = quantised(source, "Q8_0")
    back = quantised(next(out.glob("*.gguf")), "bf16", out="back")
    one, *others = (load_tokenizer(local_files(path)) for path in (source, out, back))
    chat = [{"role": "user", "content": "hello"}]
    for other in others:
        assert len(other) == len(one)
        for text in TEXTS:
            assert other.encode(text, add_special_tokens=False) == one.encode(text, add_special_tokens=False)
        assert (other.bos_token_id, other.eos_token_id) == (one.bos_token_id, one.eos_token_id)
        assert other.apply_chat_template(chat, tokenize=False) == one.apply_chat_template(chat, tokenize=False)


# Largest relative error of a tensor of Gaussian weights in the type.
ERRORS = {"Q4_K": 0.08, "Q5_K": 0.042, "Q6_K": 0.021, "Q8_0": 0.007, "Q4_1": 0.08, "Q5_1": 0.042, "BF16": 0, "F32": 0}
MIXES = {
    "Q4_K_M": {"Q4_K", "Q6_K", "F32"}, "Q5_K_M": {"Q5_K", "Q6_K", "F32"}, "Q6_K": {"Q6_K", "F32"},
    "Q8_0": {"Q8_0", "F32"}, "Q4_1": {"Q4_1", "Q6_K", "F32"},
}  # fmt: skip


@pytest.mark.parametrize("method", MIXES)
def test_mixes(method, folder, quantised):
    source = folder("qwen3moe", **of("qwen3moe"), head_dim=64, num_hidden_layers=3)
    types, values = read(quantised(source, method))
    assert set(types.values()) == MIXES[method]
    built = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    expected = tiny_models.gguf_tensors("qwen3moe", built)
    for name, array in values.items():
        off = np.linalg.norm(array - expected[name]) / np.linalg.norm(expected[name])
        assert off <= ERRORS[types[name]], (name, types[name], off)
    if method.endswith("_M"):
        assert types["output.weight"] == "Q6_K"
        assert {types[f"blk.{layer}.ffn_down_exps.weight"] for layer in range(3)} == {
            types["blk.1.attn_q.weight"],
            "Q6_K",
        }


def test_rows_that_are_no_whole_blocks_get_another_type(folder, quantised):
    types, _ = read(quantised(folder("qwen3moe", hidden_size=96), "Q4_K_M"))
    assert {types[name] for name in types if re.search(r"attn_q\.|exps", name)} == {"Q4_1", "Q8_0"}


def test_types_of_single_tensors_and_what_is_left_alone(folder, quantised):
    source = folder("glm4moe", **of("glm4moe"))
    types, _ = read(quantised(source, "Q4_K_M", overrides=("attn_k=Q8_0", r"blk\.1\..*down=F32"), only="experts"))
    assert types["blk.0.attn_k.weight"] == "Q8_0" and types["blk.1.ffn_down_exps.weight"] == "F32"
    assert types["blk.1.attn_q.weight"] == "BF16" and types["blk.1.ffn_up_exps.weight"] == "Q4_K"


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "int8"])
def test_what_is_left_alone_is_in_the_order_of_the_family(stored, tmp_path, folder, quantised):
    """llama's queries and keys change the places of their rows even where their numbers stay as they are."""
    source = folder("mixtral")
    built = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if stored == "float16":
        built.half().save_pretrained(source)
        built.float()
    exact = quantised(source, "int8", out="eight") if stored == "int8" else source
    types, values = read(quantised(exact, "Q6_K", only="experts"))
    expected = tiny_models.gguf_tensors("mixtral", built)["blk.1.attn_q.weight"]
    off = np.linalg.norm(values["blk.1.attn_q.weight"] - expected) / np.linalg.norm(expected)
    assert off < (0.007 if stored == "int8" else 1e-7)
    assert types["blk.1.attn_q.weight"] == {"bfloat16": "BF16", "float16": "F32", "int8": "Q8_0"}[stored]


def test_bytes_that_are_right_already_go_over_as_they_are(folder, quantised):
    first = quantised(folder("qwen3moe", hidden_size=96), "Q8_0", out="first")
    second = quantised(next(first.glob("*.gguf")), "Q8_0", overrides=("attn_k=Q4_1",), out="second")
    one, two = (gguf.GGUFReader(next(path.glob("*.gguf"))).tensors for path in (first, second))
    assert [t.name for t in one] == [t.name for t in two]
    for before, after in zip(one, two, strict=True):
        changed = ".attn_k." in before.name
        assert changed != np.array_equal(before.data, after.data) and changed == (after.tensor_type.name == "Q4_1")


def test_a_family_without_a_gguf_form(tmp_path, job):
    import json

    from safetensors.torch import save_file

    source = tmp_path / "source"
    source.mkdir()
    save_file({"model.x.weight": torch.zeros(32, 32)}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "num_hidden_layers": 1}))
    with pytest.raises(Unsupported, match="gpt_oss"):
        make.prepare(job(source, "Q8_0"))
