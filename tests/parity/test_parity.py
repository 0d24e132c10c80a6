"""Whole models against transformers' eager float32: prefill, decode, two requests, every kernel tier.

Bounds: float32 weights differ from the reference only by the order of float32 sums. Other formats
round activations (bf16, or int8 in groups of 32), so whole models are compared by KL divergence,
and each kernel call by a float64 model of the same rounding on the same input (2e-3 of the largest
output: bf16 sums and expert outputs are rounded nowhere else).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from driving import Driver
from references import TINY, demo_from_gguf, dense_from_gguf, from_folder, save_tiny
from transformers import AutoTokenizer, PreTrainedModel

from kt_core import kernels
from kt_core.engine.loader import build
from kt_core.engine.runners import runner_for
from kt_core.kernels import reference
from kt_core.models import read_spec, resolve
from kt_core.operators.experts import Experts
from kt_core.operators.linear import Linear
from kt_core.plan.cache import usual_kv_dtype
from kt_core.weights import Matrix, Weights, decode_matrix, open_weights

F32_BOUND = 1e-5  # max |difference| / max |logit|
KERNEL_BOUND = 2e-3
KL_BOUND = {"bf16": 3e-4, "int8": 6e-3}  # mean over positions; no position above ten times this
TEXT = (
    "<|im_start|>user\nThe Georgetown experiment in 1954 translated sixty Russian sentences.\n"
    "def fibonacci(n):\n    a, b = 0, 1\n    return a<|im_end|>\n<|im_start|>assistant\n"
)
SECOND_TEXT = "The sea covers most of the planet. Its tides follow the moon, and ships follow its winds."
TIERS = [tier["name"] for tier in kernels.info()["tiers"] if tier["runnable"]]


class Dequantised:
    """The same weights with every matrix decoded to float32, so that the F32 kernels compute the model."""

    def __init__(self, weights: Weights) -> None:
        self.inner = weights

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def __contains__(self, name):
        return name in self.inner

    def matrix(self, name):
        return self._decoded(self.inner.matrix(name))

    def expert(self, *which):
        return self._decoded(self.inner.expert(*which))

    @staticmethod
    def _decoded(m: Matrix) -> Matrix:
        return Matrix("F32", m.rows, m.cols, np.ascontiguousarray(decode_matrix(m)).view(np.uint8))


@dataclass
class Case:
    weights: Weights
    logits: list[torch.Tensor]  # reference, per prompt [T, V]
    prompts: list[list[int]]
    policy: str
    kv_dtype: torch.dtype  # as planned for the weights' formats


def make(name: str, folder: Path, fixture: Callable[[str], Path]) -> Case:
    source, _, form = name.partition("-")
    generator = torch.Generator().manual_seed(5)
    if source in TINY:
        dtype = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}[form]
        path = folder
        save_tiny(source, path, dtype)
        weights = open_weights(resolve(str(path)))
        prompts = [torch.randint(0, 301, (n,), generator=generator).tolist() for n in (23, 9)]
        logits = logits_of(from_folder(path), prompts)
        policy = {"F32": "f32", "BF16": "bf16", "F16": "f32"}[form]
    else:
        smollm2 = fixture("smollm2_gguf")
        path = smollm2 if source == "smollm2" else fixture("demo_file")
        weights = open_weights(resolve(str(path)))
        prompts = prompts_of(smollm2, fixture("once"))  # the demo's tokenizer is the same
        logits = known_logits(source, path, prompts, fixture("once"))
        policy = "f32" if form == "F32" else "int8"
        if form == "F32":
            weights = Dequantised(weights)
    formats = {"F32": 1} if isinstance(weights, Dequantised) else read_spec(resolve(str(path))).formats
    return Case(weights, logits, prompts, policy, getattr(torch, usual_kv_dtype(formats)))


@torch.no_grad()
def logits_of(ref: PreTrainedModel, prompts: list[list[int]]) -> list[torch.Tensor]:
    return [ref(torch.tensor([p])).logits[0] for p in prompts]


Once = Callable[[str, Callable[[Path], object]], Path]


def known_logits(source: str, path: Path, prompts: list[list[int]], once: Once) -> list[torch.Tensor]:
    """Of "smollm2" or "demo"; workers share them, since the gguf package takes 25 s to read a file."""
    ref_of = dense_from_gguf if source == "smollm2" else demo_from_gguf
    return torch.load(once(f"logits-{source}", lambda file: torch.save(logits_of(ref_of(path), prompts), file)))


def prompts_of(model: Path, once: Once) -> list[list[int]]:
    """TEXT and SECOND_TEXT as tokens of the real models."""

    def save(file: Path) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
        torch.save([tokenizer(text)["input_ids"] for text in (TEXT, SECOND_TEXT)], file)

    return torch.load(once("tokens", save))


NAMES = ["qwen3_moe-F32", "qwen3_moe-BF16", "qwen3_moe-F16", "deepseek_v3-F32", "deepseek_v3-BF16"]
NAMES += ["gpt_oss-F32", "gpt_oss-BF16"]
NAMES += ["smollm2-F32", "smollm2", "demo-F32", "demo"]


# What an older transformers may compute otherwise; how kernels round is the same with it. test_canary.py has a real file.
OLDER = {f"{family}-F32" for family in TINY}
CASES = [pytest.param(name, marks=pytest.mark.transformers if name in OLDER else ()) for name in NAMES]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """Made when asked for: the tiny cases need no download."""
    return make(request.param, tmp_path_factory.mktemp("model"), request.getfixturevalue)


@pytest.fixture(scope="module", params=TIERS)
def model(request, case):
    """The case's model with every kernel of one tier."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "Linear", partial(kernels.Linear, tier=request.param))
        patch.setattr(kernels, "Experts", partial(kernels.Experts, tier=request.param))
        yield build(case.weights, lambda *_: None)


def check(case: Case, ours: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.isfinite(ours).all()
    if case.policy == "f32":
        difference = (ours - expected).abs().max() / expected.abs().max()
        assert difference < F32_BOUND, f"{difference:.2e}"
        return
    p, q = expected.double().log_softmax(-1), ours.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1)
    bound = KL_BOUND[case.policy]
    assert kl.mean() < bound and kl.max() < 10 * bound, f"KL mean {kl.mean():.2e} max {kl.max():.2e}"


@torch.no_grad()
def test_prefill(case, model):
    for prompt, expected in zip(case.prompts, case.logits, strict=True):
        check(case, model(torch.tensor([prompt])).logits[0], expected)


@torch.no_grad()
def test_token_by_token_and_two_requests(case, model):
    """The runner's own way: a few prompt tokens at once, the rest one by one, then a second request."""
    driver = Driver(runner_for(model, dtype=case.kv_dtype), sequences=len(case.prompts))
    for prompt, expected in zip(case.prompts, case.logits, strict=True):
        check(case, driver.feed(prompt[:4], *([token] for token in prompt[4:])), expected[3:])


@torch.no_grad()
def test_every_kernel_call_matches_its_rounding_model(case, model):
    calls = []
    operators = {n: m for n, m in model.named_modules() if isinstance(m, Linear | Experts)}
    hooks = [m.register_forward_hook(lambda m, x, y: calls.append((m, x, y))) for m in operators.values()]
    model(torch.tensor([case.prompts[0][:5]]))
    for hook in hooks:
        hook.remove()
    assert len(calls) == len(operators)
    worst = 0.0
    for module, inputs, output in calls:
        expected = reference_call(module, inputs)
        got = output.double().numpy().reshape(expected.shape)
        worst = max(worst, np.abs(got - expected).max() / np.abs(expected).max())
    assert worst < KERNEL_BOUND


def reference_call(module, inputs) -> np.ndarray:
    x = inputs[0].reshape(-1, inputs[0].shape[-1]).numpy()
    weights = module.weights
    if isinstance(module, Linear):
        form, weight = part(weights.matrix(f"{module.key}.weight"))
        bias = module.orig_module.bias
        bias = None if bias is None else weights.tensor(f"{module.key}.bias").numpy()
        path = "prefill" if len(x) >= (prefill_from(form) or len(x) + 1) else "direct"
        return reference.linear(x, weight, form, bias, path)
    names = ("gate", "up", "down")
    chosen = set(inputs[1].flatten().tolist())
    biases: dict[str, np.ndarray] = {}
    activation, limit = "silu", None
    if module.orig_module.has_bias:  # gpt-oss: gate and up in turn
        both, down = (weights.tensor(f"{module.key}.{n}_proj_bias").numpy() for n in ("gate_up", "down"))
        biases = {"gate": both[:, ::2], "up": both[:, 1::2], "down": down}
        activation, limit = "swiglu_oai", module.orig_module.limit  # 5.17 does not read the configured one
    parts = {
        e: tuple((*part(weights.expert(module.key, e, n)), biases[n][e] if biases else None) for n in names)
        for e in chosen
    }
    (form,) = {gate[0] for gate, _, _ in parts.values()}
    return reference.experts(x, inputs[1].numpy(), inputs[2].numpy(), parts, activation, prefill_from(form), limit)


def prefill_from(form: str) -> int | None:
    """Rows from which the kernels take the prefill path for the format."""
    return kernels.info()["formats"][form]["prefill_from"]


def part(m: Matrix) -> tuple[str, np.ndarray]:
    return m.format, decode_matrix(m)
