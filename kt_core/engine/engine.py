"""The engine's front door: requests in from any thread, chunks out, one worker thread that computes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

import numpy as np

from kt_core.engine import prompt
from kt_core.engine.adapters import Adapters
from kt_core.engine.answer import Answer
from kt_core.engine.batch import step_of
from kt_core.engine.constraint import Grammars
from kt_core.engine.disk import PATIENCE, Folder, Host, Load, Tier, keys_of
from kt_core.engine.pace import Pace
from kt_core.engine.pages import Pages
from kt_core.engine.scheduler import Part, Scheduler
from kt_core.engine.sequence import Sequence
from kt_core.engine.step import Runner, Stateful
from kt_core.engine.stream import Closed, Observer, QueueFull, Stream, TimedOut
from kt_core.engine.vision import Seen, Vision
from kt_core.errors import KTError, UsageError
from kt_core.kernels.sampling import choose
from kt_core.messages import t
from kt_core.types import Chunk, Request, Timings, Usage

log = logging.getLogger(__name__)


class Engine:
    """Runs requests together, in the order of their arrival.

    At most `max_running` sequences are computed at a time and `max_queue` requests wait for their turn. `pages` are
    for keys and values of all of them; without it there are as many as they could ever use. Prefixes are also kept
    where `disk` says.
    """

    def __init__(
        self,
        runner: Runner,
        tokenizer: Any,
        max_queue: int = 64,
        pages: int | None = None,
        max_running: int = 8,
        disk: Folder | Host | None = None,
        vision: Vision | None = None,
    ) -> None:
        longest = -(-runner.max_context // runner.page)
        self._runner = runner
        self._tokenizer = prompt.plain_tokenizer(tokenizer)
        self._max_queue = max_queue
        eos = tokenizer.eos_token_id
        self._eos = runner.eos_ids | (frozenset() if eos is None else {eos})
        self._vision = vision
        self.adapters = Adapters(runner)
        self._grammars = Grammars(self._tokenizer, runner.vocab, self._eos)
        self._pages = Pages(max(longest, pages or longest * max_running), runner.page, runner.shareable)
        runner.allocate(self._pages.count)
        self._disk = Tier(disk, runner.storage) if disk is not None and runner.shareable else None
        self._states: Stateful | None = None if runner.shareable else cast(Stateful, runner)
        self._scheduler = Scheduler(self._pages, runner.max_tokens, max_running, runner.release, self._find)
        self._pace = Pace(runner.max_tokens)
        self._change = threading.Condition()
        self._waiting: deque[Stream] = deque()
        self._running: dict[Stream, list[Sequence]] = {}
        self._tasks: deque[Callable[[], None]] = deque()  # what other threads want done between two steps
        self._untold: dict[Stream, None] = {}  # whose callers do not know yet of the last step's chunks
        self._begun = 0  # requests, ever
        self._closed = False
        self._worker = threading.Thread(target=self._work, name="engine", daemon=True)
        self._worker.start()

    def submit(self, request: Request, observe: Observer | None = None) -> Stream:
        """Queue a request; nothing is computed yet when this returns. `observe` sees its chunks, those of the end too.

        Raises QueueFull, Closed, and UsageError for a prompt that cannot be rendered, does not fit
        into the context, is to have log-probabilities that the runner does not give, names tokens that the model does not have, or has a grammar that cannot be compiled,
        NotFound for an adapter that there is not.
        """
        self._check_room()
        if request.scores_prompt and not self._runner.shareable:
            raise UsageError("engine.no_scores", field="echo")
        ids, seen = self.prompt(request)
        self._check_tokens(request, ids)
        stream = Stream(request, ids, self._abort, observe)
        stream.seen = seen
        if seen:
            stream.keys = seen.keys
        if request.grammar is not None:
            stream.constraint = self._grammars.start(request.grammar)
        if request.adapter is not None:
            stream.adapter = self.adapters.take(request.adapter)
            stream.keys = stream.adapter.keys(stream.keys)
        if request.timeout is not None:
            error = TimedOut("engine.timeout", seconds=request.timeout)
            stream.timer = threading.Timer(request.timeout, self._abort, (stream, "error", error))
            stream.timer.daemon = True
        try:
            self._queue(stream)
        except BaseException:
            if stream.adapter:
                stream.adapter.leave()
            raise
        return stream

    def _queue(self, stream: Stream) -> None:
        """Raises QueueFull and Closed."""
        with self._change:
            self._check_room()
            if self._disk and self._running:  # it waits for its turn, and the disk need not
                self._disk.expect(keys_of(stream.keys, self._pages.page, 0, b""))
            self._waiting.append(stream)
            self._change.notify()
            if stream.timer:
                stream.timer.start()

    def prompt(self, request: Request) -> tuple[list[int], Seen | None]:
        """The prompt's token ids, images and videos at their full length, and what is seen in them.

        Raises UsageError as `submit` does, and for images that the model does not take or that cannot be read.
        """
        if request.attachments and self._vision is None:
            raise UsageError("media.no_vision")
        ids = prompt.render(self._tokenizer, request, self._runner.max_context)
        if not request.attachments or self._vision is None:
            return ids, None
        seen = self._vision.look(ids, request.attachments)
        return seen.tokens, seen

    def state(self) -> dict[str, Any]:
        """Requests that run and wait, the queue's and the context's limits, whether the worker lives."""
        with self._change:
            return {
                "running": len(self._running),
                "waiting": len(self._waiting),
                "max_queue": self._max_queue,
                "context": self._runner.max_context,
                "alive": self._worker.is_alive() and not self._closed,
            }

    @property
    def sees(self) -> bool:
        """Whether the model looks at images."""
        return self._vision is not None

    @property
    def tokenizer(self) -> Any:
        """Safe from several threads at once, as prompt.plain_tokenizer makes it."""
        return self._tokenizer

    def slots(self) -> dict[str, Any]:
        """What runs and what waits, the pages, and when a refused request may come again."""
        now = time.monotonic()
        with self._change:
            running = [sequence.state() for sequences in self._running.values() for sequence in sequences]
            waiting = [
                {"id": s.request.id, "prompt_tokens": len(s.prompt), "waited": round(now - s.submitted, 3)}
                for s in self._waiting
            ]
            retry_after = self._retry_after()
        pages = self._pages
        return {
            "running": running,
            "waiting": waiting,
            "max_running": self._scheduler.max_running,
            "max_queue": self._max_queue,
            "retry_after": retry_after,
            "preempted": self._scheduler.preempted,
            "pages": {
                "count": pages.count,
                "tokens": pages.page,
                "bytes": self._runner.page_bytes,
                "available": pages.available,
                "cached": pages.cached,
                "evicted": pages.evicted,
            },
        }

    def experts(self) -> dict[str, Any]:
        """Of each layer with routed experts that kt computes: how often each was asked for a token since the start, and
        which ones are computed elsewhere than on the CPU; and what those that change places have moved."""
        layers = self._runner.experts
        return {
            "layers": list(layers),
            "asked": [experts.asked for experts in layers.values()],
            "elsewhere": [
                [] if experts.elsewhere is None else experts.elsewhere.bool().nonzero().flatten().tolist()
                for experts in layers.values()
            ],
            "moved": dict(self._runner.moved),
        }

    def flush_cache(self) -> int:
        """Forget all cached prefixes, between two steps, and this model's on disk; returns how many pages of memory
        became free, or states were dropped. Raises Closed."""
        done: Future[tuple[int, Future[int] | None]] = Future()
        with self._change:
            if self._closed:
                raise Closed("engine.closed")
            self._tasks.append(lambda: done.set_result((self._flush(), self._disk.flush() if self._disk else None)))
            self._change.notify()
        freed, deleted = done.result()
        if deleted:
            log.info("%d pages on disk were deleted", deleted.result())
        return freed

    def template_arguments(self) -> frozenset[str]:
        """What a request may set in `template_args`; empty without a chat template."""
        try:
            return prompt.template_arguments(self._tokenizer.get_chat_template())
        except ValueError:
            return frozenset()

    @property
    def special_tokens(self) -> dict[str, int]:
        """Tokens that a grammar can only name by their ids, by their content."""
        return self._grammars.special

    def token_text(self, token: int) -> str:
        """One token's own text; U+FFFD where it is a part of a character."""
        text: str = self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def close(self, wait: float | None = None) -> None:
        """Cancel everything and stop the worker after its current step, which is awaited for `wait` seconds; in what is
        left of them, pages are written to disk."""
        with self._change:
            self._closed = True
            streams = [*self._waiting, *self._running]
            self._change.notify()
        for stream in streams:
            stream.cancel()
        end = None if wait is None else time.monotonic() + wait
        self._worker.join(wait)
        if self._disk:
            self._disk.close(None if end is None else max(0.0, end - time.monotonic()))

    def _check_room(self) -> None:
        with self._change:
            if self._closed:
                raise Closed("engine.closed")
            # With an idle worker the first request only passes through the queue.
            busy = bool(self._running or self._waiting)
            if busy and len(self._waiting) >= self._max_queue:
                seconds = self._retry_after()
                raise QueueFull("engine.queue_full", waiting=len(self._waiting), limit=self._max_queue, seconds=seconds)

    def _retry_after(self) -> int:
        """Seconds until a place in the queue is likely to be free."""
        return self._pace.retry_after(len(self._running))

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
                self._change.notify()
                return  # the worker looks before each step; an ended one does not care
            self._waiting.remove(stream)
        queued = time.monotonic() - stream.submitted
        usage = Usage(prompt_tokens=len(stream.prompt), completion_tokens=0)
        stream.put(Chunk("", finish_reason=reason, usage=usage, timings=Timings(queued=queued)))
        stream.end()

    # --- the worker

    def _work(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:  # a fault of the engine's own: nobody may wait for answers that will not come
            log.exception("the engine failed")
            with self._change:
                self._closed = True
                streams = [*self._waiting, *self._running]
            for stream in streams:
                stream.error = stream.error or KTError("engine.failed", reason=type(error).__name__)
                stream.put(Chunk("", finish_reason="error"))
                stream.end()

    def _turn(self) -> bool:
        """One step, once there is something to do; False when the engine has been closed and nothing is left."""
        with self._change:
            busy = self._busy()
        if not busy:
            self._tell()
        with self._change:
            self._change.wait_for(self._busy, PATIENCE if self._running else None)
            while self._tasks:
                self._tasks.popleft()()
            if self._closed and not self._waiting and not self._running:
                return False
            self._begin()
        self._sweep()
        self._step()
        return True

    def _busy(self) -> bool:
        """Whether a turn would do anything. Nothing is to do while all that run wait for the disk."""
        if self._tasks or self._closed:
            return True
        running, waiting = self._scheduler.running, self._scheduler.waiting
        if any(not s.load or s.load.stuck for s in running) or any(s.stream.aborted for s in (*running, *waiting)):
            return True
        return self._scheduler.admits or bool(self._waiting and self._scheduler.room_for(self._waiting[0]))

    def _find(self, sequence: Sequence, miss: str) -> None:
        """What pages in memory lack of the sequence's prefix, because of `miss`. It begins now, or when that is there."""
        if self._states:
            sequence.computed, miss = self._states.resume(sequence.number, sequence.keys)
        elif self._disk and miss not in ("", "short", "whole"):
            sequence.load = self._load(self._disk, sequence, miss)
        if not sequence.load:
            sequence.begin(miss)

    def _load(self, disk: Tier, sequence: Sequence, miss: str) -> Load | None:
        table, found = sequence.table, len(sequence.table.nodes)
        keys = keys_of(sequence.keys, self._pages.page, found, table.nodes[-1].path if found else b"")
        pages = table.pages[found : found + len(keys)]
        return disk.load(keys, pages, lambda load: self._ask(lambda: self._loaded(sequence, load, miss)))

    def _ask(self, task: Callable[[], None]) -> None:
        """Have the worker do something between two steps."""
        with self._change:
            self._tasks.append(task)
            self._change.notify()

    def _loaded(self, sequence: Sequence, load: Load, miss: str) -> None:
        """What came from disk is computed now; the rest is still to do."""
        if sequence.load is not load:
            return  # it gave up its pages meanwhile
        sequence.load = None
        load.cancel()
        sequence.computed += load.done * self._pages.page
        self._pages.commit(sequence.table, sequence.keys, sequence.computed)
        sequence.begin(miss if load.done < len(load.pages) else "", load.done * self._pages.page)

    def _flush(self) -> int:
        """Forget what memory holds, and what is just being read."""
        for sequence in self._scheduler.running:
            if sequence.load:
                sequence.load.cancel()
                sequence.load.done = 0
        return self._states.forget() if self._states else self._pages.flush()

    def _begin(self) -> None:
        """Let waiting requests begin, in their order, as long as there is room for the first. Holds the lock."""
        while self._waiting and self._scheduler.room_for(self._waiting[0]):
            stream = self._waiting.popleft()
            self._begun += 1
            self._running[stream] = [self._sequence(stream, choice) for choice in range(stream.request.choices)]
            self._scheduler.add(list(self._running[stream]))

    def _sequence(self, stream: Stream, choice: int) -> Sequence:
        request = stream.request
        ends = frozenset(request.stop_tokens) | (frozenset() if request.ignore_eos else self._eos)
        # A chat answer is decoded on its own; a continuation with the text that it continues.
        context = stream.prompt if request.messages is None or request.continue_final else ()
        room = self._runner.max_context - len(stream.prompt)
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        answer = Answer(self._tokenizer, request.stop, context, request.marks)
        return Sequence(stream, choice, (self._begun, choice), answer, ends, limit)

    def _sweep(self) -> None:
        """End what was aborted."""
        for sequence in (*self._scheduler.running, *self._scheduler.waiting):
            if reason := sequence.stream.aborted:
                sequence.end(reason)
                self._ended(sequence)
            elif sequence.load and self._disk and (sequence.load.stuck or self._disk.off):
                self._disk.give_up(t("engine.disk_slow", seconds=PATIENCE))
                self._loaded(sequence, sequence.load, "")

    def _step(self) -> None:
        parts = self._scheduler.plan(self._pace.beside)
        if not parts:
            return
        started = time.monotonic()
        for part, outcome in self._chosen(self._computed(parts)):
            self._take(part, outcome)
        self._untold |= {part.sequence.stream: None for part in parts}
        self._pace.step([part.size for part in parts], time.monotonic() - started)

    def _computed(self, parts: list[Part]) -> list[tuple[Part, Any]]:
        """Each part with the logits that it wants, float32 [rows, vocab], or the exception that ended it.

        A step that fails for several sequences is taken again for each of them, so that only those end that cannot be
        computed. Doing that again is harmless: the same keys and values go to the same places.
        """
        try:
            wanted = [part.sequence.wanted(part.size) for part in parts]
            step = step_of(parts, self._pages.page)
            self._tell()
            rows = np.ascontiguousarray(self._runner.forward(step).numpy())
            return list(zip(parts, np.split(rows, np.cumsum(wanted)[:-1]), strict=True))
        except Exception as error:
            if len(parts) == 1:
                return [(parts[0], error)]
            log.warning("a step of %d sequences failed, each is tried alone: %s", len(parts), error)
        return [outcome for part in parts for outcome in self._computed([part])]

    def _tell(self) -> None:
        """Wake who waits for the last step's chunks. Just before the next step, or when there is none: their threads run while
        kernels compute, where a little sooner they would take turns with this one."""
        for stream in self._untold:
            stream.tell()
        self._untold.clear()

    def _chosen(self, computed: list[tuple[Part, Any]]) -> list[tuple[Part, Any]]:
        """The same, with the tokens that follow: logits, and what was chosen by the last row or None."""
        outcomes, drafts = list(computed), {}
        for place, (part, rows) in enumerate(computed):
            if isinstance(rows, Exception):
                continue
            outcomes[place] = part, (rows, None)
            try:
                if part.size == part.sequence.pending and part.sequence.answers:
                    drafts[place] = part.sequence.draft(rows[-1])
            except KTError as error:
                outcomes[place] = part, error
        for place, chosen in zip(drafts, choose(list(drafts.values())), strict=True):
            outcomes[place] = computed[place][0], (computed[place][1], chosen)
        return outcomes

    def _take(self, part: Part, outcome: Any) -> None:
        """What a step brought for one sequence."""
        sequence = part.sequence
        if sequence.stream.aborted:
            sequence.end(sequence.stream.aborted)
        elif isinstance(outcome, Exception):
            sequence.fail(outcome)
        else:
            rows, chosen = outcome
            if sequence.scoring:
                sequence.score(rows)
            sequence.computed += part.size
            try:
                if chosen:
                    sequence.accept(rows[-1], chosen)
                elif not sequence.pending:
                    sequence.end("length")
                elif sequence.stream.request.progress and sequence.choice == 0:
                    sequence.stream.put(_progress(sequence))
            except KTError as error:
                sequence.fail(error)
                if error.key == "engine.bad_logits":  # what led there may lie in pages
                    paths = [node.path for node in sequence.table.nodes]
                    self._flush()
                    if self._disk:
                        self._disk.forget(paths)
            else:
                self._pages.commit(sequence.table, sequence.keys, sequence.computed)
        if sequence.ended:
            self._ended(sequence)

    def _ended(self, sequence: Sequence) -> None:
        if self._disk:
            self._disk.keep(sequence.table.nodes)
        self._scheduler.remove(sequence)
        stream = sequence.stream
        with self._change:
            left = self._running[stream]
            left.remove(sequence)
            if left:
                return
            del self._running[stream]
            if sequence.begun:
                self._pace.request(time.monotonic() - sequence.begun)
        stream.end()


def _progress(sequence: Sequence) -> Chunk:
    """How far a sequence's prompt is."""
    usage = Usage(len(sequence.stream.prompt), 0, sequence.cached or 0)
    timings = Timings(sequence.begun - sequence.stream.submitted, time.monotonic() - sequence.begun)
    return Chunk("", usage=usage, timings=timings, computed=sequence.computed)
