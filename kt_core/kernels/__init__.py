"""CPU kernels: linear layers and routed experts over weights in their stored formats.

The only room that imports the native extension, and only when something is computed or asked of it.
"""

from kt_core.kernels.ceilings import ReadProbe, formats, peak_rate, units
from kt_core.kernels.experts import ACTIVATIONS, UNGATED, Experts
from kt_core.kernels.linear import Linear
from kt_core.kernels.methods import METHODS, Method
from kt_core.kernels.native import deterministic, info, set_deterministic
from kt_core.kernels.placement import generate_gpu_experts_masks
from kt_core.kernels.policy import POLICY, SUPPORTED
from kt_core.kernels.pool import Group, Pool, read_rate, set_pools, set_threads
from kt_core.kernels.wrapper import KTMoEWrapper

__all__ = [
    "ACTIVATIONS",
    "METHODS",
    "POLICY",
    "SUPPORTED",
    "UNGATED",
    "Experts",
    "Group",
    "KTMoEWrapper",
    "Linear",
    "Method",
    "Pool",
    "ReadProbe",
    "deterministic",
    "formats",
    "generate_gpu_experts_masks",
    "info",
    "peak_rate",
    "read_rate",
    "set_deterministic",
    "set_pools",
    "set_threads",
    "units",
]
