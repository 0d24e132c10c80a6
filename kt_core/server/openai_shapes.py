"""The engine's chunks in the shapes of OpenAI's answers: choices, log-probabilities, usage, timings."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kt_core.server.parsers import Call, Event, Reasoning, Text
from kt_core.server.replies import Replies
from kt_core.types import Chunk, Timings, TokenLogprob, Usage

# JSON has no minus infinity; OpenAI writes this for "very unlikely".
_LEAST = -9999.0


class Shape(Protocol):
    """One endpoint's way to write an answer; one object per answer."""

    prefix: str

    def __init__(self, head: dict[str, Any], token_text: Callable[[int], str], replies: Replies) -> None: ...

    def head(self, streamed: bool = False) -> dict[str, Any]:
        """What every object of the answer starts with."""
        ...

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """One finished choice."""
        ...

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The choice objects that a chunk becomes in a stream."""
        ...


class ChatShape:
    prefix = "chatcmpl"

    def __init__(self, head: dict[str, Any], token_text: Callable[[int], str], replies: Replies) -> None:
        self._head = head
        self._token_text = token_text
        self._replies = replies
        self._begun: set[int] = set()
        self._calls: dict[int, int] = {}  # choice -> calls so far

    def head(self, streamed: bool = False) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk" if streamed else "chat.completion"}

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        message = _message([event for chunk in chunks for event in self._replies.events(chunk)])
        logprobs = self._logprobs([entry for chunk in chunks for entry in chunk.logprobs])
        return {
            "index": chunks[0].choice,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._replies.finish_reason(chunks[-1]),
        }

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if chunk.choice not in self._begun:
            self._begun.add(chunk.choice)
            deltas.append(self._choice(chunk, {"role": "assistant", "content": ""}))
        added = [delta for event in self._replies.events(chunk) for delta in self._deltas(chunk.choice, event)]
        logprobs = self._logprobs(chunk.logprobs)
        for delta in added or ([{"content": ""}] if logprobs else []):
            deltas.append({**self._choice(chunk, delta), "logprobs": logprobs})
            logprobs = None  # each token's goes out once
        if chunk.finish_reason:
            deltas.append({**self._choice(chunk, {}), "finish_reason": self._replies.finish_reason(chunk)})
        return deltas

    def _deltas(self, choice: int, event: Event) -> list[dict[str, Any]]:
        """A call comes as two: its name and id, and then only arguments, which clients put together."""
        if isinstance(event, Text):
            return [{"content": event.text}]
        if isinstance(event, Reasoning):
            return [_reasoning(event.text)]
        index = self._calls[choice] = self._calls.get(choice, -1) + 1
        first, arguments = _call(event), event.arguments
        first["function"]["arguments"] = ""
        return [{"tool_calls": [{"index": index, **call}]} for call in (first, {"function": {"arguments": arguments}})]

    @staticmethod
    def _choice(chunk: Chunk, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": chunk.choice, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not entries:
            return None
        return {"content": logprob_entries(entries, self._token_text), "refusal": None}


def logprob_entries(entries: Sequence[TokenLogprob], token_text: Callable[[int], str]) -> list[dict[str, Any]]:
    """Log-probabilities of tokens, each with the most likely ones in its place."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text = token_text(token)
        # A part of a character has no text of its own to take the bytes from.
        encoded = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": max(logprob, _LEAST), "bytes": encoded}

    return [{**one(e.token, e.logprob), "top_logprobs": [one(*pair) for pair in e.top]} for e in entries]


def _message(events: Sequence[Event]) -> dict[str, Any]:
    """The message of a whole answer; its content is null where it has only calls."""
    text = "".join(event.text for event in events if isinstance(event, Text))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = [_call(event) for event in events if isinstance(event, Call)]
    message = {"role": "assistant", "content": text or (None if calls else "")}
    return {**message, **(_reasoning(reasoning) if reasoning else {}), **({"tool_calls": calls} if calls else {})}


def _reasoning(text: str) -> dict[str, Any]:
    """Under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class CompletionShape:
    prefix = "cmpl"

    def __init__(self, head: dict[str, Any], token_text: Callable[[int], str], replies: Replies) -> None:
        self._head = head
        self._token_text = token_text
        self._offsets: dict[int, int] = {}  # choice -> characters of its text so far
        self._echo = replies.echo
        self._begun: set[int] = set()

    def head(self, streamed: bool = False) -> dict[str, Any]:
        return {**self._head, "object": "text_completion"}

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        text = self._echo + "".join(chunk.text for chunk in chunks)
        entries = [entry for chunk in chunks for entry in (*chunk.prompt, *chunk.logprobs)]
        return self._choice(chunks[-1], text, entries)

    def pieces(self, chunk: Chunk) -> list[dict[str, Any]]:
        text = chunk.text if chunk.choice in self._begun else self._echo + chunk.text
        self._begun.add(chunk.choice)
        return [self._choice(chunk, text, (*chunk.prompt, *chunk.logprobs))]

    def _choice(self, chunk: Chunk, text: str, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {
            "index": chunk.choice,
            "text": text,
            "logprobs": self._logprobs(chunk.choice, entries),
            "finish_reason": chunk.finish_reason,
        }

    def _logprobs(self, choice: int, entries: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not entries:
            return None
        tokens = [self._token_text(entry.token) for entry in entries]
        offset, offsets = self._offsets.get(choice, 0), []
        for token, entry in zip(tokens, entries, strict=True):
            offsets.append(offset)
            # A text's first token may be one that the tokenizer has put before it.
            offset += len(token) if not math.isnan(entry.logprob) or self._echo.startswith(token) else 0
        self._offsets[choice] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [None if math.isnan(e.logprob) else max(e.logprob, _LEAST) for e in entries],
            "top_logprobs": [None if math.isnan(e.logprob) else self._top(e) for e in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The most likely tokens and the chosen one, which may be one more than was asked for."""
        pairs = (*entry.top, (entry.token, entry.logprob)) if entry.top else ()
        return {self._token_text(token): max(logprob, _LEAST) for token, logprob in pairs}


def usage(last: Sequence[Chunk]) -> dict[str, Any]:
    """The prompt counts once, however many choices continue it; the further ones find it cached, which nobody asked."""
    all_usage = [chunk.usage or Usage(0, 0) for chunk in last]
    prompt = max((u.prompt_tokens for u in all_usage), default=0)
    completion = sum(u.completion_tokens for u in all_usage)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": min((u.cached_tokens for u in all_usage), default=0)},
    }


def prompt_progress(chunk: Chunk) -> dict[str, float | int]:
    """llama-server's field names: tokens of the prompt, and ms since its turn came."""
    usage, times = chunk.usage or Usage(0, 0), chunk.timings or Timings()
    done = {"total": usage.prompt_tokens, "cache": usage.cached_tokens, "processed": chunk.computed or 0}
    return {**done, "time_ms": times.prefill * 1e3}


def timings(last: Sequence[Chunk]) -> dict[str, float | int]:
    """llama-server's field names. Times in ms, summed over choices; rates in tokens per second, 0 when unknown.

    The first token of a choice comes out of the prompt's computation, so n tokens are n - 1 decode steps.
    """
    times = [chunk.timings or Timings() for chunk in last]
    all_usage = [chunk.usage or Usage(0, 0) for chunk in last]
    cached = sum(u.cached_tokens for u in all_usage)
    computed = sum(u.prompt_tokens for u in all_usage) - cached
    predicted = sum(u.completion_tokens for u in all_usage)
    steps = sum(max(u.completion_tokens - 1, 0) for u in all_usage)
    prefill, decode = sum(time.prefill for time in times), sum(time.decode for time in times)
    return {
        "cache_n": cached,
        "prompt_n": computed,
        "prompt_ms": prefill * 1e3,
        "prompt_per_second": computed / prefill if prefill else 0.0,
        "predicted_n": predicted,
        "predicted_ms": decode * 1e3,
        "predicted_per_second": steps / decode if steps and decode else 0.0,
    }
