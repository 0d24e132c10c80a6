"""The runner over models as transformers builds them and as injection leaves them."""

import copy

import pytest
import tinymodel
import torch
from driving import Driver
from torch import nn

from kt_core.engine.runners import runner_for
from kt_core.engine.runners.own import OwnCacheRunner
from kt_core.engine.runners.paged import PagedRunner


@pytest.fixture(params=["paged", "own"])
def make(request):
    """Either runner of a model, with nothing rounded in the cache."""

    def runner(model, max_context=None):
        if request.param == "own":
            return OwnCacheRunner(model, max_context)
        found = runner_for(model, max_context, torch.float32)
        assert isinstance(found, PagedRunner)
        return found

    return runner


def logits_of(runner, *pieces):
    return Driver(runner).feed(*pieces)[-1]


def test_logits_are_those_of_the_last_token(make):
    runner, ids = make(tinymodel.model()), list(range(4, 60))
    with torch.inference_mode():
        expected = tinymodel.model()(input_ids=torch.tensor([ids])).logits[0, -1]
    whole = logits_of(runner, ids)
    assert whole.shape == (runner.vocab,) and whole.dtype == torch.float32
    # The same sums in another order: a few units of float32's last place at these magnitudes.
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits_of(runner, ids[:17], ids[17:18], ids[18:]), expected, rtol=1e-5, atol=1e-5)


def test_a_step_of_several_sequences(make):
    """Prompts of other lengths, then a piece of a prompt beside decoding: each as if it were alone."""
    runner = make(tinymodel.model())
    prompts = [torch.randint(4, 290, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (70, 3, 130)]
    alone = [logits_of(runner, prompt[:-1], prompt[-1:]) for prompt in prompts]
    driver = Driver(runner)
    a, b, c = (driver.sequence() for _ in prompts)
    driver.step((a, prompts[0][:-1]), (b, prompts[1][:-1]))
    first = driver.step((c, prompts[2][:64]), (b, prompts[1][-1:]), wanted=[64])
    assert driver.step((c, prompts[2][64:-1]), wanted=[]).shape == (0, runner.vocab)
    last = driver.step((a, prompts[0][-1:]), (c, prompts[2][-1:]))
    for row, expected in zip((first[0], *last), (alone[1], alone[0], alone[2]), strict=True):
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)


def test_sequences_do_not_share_a_cache(make):
    driver = Driver(make(tinymodel.model()))
    first, second = driver.sequence(), driver.sequence()
    driver.step((first, [8, 6, 7]))
    one = driver.step((second, [5, 6, 7]))
    torch.testing.assert_close(one, driver.feed([5, 6, 7]), rtol=1e-5, atol=1e-5)


def test_a_step_that_is_taken_again_changes_nothing(make):
    """As the engine does when another sequence failed in it."""
    runner, ids = make(tinymodel.model()), list(range(4, 40))
    driver = Driver(runner)
    sequence = driver.sequence()
    first = driver.step((sequence, ids[:20]))
    sequence.length -= 20
    assert torch.equal(driver.step((sequence, ids[:20])), first)
    torch.testing.assert_close(driver.step((sequence, ids[20:]))[0], logits_of(runner, ids), rtol=1e-5, atol=1e-5)


def test_low_precision_models_give_float32(make):
    runner = make(copy.deepcopy(tinymodel.model()).to(torch.bfloat16))
    assert logits_of(runner, [5, 6]).dtype == torch.float32


class Injected(nn.Module):
    """As an injected embedding looks: its own forward, and the meta weight of the module that it stands for."""

    def __init__(self, table):
        super().__init__()
        self._table = [table.detach()]
        self.weight = torch.empty_like(table, device="meta")

    def forward(self, ids):
        return self._table[0][ids]


def test_an_injected_embedding_runs_on_the_cpu(make):
    model = copy.deepcopy(tinymodel.model())
    model.set_input_embeddings(Injected(model.get_input_embeddings().weight))
    torch.testing.assert_close(logits_of(make(model), [5, 6]), logits_of(tinymodel.runner(), [5, 6]))


@pytest.mark.parametrize(("generation", "config", "expected"), [
    ([1, 2], 3, {1, 2}), (2, 3, {2}), (None, 3, {3}), (None, [3, 4], {3, 4}), (None, None, set()), (0, 3, {0}),
])  # fmt: skip
def test_end_tokens_come_from_the_generation_config(generation, config, expected):
    model = copy.deepcopy(tinymodel.model())
    model.generation_config.eos_token_id, model.config.eos_token_id = generation, config
    assert OwnCacheRunner(model).eos_ids == runner_for(model).eos_ids == expected


def test_context():
    assert tinymodel.runner().max_context == 1024
    assert tinymodel.runner(64).max_context == 64


def small(kind, **more):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
    linear |= {"linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}
    extra = linear if kind == "qwen3_next" else {"sliding_window": 16}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**sizes, **heads, **experts, **extra, **more})
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize("kind", ["qwen3_next", "gpt_oss", "mixtral"])
def test_other_caches_continue_in_chunks(kind):
    """Linear attention, sliding windows: a prompt in pieces equals the prompt at once."""
    model = small(kind)
    ids = torch.randint(0, 97, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    pieces = [ids[at : at + 37] for at in range(0, 149, 37)]
    for runner in (runner_for(model, dtype=torch.float32), OwnCacheRunner(model)):
        got = logits_of(runner, *pieces[:-1], pieces[-1][:-1], pieces[-1][-1:])
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


# --- which runner


def test_linear_attention_keeps_its_own_caches(caplog):
    caplog.set_level("INFO")
    assert isinstance(runner_for(small("qwen3_next")), OwnCacheRunner)
    assert "LinearAttentionLayer" in caplog.text


def longrope(context):
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    scaling |= {"original_max_position_embeddings": context, "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    return small("phi3", rope_parameters=scaling, original_max_position_embeddings=context, pad_token_id=0)


def test_a_rotation_that_depends_on_other_sequences_keeps_its_own_caches():
    assert isinstance(runner_for(longrope(512)), OwnCacheRunner)
    assert isinstance(runner_for(longrope(512), 512), PagedRunner)  # too short a context to ever change


def test_an_attention_that_is_not_what_it_seems_is_found_out(caplog):
    """A family whose scale, or whose mask, is not what it tells the interface."""
    caplog.set_level("INFO")
    from transformers.models.qwen3_moe import modeling_qwen3_moe as modeling

    eager = modeling.eager_attention_forward

    def sharper(module, query, key, value, mask, scaling, **more):
        return eager(module, query, key, value, mask, scaling * 1.05, **more)

    def nearer(module, query, key, value, mask, **more):
        seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
        return eager(
            module, query, key, value, torch.where(seen.triu(key.shape[2] - query.shape[2] - 3), mask, -1e9), **more
        )

    assert isinstance(runner_for(tinymodel.model()), PagedRunner)
    for other in (sharper, nearer):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling, "eager_attention_forward", other)
            assert isinstance(runner_for(tinymodel.model()), OwnCacheRunner)
        assert "Qwen3MoeAttention of layer 0 differs on pages" in caplog.text
        caplog.clear()
