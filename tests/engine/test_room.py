"""How many pages a plan's bytes become, and what happens where they are too few."""

from dataclasses import replace

import pytest
import tinymodel

from kt_core.engine import room
from kt_core.engine.room import runner_and_pages
from kt_core.errors import DoesNotFit
from kt_core.machine import probe
from kt_core.plan import memory
from kt_core.types import Decision, ModelFiles, ModelSpec, Plan, ServerSettings

TOKEN = 2 * 2 * 2 * 8 * 4  # bytes of float32: layers, key and value, heads, width
SPEC = ModelSpec("qwen3_moe", 2, 32, 300, 1024, 6, 2, 10**5, {"experts": 0, "other": 0}, TOKEN, {})


def planned(cache, context=256, source="machine", dtype="bfloat16", **more):
    decisions = [Decision("context", context, "", source), Decision("kv_dtype", dtype, "", "default")]
    decisions += [Decision("cache", cache, "", "machine"), *(Decision(n, v, "", "user") for n, v in more.items())]
    return Plan(ModelFiles("m", "/m", "safetensors", ()), SPEC, tuple(decisions), {}, ServerSettings())


@pytest.fixture
def no_more_memory(monkeypatch):
    monkeypatch.setattr(room, "probe", lambda: replace(probe(), memory_total=2**40, memory_available=0))


@pytest.fixture
def own(monkeypatch):
    """As if the model's attention could not be had on pages."""
    monkeypatch.setattr(room, "runner_for", lambda model, context, dtype, chunk: room.OwnCacheRunner(model, context))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_pages_are_the_planned_bytes(dtype, no_more_memory):
    page = 64 * memory.token_bytes(SPEC, dtype) * 3 // 2  # values of 8 columns are filled up to 16
    runner, pages = runner_and_pages(tinymodel.model(), planned(15 * page + page // 2, dtype=dtype), 256, 0)
    assert (pages, runner.page_bytes, runner.max_context) == (15, page, 256)


def test_own_caches_take_more_than_planned(own, no_more_memory, caplog):
    """float32, and a copy while they grow: four times the planned bytes of a token."""
    for cache in (256 * TOKEN // 2, 512 * TOKEN // 2):
        runner, pages = runner_and_pages(tinymodel.model(), planned(cache), 256, 0)
        assert pages * 64 == cache // (2 * TOKEN) == runner.max_context
        assert f"is {runner.max_context} tokens instead of 256" in caplog.text
        caplog.clear()
    runner, pages = runner_and_pages(tinymodel.model(), planned(4 * 256 * TOKEN // 2), 256, 0)
    assert (pages, runner.max_context, caplog.text) == (4, 256, "")
    with pytest.raises(DoesNotFit, match="--context 64"):
        runner_and_pages(tinymodel.model(), planned(256 * TOKEN // 2, source="user"), 256, 0)
    with pytest.raises(DoesNotFit):
        runner_and_pages(tinymodel.model(), planned(64 * TOKEN // 2), 256, 0)
    forced = runner_and_pages(tinymodel.model(), planned(256 * TOKEN // 2, source="user", force=True), 256, 0)
    assert forced[1] == 4


def test_free_memory_is_used_where_the_plan_was_too_small(own):
    runner, pages = runner_and_pages(tinymodel.model(), planned(256 * TOKEN // 2), 256, 0)
    assert (pages, runner.max_context) == (4, 256)


def test_what_is_decoded_takes_of_the_cache(no_more_memory):
    page = 64 * TOKEN // 2 * 3 // 2
    assert runner_and_pages(tinymodel.model(), planned(20 * page), 256, 3 * page)[1] == 17
