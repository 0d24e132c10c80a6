"""Many requests together: each is answered as if it were alone, whatever happens to the others."""

import random
import threading
import time

import pytest
import tinymodel
import torch
from reader import Reader, answer_to
from tinymodel import Scripted, byte_tokens

from kt_core import kernels
from kt_core.engine.loader import build
from kt_core.engine.pace import LEAST, SLOWER, Pace
from kt_core.engine.runners import runner_for
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.stream import QueueFull
from kt_core.errors import UsageError
from kt_core.models import resolve
from kt_core.types import Request, Sampling
from kt_core.weights import open_weights

GREEDY = Sampling(temperature=0.0)


def ask(tokens, count, id="r", **fields):
    return Request(id, tokens=tuple(tokens), **{"sampling": GREEDY, "max_tokens": count, "ignore_eos": True, **fields})


def finish(stream):
    """(tokens, last chunk) of each choice; there is exactly one last chunk for each."""
    chunks = list(stream)
    found = []
    for choice in range(stream.request.choices):
        own = [c for c in chunks if c.choice == choice]
        if not own and stream.aborted:  # ended before its choices were made
            continue
        assert [c.finish_reason is not None for c in own] == [False] * (len(own) - 1) + [True]
        found.append(([t for c in own for t in c.tokens], own[-1]))
    return found


def idle(engine, runner, seconds=10.0):
    """Waits until nothing runs; every page is free or forgettable then, and no sequence is remembered."""
    end = time.monotonic() + seconds
    while engine.state()["running"]:
        assert time.monotonic() < end
        time.sleep(0.002)
    pages = engine.slots()["pages"]
    assert pages["available"] == pages["count"]
    assert len(runner.released) == len(set(runner.released))
    assert {number for step in runner.steps for number, _, _ in step} <= set(runner.released)


def prompt_of(rng, most):
    """Prefixes that meet: a few beginnings, then something of its own."""
    common = [5 + rng.randrange(2)] * rng.randrange(0, most // 2)
    return [*common, *(rng.randrange(3, 97) for _ in range(rng.randrange(1, most - len(common))))]


@pytest.mark.parametrize("seed", range(6))
def test_storm(start, seed):
    """Prompts that share beginnings, too few pages, choices, clients that leave, timeouts and failures."""
    rng = random.Random(seed)
    runner = Reader(shareable=seed % 3 != 2)
    engine = start(runner, pages=rng.choice([16, 20, 40]), max_running=rng.choice([2, 5, 12]), max_queue=500)
    jobs = []
    for number in range(60):
        prompt, count, choices = prompt_of(rng, 40), rng.randrange(1, 20), rng.choice([1, 1, 1, 3])
        fate = rng.choice(["stay"] * 6 + ["cancel", "timeout", "poison"])
        more = {"timeout": rng.choice([1e-4, 0.02])} if fate == "timeout" else {}
        prompt = [*prompt[:-1], Reader.POISON, 9] if fate == "poison" else prompt
        stream = engine.submit(ask(prompt, count, str(number), choices=choices, **more))
        if fate == "cancel":
            threading.Timer(rng.random() * 0.05, stream.cancel).start()
        jobs.append((stream, prompt, min(count, 64 - len(prompt)), fate))
        if rng.random() < 0.1:
            time.sleep(0.01)
        if rng.random() < 0.03:
            engine.flush_cache()
    begun = []
    for stream, prompt, count, fate in jobs:
        answers = finish(stream)
        whole = answer_to(prompt, count)
        for tokens, last in answers:
            assert tokens == whole[: len(tokens)]
            assert (last.finish_reason == "length") == (len(tokens) == count) or last.finish_reason != "length"
            if fate == "stay":
                assert (tokens, last.finish_reason) == (whole, "length")
                assert last.usage.prompt_tokens == len(prompt) and last.usage.completion_tokens == count
            elif fate == "poison":
                assert (tokens, last.finish_reason) == ([], "error") and "poisoned" in str(stream.error)
        if fate == "stay":
            begun.append(stream.submitted + answers[0][1].timings.queued)
    assert begun == sorted(begun)  # in the order in which they came
    idle(engine, runner)


def test_pages_run_out_and_the_youngest_gives_way(start):
    runner = Reader(max_context=40)
    engine = start(runner, pages=10, max_running=4)
    runner.gate.clear()
    jobs = [(engine.submit(ask([7 + i] * 9, 31)), [7 + i] * 9) for i in range(3)]
    runner.gate.set()
    ended = []
    for stream, prompt in jobs:
        ((tokens, last),) = finish(stream)
        assert tokens == answer_to(prompt, 31)
        ended.append(stream.submitted + last.timings.queued + last.timings.prefill + last.timings.decode)
    assert engine.slots()["preempted"] > 0
    assert ended == sorted(ended)  # the oldest was never held up
    idle(engine, runner)


def test_decoding_goes_on_while_a_long_prompt_is_computed(start):
    runner = Reader(max_context=600, max_tokens=16)
    engine = start(runner)
    runner.gate.clear()
    short = engine.submit(ask([5, 6], 30))
    long = engine.submit(ask(list(range(3, 93)) * 5, 2))
    runner.gate.set()
    assert finish(short)[0][0] == answer_to([5, 6], 30)
    assert finish(long)[0][0] == answer_to(list(range(3, 93)) * 5, 2)
    beside = [step for step in runner.steps[1:] if len(step) == 2]
    assert len(beside) >= 25 and all(step[0][1] == 1 for step in beside)  # one token of the first in each


# --- prefixes


def cached(stream):
    return [last.usage.cached_tokens for _, last in finish(stream)]


def test_prefixes_are_computed_once(start, caplog):
    caplog.set_level("INFO")
    runner = Reader(max_tokens=64)
    engine = start(runner)
    prompt = list(range(3, 33))
    assert cached(engine.submit(ask(prompt, 5))) == [0]
    before = runner.written
    second = engine.submit(ask(prompt, 5))
    assert finish(second)[0][0] == answer_to(prompt, 5)
    assert runner.written - before == 2 + 4  # 28 of 30 are found, and the last token is never computed
    assert cached(engine.submit(ask([*prompt, *answer_to(prompt, 5)[:4], 50], 3))) == [32]  # the answer counts, too
    assert cached(engine.submit(ask([*prompt[:9], 50], 3))) == [8]
    assert "8 of 10 prompt tokens were cached: no cached prompt goes on like this" not in caplog.text
    assert "28 of 30 prompt tokens were cached" in caplog.text
    assert engine.flush_cache() > 0
    assert cached(engine.submit(ask(prompt, 5))) == [0]
    assert "0 of 30 prompt tokens were cached: nothing longer was cached" in caplog.text
    idle(engine, runner)


def test_choices_share_the_prompt(start):
    runner = Reader(max_tokens=64)
    engine = start(runner, max_running=4)
    prompt = list(range(3, 44))
    answers = finish(engine.submit(ask(prompt, 4, choices=6)))
    assert [tokens for tokens, _ in answers] == [answer_to(prompt, 4)] * 6
    assert [last.usage.cached_tokens for _, last in answers] == [0, 40, 40, 40, 40, 40]
    assert runner.written == 41 + 5 * 1 + 6 * 3
    assert max(len(step) for step in runner.steps) == 4
    idle(engine, runner)


def test_one_failing_choice_ends_the_request_and_no_other(start):
    runner = Reader()
    engine = start(runner)
    bad = engine.submit(ask([9, Reader.POISON, 9], 4, choices=3))
    good = engine.submit(ask([9, 9, 9], 4))
    assert [last.finish_reason for _, last in finish(bad)] == ["error"] * 3
    assert finish(good)[0][0] == answer_to([9, 9, 9], 4)
    idle(engine, runner)


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_nothing_that_led_to_bad_logits_stays_cached(start, fault):
    runner = Reader()
    engine, forward = start(runner), runner.forward
    runner.forward = lambda step: forward(step) * fault
    prompt = list(range(3, 23))
    assert finish(engine.submit(ask(prompt, 4)))[0][1].finish_reason == "error"
    runner.forward = forward
    stream = engine.submit(ask(prompt, 4))
    ((tokens, last),) = finish(stream)
    assert (tokens, last.usage.cached_tokens) == (answer_to(prompt, 4), 0)


# --- clients that leave, and the queue


@pytest.mark.parametrize("phase", ["queue", "prefill", "decode", "preempted"])
def test_cancelled_within_a_step_in_every_phase(start, phase):
    runner = Reader(max_context=400, max_tokens=16, delay=0.002)
    engine = start(runner, max_running=1 if phase == "queue" else 2, pages=100)
    first = engine.submit(ask([5, 6, 7], 300))
    prompt = list(range(3, 93)) * (3 if phase != "preempted" else 1)
    second = engine.submit(ask(prompt, 300 if phase == "preempted" else 100))

    def state():
        return next(
            (slot["state"] for slot in engine.slots()["running"] if slot["prompt_tokens"] == len(prompt)), "queue"
        )

    end = time.monotonic() + 20
    while (state() if phase != "preempted" else ("decode", "preempted")[engine.slots()["preempted"] > 0]) != phase:
        assert time.monotonic() < end
        time.sleep(0.001)
    steps = len(runner.steps)
    second.cancel()
    ((_, last),) = finish(second)
    assert last.finish_reason == "cancelled" and len(runner.steps) <= steps + 2
    assert finish(first)[0][0] == answer_to([5, 6, 7], 300)
    idle(engine, runner)


def test_a_full_queue_says_when_to_come_again(start):
    runner = Reader(delay=0.02)
    engine = start(runner, max_running=1, max_queue=1)
    list(engine.submit(ask([5], 60)))  # about 1.2 s
    runner.gate.clear()
    streams = [engine.submit(ask([5], 60))]
    while engine.state()["running"] == 0:
        time.sleep(0.001)
    streams.append(engine.submit(ask([5], 60)))
    with pytest.raises(QueueFull, match=r"again in [23] s") as caught:
        engine.submit(ask([5], 60))
    slots = engine.slots()
    assert slots["retry_after"] == caught.value.args_["seconds"] and len(slots["waiting"]) == 1
    assert [slot["state"] for slot in slots["running"]] == ["prefill"] and slots["max_queue"] == 1
    for stream in streams:
        stream.cancel()
    runner.gate.set()


def test_flush_from_an_idle_engine_and_from_a_closed_one(start):
    engine = start(Reader())
    list(engine.submit(ask([5] * 20, 2)))
    assert engine.flush_cache() == 5 and engine.flush_cache() == 0
    engine.close()
    with pytest.raises(Exception, match="shutting down"):
        engine.flush_cache()


def test_a_fault_of_the_engine_leaves_nobody_waiting(start, monkeypatch):
    engine = start(Reader())
    monkeypatch.setattr(engine._scheduler, "plan", lambda beside: 1 / 0)
    stream = engine.submit(ask([5], 4))
    assert finish(stream)[-1][1].finish_reason == "error" and not engine.state()["alive"]


def test_pace():
    pace = Pace(512)
    assert pace.beside == 512
    pace.step([1, 1], 0.1)
    pace.step([400], 1.0)
    assert pace.beside == (SLOWER - 1) * 0.1 / 0.0025 == 80
    for _ in range(50):
        pace.step([1, 400], 4.1)  # prompts became four times slower
    assert pace.beside == LEAST
    for seconds in (2.0, 3.5):
        pace.request(seconds)
    assert pace.retry_after(0) == 3 and pace.retry_after(2) == 2 and pace.retry_after(100) == 1


# --- real models


@pytest.fixture(scope="module")
def injected(tmp_path_factory):
    """The tiny model with kt's operators in place of transformers' modules."""
    folder = tmp_path_factory.mktemp("tiny")
    tinymodel.model().save_pretrained(folder)
    return build(open_weights(resolve(str(folder))), lambda *_: None)


@pytest.fixture
def deterministic():
    kernels.set_deterministic(True)
    yield
    kernels.set_deterministic(False)


def test_a_model_with_its_own_caches_has_no_scores_of_prompts(start):
    with pytest.raises(UsageError) as e:
        start(OwnCacheRunner(tinymodel.model(), 256)).submit(ask([4, 5, 6], 1, logprobs=0, echo=True))
    assert e.value.key == "engine.no_scores"


def test_expert_use_by_layer(start, injected):
    """Each computed token asks as many experts of each layer as the model takes."""
    engine = start(runner_for(injected, 256))
    before = engine.experts()
    finish(engine.submit(ask(list(range(4, 54)), 3)))
    after, config = engine.experts(), injected.config
    assert after["layers"] == before["layers"] == list(range(config.num_hidden_layers))
    for old, new in zip(before["asked"], after["asked"], strict=True):
        grown = [b - a for a, b in zip(old, new, strict=True)]
        assert len(grown) == config.num_experts and min(grown) >= 0
        # Behind the last layer's attention only the rows go on whose logits are wanted.
        computed = 1 + 2 if new is after["asked"][-1] else 50 + 2
        assert sum(grown) == computed * config.num_experts_per_tok
    assert after["elsewhere"] == [[]] * config.num_hidden_layers


@pytest.mark.parametrize("kind", ["paged", "rounded", "own"])
def test_answers_alone_and_in_a_busy_batch(start, injected, deterministic, kind):
    """Greedy and seeded answers, prompts with common beginnings, too few pages: the same tokens as alone and uncached."""
    dtype = torch.bfloat16 if kind == "rounded" else torch.float32
    runner = OwnCacheRunner(injected, 256) if kind == "own" else runner_for(injected, 256, dtype)
    rng = random.Random(3)
    common = [rng.randrange(4, 290) for _ in range(70)]
    requests = []
    for number in range(8):
        own = [rng.randrange(4, 290) for _ in range(rng.randrange(40, 60))]
        sampling = GREEDY if number % 2 else Sampling(temperature=0.8, top_p=0.9, seed=number)
        tokens = common[: (0, 0, 0, 0, 64, 70, 64, 0)[number]] + own
        fields = {"sampling": sampling, "logprobs": 0, "echo": number == 6 and kind != "own"}
        requests.append(ask(tokens, rng.randrange(40, 70), str(number), **fields))

    alone = start(runner, max_running=1)
    expected = []
    for request in requests:
        alone.flush_cache()
        expected.append(list(alone.submit(request)))
    alone.close()
    runner.max_tokens = 100
    busy = start(runner, max_running=5, pages=7)
    streams, hits = [busy.submit(request) for request in requests], []
    for stream, chunks in zip(streams, expected, strict=True):
        found = list(stream)
        hits.append(found[-1].usage.cached_tokens)
        assert [t for c in found for t in c.tokens] == [t for c in chunks for t in c.tokens]
        ours, theirs = ([lp.logprob for c in part for lp in c.logprobs] for part in (found, chunks))
        assert ours == pytest.approx(theirs, abs=1e-4)
        ours, theirs = ([lp.logprob for c in part for lp in c.prompt] for part in (found, chunks))
        assert ours == pytest.approx(theirs, abs=1e-4, nan_ok=True)
        assert len(ours) == (len(stream.prompt) if stream.request.echo else 0)
    slots = busy.slots()
    assert slots["preempted"] > 0 and slots["pages"]["available"] == 7
    assert any(hits) == (kind != "own")


def test_cached_prefixes_do_not_change_an_answer(start, injected, deterministic):
    engine = start(runner_for(injected, 512, torch.float32))
    prompt = torch.randint(4, 290, (200,), generator=torch.Generator().manual_seed(6)).tolist()
    cold = {
        n: finish(start(runner_for(injected, 512, torch.float32)).submit(ask(prompt[:n], 12)))[0][0] for n in (150, 200)
    }
    for n in (150, 200, 150, 200):
        ((tokens, last),) = finish(engine.submit(ask(prompt[:n], 12)))
        assert tokens == cold[n]
    assert last.usage.cached_tokens == 192


def test_a_batch_is_one_forward(start):
    """Four requests take about as many steps as one."""
    gate = threading.Event()
    runner = Scripted(byte_tokens("abcdefgh"), before=lambda step: gate.wait(20))
    engine = start(runner)
    streams = [engine.submit(Request("r", text="hello", sampling=GREEDY)) for _ in range(4)]
    gate.set()
    assert ["".join(c.text for c in stream) for stream in streams] == ["abcdefgh"] * 4
    assert runner.steps <= 10
