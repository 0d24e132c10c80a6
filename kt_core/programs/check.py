"""A program against the modules that it stands for: nothing is believed that was not computed both ways.

transformers runs its own model on random tokens, so its masks, positions and embeddings are its own; the first layer of
every kind is then computed as a program from what went into it, with float32 pages and cut into steps; once at the first
positions of a text and once at the last.

Bound: both sides call the same kernels with numbers that differ by the order of float32 sums, a few 1e-7 of their size.
Where a format rounds activations, such a difference now and then turns a rounding, which weighs more, for some tokens; how
much is measured on the layer itself, by its answers to the same input moved by 1e-6. The median over the tokens of the
largest difference, of the largest output, may be 4 times that and always LEAST; the largest over the tokens may be as
much as by 1e-5.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
LONGEST = 1 << 17  # position: tables of more would take long
SEEDS = (1, 2)  # the second where the first is unlucky: a near tie between experts turns
NEAR, FAR = 1e-6, 1e-5  # how far inputs are moved
LEAST = 2e-5  # of the largest output: float32 sums in another order, through a whole layer


def choose(model: Any, program: Program, config: Any) -> list[Choices]:
    """For each layer the choices with which its program computes what the module does. Raises Unfit."""
    modules = list(model.base_model.layers)[: len(program.layers)]
    kinds = [signature(module, config, index) for index, module in enumerate(modules)]
    likely = bool(getattr(config, "rope_interleave", False))
    open_ = {kinds.index(kind): _possible(program.layers[kinds.index(kind)], likely) for kind in kinds}
    with kernels.deterministic(), _small_window(model, config), torch.inference_mode():
        for begin in (0, _last_positions(config)):
            open_ = {index: [choices] for index, choices in _agreed(model, program, open_, begin).items()}
    return [open_[kinds.index(kind)][0] for kind in kinds]


def _possible(layer: Layer, likely: bool) -> list[Choices]:
    windows = (True, False) if layer.attention.window else (False,)
    return [Choices(*which) for which in product((likely, not likely), windows)]


def _last_positions(config: Any) -> int:
    """Where the second text begins: some families scale attention by the position."""
    last = getattr(config, "max_position_embeddings", None)
    return max(0, min(last, LONGEST) - TOKENS) if isinstance(last, int) else 0


def _agreed(model: Any, program: Program, open_: dict[int, list[Choices]], begin: int) -> dict[int, Choices]:
    """Of each of the layers the first choices that give what the module gives for a text at positions begin, ...

    Raises Unfit for the first layer without any.
    """
    found: dict[int, Choices] = {}
    failed: dict[int, Unfit] = {}
    for seed in SEEDS:
        left = [index for index in open_ if index not in found]
        calls = _calls(model, left, seed, begin) if left else {}
        if seed == SEEDS[0]:
            _check_ends(model, program, calls[0][2])
        for index, call in calls.items():
            module = model.base_model.layers[index]
            try:
                found[index] = _fitting(program.layers[index], module, index, call, open_[index], begin)
            except Unfit as e:
                failed[index] = e
    if len(found) < len(open_):
        raise failed[min(open_.keys() - found.keys())]
    return found


def signature(module: nn.Module, config: Any, index: int) -> Any:
    """Equal for layers that differ in their weights alone: classes and settings of all parts, and what the
    configuration says of layer `index`."""
    own = {"layer_idx", "key", "layer_id"}
    settings = tuple(
        (
            name,
            type(part),
            vars(part).get("forward"),
            *((k, v) for k, v in sorted(vars(part).items()) if k not in own and _plain(v)),
        )
        for name, part in module.named_modules()
    )
    listed = (getattr(config, name) for name in sorted(vars(config)) if name[:1] != "_")
    return settings, tuple(str(v[index]) for v in listed if isinstance(v, list | tuple) and len(v) > index)


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


Call = tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]  # arguments, and the hidden states among them


class _Enough(Exception):
    """The last layer that is asked for has run."""


def _calls(model: Any, indices: list[int], seed: int, begin: int) -> dict[int, Call]:
    """How transformers called the layers, for random tokens at positions begin, ..."""
    calls: dict[int, Call] = {}
    layers = model.base_model.layers

    def hook(index: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            came = args[0] if args else kwargs["hidden_states"]
            calls[index] = (args, kwargs, came.clone())
            if index == max(indices):
                raise _Enough

        return layers[index].register_forward_hook(keep, with_kwargs=True)

    hooks = [hook(index) for index in indices]
    try:
        positions = torch.arange(begin, begin + TOKENS)[None]
        model(input_ids=_tokens(model, seed)[None], position_ids=positions, use_cache=False)
    except _Enough:
        pass
    finally:
        for held in hooks:
            held.remove()
    return calls


def _tokens(model: Any, seed: int) -> torch.Tensor:
    vocab = model.get_input_embeddings().num_embeddings
    return torch.randint(0, vocab, (TOKENS,), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Errors:
    """Largest differences of each token's outputs, of the largest output of all: their median and their largest."""

    median: float
    largest: float

    @staticmethod
    def of(given: torch.Tensor, expected: torch.Tensor) -> "Errors":
        each = (given - expected).abs().amax(-1) / expected.abs().max()
        return Errors(float(each.median()), float(each.max()))

    def within(self, near: "Errors", far: "Errors") -> bool:
        """Whether roundings may explain them; NaN is no number that they explain."""
        return self.median <= _bound(near.median) and self.largest <= _bound(far.largest)


def _bound(felt: float) -> float:
    return max(LEAST, 4 * felt)


def _fitting(layer: Layer, module: nn.Module, index: int, call: Call, possible: list[Choices], begin: int) -> Choices:
    """The first choices within the bound. Raises Unfit with the least difference."""
    args, kwargs, came = call

    def answer(x: torch.Tensor) -> torch.Tensor:
        output = module(x, *args[1:], **kwargs) if args else module(**{**kwargs, "hidden_states": x})
        first: torch.Tensor = (output if isinstance(output, torch.Tensor) else output[0])[0]
        return first

    least = float("inf")
    with layer.attention.exactly():
        went = answer(came)
        near, far = (Errors.of(answer(_moved(came, size)), went) for size in (NEAR, FAR))
        for choices in possible:
            errors = Errors.of(_computed(layer, choices, came[0], begin), went)
            if errors.within(near, far):
                return choices
            least = min(least, errors.median) if errors.median == errors.median else least
    raise Unfit("programs.differs", layer=index, cls=type(module).__name__, error=least, bound=_bound(near.median))


def _moved(x: torch.Tensor, size: float) -> torch.Tensor:
    return x * (1 + size * torch.randn(x.shape, generator=torch.Generator().manual_seed(3)))


def _computed(layer: Layer, choices: Choices, came: torch.Tensor, begin: int) -> torch.Tensor:
    code = Code(max(STEPS), begin + TOKENS, torch.float32, PAGE)
    x = code.rows("x", came.shape[1])
    code.program.embed("", None, came.shape[1], x)
    layer.emit(code, x, choices)
    code.program.give(x)
    return _stepped(code, torch.zeros(TOKENS, dtype=torch.int64), came, begin)


def _stepped(code: Code, tokens: torch.Tensor, embedded: torch.Tensor | None, first: int = 0) -> torch.Tensor:
    """Results of all tokens, one sequence, in STEPS; its pages are out of order. Positions count from `first`."""
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
        results.append(code.program.run(tokens[positions], first + positions, slots, batch, torch.arange(size), rows))
        begin += size
    return torch.cat(results)


def _check_ends(model: Any, program: Program, first: torch.Tensor) -> None:
    """What the first layer gets, and the last norm and head: the model without its layers."""
    inner, tokens = model.base_model, _tokens(model, SEEDS[0])
    layers = inner.layers
    inner.layers = nn.ModuleList()
    try:
        given = model(input_ids=tokens[None], use_cache=False).logits[0]
        felt = [
            Errors.of(model(inputs_embeds=_moved(first, size), use_cache=False).logits[0], given)
            for size in (NEAR, FAR)
        ]
    finally:
        inner.layers = layers
    bare = Program(program.embedding, [], [], program.norm, program.head, program.rotary)
    _compare_ends(model, bare.code(max(STEPS), TOKENS, torch.float32, PAGE), tokens, given, *felt)
    code = Code(max(STEPS), TOKENS, torch.float32, PAGE)
    code.program.give(program.begin(code))
    nothing = Errors(0.0, 0.0)
    _compare_ends(model, code, tokens, first[0], nothing, nothing)


def _compare_ends(model: Any, code: Code, tokens: torch.Tensor, given: torch.Tensor, near: Errors, far: Errors) -> None:
    embedded = model.get_input_embeddings()(tokens) if code.program.given else None
    errors = Errors.of(_stepped(code, tokens, embedded), given)
    if not errors.within(near, far):
        raise Unfit("programs.ends", cls=type(model).__name__, error=errors.median, bound=_bound(near.median))


@contextmanager
def _small_window(model: Any, config: Any) -> Iterator[None]:
    """Every configured window is WINDOW meanwhile, in the configuration and in the modules that have copied it."""
    size = getattr(config, "sliding_window", None)
    holders = [config, *model.modules()] if isinstance(size, int) else []
    changed = [h for h in holders if vars(h).get("sliding_window") == size]
    try:
        for holder in changed:
            holder.sliding_window = WINDOW
        yield
    finally:
        for holder in changed:
            holder.sliding_window = size
