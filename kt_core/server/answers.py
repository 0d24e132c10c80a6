"""The shapes of the answers, for the OpenAPI document and for whoever reads it. Clients may meet more fields than these."""

from typing import Any, Literal

from typing_extensions import NotRequired, TypedDict

Finish = Literal["stop", "length", "tool_calls"]


# --- errors


class ErrorBody(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(TypedDict):
    error: ErrorBody


class AnthropicErrorBody(TypedDict):
    type: str
    message: str


class AnthropicError(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorBody


class OllamaError(TypedDict):
    error: str


# --- chat and completions


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class EntryLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    content: list[EntryLogprob]
    refusal: None


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class CachedTokens(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Timings(TypedDict):
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class CompletionLogprobs(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish


class TextCompletion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings


# --- responses


class OutputItem(TypedDict):
    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Literal["completed", "incomplete"]


class OutputTokens(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


class Response(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    store: Literal[False]
    temperature: float
    tools: list[dict[str, Any]]
    top_p: float
    usage: ResponseUsage


# --- Anthropic


class AnthropicUsage(TypedDict):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class ContentBlock(TypedDict):
    type: Literal["text", "thinking", "tool_use"]


class AnthropicMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "tool_use", "stop_sequence"]
    stop_sequence: str | None
    usage: AnthropicUsage


class InputTokens(TypedDict):
    input_tokens: int


# --- Ollama


class OllamaAnswer(TypedDict):
    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[str]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]


class OllamaChatAnswer(OllamaAnswer):
    message: OllamaMessage


class OllamaGenerateAnswer(OllamaAnswer):
    response: str
    thinking: NotRequired[str]


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    modified_at: NotRequired[str]
    expires_at: NotRequired[str]
    size_vram: NotRequired[int]
    context_length: NotRequired[int]


class OllamaModels(TypedDict):
    models: list[OllamaModel]


class OllamaShow(TypedDict):
    modelfile: str
    parameters: str
    template: str
    license: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(TypedDict):
    version: str


# --- the rest


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_length: NotRequired[int]
    parent: NotRequired[str]  # of a model with an adapter, the model


class AdapterLoaded(TypedDict):
    id: str
    object: Literal["model"]
    bytes: int


class AdapterDropped(TypedDict):
    id: str
    object: Literal["model"]
    deleted: bool


class Models(TypedDict):
    object: Literal["list"]
    data: list[Model]


class TokenPiece(TypedDict):
    id: int
    piece: str


class Tokens(TypedDict):
    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int


class Detokenized(TypedDict):
    content: str
    prompt: str


class Rendered(TypedDict):
    prompt: str


class Slots(TypedDict):
    running: list[dict[str, Any]]
    waiting: list[dict[str, Any]]
    max_running: int
    max_queue: int
    retry_after: int
    preempted: int
    pages: dict[str, int]


class Flushed(TypedDict):
    flushed_pages: int


class Health(TypedDict):
    status: Literal["ok"]
    model: str
    running: int
    waiting: int
    max_queue: int
    context: int


class Unhealthy(TypedDict):
    status: Literal["loading", "stopped"]
    stage: NotRequired[str]
    done: NotRequired[int]
    total: NotRequired[int]


class Experts(TypedDict):
    layers: list[int]
    asked: list[list[int]]
    elsewhere: list[list[int]]
    moved: dict[str, int]


class Info(TypedDict):
    model: str
    ready: bool
    started: int
    uptime: float
    engine: dict[str, Any] | None
    kernels: dict[str, Any] | None
    spec: dict[str, Any] | None
    decisions: list[dict[str, Any]]
    predicted: dict[str, float]
    memory: dict[str, Any]
    versions: dict[str, str | None]
