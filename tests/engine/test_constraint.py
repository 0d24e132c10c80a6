"""Answers bound to a grammar, against Python's own regular expressions and JSON, and what they leave alone."""

import json
import math
import random
import re
import threading

import numpy as np
import pytest
import tinymodel
from hypothesis import given, settings
from hypothesis import strategies as st
from tinymodel import Scripted, byte_tokens, tokenizer

from kt_core.engine.constraint import LONGEST, Constraint, Grammars
from kt_core.engine.engine import Engine
from kt_core.errors import KTError, UsageError
from kt_core.types import Request, Sampling

SHORT = (
    'start: %json {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, '
    '"b": {"enum": ["x", null]}}, "required": ["a", "b"], "additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'
)


@pytest.fixture(scope="module")
def grammars():
    return Grammars(tokenizer(), len(tokenizer()) + 13, frozenset({1}))


@pytest.fixture(scope="module")
def engine():
    engine = Engine(tinymodel.runner(), tokenizer(), max_running=8)
    yield engine
    engine.close(5)


def allowed(constraint):
    bounds = constraint.bounds()
    assert set(bounds.tolist()) <= {np.inf, -np.inf}
    return np.flatnonzero(bounds > 0).tolist()


def walk(constraint, seed, limit=200):
    """The text of an answer that takes any token it may; None where the limit cuts it off."""
    source, tokens = random.Random(seed), []
    for _ in range(limit):
        token = source.choice(allowed(constraint))
        ended = constraint.accept(token)
        if token != 1:
            tokens.append(token)
        if ended:
            return tokenizer().decode(tokens)
    return None


def submit(engine, grammar=None, prompt="the", **fields):
    fields = {"sampling": Sampling(seed=1), "max_tokens": 100, **fields}
    return engine.submit(Request("r", text=prompt, grammar=grammar, **fields))


def answer(stream):
    chunks = list(stream)
    return "".join(chunk.text for chunk in chunks), chunks[-1].finish_reason


@pytest.mark.parametrize(
    "pattern", ["a{2,5}", "[a-c]*x", "(the|and) (fox|dog){1,3}", "[^a-z]{3}", "é|ß+|🙂", "a|", r"[0-9][0-9]:[0-9]"]
)
def test_what_may_come_is_what_the_expression_says(grammars, pattern):
    found = {walk(grammars.start(f"start: /{pattern}/"), seed) for seed in range(20)}
    assert found - {None} and all(re.fullmatch(pattern, text) for text in found - {None})


@settings(max_examples=30, deadline=None)
@given(text=st.text("abc", max_size=8))
def test_a_token_is_allowed_just_where_an_answer_can_go_on(grammars, text):
    """Every byte has a token, so the tokens of one letter show what the grammar takes."""
    constraint = grammars.start("start: /(ab*c)*/")
    for at, token in enumerate(byte_tokens(text)):
        # a prefix of an answer: with what is open closed, it is one
        is_prefix = any(re.fullmatch("(ab*c)*", text[: at + 1] + rest) for rest in ("", "c"))
        assert (token in allowed(constraint)) == is_prefix
        if not is_prefix:
            return
        assert not constraint.accept(token)
        assert (1 in allowed(constraint)) == bool(re.fullmatch("(ab*c)*", text[: at + 1]))


def test_special_tokens_stand_for_themselves(grammars):
    constraint = grammars.start('start: /(?s:.*)/ <[3]> "b"')
    may = allowed(constraint)
    assert 3 in may and not {0, 1, 2} & set(may) and max(may) < len(tokenizer())
    assert grammars.special["<|assistant|>"] == 3
    constraint.accept(3)
    assert [tokenizer().decode([token]) for token in allowed(constraint)] == ["b"]


def test_copies_go_their_own_ways(grammars):
    first = grammars.start('start: "ab" | "cd"')
    second = first.copy()
    assert not first.accept(byte_tokens("a")[0])
    assert len(allowed(second)) == 2 and len(allowed(first)) == 1
    assert first.accept(byte_tokens("b")[0])


@pytest.mark.parametrize(
    "grammar", ['start: "', "start: other", "start: /(?=a)b/", 'start: %json {"type": "strin"}', "x" * (LONGEST + 1), "", "\ud800"],
    ids=["text", "rule", "lookahead", "schema", "long", "empty", "half"],
)  # fmt: skip
def test_what_cannot_be_compiled_is_refused_before_anything_is_computed(grammar):
    runner = Scripted(byte_tokens("a"))
    engine = Engine(runner, tokenizer())
    with pytest.raises(UsageError) as caught:
        submit(engine, grammar)
    assert caught.value.key == "engine.grammar" and len(str(caught.value)) < 500
    assert runner.steps == 0 and engine.state()["waiting"] == 0
    engine.close(5)


def test_a_tokenizer_that_cannot_be_read_costs_only_grammars():
    class Odd:
        def __len__(self):
            return 10

    odd = Grammars(Odd(), 10, frozenset({1}))
    assert odd.special == {}
    with pytest.raises(UsageError) as caught:
        odd.start('start: "a"')
    assert caught.value.key == "engine.no_grammars"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_answer_ends_with_the_grammar(engine, temperature):
    for seed in range(4):
        text, reason = answer(
            submit(engine, SHORT, sampling=Sampling(temperature, seed=seed), ignore_eos=bool(seed % 2))
        )
        value = json.loads(text)
        assert reason == "stop" and 0 <= value["a"] <= 99 and value["b"] in ("x", None)
    assert answer(submit(engine, 'start: "exactly this"')) == ("exactly this", "stop")


def test_cut_off_by_the_limit(engine):
    text, reason = answer(submit(engine, "start: /[ab]{50}/", max_tokens=7))
    assert reason == "length" and re.fullmatch("[ab]+", text)
    assert answer(submit(engine, "start: /[ab]{50}/", stop=("a", "b")))[1] == "stop"


def test_an_end_token_comes_only_where_the_grammar_has_ended(engine):
    """Whatever the model wants: here nothing but the end."""
    bias = {1: 100.0}
    text, reason = answer(submit(engine, SHORT, sampling=Sampling(logit_bias=bias, seed=1)))
    assert reason == "stop" and json.loads(text)
    assert answer(submit(engine, "start: /a{3}b*/", sampling=Sampling(logit_bias=bias, seed=1))) == ("aaa", "stop")


def test_together_with_others_as_alone(engine):
    """Bound and free requests in one batch: each answers as it does alone, seeded ones too."""
    makers = [
        lambda: submit(engine, SHORT, "one", sampling=Sampling(0.0)),
        lambda: submit(engine, SHORT, "two", sampling=Sampling(1.0, seed=3)),
        lambda: submit(engine, None, "three", sampling=Sampling(1.0, seed=4), max_tokens=20),
        lambda: submit(engine, "start: /[a-z ]{5,30}/", "four", sampling=Sampling(1.2, top_p=0.9, seed=5)),
    ]
    alone = [answer(make()) for make in makers]
    streams = [make() for make in makers * 2]
    assert [answer(stream) for stream in streams] == alone * 2


@pytest.mark.parametrize(
    "fields", [{}, {"top_k": 20}, {"typical_p": 0.8, "repetition_penalty": 1.2}, {"min_p": 0.05, "temperature": 1.5}]
)
def test_a_seed_gives_the_same_alone_and_with_seven_others(engine, fields):
    def of(seed):
        return submit(engine, None, "the quick", sampling=Sampling(**{"seed": seed, **fields}), max_tokens=16)

    alone = answer(of(42))
    others = [of(seed) for seed in range(4)]
    again = of(42)
    others += [of(seed) for seed in range(4, 7)]
    assert answer(again) == alone
    assert len({answer(stream) for stream in others}) > 1


def test_choices_are_bound_each(engine):
    texts = {}
    for chunk in submit(engine, SHORT, choices=4):
        texts[chunk.choice] = texts.get(chunk.choice, "") + chunk.text
    assert len(texts) == 4 and all(json.loads(text) for text in texts.values()) and len(set(texts.values())) > 1


def test_a_fault_on_the_way_ends_its_request_alone(engine, monkeypatch):
    real, calls = Constraint._compute, []

    def fails(self):
        calls.append(1)
        if len(calls) == 3:
            self._matcher.consume_token(0)  # not what the grammar takes: from now on it is broken
        return real(self)

    monkeypatch.setattr(Constraint, "_compute", fails)
    free = submit(engine, None, max_tokens=5)
    stream = submit(engine, SHORT)
    assert answer(stream)[1] == "error" and isinstance(stream.error, KTError)
    assert stream.error.key == "engine.grammar_failed"
    assert answer(free)[1] in ("length", "stop")


def test_masks_are_computed_beside_the_step(monkeypatch):
    """The second mask waits for the second step to begin: if it were computed before that, neither would ever come."""
    real, begun, masks = Constraint._compute, threading.Event(), []

    def late(self):
        masks.append(len(masks))
        assert len(masks) == 1 or begun.wait(20)
        return real(self)

    def before(step):
        if step == 2:
            begun.set()

    monkeypatch.setattr(Constraint, "_compute", late)
    engine = Engine(Scripted(byte_tokens("ab"), before=before), tokenizer())
    assert answer(submit(engine, 'start: "ab"')) == ("ab", "stop")
    assert len(masks) == 2 and begun.is_set()
    engine.close(5)


def test_nothing_left_to_choose_ends_the_request_alone():
    """ggml-org/llama.cpp#26651: the model gives minus infinity to all that the grammar allows, or NaN to something."""
    wanted = byte_tokens("a")[0]

    def shape(step, logits):
        only = logits.clone().fill_(-math.inf)
        only[wanted] = 1.0
        if step == 2:
            only[5] = math.nan
        return only

    engine = Engine(Scripted([wanted], shape=shape), tokenizer())
    for grammar, key in (('start: "b"', "engine.banned_all"), ('start: "a"', "engine.bad_logits")):
        stream = submit(engine, grammar, sampling=Sampling(0.0))
        assert answer(stream)[1] == "error" and stream.error.key == key
    assert answer(submit(engine, 'start: "a"')) == ("a", "stop")
    engine.close(5)


def test_preempted_answers_stay_bound():
    """With room for few pages the younger ones are computed again, from the same place of their grammar."""
    engine = Engine(tinymodel.runner(max_context=128), tokenizer(), pages=3, max_running=3)
    grammar = "start: /[0-9]{90}/"  # a token each: two pages
    alone = [answer(submit(engine, grammar, prompt)) for prompt in "ab"]
    streams = [submit(engine, grammar, prompt) for prompt in "ab"]
    assert [answer(stream) for stream in streams] == alone and {len(text) for text, _ in alone} == {90}
    assert engine.slots()["preempted"] > 0
    engine.close(5)
