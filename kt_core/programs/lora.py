"""An adapter's additions in a program."""

from typing import Any

import torch

from kt_core import kernels
from kt_core.errors import BadData, Unsupported
from kt_core.kernels.program import Program
from kt_core.kernels.training import LoraFactors
from kt_core.lora import Adapter, Pair
from kt_core.lora.folder import PARTS
from kt_core.programs.latent import Latent
from kt_core.programs.unfit import float_matrix

UNDECODED = ("F32", "F16")  # experts' formats that training's kernels do not decode to bfloat16


def adapt(program: Program, parts: dict[str, Any], number: int, adapter: Adapter) -> None:
    """Add `adapter` to the program's operations, for the sequences of a step that take `number`.

    `parts`: what the modules are in the program, by their paths. Raises BadData for an adapter of another model, Unsupported
    for experts in a format that is not decoded; the program is as before then.
    """
    wanted = [*adapter.linears, *adapter.experts]
    missing = [name for name in wanted if name not in parts]
    if missing:
        raise BadData("lora.names", folder=adapter.folder, count=len(missing), first=missing[0])
    try:
        for name, pair in adapter.linears.items():
            _adapt(program, parts[name], number, name, pair, adapter)
        for name, pairs in adapter.experts.items():
            _adapt_experts(program, parts[name], number, name, pairs, adapter)
    except BaseException:
        program.forget(number)
        raise


def _adapt(program: Program, part: Any, number: int, name: str, pair: Pair, adapter: Adapter) -> None:
    try:
        if isinstance(part, Latent):
            for own, heads in part.adapted(pair.scale * (pair.b @ pair.a)):
                program.adapt_heads(number, own, heads)
        else:
            a, b = (kernels.Linear(float_matrix(x)) for x in (pair.a, pair.scale * pair.b))
            program.adapt(number, part, a, b)
    except (RuntimeError, ValueError) as error:
        raise BadData("lora.fit", folder=adapter.folder, name=name, reason=error) from error


def _adapt_experts(
    program: Program,
    experts: Any,
    number: int,
    name: str,
    pairs: dict[tuple[int, str], Pair],
    adapter: Adapter,
) -> None:
    factors = expert_factors(experts, name, pairs, adapter)
    program.adapt_experts(number, experts, factors, 1.0)


def expert_factors(
    experts: kernels.Experts, name: str, pairs: dict[tuple[int, str], Pair], adapter: Adapter
) -> tuple[LoraFactors | None, LoraFactors, LoraFactors]:
    """All experts' pairs as the kernels take them, of one rank, the scale in b; zeros where an expert has none.

    Raises BadData for a pair that does not fit, Unsupported for experts whose format is not decoded.
    """
    places = [place for index in range(experts.num_experts) for place in experts.places(index)]
    formats = {matrix.format for place in places for matrix in (place.gate, place.up, place.down)} & set(UNDECODED)
    if formats:
        raise Unsupported("lora.expert_format", folder=adapter.folder, format=", ".join(sorted(formats)))
    hidden, inner, rank = experts.hidden, experts.intermediate, max(pair.a.shape[0] for pair in pairs.values())
    found: list[LoraFactors | None] = []
    for part, rows, cols in zip(PARTS, (inner, inner, hidden), (hidden, hidden, inner), strict=True):
        a, b = torch.zeros(experts.num_experts, rank, cols), torch.zeros(experts.num_experts, rows, rank)
        own = {expert: pair for (expert, which), pair in pairs.items() if which == part}
        for expert, pair in own.items():
            fits = expert < experts.num_experts and pair.a.shape[1] == cols and pair.b.shape[0] == rows
            if not fits or (part == "gate" and experts.activation in kernels.UNGATED):
                reason = f"{list(pair.b.shape)} x {list(pair.a.shape)}"
                raise BadData("lora.fit", folder=adapter.folder, name=f"{name}.{expert}.{part}_proj", reason=reason)
            a[expert, : pair.a.shape[0]], b[expert, :, : pair.a.shape[0]] = pair.a, pair.scale * pair.b
        found.append(None if part == "gate" and experts.activation in kernels.UNGATED else LoraFactors(a, b))
    gate, up, down = found
    assert up and down
    return gate, up, down
