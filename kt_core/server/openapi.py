"""GET /openapi.json: the endpoints as an OpenAPI document, made from their table."""

import json
import re
from functools import cache
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from kt_core.server import answers
from kt_core.server.endpoints import ALWAYS, ENDPOINTS, TEXT, Endpoint
from kt_core.server.fields import NOTES, standard

router = APIRouter()

PATH = "/openapi.json"
_JSON = "application/json"
_KEYS: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}, {}]
_HEADERS = {
    "X-Request-Id": {"description": "The request's id: the client's own or a new one", "schema": {"type": "string"}},
}
_IGNORED = {"X-Kt-Ignored": {"description": "Fields that had no effect", "schema": {"type": "string"}}}
_TEXTS = {
    400: "A field or the body is not valid, or the prompt does not fit",
    401: "The API key is missing or wrong",
    403: "The server is for this machine alone, and the name that it was asked under is not",
    404: "There is no such model",
    408: "The body does not come",
    413: "The body is too large",
    429: "The queue is full; Retry-After has the seconds",
    500: "The model failed on this request, or a fault of the server's",
    503: "The model is loading, or the server is stopping",
    504: "The request's own timeout passed",
}


@router.get(PATH)
async def openapi() -> JSONResponse:
    return JSONResponse(document())


@cache
def document() -> dict[str, Any]:
    """The whole document; its parts are shared, so it is not to be changed."""
    kinds: list[tuple[Any, JsonSchemaMode]] = [(answers.Unhealthy, "serialization")]
    for endpoint in ENDPOINTS:
        kinds += [(endpoint.error, "serialization")]
        kinds += [(endpoint.body, "validation")] if endpoint.body else []
        kinds += [(endpoint.answer, "serialization")] if endpoint.answer else []
    kinds = list(dict.fromkeys(kinds))
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, mode, TypeAdapter(kind)) for kind, mode in kinds], ref_template="#/components/schemas/{model}"
    )
    found = {kind: standard(schemas[kind, mode]) for kind, mode in kinds}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, found)
    made = {
        "openapi": "3.1.0",
        "info": {"title": "kt", "version": "1", "description": "Language models on CPU and GPU together."},
        "paths": paths,
        "components": {
            "schemas": {name: _noted(standard(schema)) for name, schema in definitions.get("$defs", {}).items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }
    renamed: dict[str, Any] = json.loads(_short(json.dumps(made)))
    return renamed


def _short(name: str) -> str:
    """pydantic names the shapes of one name in several dialects by their modules."""
    return re.sub(r"kt_core__server__(\w+?)_fields__", r"\1.", name)


def _noted(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object, each property with what docs/api.md says of it."""
    properties = {
        name: {**inner, "description": NOTES[name]} if name in NOTES and "$ref" not in inner else inner
        for name, inner in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties} if properties else schema


def _operation(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    error = {_JSON: {"schema": schemas[endpoint.error]}}
    codes = sorted({*endpoint.statuses, *ALWAYS, *(() if endpoint.open else (401, 403))})
    answered = {"description": "The answer", "headers": {**_HEADERS, **(_IGNORED if endpoint.body else {})}}
    refused = {str(code): {"description": _TEXTS[code], "headers": _HEADERS, "content": error} for code in codes}
    if endpoint.path == "/health":
        refused["503"] = {
            "description": _TEXTS[503],
            "headers": _HEADERS,
            "content": {_JSON: {"schema": schemas[answers.Unhealthy]}},
        }
    operation: dict[str, Any] = {
        "operationId": (endpoint.method + endpoint.path).lower().replace("{", "").replace("}", "").replace("/", "_"),
        "summary": endpoint.summary,
        "security": [{}] if endpoint.open else _KEYS,
        "responses": {"200": {**answered, "content": _content(endpoint, schemas)}, **refused},
    }
    if endpoint.body:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schemas[endpoint.body]}}}
    if "{name}" in endpoint.path:
        operation["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return operation


def _content(endpoint: Endpoint, schemas: dict[Any, Any]) -> dict[str, Any]:
    if endpoint.answer is None:
        return {TEXT: {"schema": {"type": "string"}}}
    content = {_JSON: {"schema": schemas[endpoint.answer]}}
    return {**content, endpoint.streamed: {"schema": {}}} if endpoint.streamed else content
