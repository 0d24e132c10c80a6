"""A program against the modules that it stands for: nothing is believed that was not computed both ways.

transformers runs its own model on random tokens, so its masks, positions and embeddings are its own; the first layer of
every kind is then computed as a program from what went into it, with float32 pages and cut into steps.

Bound: both sides call the same kernels with numbers that differ by the order of float32 sums, 1e-6 of their size. Where
a format rounds activations, such a difference now and then turns a rounding, which weighs more; how much is measured on
the layer itself: its answer to the same input moved by 1e-5. A kind of part that rounds otherwise than its module says
how far that may be (`slack`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch import nn

from kt_core import kernels
from kt_core.kernels.attention import Batch, new_pages
from kt_core.programs.code import Choices, Code
from kt_core.programs.decoder import Layer
from kt_core.programs.model import Program
from kt_core.programs.unfit import Unfit

STEPS = (15, 8, 1)  # tokens of each step of the check
TOKENS = sum(STEPS)
WINDOW = 6  # in place of a model's own, which few tokens do not reach
PAGE = 16
SEEDS = (1, 2)  # the second where the first is unlucky: a near tie between experts turns
MOVED = 1e-5
LEAST = 2e-5  # of the largest output: float32 sums in another order, through a whole layer


def choose(model: Any, program: Program) -> list[Choices]:
    """For each layer the choices with which its program computes what the module does. Raises Unfit."""
    modules = list(model.base_model.layers)[: len(program.layers)]
    kinds = [signature(module, model.config, index) for index, module in enumerate(modules)]
    first = {kind: kinds.index(kind) for kind in kinds}
    with _deterministic(), _small_window(model), torch.inference_mode():
        pending = dict(first)
        failed: dict[int, Unfit] = {}
        found: dict[Any, Choices] = {}
        for seed in SEEDS:
            calls = _calls(model, list(pending.values()), seed)
            if seed == SEEDS[0]:
                _check_ends(model, program, calls[0][2])
            for index, call in calls.items():
                try:
                    found[kinds[index]] = _fitting(program.layers[index], modules[index], index, call, model.config)
                except Unfit as e:
                    failed[index] = e
            pending = {kind: index for kind, index in pending.items() if kind not in found}
            if not pending:
                return [found[kind] for kind in kinds]
    raise failed[min(pending.values())]


def signature(module: nn.Module, config: Any, index: int) -> Any:
    """Equal for layers that differ in their weights alone: classes and settings of all parts, and what the
    configuration says of layer `index`."""
    own = {"layer_idx", "key", "layer_id"}
    settings = tuple(
        (name, type(part).__qualname__, *((k, v) for k, v in sorted(vars(part).items()) if k not in own and _plain(v)))
        for name, part in module.named_modules()
    )
    listed = (getattr(config, name) for name in sorted(vars(config)) if name[:1] != "_")
    return settings, tuple(str(v[index]) for v in listed if isinstance(v, list | tuple) and len(v) > index)


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


Call = tuple[tuple[Any, ...], dict[str, Any], torch.Tensor, torch.Tensor]  # arguments, and what came in and went out


class _Enough(Exception):
    """The last layer that is asked for has run."""


def _calls(model: Any, indices: list[int], seed: int) -> dict[int, Call]:
    """How transformers called the layers, for random tokens."""
    calls: dict[int, Call] = {}
    layers = model.base_model.layers

    def hook(index: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            came = args[0] if args else kwargs["hidden_states"]
            calls[index] = (args, kwargs, came.clone(), _tensor(output).clone())
            if index == max(indices):
                raise _Enough

        return layers[index].register_forward_hook(keep, with_kwargs=True)

    hooks = [hook(index) for index in indices]
    try:
        model(input_ids=_tokens(model, seed)[None], use_cache=False)
    except _Enough:
        pass
    finally:
        for held in hooks:
            held.remove()
    return calls


def _tokens(model: Any, seed: int) -> torch.Tensor:
    vocab = model.get_input_embeddings().num_embeddings
    return torch.randint(0, vocab, (TOKENS,), generator=torch.Generator().manual_seed(seed))


def _tensor(output: Any) -> torch.Tensor:
    tensor: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return tensor


def _fitting(layer: Layer, module: nn.Module, index: int, call: Call, config: Any) -> Choices:
    """The first choices within the bound. Raises Unfit with the least difference."""
    args, kwargs, came, went = call
    largest = float(went.abs().max())
    moved = _moved(came)
    again = module(moved, *args[1:], **kwargs) if args else module(**{**kwargs, "hidden_states": moved})
    felt = float((_tensor(again) - went).abs().max()) / largest
    bound = max(LEAST, 4 * felt) + layer.attention.slack
    likely = bool(getattr(config, "rope_interleave", False))
    least = float("inf")
    for interleaved, windowed in product((likely, not likely), (True, False) if layer.attention.window else (False,)):
        choices = Choices(interleaved, windowed)
        ours = _computed(layer, choices, came[0])
        error = float((ours - went[0]).abs().max()) / largest
        if error <= bound:
            return choices
        least = min(least, error) if error == error else least
    raise Unfit("programs.differs", layer=index, cls=type(module).__name__, error=least, bound=bound)


def _moved(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + MOVED * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)))


def _computed(layer: Layer, choices: Choices, came: torch.Tensor) -> torch.Tensor:
    code = Code(max(STEPS), TOKENS, torch.float32, PAGE)
    x = code.rows("x", came.shape[1])
    code.program.embed("", None, came.shape[1], x)
    layer.emit(code, x, choices)
    code.program.give(x)
    return _stepped(code, torch.zeros(TOKENS, dtype=torch.int64), came)


def _stepped(code: Code, tokens: torch.Tensor, embedded: torch.Tensor | None) -> torch.Tensor:
    """Results of all tokens, one sequence, in STEPS; its pages are out of order."""
    count = -(-TOKENS // PAGE)
    order = torch.arange(count, dtype=torch.int32).flip(0)
    for number, layout in enumerate(code.program.layouts):
        code.program.set_pages(number, new_pages(layout, count))
    results, begin = [], 0
    for size in STEPS:
        positions = torch.arange(begin, begin + size)
        batch = Batch(
            order[None],
            torch.tensor([begin + size], dtype=torch.int32),
            torch.tensor([0, size], dtype=torch.int32),
        )
        slots = order[positions // PAGE].long() * PAGE + positions % PAGE
        rows = None if embedded is None else embedded[positions]
        results.append(code.program.run(tokens[positions], positions, slots, batch, torch.arange(size), rows))
        begin += size
    return torch.cat(results)


def _check_ends(model: Any, program: Program, first: torch.Tensor) -> None:
    """What the first layer gets, and the last norm and head: the model without its layers."""
    inner, tokens = model.base_model, _tokens(model, SEEDS[0])
    layers = inner.layers
    inner.layers = nn.ModuleList()
    try:
        given = model(input_ids=tokens[None], use_cache=False).logits[0]
        moved = model(inputs_embeds=_moved(first), use_cache=False).logits[0]
    finally:
        inner.layers = layers
    felt = float((moved - given).abs().max() / given.abs().max())
    bare = Program(program.embedding, [], [], program.norm, program.head, program.rotary)
    _compare_ends(model, bare.code(max(STEPS), TOKENS, torch.float32, PAGE), tokens, given, max(LEAST, 4 * felt))
    code = Code(max(STEPS), TOKENS, torch.float32, PAGE)
    code.program.give(program.begin(code))
    _compare_ends(model, code, tokens, first[0], LEAST)


def _compare_ends(model: Any, code: Code, tokens: torch.Tensor, given: torch.Tensor, bound: float) -> None:
    embedded = model.get_input_embeddings()(tokens) if code.program.given else None
    error = float((_stepped(code, tokens, embedded) - given).abs().max() / given.abs().max())
    if not error <= bound:
        raise Unfit("programs.ends", cls=type(model).__name__, error=error, bound=bound)


@contextmanager
def _deterministic() -> Iterator[None]:
    """Both sides by the path that does not depend on the number of rows."""
    before = kernels.info()["deterministic"]
    kernels.set_deterministic(True)
    try:
        yield
    finally:
        kernels.set_deterministic(before)


@contextmanager
def _small_window(model: Any) -> Iterator[None]:
    """Every configured window is WINDOW meanwhile, in the configuration and in the modules that have copied it."""
    size = getattr(model.config, "sliding_window", None)
    holders = [model.config, *model.modules()] if isinstance(size, int) else []
    changed = [h for h in holders if vars(h).get("sliding_window") == size]
    try:
        for holder in changed:
            holder.sliding_window = WINDOW
        yield
    finally:
        for holder in changed:
            holder.sliding_window = size
