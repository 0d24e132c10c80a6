"""What does not fit is refused with the limit, what is missing and what would fit; and what is proposed does fit."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import DoesNotFit
from kt_core.machine.simulate import simulate
from kt_core.models import catalogue
from kt_core.plan import fit
from kt_core.types import Machine, ModelSpec, Node

GIB = 1 << 30
HERE = Machine(
    "Here", "x86_64", ("avx2", "f16c", "fma"), 2, 2, (0, 1), {0: Node((0, 1))}, {"cores": 2.0}, 24 * GIB, 22 * GIB
)


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KT_LANG", "en")


def known(name: str) -> tuple[ModelSpec, dict[str, ModelSpec]]:
    """A model's spec in its published format, and those of its other repositories."""
    found = catalogue.find(name)
    assert found is not None
    forms = {repo: catalogue.spec(replace(found, form=form)) for form, repo in found.repos.items()}
    spec = catalogue.spec(found)
    assert spec is not None
    return spec, {repo: other for repo, other in forms.items() if other and other.formats != spec.formats}


def refusal(ram: str, name: str, context: int | None = None) -> str | None:
    spec, others = known(name)
    try:
        fit.check(simulate(f"ram={ram}", HERE).machine, name, spec, context, None, others)
    except DoesNotFit as failure:
        return str(failure)
    return None


def test_another_format_and_more_memory_are_named() -> None:
    text = refusal("32GiB", "Qwen3-30B-A3B")
    assert text and "Qwen/Qwen3-30B-A3B-FP8, Qwen/Qwen3-30B-A3B-GPTQ-Int4" in text
    assert "31.00 GiB are available of all of the memory, 32.00 GiB" in text
    text = refusal("24GiB", "Qwen3-30B-A3B")
    assert text and "Qwen/Qwen3-30B-A3B-GPTQ-Int4" in text and "Qwen3-30B-A3B-FP8" not in text
    assert refusal("64GiB", "Qwen3-30B-A3B") is None
    none = refusal("8GiB", "Qwen3-30B-A3B")
    assert none and "No other published format" in none


@settings(max_examples=25, deadline=None)
@given(ram=st.integers(2, 700), context=st.integers(16, 40_960), name=st.sampled_from(["Qwen3-30B-A3B", "gpt-oss-20b"]))
def test_what_is_proposed_fits(ram: int, context: int, name: str) -> None:
    text = refusal(f"{ram}GiB", name, context)
    if text is None:
        return
    if shorter := re.search(r"--context (\d+)", text):
        assert 0 < int(shorter[1]) < context and refusal(f"{ram}GiB", name, int(shorter[1])) is None
        assert refusal(f"{ram}GiB", name, int(shorter[1]) + 64) is not None
    enough = re.search(r"a machine with (\d+) GiB", text)
    assert enough and refusal(f"{enough[1]}GiB", name, context) is None
    assert refusal(f"{int(enough[1]) - 1}GiB", name, context) is not None


def test_a_context_beyond_the_training_is_refused() -> None:
    text = refusal("2TiB", "Qwen3-30B-A3B", 10**6)
    assert text and "--context 40960" in text


def test_a_disk_that_is_too_small() -> None:
    fit.check_disk("m", 5, 5)
    with pytest.raises(DoesNotFit) as caught:
        fit.check_disk("m", 5 * GIB, 2 * GIB)
    assert "3.00 GiB are missing" in str(caught.value)


def test_unknown_memory_refuses_nothing() -> None:
    spec, _ = known("r1")
    fit.check(replace(HERE, memory_total=0, memory_available=0), "r1", spec, None, None, {})
