"""The demo against its dense source: the same function, the same bytes, and broken when routing is."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kt_core.errors import Unsupported
from kt_core.models import demo, read_spec, registry
from kt_core.models.download import sha256
from kt_core.models.files import local_files
from kt_core.models.gguf_writer import Tensor, header

pytestmark = pytest.mark.model

LAYERS = (1, 17, 29)


@functools.cache
def read(path: Path) -> Any:
    """Parsing a vocabulary takes the gguf package seconds, so each file is read once."""
    return gguf.GGUFReader(path)


def reader(path: Path) -> dict[str, Any]:
    return {t.name: t for t in read(path).tensors}


def decoded(tensor: Any) -> np.ndarray:
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)


def ffn(x: np.ndarray, gate: np.ndarray, up: np.ndarray, down: np.ndarray) -> np.ndarray:
    g = x @ gate.T
    return (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T


def moe(x: np.ndarray, tensors: dict[str, Any], layer: int, swap: tuple[int, int] | None = None) -> np.ndarray:
    """The glm4_moe layer in float64, except the router's sigmoid, which is float32 as in every engine."""
    part = {
        n: decoded(tensors[f"blk.{layer}.ffn_{n}.weight"])
        for n in ("gate_inp", "gate_exps", "up_exps", "down_exps", "gate_shexp", "up_shexp", "down_shexp")
    }
    bias = decoded(tensors[f"blk.{layer}.exp_probs_b.bias"])
    with np.errstate(over="ignore"):
        scores = 1 / (1 + np.exp(-(x @ part["gate_inp"].T).astype(np.float32)))
    chosen = np.argsort(-(scores + bias), axis=1)[:, :8]
    weights = np.take_along_axis(scores, chosen, 1).astype(np.float64)
    weights = weights / weights.sum(1, keepdims=True) * 8.0
    order = list(range(16))
    if swap:
        order[swap[0]], order[swap[1]] = order[swap[1]], order[swap[0]]
    y = ffn(x, part["gate_shexp"], part["up_shexp"], part["down_shexp"])
    for expert in range(16):
        weight = np.where(chosen == expert, weights, 0).sum(1, keepdims=True)
        at = order[expert]
        y += weight * ffn(x, part["gate_exps"][at], part["up_exps"][at], part["down_exps"][at])
    return y


def test_moe_equals_dense_and_breaks_when_experts_are_swapped(smollm2_gguf: Path, demo_file: Path) -> None:
    dense, made = reader(smollm2_gguf), reader(demo_file)
    x = np.random.default_rng(0).standard_normal((64, 576))
    for layer in LAYERS:
        want = ffn(x, *(decoded(dense[f"blk.{layer}.ffn_{n}.weight"]) for n in ("gate", "up", "down")))
        got = moe(x, made, layer)
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
        assert np.abs(moe(x, made, layer, swap=(0, 2)) - want).max() > 0.05 * np.abs(want).max()


def test_routing_depends_on_the_token(demo_file: Path) -> None:
    router = decoded(reader(demo_file)["blk.5.ffn_gate_inp.weight"])
    x = np.random.default_rng(1).standard_normal((64, 576))
    first_copies = (x @ router.T > 0)[:, ::2]
    assert len({tuple(row) for row in first_copies}) > 32
    assert (np.abs(x @ router.T) > 100).all()


def test_every_expert_block_is_a_block_of_the_source(smollm2_gguf: Path, demo_file: Path) -> None:
    dense, made = reader(smollm2_gguf), reader(demo_file)
    for layer in LAYERS:
        for name in ("gate", "up", "down"):
            source = dense[f"blk.{layer}.ffn_{name}.weight"].data
            experts = np.concatenate(
                [
                    made[f"blk.{layer}.ffn_{name}_exps.weight"].data.reshape(-1),
                    made[f"blk.{layer}.ffn_{name}_shexp.weight"].data.reshape(-1),
                ]
            )
            blocks = {b.tobytes() for b in source.reshape(-1, 20)}
            assert {b.tobytes() for b in experts.reshape(-1, 20)} == blocks


def test_attention_rows_are_those_of_transformers(smollm2_gguf: Path, demo_file: Path) -> None:
    """transformers' own step for Llama files gives the rows in the order that its models, glm4_moe too, expect."""
    from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

    order = LlamaTensorProcessor(config={"num_attention_heads": 9, "num_key_value_heads": 3})
    dense, made = reader(smollm2_gguf), reader(demo_file)
    for layer in (0, 29):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            name = f"blk.{layer}.{name}.weight"
            np.testing.assert_array_equal(decoded(made[name]), order.process(decoded(dense[name]), name).weights)
    np.testing.assert_array_equal(made["output.weight"].data, dense["token_embd.weight"].data)
    np.testing.assert_array_equal(made["token_embd.weight"].data, dense["token_embd.weight"].data)


def test_metadata_is_glm4moe_with_the_tokenizer_unchanged(smollm2_gguf: Path, demo_file: Path) -> None:
    dense = {k: f for k, f in read(smollm2_gguf).fields.items() if k.startswith("tokenizer.")}
    made = read(demo_file).fields
    for key, field in dense.items():
        assert made[key].types == field.types, key
        assert made[key].contents() == field.contents(), key
    assert made["general.architecture"].contents() == "glm4moe"
    assert made["glm4moe.expert_count"].contents() == 16
    assert made["glm4moe.rope.freq_base"].contents() == 100000.0


def test_two_builds_give_the_registered_bytes(smollm2_gguf: Path, demo_file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.gguf"
    demo.build(smollm2_gguf, again, lambda *_: None)
    entry = registry.find("demo")
    assert entry is not None
    assert sha256(again) == sha256(demo_file) == entry.sha256
    assert again.stat().st_size == entry.bytes
    assert [p.name for p in tmp_path.iterdir()] == ["again.gguf"]


SLOW_BUILD = """
import sys, time
from pathlib import Path
from kt_core.models import demo
demo.build(Path(sys.argv[1]), Path(sys.argv[2]), lambda *a: time.sleep(0.1))
"""


def test_killed_build_goes_on_and_damage_is_noticed(smollm2_gguf: Path, tmp_path: Path) -> None:
    target, partial = tmp_path / "demo.gguf", tmp_path / "demo.gguf.partial"
    child = subprocess.Popen([sys.executable, "-c", SLOW_BUILD, smollm2_gguf, target], env=dict(os.environ))
    journal = tmp_path / "demo.gguf.journal"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (journal.exists() and journal.read_text().count(",") >= 4):
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not target.exists()
    steps: list[int] = []
    with partial.open("r+b") as file:  # damage inside the first group's data
        file.seek(5_000_000)
        file.write(b"damage")
    demo.build(smollm2_gguf, target, lambda _stage, done, _total, _unit: steps.append(done))
    assert steps[0] == 0
    entry = registry.find("demo")
    assert entry is not None
    assert sha256(target) == entry.sha256


def test_intact_part_is_not_built_again(smollm2_gguf: Path, tmp_path: Path) -> None:
    target = tmp_path / "demo.gguf"

    def stop_at_five(_stage: str, done: int, _total: int, _unit: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.build(smollm2_gguf, target, stop_at_five)
    steps: list[int] = []
    demo.build(smollm2_gguf, target, lambda _stage, done, _total, _unit: steps.append(done))
    assert steps[0] == 5
    entry = registry.find("demo")
    assert entry is not None
    assert sha256(target) == entry.sha256


def test_what_cannot_be_rewritten_is_refused(demo_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    with pytest.raises(Unsupported):
        demo.build(demo_file, target, lambda *_: None)
    bare = tmp_path / "bare.gguf"
    bare.write_bytes(
        header({"general.architecture": "llama"}, [Tensor("token_embd.weight", "F32", (1,))])[0] + bytes(32)
    )
    with pytest.raises(Unsupported):
        demo.build(bare, target, lambda *_: None)
    assert not list(tmp_path.glob("out*"))


def test_shapes_that_are_known_before_a_pull_are_those_of_the_files(smollm2_gguf: Path, demo_file: Path) -> None:
    """Norms and biases alone, under a hundredth of all bytes, are counted otherwise."""
    for entry, file in zip(registry.ENTRIES, (demo_file, smollm2_gguf), strict=True):
        known, found = registry.spec(entry), read_spec(local_files(file))
        for name in (
            "family",
            "layers",
            "hidden",
            "vocab",
            "context",
            "experts",
            "experts_per_token",
            "method",
            "cache",
        ):
            assert getattr(known, name) == getattr(found, name), name
        parts = set(found.bytes_by_part) - {"other"}
        assert {part: known.bytes_by_part[part] for part in parts} == {
            part: found.bytes_by_part[part] for part in parts
        }
        assert sum(known.bytes_by_part.values()) == pytest.approx(sum(found.bytes_by_part.values()), rel=0.01)
