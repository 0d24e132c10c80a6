"""A model whose routed experts are read from another checkpoint of it, as one of `kt quant` with fewer bits."""

import re
from collections.abc import Mapping
from dataclasses import replace

from kt_core import models
from kt_core.errors import BadData
from kt_core.types import ModelFiles, ModelSpec
from kt_core.weights import Matrix, Weights, open_weights

_EXPERTS = re.compile(r"\.experts\.|_exps\.")


class Mixed(Weights):
    """All of `base` but its experts, which are those of `experts`."""

    def __init__(self, base: Weights, experts: Weights) -> None:
        self.__dict__.update(base.__dict__)  # both have read the same
        self._base, self._other = base, experts

    def tie(self, names: Mapping[str, str]) -> None:
        self._base.tie(names)
        self._other.tie(names)

    def experts(self, prefix: str) -> int:
        return self._other.experts(prefix)

    def expert(self, prefix: str, index: int, part: str) -> Matrix:
        return self._other.expert(prefix, index, part)

    def expert_place(self, prefix: str, index: int, part: str) -> str:
        return self._other.expert_place(prefix, index, part)

    def unused(self) -> list[str]:
        return [name for name in self._base.unused() if not _EXPERTS.search(name)]

    def forget_pages(self) -> None:
        self._base.forget_pages()
        self._other.forget_pages()


def opened(files: ModelFiles, experts: str | None) -> Weights:
    """The model's weights, with the experts of the checkpoint `experts`, a name that `kt run` takes, where that is given."""
    weights = open_weights(files)
    return weights if experts is None else Mixed(weights, open_weights(models.resolve(experts)))


def spec_of(files: ModelFiles, experts: str | None) -> ModelSpec:
    """What the model is, with the sizes and formats of those experts. Raises BadData for experts of another model."""
    spec = models.read_spec(files)
    if experts is None:
        return spec
    other = models.read_spec(models.resolve(experts))
    shape = ("moe_layers", "experts", "hidden", "expert_width")
    if any(getattr(spec, name) != getattr(other, name) for name in shape):
        raise BadData("train.other_experts", path=experts, model=files.name)
    bytes_ = {**spec.bytes_by_part, "experts": other.bytes_by_part.get("experts", 0)}
    return replace(spec, bytes_by_part=bytes_, formats=other.formats)
