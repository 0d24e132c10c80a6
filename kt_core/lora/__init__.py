"""Low-rank adapters: what a folder holds, and how models take it beside their own weights."""

from kt_core.lora.folder import Adapter, Pair, read
from kt_core.lora.stored import stored

__all__ = ["Adapter", "Pair", "read", "stored"]
