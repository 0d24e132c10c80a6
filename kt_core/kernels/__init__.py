"""CPU kernels: linear layers and routed experts over weights in their stored formats.

The only room that imports the native extension, and only when something is computed or asked of it.
"""

from kt_core.kernels.experts import ACTIVATIONS, UNGATED, Experts
from kt_core.kernels.linear import Linear
from kt_core.kernels.native import info, set_deterministic
from kt_core.kernels.policy import POLICY, SUPPORTED
from kt_core.kernels.pool import Group, Pool, read_rate, set_pools, set_threads

__all__ = [
    "ACTIVATIONS",
    "POLICY",
    "SUPPORTED",
    "UNGATED",
    "Experts",
    "Group",
    "Linear",
    "Pool",
    "info",
    "read_rate",
    "set_deterministic",
    "set_pools",
    "set_threads",
]
