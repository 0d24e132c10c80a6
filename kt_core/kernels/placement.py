"""Which experts live on the GPU."""

import torch

from kt_core import errors

RANDOM_SEED = 42  # the same experts at every start
STRATEGIES = ("uniform", "front-loading", "random")


def generate_gpu_experts_masks(activation_freq: torch.Tensor, num_gpu_experts: int) -> torch.Tensor:
    """The most used experts of a model: bool [layers, experts] on the CPU, True for the GPU.

    activation_freq [layers, experts], any number; the num_gpu_experts largest of all layers together, at least
    none and at most all of them; of equal ones the first. Raises ValueError for another number of dimensions or a NaN.
    """
    if activation_freq.dim() != 2 or activation_freq.isnan().any():
        raise ValueError(f"expected numbers [layers, experts], got {tuple(activation_freq.shape)} or a NaN")
    frequency = activation_freq.detach().cpu().flatten()
    chosen = frequency.argsort(descending=True, stable=True)[: max(0, num_gpu_experts)]
    mask = torch.zeros(frequency.numel(), dtype=torch.bool)
    mask[chosen] = True
    return mask.view(activation_freq.shape)


def placed(strategy: str, layers: int, experts: int, count: int) -> torch.Tensor:
    """`count` experts of all layers together by a strategy that needs no statistics: bool [layers, experts].

    "uniform": as many of every layer, the first ones, and what is left over to the first layers; "front-loading": whole
    layers from the first on; "random". Raises UsageError for another name.
    """
    numbers = torch.arange(layers * experts).view(layers, experts)
    if strategy == "uniform":
        order = numbers % experts * layers + numbers // experts
    elif strategy == "front-loading":
        order = numbers
    elif strategy == "random":
        order = torch.rand(layers, experts, generator=torch.Generator().manual_seed(RANDOM_SEED))
    else:
        raise errors.UsageError("device.placement", placement=strategy, known=", ".join(STRATEGIES))
    return generate_gpu_experts_masks(-order, count)
