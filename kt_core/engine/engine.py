"""The engine's front door: requests in from any thread, chunks out, one worker thread that computes."""

import logging
import threading
import time
from collections import deque
from typing import Any

import torch

from kt_core.engine import prompt, sampler
from kt_core.engine.answer import Answer, Piece
from kt_core.engine.runner import Runner
from kt_core.engine.stream import Closed, QueueFull, Stream, TimedOut
from kt_core.errors import KTError, UsageError
from kt_core.types import Chunk, Request, Timings, Usage

log = logging.getLogger(__name__)

# Tokens of a prompt that one step computes, and so the longest that a cancelled request still runs.
PREFILL_CHUNK = 512


class Engine:
    """Runs requests in the order of their arrival, one sequence at a time."""

    def __init__(self, runner: Runner, tokenizer: Any, max_queue: int = 64) -> None:
        self._runner = runner
        self._tokenizer = prompt.plain_tokenizer(tokenizer)
        self._max_queue = max_queue
        eos = tokenizer.eos_token_id
        self._eos = runner.eos_ids | (frozenset() if eos is None else {eos})
        self._change = threading.Condition()
        self._waiting: deque[Stream] = deque()
        self._running: Stream | None = None
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="engine", daemon=True)
        self._worker.start()

    def submit(self, request: Request) -> Stream:
        """Queue a request; nothing is computed yet when this returns.

        Raises QueueFull, Closed, and UsageError for a prompt that cannot be rendered, does not fit
        into the context, or names tokens that the model does not have.
        """
        self._check_room()
        ids = prompt.render(self._tokenizer, request, self._runner.max_context)
        self._check_tokens(request, ids)
        stream = Stream(request, ids, self._abort)
        if request.timeout is not None:
            error = TimedOut("engine.timeout", seconds=request.timeout)
            stream.timer = threading.Timer(request.timeout, self._abort, (stream, "error", error))
            stream.timer.daemon = True
        with self._change:
            self._check_room()
            self._waiting.append(stream)
            self._change.notify()
            if stream.timer:
                stream.timer.start()
        return stream

    def state(self) -> dict[str, Any]:
        """Requests that run and wait, the queue's and the context's limits, whether the worker lives."""
        with self._change:
            return {
                "running": int(self._running is not None),
                "waiting": len(self._waiting),
                "max_queue": self._max_queue,
                "context": self._runner.max_context,
                "alive": self._worker.is_alive() and not self._closed,
            }

    @property
    def tokenizer(self) -> Any:
        """Safe from several threads at once, as prompt.plain_tokenizer makes it."""
        return self._tokenizer

    def template_arguments(self) -> frozenset[str]:
        """What a request may set in `template_args`; empty without a chat template."""
        try:
            return prompt.template_arguments(self._tokenizer.get_chat_template())
        except ValueError:
            return frozenset()

    def token_text(self, token: int) -> str:
        """One token's own text; U+FFFD where it is a part of a character."""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def close(self, wait: float | None = None) -> None:
        """Cancel everything and stop the worker after its current step, which is awaited for `wait` seconds."""
        with self._change:
            self._closed = True
            streams = [*self._waiting, *([self._running] if self._running else [])]
            self._change.notify()
        for stream in streams:
            stream.cancel()
        self._worker.join(wait)

    def _check_room(self) -> None:
        with self._change:
            if self._closed:
                raise Closed("engine.closed")
            # With an idle worker the first request only passes through the queue.
            busy = self._running is not None or bool(self._waiting)
            if busy and len(self._waiting) >= self._max_queue:
                raise QueueFull("engine.queue_full", waiting=len(self._waiting), limit=self._max_queue)

    def _check_tokens(self, request: Request, ids: list[int]) -> None:
        limit, vocab = self._runner.max_context, self._runner.vocab
        if len(ids) >= limit:
            raise UsageError("engine.context_overflow", tokens=len(ids), limit=limit)
        for token in (*ids, *request.sampling.logit_bias, *request.stop_tokens):
            if not 0 <= token < vocab:
                raise UsageError("engine.unknown_token", token=token, last=vocab - 1)

    def _abort(self, stream: Stream, reason: str, error: KTError | None = None) -> None:
        """End one request, wherever it is. The first call counts."""
        with self._change:
            if stream.aborted:
                return
            stream.aborted, stream.error = reason, stream.error or error
            if stream not in self._waiting:
                return  # the worker looks before each step; an ended one does not care
            self._waiting.remove(stream)
        queued = time.monotonic() - stream.submitted
        usage = Usage(prompt_tokens=len(stream.prompt), completion_tokens=0)
        stream.put(Chunk("", finish_reason=reason, usage=usage, timings=Timings(queued=queued)))
        stream.end()

    def _work(self) -> None:
        while True:
            with self._change:
                self._running = None
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                self._running = stream = self._waiting.popleft()
            queued = time.monotonic() - stream.submitted
            for choice in range(stream.request.choices):
                _Sequence(self._runner, self._tokenizer, self._eos, stream, choice, queued).run()
                if stream.aborted or stream.error:
                    break
            stream.end()


class _Sequence:
    """One choice of one request, from its first prompt token to its last chunk."""

    def __init__(
        self, runner: Runner, tokenizer: Any, eos: frozenset[int], stream: Stream, choice: int, queued: float
    ) -> None:
        request = stream.request
        self._runner = runner
        self._stream = stream
        self._request = request
        self._choice = choice
        self._queued = queued
        self._ends = frozenset(request.stop_tokens) | (frozenset() if request.ignore_eos else eos)
        # A chat answer is decoded on its own; a continuation with the text that it continues.
        context = stream.prompt if request.messages is None or request.continue_final else ()
        self._answer = Answer(tokenizer, request.stop, context, request.marks)
        self._tokens = 0
        self._prefill = self._decode = 0.0  # seconds

    def run(self) -> None:
        """Generate until something ends it; always puts a last chunk."""
        reason = "error"
        try:
            reason = self._generate()
        except KTError as e:
            log.error("request %s: %s", self._request.id, e)
            self._stream.error = self._stream.error or e
        except Exception as e:  # whatever the model's code raises ends this request only
            log.exception("request %s failed", self._request.id)
            self._stream.error = self._stream.error or KTError(
                "engine.failed", reason=" ".join(f"{type(e).__name__}: {e}".split())
            )
        usage = Usage(prompt_tokens=len(self._stream.prompt), completion_tokens=self._tokens)
        timings = Timings(self._queued, self._prefill, self._decode)
        piece = self._answer.finish()
        self._put(piece, reason, usage, timings)

    def _generate(self) -> str:
        """Returns the finish_reason. Raises BadLogits and whatever the runner raises."""
        request, prompt_ids = self._request, self._stream.prompt
        room = self._runner.max_context - len(prompt_ids)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        state = sampler.start(request.sampling, prompt_ids, self._runner.vocab, self._choice)
        cache = self._runner.new_cache()
        started = time.monotonic()
        try:
            logits = self._compute_prompt(cache)
        finally:
            self._prefill = time.monotonic() - started
        started = time.monotonic()
        while logits is not None:
            token = sampler.sample(logits, request.sampling, state)
            self._tokens += 1
            self._decode = time.monotonic() - started
            if token in self._ends:
                return "stop"
            logprob = None if request.logprobs is None else sampler.logprobs(logits, token, request.logprobs)
            piece = self._answer.push(token, logprob)
            if self._answer.stopped:
                self._put(piece)
                return "stop"
            if piece.text:
                self._put(piece)
            if self._tokens >= limit:
                return "length"
            logits = self._step([token], cache)
        return self._stream.aborted or "cancelled"

    def _compute_prompt(self, cache: object) -> torch.Tensor | None:
        logits = None
        for first in range(0, len(self._stream.prompt), PREFILL_CHUNK):
            logits = self._step(self._stream.prompt[first : first + PREFILL_CHUNK], cache)
            if logits is None:
                return None
        return logits

    def _step(self, ids: list[int], cache: object) -> torch.Tensor | None:
        """The last token's logits, or None once the request was aborted."""
        if self._stream.aborted:
            return None
        logits = self._runner.forward(ids, cache)
        return None if self._stream.aborted else logits

    def _put(
        self, piece: Piece, reason: str | None = None, usage: Usage | None = None, timings: Timings | None = None
    ) -> None:
        self._stream.put(Chunk(piece.text, self._choice, piece.tokens, piece.logprobs, reason, usage, timings))
