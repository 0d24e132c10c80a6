"""Which experts live on the GPU."""

import torch


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
