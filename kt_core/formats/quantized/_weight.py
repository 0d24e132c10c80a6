"""One description for every quantised weight, and the checks that all methods share."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kt_core.formats.blocks import TensorInfo
from kt_core.formats.problems import Problems

Shape = tuple[int, ...]
FLOATS = ("F32", "F16", "BF16")
E8M0 = ("F8_E8M0", "U8")
KERNEL_GROUP = 32  # kernels take rows, and groups of INT4, of a multiple of this
MOST = 1 << 24  # weights a scale can be for; no published row is that long


def said(value: object) -> str:
    """A setting's value as a message shows it: short, however large or deep it is."""
    return value if isinstance(value, str) else reprlib.repr(value)


@dataclass(frozen=True)
class Quantized(TensorInfo):
    """A weight and the tensors beside it. `format` and `shape` are the weight's ([..., N out, K in]); `file`, `offset`
    and `nbytes` are those of the tensor `data`, which holds its numbers.
    """

    data: str  # the name of that tensor
    scales: TensorInfo
    group: int  # weights along K that share a scale; K where a row has one scale
    zeros: TensorInfo | None = None
    zeros_as_they_are: bool = False  # GPTQ: eight of them not stored less 0x11111111
    factor: TensorInfo | None = None  # one number that all scales are multiplied with
    divides: bool = False  # ... or divided by
    order: TensorInfo | None = None  # int [K]: the group of each column; only ascending order can be read
    stated_shape: TensorInfo | None = None  # int [2], must be N, K

    @property
    def beside(self) -> tuple[TensorInfo, ...]:
        """The other tensors that belong to this weight."""
        found = (self.scales, self.zeros, self.factor, self.order, self.stated_shape)
        return tuple(tensor for tensor in found if tensor is not None)


class Reader:
    """A checkpoint's headers and quantization_config, while a method looks for its weights.

    What is wrong is noted in `problems`; whoever asks gets None or a harmless value and goes on to the next tensor.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], settings: dict[str, Any], problems: Problems) -> None:
        self.tensors = tensors
        self.settings = settings
        self.problems = problems

    def named(self, *suffixes: str) -> list[tuple[str, TensorInfo]]:
        """(name without the suffix, tensor) of every tensor whose name ends with one of the suffixes."""
        found = ((name, suffix) for name in self.tensors for suffix in suffixes if name.endswith(suffix))
        return [(name.removesuffix(suffix), self.tensors[name]) for name, suffix in found]

    def side(self, name: str, of: TensorInfo, shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> TensorInfo | None:
        """The tensor `name`, which the weight `of` needs in one of these shapes and types; None when it is not so."""
        if name not in self.tensors:
            self.problems.add("formats.side_missing", tensor=of.name, side=name)
            return None
        tensor = self.tensors[name]
        return tensor if self.fits(tensor, shapes, dtypes) else None

    def optional(self, name: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> TensorInfo | None:
        """The tensor `name` if the checkpoint has it; a problem is noted when it has another shape or type."""
        tensor = self.tensors.get(name)
        return tensor if tensor and self.fits(tensor, shapes, dtypes) else None

    def fits(self, tensor: TensorInfo, shapes: tuple[Shape, ...], dtypes: tuple[str, ...]) -> bool:
        if tensor.format not in dtypes:
            expected = ", ".join(dtypes)
            self.problems.add("formats.side_dtype", tensor=tensor.name, dtype=tensor.format, expected=expected)
            return False
        if tensor.shape not in shapes:
            expected = " / ".join(str(list(shape)) for shape in shapes)
            self.problems.add("formats.side_shape", tensor=tensor.name, shape=list(tensor.shape), expected=expected)
            return False
        return True

    def is_matrix(self, tensor: TensorInfo, stacks: bool = False) -> bool:
        """Whether the tensor has rows and columns, or, where `stacks` are allowed, is several such."""
        dimensions = len(tensor.shape)
        if (dimensions == 2 or (stacks and dimensions == 3)) and min(tensor.shape) > 0:
            return True
        self.problems.add("formats.side_shape", tensor=tensor.name, shape=list(tensor.shape), expected="[N, K]")
        return False

    def groups(self, weight: TensorInfo, cols: int, group: int) -> int:
        """How many groups of `group` weights `cols` columns are; 0, with a problem noted, when that is no whole number."""
        if cols % group:
            self.problems.add("formats.group", tensor=weight.name, group=group, cols=cols)
            return 0
        return cols // group

    def int4_groups(self, weight: TensorInfo, cols: int, size: int) -> tuple[int, int]:
        """(groups, weights in each) of a row of an INT4 weight; size -1 is a group a row. (0, 0) when kt has no kernel."""
        size = cols if size == -1 else size
        groups = self.groups(weight, cols, size)
        if groups and size % KERNEL_GROUP:
            self.problems.unsupported("formats.kernel_group", tensor=weight.name, group=size, step=KERNEL_GROUP)
            return 0, 0
        return (groups, size) if groups else (0, 0)

    def only(self, field: str, known: tuple[object, ...], value: object) -> bool:
        """Whether kt reads this value of a setting; if not, that is noted."""
        if any(value == one and type(value) is type(one) for one in known):
            return True
        listed = ", ".join(str(one) for one in known)
        self.problems.unsupported("formats.quant_setting", field=field, value=said(value), known=listed)
        return False

    def group_size(self, field: str, value: object) -> int | None:
        """Weights for a scale; -1, which stands for a whole row, included. None, with a problem noted, for nonsense."""
        if type(value) is int and (value == -1 or 0 < value <= MOST):
            return value
        expected = f"-1, 1 ... {MOST}"
        self.problems.add("formats.quant_value", field=field, value=said(value), expected=expected)
        return None
