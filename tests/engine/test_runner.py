"""The runner over models as transformers builds them and as injection leaves them."""

import copy

import pytest
import tinymodel
import torch
from torch import nn

from kt_core.engine.runner import TransformersRunner


def logits_of(runner, *pieces):
    cache = runner.new_cache()
    for piece in pieces:
        logits = runner.forward(list(piece), cache)
    return logits


def test_logits_are_those_of_the_last_token():
    runner, ids = tinymodel.runner(), list(range(4, 60))
    with torch.inference_mode():
        expected = tinymodel.model()(input_ids=torch.tensor([ids])).logits[0, -1]
    whole = logits_of(runner, ids)
    assert whole.shape == (runner.vocab,) and whole.dtype == torch.float32
    torch.testing.assert_close(whole, expected)
    # The same sums in another order: a few units of float32's last place at these magnitudes.
    torch.testing.assert_close(logits_of(runner, ids[:17], ids[17:18], ids[18:]), expected, rtol=1e-5, atol=1e-5)


def test_sequences_do_not_share_a_cache():
    runner = tinymodel.runner()
    first, second = runner.new_cache(), runner.new_cache()
    runner.forward([5, 6, 7], first)
    assert torch.equal(runner.forward([5, 6, 7], second), logits_of(runner, [5, 6, 7]))


def test_low_precision_models_give_float32():
    runner = TransformersRunner(copy.deepcopy(tinymodel.model()).to(torch.bfloat16))
    assert logits_of(runner, [5, 6]).dtype == torch.float32


class Injected(nn.Module):
    """As an injected embedding looks: its own forward, and the meta weight of the module that it stands for."""

    def __init__(self, table):
        super().__init__()
        self._table = [table.detach()]
        self.weight = torch.empty_like(table, device="meta")

    def forward(self, ids):
        return self._table[0][ids]


def test_an_injected_embedding_runs_on_the_cpu():
    model = copy.deepcopy(tinymodel.model())
    model.set_input_embeddings(Injected(model.get_input_embeddings().weight))
    torch.testing.assert_close(logits_of(TransformersRunner(model), [5, 6]), logits_of(tinymodel.runner(), [5, 6]))


@pytest.mark.parametrize(("generation", "config", "expected"), [
    ([1, 2], 3, {1, 2}), (2, 3, {2}), (None, 3, {3}), (None, [3, 4], {3, 4}), (None, None, set()), (0, 3, {0}),
])  # fmt: skip
def test_end_tokens_come_from_the_generation_config(generation, config, expected):
    model = copy.deepcopy(tinymodel.model())
    model.generation_config.eos_token_id, model.config.eos_token_id = generation, config
    assert TransformersRunner(model).eos_ids == expected


def test_context():
    assert tinymodel.runner().max_context == 1024
    assert tinymodel.runner(64).max_context == 64


@pytest.mark.parametrize("kind", ["qwen3_next", "gpt_oss", "mixtral"])
def test_other_caches_continue_in_chunks(kind):
    """Linear attention, sliding windows: a prompt in pieces equals the prompt at once."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
    linear |= {"linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}
    extra = linear if kind == "qwen3_next" else {"sliding_window": 16}
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **sizes, **heads, **experts, **extra)
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(0, 97, (150,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
    pieces = [ids[at : at + 37] for at in range(0, 149, 37)]
    got = logits_of(TransformersRunner(model), *pieces[:-1], pieces[-1][:-1], pieces[-1][-1:])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
