"""Configurations with nonsense in them: a spec that holds together or an error in words, and never anything else."""

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kt_core.errors import BadData
from kt_core.models import catalogue
from kt_core.models.cache import cache_numbers
from kt_core.models.spec import from_config

BASES = [dict(known.config) for known in catalogue.builtin().values()]
KEYS = sorted({key for base in BASES for key in base} | {
    "text_config", "per_layer_config", "hybrid_override_pattern", "layers_block_type", "linear_attn_config", "ffn_config",
    "attn_config", "indexer_types", "attn_type_list", "mlp_only_layers", "decoder_sparse_step", "enable_moe_block",
    "moe_layers", "mlp_layer_types", "moe_layer_start_index", "full_attention_interval", "expert_layer_period", "num_attention_heads_per_layer", "sliding_window_pattern", "layer_group_size",
    "no_rope_layers", "attn_layer_period", "tie_word_embeddings", "dtype", "auto_map", "expert_dtype",
})  # fmt: skip
NONSENSE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([10**9, 10**30, -(10**30), 0.5, float("nan"), float("inf")]),
    st.text(max_size=8),
    st.lists(st.one_of(st.none(), st.integers(-2, 9), st.text(max_size=3)), max_size=5),
    st.dictionaries(st.sampled_from(["num_heads", "head_dim", "kda_layers", "00", "bits", "quant_method", "config_groups"]),
                    st.one_of(st.none(), st.integers(0, 9), st.text(max_size=4), st.lists(st.integers(0, 4), max_size=3)), max_size=3),
)  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(BASES), st.dictionaries(st.sampled_from(KEYS), NONSENSE, min_size=1, max_size=4))
def test_nonsense_is_refused_or_left_out(base: dict[str, Any], changes: dict[str, Any]) -> None:
    config = copy.deepcopy(base) | changes
    try:
        found = from_config(config)
    except BadData as error:
        assert error.lines()[1]
        return
    assert found.parameters == sum(found.parameters_by_part.values()) >= 0
    assert 0 <= found.active_parameters <= found.parameters
    assert all(size >= 0 for size in (*found.bytes_by_part.values(), *found.formats.values()))
    assert 0 <= found.moe_layers <= max(found.layers, 10_000)
    assert 0 <= cache_numbers(found.cache, 1) <= cache_numbers(found.cache, 1000)
