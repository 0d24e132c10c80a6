"""What Ollama's clients ask about models: GET /api/tags, /api/ps, /api/version and POST /api/show."""

import hashlib
from datetime import datetime, timezone
from typing import Any

from fastapi import APIRouter, Request

from kt_core.engine import prompt
from kt_core.server import bodies
from kt_core.server.ollama import adapter_of
from kt_core.server.openai_fields import THINKING_SWITCHES
from kt_core.server.state import State

router = APIRouter()

# Of Ollama's own API, as far as this dialect follows it: clients leave out what came later.
API_VERSION = "0.12.0"


HARMLESS = {"verbose": "everything is shown", "system": "nothing is changed", "options": "nothing is changed"}


class Show(bodies.Body):
    harmless = HARMLESS

    model: str | None = None
    name: str | None = None  # its older name


@router.get("/api/version")
async def version(request: Request) -> dict[str, str]:
    return {"version": API_VERSION}


@router.get("/api/tags")
async def tags(request: Request) -> dict[str, Any]:
    """The one model that this server has; answers while it loads."""
    state: State = request.app.state.kt
    return {"models": [{**_model(state), "modified_at": _time(state.created)}]}


@router.get("/api/ps")
async def processes(request: Request) -> dict[str, Any]:
    """The model once it is loaded. It stays, so it expires in a time that no client waits for."""
    state: State = request.app.state.kt
    if state.engine is None:
        return {"models": []}
    running = {**_model(state), "expires_at": _time(2**32), "size_vram": _on_gpu(state)}
    return {"models": [{**running, "context_length": state.engine.state()["context"]}]}


@router.post("/api/show")
async def show(request: Request) -> dict[str, Any]:
    state: State = request.app.state.kt
    engine = state.ready()
    fields = await bodies.parsed(request, Show)
    adapter_of(state, fields.name if fields.model is None else fields.model)
    spec = state.plan.spec if state.plan else None
    family = spec.family if spec else ""
    info: dict[str, Any] = {"general.architecture": family}
    if spec:
        info["general.parameter_count"] = spec.parameters
        sizes = {"block_count": spec.layers, "embedding_length": spec.hidden, "vocab_size": spec.vocab}
        sizes |= {"expert_count": spec.experts, "expert_used_count": spec.experts_per_token}
        info |= {f"{family}.{name}": value for name, value in sizes.items()}
    info[f"{family}.context_length"] = engine.state()["context"]
    style, known = state.style(), engine.template_arguments()
    thinks = style.thinking is not None or bool(known & THINKING_SWITCHES.keys())
    able = {"completion": True, "tools": style.calls is not None, "vision": engine.sees, "thinking": thinks}
    return {
        "modelfile": f"FROM {state.model}\n",
        "parameters": "",
        "template": "\n".join(prompt.all_templates(engine.tokenizer)),
        "license": "",
        "details": _details(state),
        "model_info": info,
        "capabilities": [name for name, has in able.items() if has],
        "modified_at": _time(state.created),
    }


def _model(state: State) -> dict[str, Any]:
    """The digest tells apart models of another name, size or type; it is of no file's content."""
    size = sum(state.plan.spec.bytes_by_part.values()) if state.plan else 0
    details = _details(state)
    digest = hashlib.sha256(repr((state.model, size, sorted(details.items()))).encode()).hexdigest()
    return {"name": state.model, "model": state.model, "size": size, "digest": digest, "details": details}


def _details(state: State) -> dict[str, Any]:
    spec = state.plan.spec if state.plan else None
    formats = spec.formats if spec else {}
    return {
        "parent_model": "",
        "format": state.plan.model.format if state.plan else "",
        "family": spec.family if spec else "",
        "families": [spec.family] if spec else [],
        "parameter_size": f"{spec.parameters / 1e9:.1f}B" if spec else "",
        "quantization_level": max(formats, key=lambda name: formats[name]) if formats else "",
    }


def _on_gpu(state: State) -> int:
    """Bytes, as the plan has them."""
    return sum(size for name, size in state.plan.device_bytes.items() if name != "cpu") if state.plan else 0


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().replace("+00:00", "Z")
