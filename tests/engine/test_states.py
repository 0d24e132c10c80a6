"""Models with caches of their own: states at borders of pages, token for token as without."""

import copy

import pytest
import tinymodel
import torch
from killed import ask
from test_runner import small
from transformers import DynamicCache

from kt_core.engine.engine import Engine
from kt_core.engine.runners import runner_for
from kt_core.engine.runners.own import PAGE, OwnCacheRunner
from kt_core.engine.runners.states import States, copied, nbytes

ROOM = 64 << 20


@pytest.fixture
def start():
    engines = []

    def make(runner, **options):
        engines.append(Engine(runner, tinymodel.tokenizer(), **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close(5)


def answered(engine, prompt, count=8):
    """(tokens, cached tokens)"""
    chunks = list(engine.submit(ask(prompt, count)))
    return [t for c in chunks for t in c.tokens], chunks[-1].usage.cached_tokens


def tokens(count, seed=0):
    return torch.randint(0, 97, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kind", ["qwen3_next", "gpt_oss"])
def test_common_prefixes_are_computed_once(start, kind):
    """Linear attention; sliding windows that are shorter than the prefix."""
    model = small(kind)
    cold, warm = start(OwnCacheRunner(model)), start(OwnCacheRunner(model, state_bytes=ROOM))
    common = tokens(150)
    prompts = [common, [*common, *tokens(30, 1)], [*common[:140], *tokens(40, 2)], [*common[:140], *tokens(50, 3)]]
    found = []
    for prompt in [*prompts, common[:128], common[:129]]:
        expected, cached = answered(cold, prompt)
        assert cached == 0
        again, cached = answered(warm, prompt)
        assert again == expected
        found.append(cached)
    assert found == [0, 128, 128, 128, 0, 128]  # of 128 tokens one page, which has no state, and the rest is left


def test_a_prefix_that_proves_common_gets_a_state(start):
    """The first prompt's own state lies behind the place where the others part; the second one leaves one there."""
    engine = start(OwnCacheRunner(small("qwen3_next"), state_bytes=ROOM))
    common = tokens(70)
    assert [answered(engine, [*common, *tokens(100, seed)], 1)[1] for seed in (1, 2, 3)] == [0, 0, 64]


def test_the_next_turn_finds_the_answer(start, caplog):
    caplog.set_level("INFO")
    model = small("qwen3_next")
    engine, cold = start(OwnCacheRunner(model, state_bytes=ROOM)), start(OwnCacheRunner(model))
    prompt, before = tokens(40), 1
    for turn in range(4):
        answer, cached = answered(engine, prompt, 70)
        assert answer == answered(cold, prompt, 70)[0]
        assert cached == (before - 1) // PAGE * PAGE  # an answer's last token is never computed
        before = len(prompt) + len(answer)
        prompt = [*prompt, *answer, *tokens(20, turn)]
    assert "0 of 40 prompt tokens were cached: the prompt does not fill a page" in caplog.text
    assert "64 of 130 prompt tokens were cached: no state was kept further on" in caplog.text


def test_sequences_beside_each_other_keep_their_states_apart(start):
    model = small("qwen3_next")
    engine, cold = start(OwnCacheRunner(model, state_bytes=ROOM)), start(OwnCacheRunner(model))
    common = tokens(130)
    prompts = [[*common, *tokens(9, seed)] for seed in range(6)]
    expected = [answered(cold, prompt, 12)[0] for prompt in prompts]
    for _ in range(2):
        streams = [engine.submit(ask(prompt, 12)) for prompt in prompts]
        assert [[t for c in stream for t in c.tokens] for stream in streams] == expected


def test_flush_and_room(start):
    model = small("qwen3_next")
    runner = OwnCacheRunner(model, state_bytes=ROOM)
    engine = start(runner)
    assert answered(engine, tokens(70), 1)[1] == 0
    assert engine.flush_cache() == 1
    assert answered(engine, tokens(70), 1)[1] == 0
    ((state),) = runner._states._kept.values()
    runner._states.limit = 2 * state.nbytes
    for seed in range(1, 5):
        answered(engine, tokens(70, seed), 1)
    assert len(runner._states._kept) == 2 and runner._states._used <= runner._states.limit
    assert [answered(engine, tokens(70, seed), 1)[1] for seed in (4, 3, 0)] == [64, 64, 0]


def test_a_state_that_is_copied_is_not_written_into():
    model = small("qwen3_next")
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(input_ids=torch.tensor([tokens(20)]), cache=cache)
        kept = copied(cache)
        before = copy.deepcopy(kept)
        model(input_ids=torch.tensor([tokens(20, 1)]), cache=cache)
    assert nbytes(kept) == nbytes(before) < nbytes(cache)
    for layer, old in zip(kept.layers, before.layers, strict=True):
        for name, value in vars(layer).items():
            if not isinstance(value, torch.device | torch.dtype):
                torch.testing.assert_close(value, vars(old)[name], rtol=0, atol=0)


def test_states_are_bounded():
    states = States(0, PAGE)
    states.keep(b"a", 64, DynamicCache(config=small("qwen3_next").config))
    assert states.find([b"a"]) is not None  # nothing takes no bytes
    assert states.borders([b"a", b"b", b"c"]) == {192}
    assert states.borders([b"a", b"d"]) == {64, 128}
    assert states.borders([]) == set()


def test_a_model_that_keeps_a_state_elsewhere_goes_without(start, caplog):
    caplog.set_level("INFO")
    model = small("qwen3_next")
    seen = []

    def forgetful(module, given, result):
        """As if positions were counted by the module: right in order, wrong where a state is gone on from twice."""
        seen.append(result[0].shape[1])
        result.last_hidden_state = result[0] * (2 if seen.count(3) > 1 else 1)

    model.model.register_forward_hook(forgetful)
    engine = start(OwnCacheRunner(model, state_bytes=ROOM))
    assert "no prefix is kept: the model keeps a state beside its caches" in caplog.text
    assert [answered(engine, tokens(70), 1)[1] for _ in range(2)] == [0, 0]


def test_a_model_that_cannot_go_on_in_pieces_computes_prompts_at_once(start, caplog):
    """Jamba of transformers 5 takes up its recurrent state for single tokens only."""
    caplog.set_level("INFO")
    sizes = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    model = small("jamba", **sizes, mamba_dt_rank=8, mamba_d_state=16, use_mamba_kernels=False, pad_token_id=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= 8 if parameter.dim() > 1 and "A_log" not in name else 1
    runner = OwnCacheRunner(model, state_bytes=ROOM)
    runner.max_tokens = 20
    engine = start(runner)
    assert "prompts are computed at once, however long: a prompt in two pieces differs" in caplog.text
    prompt = tokens(150)
    with torch.inference_mode():
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=8, min_new_tokens=8, do_sample=False)
    for _ in range(2):
        assert answered(engine, prompt) == (expected[0, 150:].tolist(), 0)


def test_windows_on_pages(start):
    model = small("gpt_oss")
    runner = runner_for(model, 512, torch.float32)
    assert runner.shareable
    engine, cold = start(runner), start(OwnCacheRunner(model))
    for prompt in (tokens(150), [*tokens(130), *tokens(20, 1)], tokens(150)):
        again, cached = answered(engine, prompt)
        assert again == answered(cold, prompt)[0]
    assert cached == 128
