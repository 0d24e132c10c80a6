"""What the server counts for Prometheus, under the names of vLLM, which dashboards know, and kt's own.

Counters and histograms grow with the engine's chunks; the state of queue and pages is asked for when somebody looks.
Times are those of the engine's own clock, in seconds.
"""

import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from kt_core.engine.stream import Stream
from kt_core.types import Chunk, Timings, Usage

if TYPE_CHECKING:
    from kt_core.server.state import State

disable_created_metrics()  # type: ignore[no-untyped-call]  # a time for each series, which nobody graphs

_SHORT = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST = (*_SHORT, 160, 640, 2560)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000)
_REASONS = {"cancelled": "abort"}


@dataclass
class _Progress:
    """Of one choice: when its last chunk came, and its tokens that were counted."""

    last: float = 0.0
    counted: int = 0


class Metrics:
    """One server's figures. `observe` is for one thread at a time, the engine's."""

    def __init__(self, state: "State") -> None:
        self.registry = CollectorRegistry()
        self._state = state
        self._progress: dict[tuple[Stream, int], _Progress] = {}
        self._prompt = self._counter("vllm:prompt_tokens", "Tokens of prompts, cached ones included.")
        self._generated = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self._queries = self._counter(
            "vllm:prefix_cache_queries", "Tokens of prompts that were looked for in the cache."
        )
        self._hits = self._counter("vllm:prefix_cache_hits", "Tokens of prompts that the cache had.")
        self._ended = Counter(
            "vllm:request_success",
            "Answers that have ended.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        self._first = self._histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", _FIRST)
        self._between = self._histogram("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", _SHORT)
        self._mean = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean between two tokens, by answer.", _SHORT
        )
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", _LONG)
        self._queued = self._histogram("vllm:request_queue_time_seconds", "In the queue.", _LONG)
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "From the queue to the first token.", _LONG
        )
        self._decode = self._histogram("vllm:request_decode_time_seconds", "From the first to the last token.", _LONG)
        self._prompts = self._histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answers = self._histogram("vllm:request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self.http = Counter(
            "kt_http_requests", "HTTP requests by route.", ("method", "route", "status"), registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.registry.register(_Now(state))

    def observe(self, stream: Stream, chunk: Chunk) -> None:
        """A chunk of the engine's; the last one of a choice has its figures."""
        key = (stream, chunk.choice)
        progress = self._progress.setdefault(key, _Progress())
        now, new = time.monotonic(), len(chunk.tokens)
        if new and progress.last:
            for _ in range(new):
                self._between.observe((now - progress.last) / new)
        if new:
            progress.last = now
            progress.counted += new
            self._generated.inc(new)
        if chunk.finish_reason:
            del self._progress[key]
            self._end(chunk, progress.counted)

    def _end(self, chunk: Chunk, counted: int) -> None:
        reason = chunk.finish_reason or ""
        self._ended.labels(self._state.model, _REASONS.get(reason, reason)).inc()
        usage, timings = chunk.usage or Usage(0, 0), chunk.timings or Timings()
        if not usage.completion_tokens:  # it never got as far as a token: its times would be those of another thing
            return
        self._generated.inc(max(usage.completion_tokens - counted, 0))  # those without text of their own
        if chunk.choice == 0:
            self._prompt.inc(usage.prompt_tokens)
            self._queries.inc(usage.prompt_tokens)
            self._hits.inc(usage.cached_tokens)
            self._prompts.observe(usage.prompt_tokens)
        self._answers.observe(usage.completion_tokens)
        self._queued.observe(timings.queued)
        self._prefill.observe(timings.prefill)
        self._decode.observe(timings.decode)
        self._first.observe(timings.queued + timings.prefill)
        self._whole.observe(timings.queued + timings.prefill + timings.decode)
        if usage.completion_tokens > 1:
            self._mean.observe(timings.decode / (usage.completion_tokens - 1))

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ("model_name",), registry=self.registry).labels(self._state.model)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(name, text, ("model_name",), registry=self.registry, buckets=buckets)
        return made.labels(self._state.model)


class _Now(Collector):
    """What queue, pages and memory are at the moment. Before the model is loaded there is none."""

    def __init__(self, state: "State") -> None:
        self._state = state

    def describe(self) -> list[Any]:
        return []  # else the registry would ask for the values now

    def collect(self) -> Iterator[Any]:
        yield self._gauge("kt_ready", "Whether the model is loaded.", float(self._state.engine is not None))
        spec = self._state.plan.spec if self._state.plan else None
        if spec:
            sizes = spec.bytes_by_part
            share = spec.experts_per_token / spec.experts if spec.experts else 1.0
            active = sizes.get("other", 0) + sizes.get("experts", 0) * share
            yield self._gauge("kt_experts", "Routed experts of a layer.", spec.experts)
            yield self._gauge("kt_experts_per_token", "Routed experts that a token takes.", spec.experts_per_token)
            yield self._gauge("kt_weight_bytes", "Stored bytes of all weights.", sum(sizes.values()))
            yield self._gauge("kt_weight_bytes_per_token", "Stored bytes that one decoded token reads.", active)
        if self._state.engine is not None:
            yield from self._engine(self._state.engine.slots())
            found = self._state.engine.experts()
            yield from self._experts(found["layers"], found["asked"])
            yield self._counter("kt_experts_moved", "Experts that came to a device.", found["moved"]["experts"])
            yield self._counter("kt_experts_moved_bytes", "Bytes of these.", found["moved"]["bytes"])
            yield self._counter("kt_experts_hits", "Asks of experts that were on a device.", found["moved"]["hits"])

    def _engine(self, slots: dict[str, Any]) -> Iterator[Any]:
        pages = slots["pages"]
        used = 1 - pages["available"] / pages["count"]
        yield self._gauge("vllm:num_requests_running", "Sequences that run.", len(slots["running"]))
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", len(slots["waiting"]))
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the pages that sequences hold, 0 to 1.", used)
        yield self._counter("vllm:num_preemptions", "Sequences that gave up their pages.", slots["preempted"])
        yield self._counter("kt_pages_evicted", "Cached pages that were given up.", pages["evicted"])
        yield self._gauge("kt_pages", "Pages of the cache.", pages["count"])
        yield self._gauge("kt_pages_cached", "Pages with prefixes that nobody uses.", pages["cached"])
        yield self._gauge("kt_page_bytes", "Bytes of a page.", pages["bytes"])

    def _experts(self, layers: list[int], asked: list[list[int]]) -> Iterator[Any]:
        """Three series a layer: one for each expert would be fifteen thousand. /v1/kt/experts has them all."""
        labels = ("model_name", "layer")
        total = CounterMetricFamily("kt_experts_asked", "Times that experts were asked for a token.", labels=labels)
        busiest = GaugeMetricFamily("kt_experts_busiest_share", "Of these, those of the busiest expert.", labels=labels)
        half = GaugeMetricFamily("kt_experts_for_half", "The fewest experts that took half of these.", labels=labels)
        for layer, counts in zip(layers, asked, strict=True):
            names, all_times, ranked = [self._state.model, str(layer)], sum(counts), sorted(counts, reverse=True)
            total.add_metric(names, all_times)
            busiest.add_metric(names, ranked[0] / max(all_times, 1))
            half.add_metric(names, bisect_left(list(accumulate(ranked)), all_times / 2) + 1 if all_times else 0)
        return iter((total, busiest, half))

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=("model_name",))
        family.add_metric([self._state.model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=("model_name",))
        family.add_metric([self._state.model], value)
        return family
