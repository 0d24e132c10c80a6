"""The fields of OpenAI's chat and completion requests: validated, and mapped onto the engine's request.

Known fields are honoured or refused; docs/api.md has the table. Types are strict where JSON is
("5" is no number, true is no number), except that 5.0 is the integer 5, as in JSON Schema.
"""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, model_validator
from typing_extensions import TypedDict

from kt_core.errors import UsageError
from kt_core.server import attachments
from kt_core.server.structured import Structured
from kt_core.types import Request, Sampling

# Fields that would change the answer, which this version does not do -> values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "dry_multiplier": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "input_embeds": (),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "suffix": ("",),
    "top_n_sigma": (-1, 0),
    "use_beam_search": (False,),
    "web_search_options": (),
    "xtc_probability": (0,),
}
# Documented fields that change no answer here -> why they are ignored.
HARMLESS = {
    "metadata": "notes for the client's own records",
    "prompt_cache_key": "the prefix cache finds prompts by their tokens",
    "prompt_cache_options": "the prefix cache finds prompts by their tokens",
    "prompt_cache_retention": "the prefix cache keeps what fits",
    "safety_identifier": "a name of the client's user",
    "service_tier": "requests run in the order of their arrival",
    "store": "answers are not kept",
    "user": "a name of the client's user",
    "verbosity": "no chat template reads it",
}

# Arguments by which chat templates turn reasoning on and off -> their values for it, the first one counts.
THINKING_SWITCHES: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_mode": ("enabled", "disabled"),
}


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("a number is expected")
    return value


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: Any) -> Any:
    """A text or a list of token ids; a list that holds just one of these counts as that one."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise ValueError("several prompts in one request are not supported; send one request each")
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value)):
        return value
    raise ValueError("a string or a list of token ids is expected")


def _arguments(value: Any) -> Any:
    """A call's arguments as an object: what clients send is its JSON text, the object itself, or nothing."""
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("the arguments of a call are not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("the arguments of a call are no object")
    return value


Whole = Annotated[int, BeforeValidator(_number)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


# What clients may send where one type is kept.
Stops = Text | Annotated[list[Text], Field(max_length=16)]
OnePrompt = str | list[int]
Prompts = OnePrompt | Annotated[list[OnePrompt], Field(min_length=1, max_length=1)]
Content = str | list[TextPart | attachments.ImagePart | attachments.VideoPart] | None
Arguments = str | dict[str, Any] | None
Seed = Annotated[Whole, Field(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(BaseModel):
    include_usage: StrictBool | None = None


class _Common(Structured):
    """What both endpoints take. null means absent, as clients send it."""

    refused = REFUSED
    harmless = HARMLESS

    model: str | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    seed: Seed | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=10)] | None = None  # below, logits overflow
    logit_bias: dict[int, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    n: Annotated[Whole, Field(ge=1, le=128)] | None = None
    stop: Annotated[list[Text], BeforeValidator(_texts, json_schema_input_type=Stops), Field(max_length=16)] | None = (
        None
    )
    stop_token_ids: list[Whole] | None = None
    ignore_eos: StrictBool | None = None
    timeout: Annotated[Number, Field(gt=0, le=1e6)] | None = None
    return_progress: StrictBool | None = None

    @model_validator(mode="after")
    def _agree(self) -> "_Common":
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise UsageError(
                "server.field",
                field="max_completion_tokens",
                reason=f"{new}, but max_tokens is {old}: give one of them",
            )
        for name in ("stream_options", "return_progress"):
            if getattr(self, name) and not self.stream:
                raise UsageError("server.field", field=name, reason="it goes only with stream: true")
        return self

    @property
    def usage_wanted(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def common(self) -> dict[str, Any]:
        """Arguments of `Request` that both endpoints set the same way."""
        return {
            "sampling": _sampling(self),
            "max_tokens": self.max_completion_tokens if self.max_tokens is None else self.max_tokens,
            "stop": tuple(self.stop or ()),
            "stop_tokens": tuple(self.stop_token_ids or ()),
            "ignore_eos": bool(self.ignore_eos),
            "choices": self.n or 1,
            "timeout": self.timeout,
            "progress": bool(self.return_progress),
            "format": self.form(),
        }


def _sampling(fields: _Common) -> Sampling:
    penalties = ("frequency_penalty", "presence_penalty", "repetition_penalty")
    names = ("temperature", "top_p", "min_p", "typical_p", "seed", *penalties)
    given = {name: getattr(fields, name) for name in names if getattr(fields, name) is not None}
    return Sampling(top_k=max(fields.top_k or 0, 0), logit_bias=fields.logit_bias or {}, **given)


class Function(BaseModel, extra="allow"):
    name: Text


class Tool(BaseModel, extra="allow"):
    type: Literal["function"]
    function: Function


class NamedFunction(BaseModel):
    name: Text


class NamedTool(BaseModel):
    type: Literal["function"]
    function: NamedFunction


class CalledFunction(BaseModel, extra="allow"):
    name: Text
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments, json_schema_input_type=Arguments)] = {}


class ToolCall(BaseModel, extra="allow"):
    function: CalledFunction


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[Any] | None, BeforeValidator(attachments.content, json_schema_input_type=Content)] = (
        None
    )
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # its other name

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("content is missing; only an assistant message with tool_calls may leave it out")
        if self.role == "assistant" and attachments.of(self.content):
            raise ValueError("an assistant's message is text; images and videos come in others")
        return self

    def plain(self) -> dict[str, Any]:
        """As chat templates know it: they have no developer role, which is the newer name of system."""
        fields = self.model_dump(exclude_none=True, exclude={"reasoning", "content"})
        fields["content"] = attachments.plain(self.content)
        reasoning = self.reasoning_content or self.reasoning
        if reasoning:
            fields["reasoning_content"] = reasoning
        if not self.tool_calls:
            fields.pop("tool_calls", None)  # templates take an empty list for calls
        return {**fields, "role": "system"} if self.role == "developer" else fields


class Chat(_Common):
    refused: ClassVar = {**REFUSED, "echo": (False,)}  # of completions

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: StrictBool | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    reasoning_effort: str | None = None
    enable_thinking: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: StrictBool | None = None

    @model_validator(mode="after")
    def _logprobs_agree(self) -> "Chat":
        if self.top_logprobs and not self.logprobs:
            raise UsageError("server.field", field="top_logprobs", reason="it goes only with logprobs: true")
        return self

    def _must_call(self) -> tuple[str, ...]:
        """Names of the tools of which one has to be called. Raises UsageError for one that is not there."""
        if self.tool_choice in (None, "none", "auto"):
            return ()
        names = tuple(tool.function.name for tool in self.tools or ())
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            if name not in names:
                raise UsageError("server.field", field="tool_choice", reason=f"no tool {name!r} among the tools")
            return (name,)
        if not names:
            raise UsageError("server.field", field="tool_choice", reason="it goes only with tools")
        return names

    def request(self, id: str, template_arguments: frozenset[str]) -> Request:
        """The engine's request. `template_arguments` are those that the model's chat template reads."""
        arguments = self._thinking(template_arguments) | (self.chat_template_kwargs or {})
        tools = () if self.tool_choice == "none" else tuple(tool.model_dump() for tool in self.tools or ())
        return Request(
            id=id,
            messages=tuple(message.plain() for message in self.messages),
            tools=tools,
            must_call=self._must_call(),
            attachments=tuple(found for message in self.messages for found in attachments.of(message.content)),
            template_args=arguments,
            continue_final=bool(self.continue_final_message),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            **self.common(),
        )

    def _thinking(self, known: frozenset[str]) -> dict[str, Any]:
        """Template arguments for `enable_thinking` and `reasoning_effort`, by the names that the template reads."""
        effort = self.reasoning_effort
        arguments: dict[str, Any] = {}
        if effort is not None and "reasoning_effort" in known:
            arguments["reasoning_effort"] = effort
        switch = next((name for name in THINKING_SWITCHES if name in known), None)
        if self.enable_thinking is not None:
            on, switch = self.enable_thinking, switch or "enable_thinking"  # which the engine then refuses
        elif effort is not None and switch:
            on = effort != "none"
        else:
            return arguments
        return {**arguments, switch: THINKING_SWITCHES[switch][not on]}


class Completion(_Common):
    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt, json_schema_input_type=Prompts)]
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = None
    max_tokens: Annotated[Whole, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _echo_agrees(self) -> "Completion":
        if self.max_tokens == 0 and not self.echo:
            raise UsageError("server.field", field="max_tokens", reason="0 goes only with echo: true")
        return self

    def request(self, id: str, template_arguments: frozenset[str]) -> Request:
        """The engine's request. Without a limit the answer has at most 16 tokens, as OpenAI documents."""
        prompt = {"text": self.prompt} if isinstance(self.prompt, str) else {"tokens": tuple(self.prompt)}
        fields = {**self.common(), **prompt}
        fields["max_tokens"] = 16 if fields["max_tokens"] is None else fields["max_tokens"]
        return Request(id=id, logprobs=self.logprobs, echo=bool(self.echo), **fields)


Fields = Chat | Completion
