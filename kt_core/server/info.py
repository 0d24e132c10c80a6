"""GET /v1/kt/info: what runs here and why: the plan with its reasons, the kernels, memory, versions.
GET /v1/kt/experts: how the routed experts are used."""

import asyncio
import platform
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil
from fastapi import APIRouter, Request

from kt_core.server.state import State
from kt_core.types import Plan

router = APIRouter()

_PACKAGES = ("kt-cli", "torch", "transformers", "tokenizers", "fastapi", "uvicorn", "pydantic")


@router.get("/v1/kt/experts")
async def experts(request: Request) -> dict[str, Any]:
    """How often each routed expert was asked, by layer; layers without counts are not there."""
    state: State = request.app.state.kt
    return state.ready().experts()


@router.get("/v1/kt/info")
async def info(request: Request) -> dict[str, Any]:
    """Answers while the model loads; what is not known yet is null."""
    state: State = request.app.state.kt
    plan = state.plan
    return {
        "model": state.model,
        "ready": state.engine is not None,
        "started": state.created,
        "uptime": round(time.time() - state.created, 3),
        "engine": state.engine.state() if state.engine else None,
        "kernels": await asyncio.to_thread(_kernels) if state.engine else None,
        "spec": asdict(plan.spec) if plan else None,
        "decisions": [asdict(decision) for decision in plan.decisions] if plan else [],
        "predicted": plan.predicted if plan else {},
        "memory": _memory(plan),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _kernels() -> dict[str, Any]:
    """The tier with its reason, and the threads. Imported here: the server listens before the extension is loaded."""
    from kt_core import kernels

    found = kernels.info()
    names = ("chosen", "reason", "features", "deterministic", "threads", "cpus", "groups", "note")
    return {name: found[name] for name in names if name in found}


def _memory(plan: Plan | None) -> dict[str, Any]:
    """Bytes: what the plan counted on by device, and on the CPU by part; what this process holds now, what the machine has left."""
    return {
        "planned": plan.device_bytes if plan else {},
        "parts": plan.memory_parts if plan else {},
        "resident": psutil.Process().memory_info().rss,
        "available": psutil.virtual_memory().available,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
