"""The fields by which a request says what form its answer has to have, under the names of several servers."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from kt_core.errors import UsageError
from kt_core.server.bodies import Body
from kt_core.types import Format

Schema = dict[str, Any] | StrictBool  # 0 and "no" are none
_OBJECT = {"type": "object"}
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


class NamedSchema(BaseModel):
    name: str | None = None
    description: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")] = _OBJECT
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's; `schema` beside a json_object is an extension of other servers."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None

    @model_validator(mode="after")
    def _agree(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema, and has to be there then")
        return self

    def form(self) -> Format | None:
        if self.type == "text":
            return None
        if self.json_schema is None:
            return Format("json", _OBJECT if self.schema_ is None else self.schema_, False, "response_format")
        return Format("json", self.json_schema.schema_, self.json_schema.strict is True, "response_format")


class StructuredOutputs(BaseModel):
    """vLLM's; one of these."""

    model_config = ConfigDict(extra="forbid")
    json_: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: StrictBool | None = None

    def forms(self) -> list[Format]:
        forms = _forms(("structured_outputs",) * 4, self.json_, self.regex, self.choice, self.grammar)
        return [*forms, Format("json", _OBJECT, field="structured_outputs")] if self.json_object else forms


class Structured(Body):
    """What both endpoints take: at most one of these."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | str | None = None  # vLLM's older names
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = None
    guided_grammar: str | None = None
    grammar: str | None = None  # llama.cpp's, like json_schema
    json_schema: Schema | None = None

    def form(self) -> Format | None:
        """What the answer's text has to be. Raises UsageError where several fields say so, or a schema is no JSON."""
        of_openai = self.response_format.form() if self.response_format else None
        forms = [of_openai] if of_openai else []
        forms += self.structured_outputs.forms() if self.structured_outputs else []
        forms += _forms(_GUIDED, *(getattr(self, name) for name in _GUIDED))
        forms += _forms(("json_schema", "", "", "grammar"), self.json_schema, None, None, self.grammar or None)
        if len(forms) > 1:
            raise UsageError(
                "server.field", field="response_format", reason="only one form of an answer can be asked for"
            )
        return forms[0] if forms else None


def _forms(
    fields: tuple[str, ...],
    schema: Schema | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> list[Format]:
    """The forms that are asked for, by the fields named."""
    forms = [] if schema is None else [Format("json", _read(schema, fields[0]), False, fields[0])]
    forms += [] if regex is None else [Format("regex", regex, field=fields[1])]
    forms += [] if choice is None else [Format("choice", tuple(choice), field=fields[2])]
    return forms if grammar is None else [*forms, Format("grammar", grammar, field=fields[3])]


def _read(schema: Schema | str, field: str) -> Schema:
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict | bool):
        raise UsageError("server.field", field=field, reason="a JSON schema is expected")
    return value
