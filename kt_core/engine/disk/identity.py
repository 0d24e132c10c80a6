"""What a page's bytes depend on beside its tokens."""

import json
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import transformers

from kt_core import kernels
from kt_core.engine.disk.folder import Folder
from kt_core.engine.disk.host import Host
from kt_core.engine.step import Runner
from kt_core.paths import cache_dir
from kt_core.plan import devices
from kt_core.types import Plan

LAYOUT = 1  # of a page in memory; another one for each change of its form (docs/attention.md)
_HEADER = 1 << 20  # bytes of a weights file that are read: names, shapes and settings, and the first weights
_STRETCHED = (b"longrope", b"dynamic")  # rotary embeddings whose keys depend on the longest context


def kept_of(plan: Plan, runner: Runner) -> Folder | Host | None:
    """Where the planned model's pages are kept beside where they are computed with; None when the plan has no such tier, or
    the runner no pages."""
    if not runner.shareable:
        return None
    limit, host = int(plan.value("prefix_disk")), int(plan.get("prefix_host", 0))
    identity, size = _identity(plan, runner), runner.page_bytes
    folder = Folder(cache_dir() / "prefix", identity, size, limit) if limit > 0 else None
    return Host(host, size, folder) if host > 0 else folder


def _identity(plan: Plan, runner: Runner) -> bytes:
    """Other weights, another type or form of pages, or other arithmetic give another identity.

    Weights are told apart by name, size, time of change and their first MiB: reading all would take as long as loading.
    """
    info = kernels.info()
    weights = [Path(name) for name in plan.model.files]
    config = Path(plan.model.path, "config.json")
    rules = plan.value("rules")
    small = [config.read_bytes() if config.is_file() else b"", Path(rules).read_bytes() if rules else b""]
    heads = [_head(path) for path in weights]
    stretched = any(word in text for text in (*small, *heads) for word in _STRETCHED)
    facts: list[Any] = [LAYOUT, version("kt-cli"), transformers.__version__]
    facts += [plan.value("kv_dtype"), runner.page, runner.page_bytes, type(runner).__name__]
    # A device rounds otherwise, and what it computes depends on what lies there.
    facts += [[d.name, d.value] for d in plan.decisions if plan.get("devices", []) and d.name in devices.WISHES]
    facts += [info["chosen"], info["deterministic"], runner.max_context if stretched else 0]
    facts += [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in weights]
    facts += [blake2b(text).hexdigest() for text in (*small, *heads)]
    return json.dumps(facts).encode()


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEADER)
