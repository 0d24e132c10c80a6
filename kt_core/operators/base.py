"""What every operator shares: its key, its weights, and the module it stands for."""

from typing import Any

from torch import nn

from kt_core.errors import Unsupported
from kt_core.messages import t
from kt_core.weights import Weights


class Operator(nn.Module):
    """Stands in for `orig_module` at `key`; attributes it lacks are looked up there.

    The original is kept outside the module tree: it is on the meta device, and its parameters are
    not the model's any more.
    """

    DEVICES: tuple[str, ...] = ("cpu",)

    def __init__(
        self,
        key: str,
        weights: Weights,
        config: Any,
        orig_module: nn.Module,
        generate_device: str = "cpu",
        prefill_device: str = "cpu",
    ) -> None:
        super().__init__()
        for device in (generate_device, prefill_device):
            if device not in self.DEVICES:
                known = ", ".join(self.DEVICES)
                raise Unsupported("inject.device", module=key, device=device, operator=type(self).__name__, known=known)
        self.key = key
        self.weights = weights
        self.config = config
        object.__setattr__(self, "orig_module", orig_module)

    @classmethod
    def unfit(cls, module: nn.Module, config: Any) -> str:
        """Why this operator cannot stand in for `module`, which then stays; empty when it can.

        Asked before anything is read or replaced; `module` is on the meta device.
        """
        return ""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["orig_module"], name)

    def load(self) -> None:
        """Read and pack this operator's weights; called once, after the whole model is in place."""
        raise NotImplementedError


def own_forward(module: nn.Module, kind: type[nn.Module]) -> str:
    """The reason why a subclass of `kind` with a forward of its own is unfit; empty for one that has torch's."""
    original = type(module)
    return "" if original.forward is kind.forward else t("inject.own_forward", cls=original.__qualname__)
