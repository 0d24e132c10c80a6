"""Requests to an OpenAI-compatible server, each with the moment of every piece of its answer."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from kt_core.bench.serving.workload import Case, Length, words
from kt_core.errors import KTError, NotFound
from kt_core.formats.problems import shown
from kt_core.messages import t

CONNECT_SECONDS = 5.0
WAIT_SECONDS = 5.0  # without a byte, after which a person hears of it; each further time after twice as long
PATIENCE_SECONDS = 600  # without a byte, after which the server counts as hung: a long prompt on a CPU takes minutes
WARM = Case(Length(16, 16), Length(4, 4), concurrency=1, depth=0, repeats=1)
WORDS_ASKED = 1.3  # words for each token wanted; what is too much is cut off
Result = TypeVar("Result")


@dataclass
class Sample:
    """One request: when it was sent, and when each piece of its answer came (seconds of one clock)."""

    sent: float
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    error: str = ""

    @property
    def first(self) -> float:
        """Seconds to the first piece."""
        return self.pieces[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [after - before for before, after in zip(self.pieces, self.pieces[1:], strict=False)]

    @property
    def decode_rate(self) -> float:
        """Tokens a second behind the first one; 0 for an answer of one piece."""
        seconds = self.pieces[-1] - self.pieces[0]
        return (self.tokens - 1) / seconds if seconds > 0 else 0.0


class Server:
    """The address of a server, the model to ask for there, and how it cuts text into tokens.

    Without a `seed` prompts are new each time: the same ones would lie in the prefix cache, on disk after a restart too.
    `waits` hears the seconds for which the server has been silent; after `patience` of them it is given up.
    """

    def __init__(
        self,
        url: str,
        model: str,
        key: str = "",
        seed: int | None = None,
        patience: float = PATIENCE_SECONDS,
        waits: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.url = url
        self.model = model
        self._key = key
        self._chance = random.Random(seed)
        self._patience = patience
        self._waits = waits
        self._heard = 0.0  # when the last byte came

    def _client(self) -> httpx.AsyncClient:
        """Proxy variables are not followed: the figures would be the proxy's."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS, read=self._patience, write=self._patience),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    def run(self, case: Case, report: Callable[[int], None]) -> list[Sample]:
        """All requests of a case; `report` hears how many have ended. Raises NotFound where nothing answers, or nothing more."""
        return asyncio.run(self._watched(self._run(case, report)))

    def warm_up(self) -> None:
        """One short request that nobody times: the first one finds nothing ready. Raises NotFound, or KTError for a refusal."""
        failed(self.run(WARM, lambda done: None))

    def info(self) -> dict[str, Any] | None:
        """What a server of kt tells about itself; None for another server."""
        return asyncio.run(self._watched(self._info()))

    async def _watched(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The work's result; a server that is silent meanwhile is told of."""
        self._hear()
        watching = asyncio.create_task(self._watch())
        try:
            return await work
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        told = WAIT_SECONDS
        while True:
            await asyncio.sleep(WAIT_SECONDS / 10)
            silent = time.monotonic() - self._heard
            if silent < WAIT_SECONDS:
                told = WAIT_SECONDS
            elif silent >= told:
                self._waits(silent)
                told *= 2

    def _hear(self) -> None:
        self._heard = time.monotonic()

    def _failure(self, error: httpx.TransportError) -> NotFound:
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
            return NotFound("client.silent", url=self.url, seconds=f"{self._patience:g}")
        return NotFound("client.no_answer", url=self.url, reason=error)

    async def _info(self) -> dict[str, Any] | None:
        async with self._client() as client:
            try:
                answer = await client.get("/v1/kt/info")
                found = answer.json() if answer.status_code == httpx.codes.OK else None
            except httpx.TransportError as error:
                raise self._failure(error) from error
            except (ValueError, httpx.DecodingError):
                return None
        return found if isinstance(found, dict) else None

    async def _run(self, case: Case, report: Callable[[int], None]) -> list[Sample]:
        async with self._client() as client:
            before = await self._prompt(client, case.depth) if case.depth else []
            if case.depth:
                await self._ask(client, before, 1)  # puts it into the cache
            wishes = [
                (await self._prompt(client, case.prompt.draw(self._chance)), case.output.draw(self._chance))
                for _ in range(case.requests)
            ]
            waiting = iter(wishes)
            samples: list[Sample] = []

            async def one_client() -> None:
                for prompt, tokens in waiting:
                    samples.append(await self._ask(client, _joined(before, prompt), tokens))
                    report(len(samples))

            await _all([one_client() for _ in range(case.concurrency)])
        return samples

    async def _prompt(self, client: httpx.AsyncClient, tokens: int) -> list[int] | str:
        """Exactly so many token ids, or a text of about so many where the server does not tokenise for others."""
        text = words(int(tokens * WORDS_ASKED) + 8, self._chance)
        try:
            answer = await client.post("/tokenize", json={"model": self.model, "prompt": text})
            self._hear()
            ids = list(answer.json()["tokens"]) if answer.status_code == httpx.codes.OK else []
        except httpx.TransportError as error:
            raise self._failure(error) from error
        except (ValueError, KeyError, TypeError, httpx.DecodingError):
            ids = []
        if len(ids) >= tokens and all(isinstance(id, int) for id in ids):
            return list(ids[-tokens:])  # the end: some tokenizers put a token of their own first
        return words(tokens, self._chance)

    async def _ask(self, client: httpx.AsyncClient, prompt: list[int] | str, tokens: int) -> Sample:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sample = Sample(time.perf_counter())
        try:
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    sample.error = _words(answer.status_code, await answer.aread())
                else:
                    await _read(answer, sample, self._hear)
        except (httpx.ReadTimeout, httpx.WriteTimeout) as error:
            raise self._failure(error) from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            sample.error = t("bench.connection", reason=error) if str(error) else t("bench.connection_lost")
        sample.ended = time.perf_counter()
        return sample


async def _read(answer: httpx.Response, sample: Sample, hear: Callable[[], None]) -> None:
    """The moments of the pieces that hold text, and the usage at the end. `hear` is called at each line."""
    ended = False
    async for line in answer.aiter_lines():
        hear()
        data = line.removeprefix("data:").strip()
        ended = ended or data == "[DONE]"
        if not line.startswith("data:") or ended:
            continue
        now = time.perf_counter()
        try:
            _note(json.loads(data), now, sample)
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
            sample.error = t("bench.no_event", line=shown(data[:80]))
        if sample.error:
            return
    if not sample.pieces or not ended:
        sample.error = t("bench.cut_short" if sample.pieces else "bench.no_text")
    elif sample.tokens < 1:
        sample.error = t("bench.no_usage")


def _note(event: Any, now: float, sample: Sample) -> None:
    """What an event tells. Raises TypeError, AttributeError, KeyError or ValueError for one that is none of a completion."""
    if error := event.get("error"):
        sample.error = str(error.get("message", error) if isinstance(error, dict) else error)
        return
    if any(choice.get("text") for choice in event.get("choices", [])):
        sample.pieces.append(now)
    if usage := event.get("usage"):
        sample.prompt_tokens, sample.tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        sample.cached_tokens = int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


def _joined(before: list[int] | str, prompt: list[int] | str) -> list[int] | str:
    if isinstance(before, list) and isinstance(prompt, list):
        return before + prompt
    return f"{before} {prompt}" if before else prompt


def _words(status: int, body: bytes) -> str:
    """A refusal in the server's own words."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"


async def _all(clients: list[Awaitable[None]]) -> None:
    """All at once; the first failure ends the others."""
    tasks = [asyncio.ensure_future(client) for client in clients]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def failed(samples: list[Sample]) -> None:
    """Raises KTError with the first reason where no request got an answer."""
    if samples and all(sample.error for sample in samples):
        raise KTError("bench.all_failed", count=len(samples), reason=samples[0].error)
