"""The fields of Anthropic's messages requests, mapped onto those of a chat request.

Unknown fields are ignored; what would change the answer and is not done here is refused.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool

from kt_core.errors import UsageError
from kt_core.server import bodies
from kt_core.server.openai_fields import THINKING_SWITCHES, Chat, Number, Text, Whole

# Of no text of their own: the server does not write them, and what other servers wrote into them is for them alone.
_SILENT = {"redacted_thinking"}


REFUSED: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "output_format": ()}
HARMLESS = {
    "cache_control": "the prefix cache finds prompts by their tokens",
    "container": "no code runs here",
    "context_management": "nothing of the conversation is left out",
    "diagnostics": "none are made",
    "inference_geo": "it runs where the server is",
    "metadata": "notes for the client's own records",
    "service_tier": "requests run in the order of their arrival",
    "speed": "there is one speed",
    "user_profile_id": "a name of the client's user",
    "workspace_id": "a name of the client's own",
}


class Source(BaseModel):
    type: Literal["base64", "url"]
    media_type: str = ""
    data: str = ""
    url: str = ""


class Block(BaseModel, extra="allow"):
    type: str
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}
    tool_use_id: str = ""
    source: Source | None = None
    content: "str | list[Block] | None" = None


class Message(BaseModel):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class Tool(BaseModel):
    type: Literal["custom"] | None = None
    name: Text
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool = False


class ThinkingSwitch(BaseModel):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(BaseModel):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(BaseModel):
    effort: str | None = None
    format: OutputFormat | None = None


class Prompt(bodies.Body):
    """What counting tokens takes."""

    refused = REFUSED
    harmless = HARMLESS

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSwitch | None = None
    output_config: OutputConfig | None = None

    def chat(self, known: frozenset[str], **more: Any) -> Chat:
        """The same as a chat request. `known` are the arguments that the model's chat template reads.

        Raises UsageError for blocks that are not supported.
        """
        messages = [{"role": "system", "content": _text(self.system, "system")}] if self.system else []
        for index, message in enumerate(self.messages):
            turn = _assistant if message.role == "assistant" else _user
            blocks = (
                message.content if isinstance(message.content, list) else [Block(type="text", text=message.content)]
            )
            messages += turn(blocks, f"messages.{index}.content")
        fields: dict[str, Any] = {"model": self.model, "messages": messages, **more}
        if self.tools:
            fields["tools"] = [{"type": "function", "function": _function(tool)} for tool in self.tools]
        if self.tool_choice:
            named = {"type": "function", "function": {"name": self.tool_choice.name}}
            fields["tool_choice"] = {"any": "required", "tool": named}.get(self.tool_choice.type, self.tool_choice.type)
            fields["parallel_tool_calls"] = not self.tool_choice.disable_parallel_tool_use
        if self.messages[-1].role == "assistant" and not messages[-1].get("tool_calls"):
            fields["continue_final_message"] = True
        # Clients ask for thinking of any model; one whose template has no switch thinks or not by itself.
        if self.thinking and self.thinking.type != "adaptive" and known & THINKING_SWITCHES.keys():
            fields["enable_thinking"] = self.thinking.type == "enabled"
        if self.output_config and self.output_config.effort:
            fields["reasoning_effort"] = self.output_config.effort
        if self.output_config and self.output_config.format:
            schema = {"name": "answer", "schema": self.output_config.format.schema_}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return bodies.made(Chat, fields)


class Messages(Prompt):
    max_tokens: Annotated[Whole, Field(ge=1)]
    stream: StrictBool | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    stop_sequences: Annotated[list[Text], Field(max_length=16)] | None = None

    def whole_chat(self, known: frozenset[str]) -> Chat:
        names = ("max_tokens", "stream", "temperature", "top_p", "top_k")
        return self.chat(known, stop=self.stop_sequences, **{name: getattr(self, name) for name in names})


def _function(tool: Tool) -> dict[str, Any]:
    described = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **described, "parameters": tool.input_schema}


def _text(content: str | list[Block] | None, field: str) -> str:
    """Text blocks as one text."""
    if not isinstance(content, list):
        return content or ""
    for block in content:
        if block.type != "text":
            raise _unsupported(field, block)
    return "\n".join(block.text for block in content)


def _said(content: str | list[Block] | None, field: str) -> str | list[dict[str, Any]]:
    """Blocks of text as one text; with images among them, as the parts of a chat message."""
    if not isinstance(content, list) or not any(block.type == "image" for block in content):
        return _text(content, field)
    return [_image(block, field) if block.type == "image" else _part(block, field) for block in content]


def _part(block: Block, field: str) -> dict[str, Any]:
    return {"type": "text", "text": _text([block], field)}


def _image(block: Block, field: str) -> dict[str, Any]:
    source = block.source
    if source is None or not (source.url if source.type == "url" else source.data):
        raise UsageError(
            "server.field", field=field, reason="an image has a source: base64 with data, or url with a url"
        )
    url = source.url if source.type == "url" else f"data:{source.media_type};base64,{source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _unsupported(field: str, block: Block) -> UsageError:
    return UsageError("server.field", field=field, reason=f"blocks of type {block.type!r} are not supported here")


def _user(blocks: list[Block], field: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own; they come before what the user says."""
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _said(block.content, f"{field}.content")}
        for block in blocks
        if block.type == "tool_result"
    ]
    said = [block for block in blocks if block.type != "tool_result"]
    return [*results, *([{"role": "user", "content": _said(said, field)}] if said else [])]


def _assistant(blocks: list[Block], field: str) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": json.dumps(b.input)}}
        for b in blocks
        if b.type == "tool_use"
    ]
    thoughts = [block.thinking for block in blocks if block.type == "thinking"]
    said = [b for b in blocks if b.type not in ("tool_use", "thinking") and b.type not in _SILENT]
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if said or not calls:
        message["content"] = _text(said, field)
    return [message]
