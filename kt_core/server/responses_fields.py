"""The fields of OpenAI's responses requests, mapped onto those of a chat request. Nothing is kept between requests."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool

from kt_core.errors import UsageError
from kt_core.server import bodies
from kt_core.server.openai_fields import Chat, Number, Text, Whole

LOGPROBS = "message.output_text.logprobs"
# Parts of a message's content that are text; the server writes the last one itself.
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")

REFUSED: dict[str, tuple[Any, ...]] = {
    "background": (False,),
    "background_options": (),
    "conversation": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "store": (False,),
    "truncation": ("disabled",),
}
HARMLESS = {
    "access_programs": "everybody may do everything",
    "client_metadata": "notes for the client's own records",
    "context_management": "nothing of the conversation is left out",
    "image": "images come in messages",
    "max_tool_calls": "it counts built-in tools, of which there are none",
    "prompt_cache_key": "the prefix cache finds prompts by their tokens",
    "prompt_cache_options": "the prefix cache finds prompts by their tokens",
    "prompt_cache_retention": "the prefix cache keeps what fits",
    "safety_identifier": "a name of the client's user",
    "service_tier": "requests run in the order of their arrival",
    "stream_options": "events are never obfuscated",
}


def _items(value: Any) -> Any:
    """A text is what the user says; an item without a type is a message."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if isinstance(value, list):
        return [{"type": "message", **item} if isinstance(item, dict) else item for item in value]
    return value


class Item(BaseModel, extra="allow"):
    """One item of a conversation, as clients send it and as the server has sent it. Which fields count is up to the type."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"]
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[dict[str, Any]] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[dict[str, Any]] = ""
    summary: list[dict[str, Any]] = []


class Tool(BaseModel, extra="allow"):
    type: Literal["function"]
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: StrictBool | None = None


class NamedTool(BaseModel):
    type: Literal["function"]
    name: Text


class ReasoningOptions(BaseModel):
    effort: str | None = None
    summary: str | None = None


class Format(BaseModel, extra="allow"):
    type: Literal["text", "json_object", "json_schema"] = "text"


class TextOptions(BaseModel):
    format: Format = Format()
    verbosity: str | None = None


class Responses(bodies.Body):
    refused = REFUSED
    harmless = HARMLESS

    model: str | None = None
    input: Annotated[list[Item], BeforeValidator(_items, json_schema_input_type=str | list[Item]), Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    stream: StrictBool | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    @property
    def logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def chat(self) -> Chat:
        """The same as a chat request. Raises UsageError for content that is not text."""
        messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages += _messages(self.input)
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": self.stream,
            "logprobs": self.logprobs or None,
            "top_logprobs": self.top_logprobs,
            "tools": [_function(tool) for tool in self.tools] if self.tools else None,
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "response_format": _format(self.text.format) if self.text else None,
        }
        return bodies.made(Chat, {name: value for name, value in fields.items() if value is not None})


def _function(tool: Tool) -> dict[str, Any]:
    named = tool.model_dump(exclude_none=True, exclude={"type"})
    return {"type": "function", "function": named}


def _choice(choice: str | NamedTool | None) -> Any:
    return {"type": "function", "function": {"name": choice.name}} if isinstance(choice, NamedTool) else choice


def _format(format: Format) -> dict[str, Any]:
    """In a chat request a schema is one level deeper."""
    inner = format.model_dump(exclude={"type"})
    return {"type": format.type, **({"json_schema": inner} if format.type == "json_schema" else {})}


def _messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Chat messages: what the assistant thought, said and called in a row is one of its messages."""
    messages: list[dict[str, Any]] = []
    for index, item in enumerate(items):
        field = f"input.{index}"
        if item.type == "function_call_output":
            output = _content(item.output, f"{field}.output")
            messages.append({"role": "tool", "tool_call_id": item.call_id, "content": output})
        elif item.type == "message" and item.role != "assistant":
            if item.role is None:
                raise UsageError("server.field", field=f"{field}.role", reason="a message needs a role")
            messages.append({"role": item.role, "content": _content(item.content, f"{field}.content")})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            _ADD[item.type](messages[-1], item, field)
    for message in messages:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            message["content"] = message["content"] or ""
    return messages


def _add_said(message: dict[str, Any], item: Item, field: str) -> None:
    message["content"] = (message["content"] or "") + _text(item.content, f"{field}.content")


def _add_thought(message: dict[str, Any], item: Item, field: str) -> None:
    """The thoughts themselves where they are there; else the summary that another server made of them."""
    thought = _text(item.content, f"{field}.content") or _text(item.summary, f"{field}.summary")
    if thought:
        message["reasoning_content"] = message.get("reasoning_content", "") + thought


def _add_called(message: dict[str, Any], item: Item, field: str) -> None:
    function = {"name": item.name, "arguments": item.arguments}
    message.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


_ADD: dict[str, Callable[[dict[str, Any], Item, str], None]] = {
    "message": _add_said,
    "reasoning": _add_thought,
    "function_call": _add_called,
}


def _content(content: str | list[dict[str, Any]] | None, field: str) -> str | list[dict[str, Any]]:
    """Parts of text as one text; with images among them, as the parts of a chat message."""
    if not isinstance(content, list) or not any(part.get("type") == "input_image" for part in content):
        return _text(content, field)
    return [
        {"type": "image_url", "image_url": {"url": part.get("image_url")}}
        if part.get("type") == "input_image"
        else {"type": "text", "text": _text([part], field)}
        for part in content
    ]


def _text(content: str | list[dict[str, Any]] | None, field: str) -> str:
    """Parts of text as one text; a refusal is text too."""
    if not isinstance(content, list):
        return content or ""
    texts = []
    for part in content:
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in (*_TEXTS, "refusal") or not isinstance(text, str):
            reason = f"parts of type {kind!r} are not supported here; only text is"
            raise UsageError("server.field", field=field, reason=reason)
        texts.append(text)
    return "\n".join(texts)
