"""Request bodies: read up to a limit, and validated into a model."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError, model_validator

from kt_core.errors import NotFound, UsageError
from kt_core.messages import t
from kt_core.server.errors import TooLarge, TooSlow
from kt_core.server.state import State

# A million tokens of text fit; an endless upload does not.
MAX_BODY = 64 * 2**20
# The longest between two pieces of a body.
BODY_SECONDS = 30.0

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAMES = 32  # ignored fields that are told; a header has little room


class Body(BaseModel, extra="allow"):
    """The fields of one endpoint, as data: docs/api.md and the OpenAPI document are made from it.

    The class's fields are honoured. `refused` would change the answer, which is not done here: 400, but for the values
    that ask for nothing. `harmless` are documented elsewhere and do not change the answer; they, and fields that nobody
    documents, are ignored, and the answer's header X-Kt-Ignored lists them.
    """

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    harmless: ClassVar[Mapping[str, str]] = {}  # field -> why it may be ignored

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        for name, accepted in cls.refused.items():
            value = data.get(name) if isinstance(data, dict) else None
            if value is not None and not any(_same(value, ok) for ok in accepted):
                choices = ", ".join(map(repr, accepted)) or t("server.leave_out")
                raise UsageError("server.unsupported_field", field=name, accepted=choices)
        return data

    def ignored(self) -> list[str]:
        """Fields of this body that have no effect. null means absent; names that no header can hold are left out."""
        extra = self.model_extra or {}
        names = (name for name, value in extra.items() if value is not None and name not in self.refused)
        return sorted(name for name in names if _NAME.fullmatch(name))[:_NAMES]


def _same(value: Any, accepted: Any) -> bool:
    """true is not 1 in JSON."""
    return bool(value == accepted) and isinstance(value, bool) == isinstance(accepted, bool)


Model = TypeVar("Model", bound=BaseModel)
Fields = TypeVar("Fields", bound=Body)


async def read(request: Request) -> bytes:
    """The whole body, whether its length was announced or not. Raises TooLarge and TooSlow."""
    body = bytearray()
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > MAX_BODY:
        raise TooLarge("server.too_large", limit=MAX_BODY)
    parts = request.stream()
    try:
        while True:
            body += await asyncio.wait_for(anext(parts), BODY_SECONDS)
            if len(body) > MAX_BODY:
                raise TooLarge("server.too_large", limit=MAX_BODY)
    except StopAsyncIteration:
        return bytes(body)
    except asyncio.TimeoutError:
        raise TooSlow("server.too_slow", seconds=BODY_SECONDS) from None


async def parsed(request: Request, kind: type[Fields]) -> Fields:
    """The request's body as `kind`; what it ignores is noted for the answer's header. Raises UsageError and TooLarge."""
    # In a thread: a long prompt takes a while to parse, and other clients wait for this loop.
    fields = await asyncio.to_thread(parse, kind, await read(request))
    request.state.ignored = fields.ignored()
    return fields


def parse(kind: type[Model], body: bytes) -> Model:
    """Raises UsageError, with the first fault in `field` and `reason`."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as e:
        raise fault(e) from e


def made(kind: type[Model], fields: Mapping[str, Any]) -> Model:
    """The body that a dialect maps its own onto. Raises UsageError."""
    try:
        return kind.model_validate(fields)
    except ValidationError as e:
        raise fault(e) from e


def fault(error: ValidationError) -> UsageError:
    """The first fault that pydantic found."""
    first = error.errors(include_url=False, include_context=False)[0]
    reason = first["msg"].removeprefix("Value error, ")
    # Only real field names: pydantic also lists the branch of a union that it tried.
    names = [str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier()]
    if not names:
        return UsageError("server.body", reason=reason)
    return UsageError("server.field", field=".".join(names), reason=reason)


def adapter_of(state: State, name: str | None) -> str | None:
    """The adapter that a model's name asks for, MODEL:ADAPTER or its own name. Raises NotFound for what is not served."""
    if name is None or name == state.model:
        return None
    known = state.engine.adapters.names if state.engine else []
    adapter = name.removeprefix(f"{state.model}:")
    if adapter not in known:
        raise NotFound("server.model_not_found", field="model", model=name, served=", ".join(state.served()))
    return adapter
