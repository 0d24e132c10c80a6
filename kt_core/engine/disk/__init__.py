"""The prefix cache's tiers below the pages that are computed with: the CPU's memory, for those of a device, and disk."""

from kt_core.engine.disk.folder import Folder, keys_of
from kt_core.engine.disk.host import Host
from kt_core.engine.disk.identity import kept_of
from kt_core.engine.disk.tier import PATIENCE, Load, Tier

__all__ = ["PATIENCE", "Folder", "Host", "Load", "Tier", "kept_of", "keys_of"]
