"""Faults that users of other engines reported of prefix caches and long contexts, tried here."""

import random

import pytest
import tinymodel
import torch
from killed import ask, check
from reader import Reader, answer_to
from test_runner import small

from kt_core import kernels
from kt_core.engine.disk import Folder
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.errors import UsageError
from kt_core.types import Request, Sampling


@pytest.fixture
def start(start, tmp_path):
    """Engines with a tier on disk that all of them share."""

    def make(runner, folder=tmp_path, **options):
        return start(runner, disk=Folder(folder, b"a model", runner.page_bytes, 1 << 30) if folder else None, **options)

    return make


@pytest.fixture
def deterministic():
    kernels.set_deterministic(True)
    yield
    kernels.set_deterministic(False)


def tokens(count, seed=0):
    return torch.randint(4, 290, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def answered(engine, request):
    chunks = list(engine.submit(request))
    return [t for c in chunks for t in c.tokens], chunks[-1].usage.cached_tokens


def test_prompts_longer_than_the_context_are_refused_before_anything_is_computed(start):
    runner = Reader(max_context=64)
    engine = start(runner)
    for length in range(64, 501):
        with pytest.raises(UsageError, match=rf"{length} tokens.* 64 tokens"):
            engine.submit(ask([5] * length, 1))
    assert runner.steps == []
    check(engine, [5] * 63, 1)


@pytest.mark.parametrize(
    "make", [lambda: tinymodel.runner(256), lambda: OwnCacheRunner(tinymodel.model(), 256, 1 << 24)]
)
def test_every_model_refuses_alike(start, make):
    with pytest.raises(UsageError, match=r"300 tokens.* 256 tokens"):
        start(make()).submit(ask(tokens(300), 1))


@pytest.mark.parametrize("percent", [49, 51, 99])
def test_the_whole_context_is_usable(start, percent):
    engine = start(Reader(max_context=400, max_tokens=64))
    length = 400 * percent // 100
    for _ in range(2):
        check(engine, [3 + i % 90 for i in range(length)], 400 - length)


def test_twenty_turns_equal_fresh_runs(start, deterministic):
    """Every turn against a cold engine of its own; every fifth one after a restart."""
    rng, prompt, before = random.Random(1), tokens(40), 0
    warm = start(tinymodel.runner(1024))
    for turn in range(20):
        request = ask(prompt, 16)
        found, cached = answered(warm, request)
        assert found == answered(start(tinymodel.runner(1024), folder=None), request)[0], turn
        assert cached == max(0, before - 1) // 64 * 64
        before = len(prompt) + len(found)
        prompt = [*prompt, *found, *tokens(rng.randrange(5, 40), turn)]
        if turn % 5 == 4:
            warm.close(20)
            warm = start(tinymodel.runner(1024))


def test_growing_prompts_compute_what_is_new(start):
    runner = Reader(max_context=400, max_tokens=64)
    engine, prompt = start(runner), tokens(100)
    prompt = [3 + token % 90 for token in prompt]
    check(engine, prompt, 1)
    for turn in range(10):
        prompt = [*prompt, *(3 + token % 90 for token in tokens(20, turn))]
        before = runner.written
        check(engine, prompt, 1)
        assert runner.written - before <= 20 + runner.page


def test_a_tool_loop_whose_template_drops_the_thinking(start):
    """The third prompt parts from the second where thinking was; all before that is found."""
    runner = Reader(max_context=400, max_tokens=64)
    engine = start(runner)
    system, thinking, call, result = [5] * 60, [7, 8] * 15, [9, 10] * 10, [11] * 12
    check(engine, system, 1)
    check(engine, [*system, *thinking, *call, *result], 1)
    before = runner.written
    third = [*system, *call, *result, 12]
    assert check(engine, third, 1) == 60
    assert runner.written - before == len(third) - 60
    check(engine, [*third, *call], 1)
    assert runner.written - before <= len(third) - 60 + len(call) + runner.page


def test_lengths_around_every_border(start, deterministic):
    """Cold, warm and from disk, pages of 64 and steps of 512 tokens; then a short one as ever."""
    ids, model = tokens(590, 4), tinymodel.model()
    with torch.inference_mode():
        best = model(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
    lengths = [border + more for border in (64, 128, 512, 576) for more in (-1, 0, 1, 2)]
    for restart in range(2):
        engine = start(tinymodel.runner())
        for length in lengths if restart else lengths + lengths:
            found, cached = answered(engine, ask(ids[:length], 1))
            assert found == [best[length - 1]], length
        assert cached == (lengths[-1] - 1) // 64 * 64
        assert answered(engine, ask(ids[:5], 1))[0] == [best[4]]
        engine.close(20)


def test_a_seeded_answer_cold_warm_from_disk_and_beside_others(start, deterministic):
    sampling = Sampling(temperature=0.9, seed=11)
    request = Request("r", tokens=tuple(tokens(200)), sampling=sampling, max_tokens=24, ignore_eos=True)
    first = start(tinymodel.runner(512))
    cold, _ = answered(first, request)
    assert answered(first, request) == (cold, 192)
    first.close(20)
    again = start(tinymodel.runner(512))
    beside = [again.submit(ask(tokens(90, seed), 30)) for seed in range(1, 5)]
    assert answered(again, request) == (cold, 192)
    assert all(list(stream)[-1].finish_reason == "length" for stream in beside)


def test_a_cache_too_small_for_what_runs(start):
    """One page, four sequences: the cache is at least a context, and everyone is answered."""
    engine = start(Reader(), pages=1, max_running=4)
    assert engine.slots()["pages"]["count"] * 4 == 64
    prompts = [[5 + number] * 9 for number in range(10)]
    streams = [engine.submit(ask(prompt, 20)) for prompt in prompts]
    for prompt, stream in zip(prompts, streams, strict=True):
        assert [t for c in stream for t in c.tokens] == answer_to(prompt, 20)


def test_windows_shorter_than_the_prefix(start, deterministic):
    """A prefix from disk serves layers that see only its end."""
    from kt_core.engine.runners import runner_for

    model, prompt = small("gpt_oss"), [token % 97 for token in tokens(150)]
    answers = []
    for _ in range(2):
        engine = start(runner_for(model, 512, torch.float32))
        answers.append(answered(engine, ask(prompt, 12)))
        engine.close(20)
    cold = answered(start(OwnCacheRunner(model), folder=None), ask(prompt, 12))
    assert answers == [cold, (cold[0], 128)]
