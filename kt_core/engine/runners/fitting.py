"""Whether a model can run on pages: found by running it on a few tokens, never by its name."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from kt_core import kernels
from kt_core.engine.runners.facts import Facts, Unfit
from kt_core.engine.runners.interface import REFERENCE, attending, eager
from kt_core.engine.runners.paged import PAGE, Attention, PagedRunner
from kt_core.engine.step import Step
from kt_core.kernels.attention import Batch

# Two sequences, in pieces: prompts together, a part of a prompt beside decoding, both decoding.
PIECES = ((5, 5, 1), (6, 1, 1))
# Of the largest output of a layer. What is wrong (a mask, a scale, a position) moves it by a tenth and more; rounding
# by 1e-6, and by up to 1e-3 where it turns an int8 activation of a layer below. bfloat16 keeps 8 bits.
BOUNDS = {torch.float32: 2e-3, torch.bfloat16: 2e-2}

_Outputs = list[tuple[nn.Module, torch.Tensor]]  # of each attention call, in order: [1, T, heads, value size]


def paged_runner(
    model: Any, max_context: int | None, dtype: torch.dtype, kind: Any = PagedRunner, together: bool = True
) -> Any:
    """A runner over pages of `dtype`, made by `kind`: PagedRunner, or what takes the same arguments. Raises Unfit with the
    reason when the model's own caches are needed.

    The model runs with transformers' own attention and caches first, sequence by sequence, then on float32 pages, both
    `together`, or in the same pieces where a row's products depend on the number of rows, as torch's do: that turns near
    ties between experts, and roundings. Each attention call must bring what it brought before, and hands on exactly
    that, so rounding does not grow from layer to layer.
    """
    facts = Facts(model, max_context)
    _check_rotation(model, facts.max_context)
    windows = _windows(model)
    tokens = [_tokens(sum(pieces), facts.vocab, seed) for seed, pieces in enumerate(PIECES)]
    with kernels.deterministic():
        layers, expected, logits = _reference(facts, tokens, windows)
        _compare(kind(model, max_context, torch.float32, layers), tokens, expected, logits, together)
    return kind(model, max_context, dtype, layers)


def _check_rotation(model: Any, max_context: int) -> None:
    """Some rotary embeddings change with the longest position of a call, which another sequence may have."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for layer_type, kind in kinds.items() if isinstance(kinds, dict) else [(None, kinds)]:
            settings = module.config.rope_parameters if kind in ("dynamic", "longrope") else {}
            settings = settings if layer_type is None else settings.get(layer_type, {})
            unchanged = settings.get("original_max_position_embeddings", 0)
            if kind in ("dynamic", "longrope") and max_context > unchanged:
                raise Unfit(f"{type(module).__name__} turns by the longest sequence of a call")


def _windows(model: Any) -> list[int | None]:
    """The sliding window of each layer, as transformers' cache has it. Raises Unfit for any other kind of layer."""
    layers = DynamicCache(config=model.config).layers
    if not layers:
        raise Unfit("transformers knows no cache for it")
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    for name in (*(type(layer).__name__ for layer in layers), *kinds):
        plain = {"DynamicLayer", "DynamicSlidingWindowLayer", "full_attention", "sliding_attention"}
        if name not in plain:
            raise Unfit(f"it has layers of the kind {name}")
    return [layer.sliding_window if type(layer) is DynamicSlidingWindowLayer else None for layer in layers]


def _tokens(count: int, vocab: int, seed: int) -> torch.Tensor:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed))


def _reference(
    facts: Facts, tokens: Sequence[torch.Tensor], windows: Sequence[int | None]
) -> tuple[dict[nn.Module, Attention], list[list[_Outputs]], list[list[torch.Tensor]]]:
    """The layers; what each attention call brought, by sequence and piece; the last token's logits likewise."""
    layers: dict[nn.Module, Attention] = {}
    outputs: _Outputs = []

    def attention(module: nn.Module, query: Any, key: torch.Tensor, value: torch.Tensor, mask: Any, **more: Any) -> Any:
        index = getattr(module, "layer_idx", None)
        if index is None or not 0 <= index < len(windows):
            raise Unfit(f"{type(module).__name__} does not know its place among the layers")
        layers[module] = Attention(key.shape[1], key.shape[3], value.shape[3], windows[index])
        found = eager(module)(module, query, key, value, mask, **more)[0]
        outputs.append((module, found))
        return found

    every: list[list[_Outputs]] = []
    logits: list[list[torch.Tensor]] = []
    for ids, pieces in zip(tokens, PIECES, strict=True):
        cache, begin = DynamicCache(config=facts.model.config), 0
        every.append([])
        logits.append([])
        for piece in pieces:
            with attending(facts.configs, REFERENCE, attention):
                found = facts.logits(ids[begin : begin + piece], torch.tensor([piece - 1]), cache)
            logits[-1].append(found[0])
            every[-1].append(list(outputs))
            outputs.clear()
            begin += piece
    if len(layers) != len(windows):
        raise Unfit(f"{len(layers)} of its {len(windows)} layers attend through the interface")
    return layers, every, logits


def _compare(
    runner: PagedRunner,
    tokens: Sequence[torch.Tensor],
    expected: Sequence[Sequence[_Outputs]],
    logits: Sequence[Sequence[torch.Tensor]],
    together: bool,
) -> None:
    runner.allocate(len(tokens))
    every = range(len(tokens))
    groups = [every] if together else [[number] for number in every]
    computed = [0] * len(tokens)
    for number, pieces in enumerate(zip(*PIECES, strict=True)):
        for group in groups:
            step = _step(tokens, computed, pieces, group)
            joined = [
                (calls[0][0], torch.cat([output for _, output in calls], 1))
                for calls in zip(*(expected[sequence][number] for sequence in group), strict=True)
            ]
            found = _checked(runner, step, joined)
            for row, sequence in zip(found, group, strict=True):
                _check("the head", row, logits[sequence][number], BOUNDS[joined[0][1].dtype])
        computed = [done + piece for done, piece in zip(computed, pieces, strict=True)]


def _step(tokens: Sequence[torch.Tensor], computed: Sequence[int], pieces: Sequence[int], group: Sequence[int]) -> Step:
    """The next pieces of the sequences of a group; sequence i has page i."""
    positions = [torch.arange(computed[i], computed[i] + pieces[i]) for i in group]
    ends = torch.tensor([0, *(pieces[i] for i in group)]).cumsum(0)
    lengths = torch.tensor([computed[i] + pieces[i] for i in group], dtype=torch.int32)
    tables = torch.tensor(list(group), dtype=torch.int32)[:, None]
    return Step(
        tokens=torch.cat([tokens[i][at] for i, at in zip(group, positions, strict=True)]),
        positions=torch.cat(positions),
        slots=torch.cat([at + PAGE * i for i, at in zip(group, positions, strict=True)]),
        batch=Batch(tables, lengths, ends.int()),
        outputs=ends[1:] - 1,
        sequences=tuple(group),
    )


def _checked(runner: PagedRunner, step: Step, expected: _Outputs) -> torch.Tensor:
    """The step's logits; each attention call is compared with the expected one, which then goes on."""
    left = list(expected)

    def attention(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> torch.Tensor:
        other, output = left.pop(0) if left else (None, None)
        if module is not other or output is None:
            raise Unfit("its layers attend in another order without a cache")
        found = runner.attend(step, module, query, key, value, **more)
        what = f"{type(module).__name__} of layer {getattr(module, 'layer_idx', '?')}"
        _check(what, found, output, BOUNDS.get(output.dtype, BOUNDS[torch.bfloat16]))
        return output

    return runner.computed(step, attention)


def _check(what: str, found: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    difference = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    if not difference <= bound:  # NaN is none either
        raise Unfit(f"{what} differs on pages by {difference:.1e} of its largest value")
