"""The fields of Ollama's chat and generate requests, mapped onto those of OpenAI's."""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictBool

from kt_core.errors import UsageError
from kt_core.server import bodies
from kt_core.server.openai_fields import THINKING_SWITCHES, Chat, Number, Seed, Stops, Text, Tool, Whole
from kt_core.server.parsers import Style
from kt_core.types import Request

_FIXED = "chosen when the server starts"
HARMLESS_OPTIONS = {
    "embedding_only": _FIXED,
    "f16_kv": _FIXED,
    "logits_all": _FIXED,
    "low_vram": _FIXED,
    "main_gpu": _FIXED,
    "mirostat_eta": "mirostat is refused",
    "mirostat_tau": "mirostat is refused",
    "num_batch": _FIXED,
    "num_ctx": f"the context is {_FIXED}; a prompt that does not fit is refused",
    "num_gpu": _FIXED,
    "num_keep": "no prompt is cut",
    "num_thread": _FIXED,
    "numa": _FIXED,
    "use_mlock": _FIXED,
    "use_mmap": _FIXED,
    "vocab_only": _FIXED,
}
REFUSED_OPTIONS: dict[str, tuple[Any, ...]] = {"penalize_newline": (True,), "repeat_last_n": (-1,), "tfs_z": (1,)}
REFUSED: dict[str, tuple[Any, ...]] = {"context": ([],), "suffix": ("",), "template": ("",)}
HARMLESS = {
    "height": "no images are made",
    "keep_alive": "the model stays until the server ends",
    "steps": "no images are made",
    "shift": "no answer is longer than the context",
    "truncate": "no prompt is cut; one that does not fit is refused",
    "width": "no images are made",
}
# What a chat request takes or refuses under the same name.
_SAME = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "frequency_penalty", "presence_penalty")
_PASSED = ("mirostat",)


def _limit(value: int) -> int:
    """-1 and -2 are no limit."""
    if value == 0:
        raise ValueError("an answer has at least one token")
    return value


def _stops(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Options(bodies.Body):
    refused = REFUSED_OPTIONS
    harmless = HARMLESS_OPTIONS

    num_predict: Annotated[Whole, Field(ge=-2), AfterValidator(_limit)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    mirostat: Whole | None = None
    seed: Seed | None = None
    stop: Annotated[list[Text], BeforeValidator(_stops, json_schema_input_type=Stops), Field(max_length=16)] | None = (
        None
    )
    repeat_penalty: Annotated[Number, Field(ge=0.01, le=10)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None

    def common(self) -> dict[str, Any]:
        """By the names of a chat request."""
        limit = self.num_predict if (self.num_predict or 0) > 0 else None
        same = {name: getattr(self, name) for name in (*_SAME, *_PASSED)}
        return {**same, "max_tokens": limit, "repetition_penalty": self.repeat_penalty}


class _Common(bodies.Body):
    harmless = HARMLESS

    model: str | None = None
    stream: StrictBool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: StrictBool | str | None = None
    options: Options | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None

    def ignored(self) -> list[str]:
        return [*super().ignored(), *(f"options.{name}" for name in (self.options.ignored() if self.options else ()))]

    @property
    def streamed(self) -> bool:
        """An answer comes in pieces unless a client says no."""
        return self.stream is not False

    def _chat(self, messages: list[dict[str, Any]], known: frozenset[str], style: Style, **more: Any) -> Chat:
        fields = {"messages": messages, **(self.options or Options()).common(), **more}
        fields |= {"logprobs": self.logprobs, "top_logprobs": self.top_logprobs}
        fields |= {"response_format": _format(self.format)} | self._thinking(known, style)
        return bodies.made(Chat, {name: value for name, value in fields.items() if value is not None})

    def _thinking(self, known: frozenset[str], style: Style) -> dict[str, Any]:
        """Raises UsageError for a model that cannot think. One that has no switch thinks by itself."""
        if self.think and style.thinking is None and not known & THINKING_SWITCHES.keys():
            raise UsageError("server.field", field="think", reason="this model has no thinking")
        effort = {"reasoning_effort": self.think} if isinstance(self.think, str) and self.think else {}
        on = None if self.think is None or not known & THINKING_SWITCHES.keys() else bool(self.think)
        return {**effort, "enable_thinking": on}


def _format(format: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(format, dict):
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": format}}
    return {"type": "json_object"} if format else None


def _seen(text: str, images: list[str] | None) -> str | list[dict[str, Any]]:
    """Content with its images, base64 each, before the text."""
    if not images:
        return text
    urls = [f"data:image/*;base64,{image}" for image in images]
    return [*({"type": "image_url", "image_url": {"url": url}} for url in urls), {"type": "text", "text": text}]


class CalledFunction(BaseModel):
    name: Text
    arguments: dict[str, Any] = {}


class ToolCall(BaseModel):
    id: str | None = None
    function: CalledFunction


class Message(bodies.Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: list[str] | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def plain(self, index: int) -> dict[str, Any]:
        calls = [
            {"id": call.id or f"call_{index}_{number}", "type": "function", "function": call.function.model_dump()}
            for number, call in enumerate(self.tool_calls or ())
        ]
        message: dict[str, Any] = {
            "role": self.role,
            "content": _seen(self.content, self.images),
            "reasoning_content": self.thinking,
            "name": self.tool_name,
        }
        message |= {"tool_calls": calls or None, "tool_call_id": self.tool_call_id}
        return {name: value for name, value in message.items() if value is not None}


class OllamaChat(_Common):
    messages: list[Message] | None = None
    tools: list[Tool] | None = None

    @property
    def loads_only(self) -> bool:
        """Without anything to answer, clients ask whether the model is there."""
        return not self.messages

    def request(self, id: str, known: frozenset[str], style: Style) -> Request:
        """The engine's request. `known` are the arguments that the model's chat template reads."""
        messages = [message.plain(index) for index, message in enumerate(self.messages or ())]
        tools = [tool.model_dump() for tool in self.tools or ()] or None
        return self._chat(messages, known, style, tools=tools).request(id, known)


class Generate(_Common):
    refused = REFUSED

    prompt: str = ""
    images: list[str] | None = None
    system: str | None = None
    raw: StrictBool | None = None

    @property
    def loads_only(self) -> bool:
        return not self.prompt

    def request(self, id: str, known: frozenset[str], style: Style) -> Request:
        """The prompt as what a user says, or as it is where `raw` is set."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        chat = self._chat([*system, {"role": "user", "content": _seen(self.prompt, self.images)}], known, style)
        request = chat.request(id, known)
        if not self.raw:
            return request
        for field in ("system", "images"):
            if getattr(self, field):
                raise UsageError("server.field", field=field, reason="it does not go with raw: true")
        return replace(request, messages=None, template_args={}, text=self.prompt)
