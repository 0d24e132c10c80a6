"""Request bodies: read up to a limit, and validated into a model."""

from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from kt_core.errors import NotFound, UsageError
from kt_core.server.errors import TooLarge
from kt_core.server.state import State

# A million tokens of text fit; an endless upload does not.
MAX_BODY = 64 * 2**20

Model = TypeVar("Model", bound=BaseModel)


async def read(request: Request) -> bytes:
    """The whole body. Raises TooLarge."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise TooLarge("server.too_large", limit=MAX_BODY)
    return bytes(body)


def parse(kind: type[Model], body: bytes) -> Model:
    """Raises UsageError, with the first fault in `field` and `reason`."""
    try:
        return kind.model_validate_json(body)
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


def check_model(state: State, name: str | None) -> None:
    """Raises NotFound for a model that is not served."""
    if name is not None and name != state.model:
        raise NotFound("server.model_not_found", field="model", model=name, served=state.model)
