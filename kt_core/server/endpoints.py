"""Every endpoint once: what it takes and answers. The OpenAPI document and the tables of docs/api.md are made from it."""

from dataclasses import dataclass
from typing import Any

from kt_core.server import answers
from kt_core.server.adapters import Load, Unload
from kt_core.server.anthropic_fields import Messages, Prompt
from kt_core.server.bodies import Body
from kt_core.server.ollama import LINES
from kt_core.server.ollama_fields import Generate, OllamaChat
from kt_core.server.ollama_models import Show
from kt_core.server.openai_fields import Chat, Completion
from kt_core.server.responses_fields import Responses
from kt_core.server.tokens import Source, Tokens

EVENTS = "text/event-stream"
TEXT = "text/plain"
# What any endpoint may answer besides: a body that is too slow, an unforeseen failure; with keys, 401.
ALWAYS = (500,)
READS = (400, 404, 408, 413, 503)  # it takes a body, and the model must be loaded
ANSWERS = (*READS, 429, 504)  # it queues a request


@dataclass(frozen=True)
class Endpoint:
    """`answer` is the type of its JSON; None for plain text. `streamed` is the media type of the answer in pieces."""

    method: str
    path: str
    summary: str
    answer: Any
    body: type[Body] | None = None
    statuses: tuple[int, ...] = ()
    streamed: str = ""
    error: Any = answers.Error
    open: bool = False  # to everybody


ENDPOINTS = (
    Endpoint("POST", "/v1/chat/completions", "An answer to chat messages", answers.ChatCompletion, Chat, ANSWERS, EVENTS),
    Endpoint("POST", "/v1/completions", "A continuation", answers.TextCompletion, Completion, ANSWERS, EVENTS),
    Endpoint("POST", "/v1/responses", "An answer to items", answers.Response, Responses, ANSWERS, EVENTS),
    Endpoint(
        "POST", "/v1/messages", "An answer to messages", answers.AnthropicMessage, Messages, ANSWERS, EVENTS,
        answers.AnthropicError,
    ),
    Endpoint(
        "POST", "/v1/messages/count_tokens", "The tokens of a prompt", answers.InputTokens, Prompt, READS,
        error=answers.AnthropicError,
    ),
    Endpoint(
        "POST", "/api/chat", "An answer to chat messages", answers.OllamaChatAnswer, OllamaChat, ANSWERS, LINES,
        answers.OllamaError,
    ),
    Endpoint(
        "POST", "/api/generate", "An answer to a prompt", answers.OllamaGenerateAnswer, Generate, ANSWERS, LINES,
        answers.OllamaError,
    ),
    Endpoint("POST", "/api/show", "About the model", answers.OllamaShow, Show, READS, error=answers.OllamaError),
    Endpoint("GET", "/api/tags", "The models", answers.OllamaModels, error=answers.OllamaError),
    Endpoint("GET", "/api/ps", "The loaded models", answers.OllamaModels, error=answers.OllamaError),
    Endpoint("GET", "/api/version", "The version of this dialect", answers.OllamaVersion, error=answers.OllamaError),
    Endpoint("GET", "/v1/models", "The models", answers.Models),
    Endpoint("GET", "/v1/models/{name}", "One model", answers.Model, statuses=(404,)),
    Endpoint(
        "POST", "/v1/load_lora_adapter", "Let requests take an adapter", answers.AdapterLoaded, Load,
        READS,
    ),
    Endpoint(
        "POST", "/v1/unload_lora_adapter", "Let no request take it any more", answers.AdapterDropped, Unload,
        READS,
    ),
    Endpoint("POST", "/tokenize", "The tokens of a text or of messages", answers.Tokens, Source, READS),
    Endpoint("POST", "/detokenize", "The text of tokens", answers.Detokenized, Tokens, READS),
    Endpoint("POST", "/apply-template", "The prompt of messages", answers.Rendered, Chat, READS),
    Endpoint("GET", "/slots", "What runs and waits", answers.Slots, statuses=(503,)),
    Endpoint("POST", "/flush_cache", "Forget cached prefixes", answers.Flushed, statuses=(503,)),
    Endpoint("GET", "/metrics", "Figures for Prometheus", None),
    Endpoint("GET", "/v1/kt/experts", "How often each routed expert was asked, and where it is computed", answers.Experts, statuses=(503,)),
    Endpoint("GET", "/v1/kt/info", "Plan, kernels, memory and versions", answers.Info),
    Endpoint("GET", "/health", "Whether the model answers", answers.Health, open=True),
)  # fmt: skip
