"""Models by name or path: what is registered, what is on this disk, and what the headers say about it."""

import os

from kt_core import paths
from kt_core.errors import NotFound
from kt_core.models import catalogue, files, registry, store
from kt_core.models.files import holds_model, local_files
from kt_core.models.spec import read_spec
from kt_core.types import ModelFiles

__all__ = ["read_spec", "resolve"]


def resolve(name: str) -> ModelFiles:
    """The files of the model called `name`: a path, else a pulled model.

    A bare name counts as a path only when a file or a model folder is there, so that a folder that happens
    to be called like a model does not hide it. Raises NotFound for a registered model that is not pulled yet,
    for a path that does not exist, and for an unknown name (with the nearest known ones); what
    files.local_files raises for a path.
    """
    path = paths.expanded(name)
    there = bool(name) and paths.exists(path)
    if there and (os.sep in name or path.is_file() or holds_model(path)):
        return local_files(path)
    if not there and not files.repository(name) and (os.sep in name or name.endswith(".gguf")):
        raise NotFound("models.no_path", path=name)
    if folder := store.path(name):
        return local_files(folder, folder.name)
    if entry := registry.find(name):
        raise NotFound("models.not_pulled_yet", name=entry.name)
    known = None if there else catalogue.find(name)
    if known and known.path:
        return local_files(paths.expanded(known.path), known.name)
    if known and known.repo and not files.repository(name):
        raise catalogue.not_here(known)
    if there:
        return local_files(path)
    raise store.unknown(name)
