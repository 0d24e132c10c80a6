"""RMSNorm."""

import torch
from torch import nn

from kt_core.kernels.program import Norm
from kt_core.programs.unfit import Unfit, only

EPSILONS = ("variance_epsilon", "eps", "epsilon")
OFFSETS = (0.0, 1.0)  # some families store the weight less one


def read(module: nn.Module) -> Norm:
    """The kernel's numbers for a norm of transformers, which is asked with rows that epsilon matters to and does not.

    Raises Unfit when none of them give what the module gives.
    """
    only(module, {"weight"})
    weight = getattr(module, "weight", None)
    epsilon = next((getattr(module, name) for name in EPSILONS if hasattr(module, name)), None)
    if weight is None or weight.dim() != 1 or not isinstance(epsilon, float):
        raise Unfit("programs.norm", cls=type(module).__name__)
    sizes = torch.tensor([1.0, 30.0, epsilon**0.5, epsilon**0.5 / 10])
    x = torch.randn(4, weight.numel(), generator=torch.Generator().manual_seed(1)) * sizes[:, None]
    found, exact = module(x).double(), x.double()
    normed = exact * (exact.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    for offset in OFFSETS:
        if torch.allclose(found, normed * (weight.double() + offset), rtol=1e-5, atol=1e-6):
            return Norm(weight.detach(), epsilon, offset)
    raise Unfit("programs.norm", cls=type(module).__name__)
