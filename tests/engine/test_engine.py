"""The engine: equal to transformers' greedy generation, exact limits, cancellation, and life after failures."""

import threading
import time

import pytest
import tinymodel
import torch
from tinymodel import Scripted, byte_tokens

from kt_core.engine.stream import Closed, QueueFull
from kt_core.errors import UsageError
from kt_core.types import Request, Sampling

GREEDY = Sampling(temperature=0.0)
TEXT = "stop and think: 🦊 the world"


def ask(id="r", **fields):
    return Request(id, **{"text": "hello", "sampling": GREEDY, **fields})


def finish(stream):
    """(text, tokens, last chunk) of a request with one choice."""
    chunks = list(stream)
    assert [c.finish_reason is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    return "".join(c.text for c in chunks), [t for c in chunks for t in c.tokens], chunks[-1]


# --- against transformers


@pytest.mark.parametrize("words", ["a", "hello", "the quick brown fox " * 9])
def test_equals_generate(start, words):
    model, count = tinymodel.model(), 40
    prompt = tinymodel.tokenizer()(words)["input_ids"]
    expected = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.int64), do_sample=False,
        max_new_tokens=count, pad_token_id=1,
    )[0, len(prompt) :].tolist()  # fmt: skip
    ended = 1 in expected
    expected = expected[: expected.index(1)] if ended else expected
    text, tokens, last = finish(
        start(tinymodel.runner()).submit(ask(text=None, tokens=tuple(prompt), max_tokens=count))
    )
    assert tokens == expected
    assert text == tinymodel.tokenizer().decode(expected, skip_special_tokens=True)
    assert last.finish_reason == ("stop" if ended else "length")
    assert last.usage.completion_tokens == len(expected) + ended


def test_chunked_prefill_equals_one_piece(start):
    prompt = tuple(torch.randint(4, 290, (300,), generator=torch.Generator().manual_seed(3)).tolist())
    request = ask(text=None, tokens=prompt, max_tokens=20, ignore_eos=True)
    whole = finish(start(tinymodel.runner()).submit(request))[1]
    assert len(whole) == 20
    for chunk in (1, 7, 299, 300, 301):
        runner = tinymodel.runner(chunk=chunk)
        assert runner.max_tokens == chunk
        assert finish(start(runner).submit(request))[1] == whole


def test_prompt_lengths(start):
    """Every length once through the same engine; each answer starts as a cold forward of the whole prompt does."""
    engine, model = start(tinymodel.runner()), tinymodel.model()
    ids = torch.randint(4, 290, (1, 600), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        best = model(input_ids=ids).logits[0].argmax(-1).tolist()  # causal: position n-1 answers the first n tokens
    for length in (*range(1, 40), *range(40, 601, 40), 511, 512, 513, 599):
        request = ask(text=None, tokens=tuple(ids[0, :length].tolist()), max_tokens=1, ignore_eos=True, logprobs=0)
        stream = engine.submit(request)
        assert [lp.token for c in stream for lp in c.logprobs] == [best[length - 1]], length


@pytest.mark.parametrize("first", [1, 200, 400])
def test_every_prompt_length_answers(start, first):
    engine = start(tinymodel.runner())
    for length in range(first, first + 200 if first > 1 else 200):
        _, _, last = finish(engine.submit(ask(text=None, tokens=(9,) * length, max_tokens=1)))
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (length, 1)


# --- limits and reasons


def test_token_limit_is_exact(start):
    engine = start(Scripted(byte_tokens("abcdefgh")))
    for limit in range(1, 9):
        text, _, last = finish(engine.submit(ask(max_tokens=limit)))
        assert (text, last.finish_reason, last.usage.completion_tokens) == ("abcdefgh"[:limit], "length", limit)
    for limit in (9, 10, 10**9, None):  # the ninth token is the end
        text, _, last = finish(engine.submit(ask(max_tokens=limit)))
        assert (text, last.finish_reason, last.usage.completion_tokens) == ("abcdefgh", "stop", 9)


def test_forwards_are_no_more_than_needed(start):
    runner = Scripted(byte_tokens("abc"))
    finish(start(runner).submit(ask(max_tokens=2)))
    assert runner.steps == 2


def test_context_is_usable_to_its_last_token(start):
    runner = Scripted(byte_tokens("ab"), loop=True, max_context=16)
    engine = start(runner)
    _, tokens, last = finish(engine.submit(ask(text=None, tokens=(9,) * 10)))
    assert (len(tokens), last.finish_reason) == (6, "length")
    assert len(finish(engine.submit(ask(text=None, tokens=(9,) * 15)))[1]) == 1
    steps = runner.steps
    for length in (16, 17, 500):
        with pytest.raises(UsageError, match=rf"{length} tokens.* 16 tokens") as e:
            engine.submit(ask(text=None, tokens=(9,) * length))
        assert e.value.key == "engine.context_overflow"
    assert runner.steps == steps


def test_all_end_tokens_count(start):
    runner = Scripted([*byte_tokens("ab"), 3, *byte_tokens("cd")])
    runner.eos_ids = frozenset({2, 3})
    text, _, last = finish(start(runner).submit(ask()))
    assert (text, last.finish_reason) == ("ab", "stop")
    text, tokens, last = finish(start(runner).submit(ask(ignore_eos=True, max_tokens=5)))
    assert (text, tokens[2], last.finish_reason) == ("abcd", 3, "length")


def test_stop_tokens(start):
    script = byte_tokens("abcd")
    text, _, last = finish(start(Scripted(script)).submit(ask(stop_tokens=(script[2],), ignore_eos=True)))
    assert (text, last.finish_reason) == ("ab", "stop")


def test_stop_strings(start):
    engine = start(Scripted(byte_tokens("one\ntwoX\nthree")))
    for stop, expected in [(("X", "X\n"), "one\ntwo"), (("X\n", "X"), "one\ntwo"), (("\n",), "one"), (("o",), "")]:
        text, _, last = finish(engine.submit(ask(stop=stop)))
        assert (text, last.finish_reason) == (expected, "stop")
    text, _, last = finish(engine.submit(ask(stop=("threeZ",))))
    assert (text, last.finish_reason) == ("one\ntwoX\nthree", "stop")


def test_text_arrives_whole_in_characters(start):
    chunks = list(start(Scripted(byte_tokens(TEXT))).submit(ask()))
    assert "".join(c.text for c in chunks) == TEXT
    assert [c.text for c in chunks[:-1]] == list(TEXT)


def test_choices(start):
    engine = start(tinymodel.runner())
    sampling = Sampling(seed=5)
    chunks = list(engine.submit(ask(sampling=sampling, choices=3, max_tokens=12, ignore_eos=True)))
    tokens = [[t for c in chunks if c.choice == i for t in c.tokens] for i in range(3)]
    assert len({tuple(t) for t in tokens}) == 3
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["length"] * 3
    for i in range(3):
        alone = engine.submit(ask(sampling=Sampling(seed=5 + i), max_tokens=12, ignore_eos=True))
        assert finish(alone)[1] == tokens[i]


def test_logprobs_do_not_depend_on_temperature(start):
    engine = start(tinymodel.runner())
    greedy = list(engine.submit(ask(logprobs=3, max_tokens=1, ignore_eos=True)))
    warm = list(engine.submit(ask(logprobs=3, max_tokens=1, ignore_eos=True, sampling=Sampling(2.0, top_k=1))))
    first, second = greedy[-1].logprobs or greedy[0].logprobs, warm[-1].logprobs or warm[0].logprobs
    assert first == second and len(first[0].top) == 3


def test_timings(start):
    runner = Scripted(byte_tokens("abcd"), delay=0.02)
    last = finish(start(runner).submit(ask()))[2]
    assert last.timings.prefill >= 0.02 and last.timings.decode >= 0.06 and 0 <= last.timings.queued < 1


# --- failures


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_unusable_logits_end_one_request(start, value):
    runner = Scripted(byte_tokens("abc"), shape=lambda step, logits: logits * 0 + value if step == 2 else logits)
    engine = start(runner)
    stream = engine.submit(ask())
    text, _, last = finish(stream)
    assert (text, last.finish_reason, last.usage.completion_tokens) == ("a", "error", 1)
    assert stream.error is not None and "logits" in str(stream.error)
    assert finish(engine.submit(ask()))[0] == "abc"


def test_a_bias_that_bans_all_is_an_error(start):
    bias = {i: float("-inf") for i in range(len(tinymodel.tokenizer()))}
    engine = start(Scripted(byte_tokens("abc")))
    assert finish(engine.submit(ask(sampling=Sampling(0.0, logit_bias=bias))))[2].finish_reason == "error"
    assert finish(engine.submit(ask()))[0] == "abc"


@pytest.mark.parametrize("step", [1, 3])
def test_a_failed_step_leaves_a_clean_state(start, step, caplog):
    def before(number):
        if number == step:
            raise RuntimeError("size mismatch")

    engine = start(Scripted(byte_tokens("abcdef"), before=before), max_running=1)
    streams = [engine.submit(ask()) for _ in range(2)]
    text, _, last = finish(streams[0])
    assert (text, last.finish_reason) == ("abcdef"[: step - 1], "error")
    assert "size mismatch" in str(streams[0].error)
    assert "Traceback" in caplog.text
    assert finish(streams[1])[0] == "abcdef"


def test_real_model_after_a_failure(start, monkeypatch):
    """A prompt that breaks the model in its second chunk; afterwards a short one equals a cold run."""
    runner = tinymodel.runner()
    cold = finish(start(runner).submit(ask(max_tokens=10)))[1]
    forward, calls = runner.forward, []

    def failing(step):
        calls.append(len(step.tokens))
        if calls == [512, 100]:
            raise RuntimeError("boom")
        return forward(step)

    monkeypatch.setattr(runner, "forward", failing)
    engine = start(runner)
    assert finish(engine.submit(ask(text=None, tokens=(9,) * 612)))[2].finish_reason == "error"
    assert finish(engine.submit(ask(max_tokens=10)))[1] == cold


@pytest.mark.parametrize("fields", [{"tokens": (9999,)}, {"tokens": (-1,)}, {"stop_tokens": (9999,)}])
def test_unknown_tokens_are_refused(start, fields):
    with pytest.raises(UsageError, match="does not exist"):
        start(Scripted([5])).submit(ask(**({"text": None} if "tokens" in fields else {}), **fields))
    with pytest.raises(UsageError, match="does not exist"):
        start(Scripted([5])).submit(ask(sampling=Sampling(logit_bias={9999: 1.0})))


# --- queue and cancellation


class Gate:
    """Lets a scripted runner's steps through one by one."""

    def __init__(self):
        self.tickets = threading.Semaphore(0)

    def __call__(self, number):
        assert self.tickets.acquire(timeout=30)

    def open(self, steps=10**6):
        self.tickets.release(steps)


def test_first_come_first_served_and_bounded(start):
    gate = Gate()
    runner = Scripted(byte_tokens("ab"), before=gate)
    engine = start(runner, max_queue=2, max_running=1)
    running = engine.submit(ask("0"))
    assert runner.started.wait(10)
    waiting = [engine.submit(ask(str(i))) for i in (1, 2)]
    with pytest.raises(QueueFull, match="2 requests wait"):
        engine.submit(ask("3"))
    assert engine.state() == {"running": 1, "waiting": 2, "max_queue": 2, "context": 4096, "alive": True}
    gate.open()
    assert [finish(s)[0] for s in (running, *waiting)] == ["ab"] * 3
    assert finish(engine.submit(ask("4")))[0] == "ab"


def test_running_request_ends_within_a_step(start):
    gate = Gate()
    runner = Scripted(byte_tokens("ab"), before=gate, loop=True)
    engine = start(runner)
    stream = engine.submit(ask())
    gate.open(3)
    chunks = iter(stream)
    seen = [next(chunks) for _ in range(3)]
    while runner.steps < 4:  # the fourth step is under way
        time.sleep(0.001)
    stream.cancel()
    gate.open()
    last = list(chunks)
    assert [c.finish_reason for c in (*seen, *last)] == [None] * 3 + ["cancelled"]
    assert runner.steps == 4
    assert finish(engine.submit(ask(max_tokens=2)))[0] == "ab"


def test_cancel_takes_effect_within_a_prefill_chunk(start):
    gate = Gate()
    runner = Scripted(byte_tokens("ab"), before=gate)
    stream = start(runner).submit(ask(text=None, tokens=(9,) * 3000))
    assert runner.started.wait(10)
    stream.cancel()
    gate.open()
    assert finish(stream)[2].finish_reason == "cancelled"
    assert runner.fed == [512]


def test_cancelling_a_waiting_request_is_immediate_and_touches_no_other(start):
    gate = Gate()
    runner = Scripted(byte_tokens("abc"), before=gate)
    engine = start(runner, max_running=1)
    running, waiting, third = (engine.submit(ask(i)) for i in "012")
    assert runner.started.wait(10)
    waiting.cancel()
    assert finish(waiting)[2].finish_reason == "cancelled"  # while the first one still stands
    assert engine.state()["waiting"] == 1
    gate.open()
    assert finish(running)[0] == finish(third)[0] == "abc"
    running.cancel()  # after the end: nothing happens
    assert finish(engine.submit(ask()))[0] == "abc"


def test_timeouts(start):
    gate = Gate()
    runner = Scripted(byte_tokens("abc"), before=gate)
    engine = start(runner, max_running=1)
    running = engine.submit(ask())
    assert runner.started.wait(10)
    waiting = engine.submit(ask(timeout=0.05))
    assert finish(waiting)[2].finish_reason == "error" and "0.05" in str(waiting.error)
    gate.open()
    assert finish(running)[0] == "abc"
    slow = start(Scripted(byte_tokens("abc"), delay=0.01, loop=True)).submit(ask(timeout=0.1))
    assert finish(slow)[2].finish_reason == "error" and slow.error.key == "engine.timeout"


def test_close(start):
    runner = Scripted(byte_tokens("abc"), delay=0.005, loop=True)
    engine = start(runner)
    streams = [engine.submit(ask()) for _ in range(3)]
    assert runner.started.wait(10)
    engine.close()
    assert [finish(s)[2].finish_reason for s in streams] == ["cancelled"] * 3
    assert not engine.state()["alive"]
    with pytest.raises(Closed):
        engine.submit(ask())


def test_many_threads(start):
    engine = start(Scripted(byte_tokens(TEXT)))
    results = []

    def client():
        results.extend(finish(engine.submit(ask()))[0] for _ in range(5))

    threads = [threading.Thread(target=client) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [TEXT] * 40


def test_turns_equal_cold_runs(start):
    """A chat of eight turns through one engine; each answer equals one from a fresh engine."""
    engine, messages = start(tinymodel.runner()), []
    for turn in range(8):
        messages.append({"role": "user", "content": f"turn {turn}"})
        request = Request("r", messages=tuple(messages), sampling=GREEDY, max_tokens=8)
        text = finish(engine.submit(request))[0]
        assert text == finish(start(tinymodel.runner()).submit(request))[0]
        messages.append({"role": "assistant", "content": text})
