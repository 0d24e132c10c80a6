"""The prefix cache's tier on disk."""

from kt_core.engine.disk.folder import Folder, keys_of
from kt_core.engine.disk.identity import folder_of
from kt_core.engine.disk.tier import PATIENCE, Load, Tier

__all__ = ["PATIENCE", "Folder", "Load", "Tier", "folder_of", "keys_of"]
