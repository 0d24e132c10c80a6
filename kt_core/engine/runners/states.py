"""States of transformers' caches at borders of pages, so that a common prefix is computed once."""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from kt_core.engine.pages import path_after

_SEEN = 1 << 16  # borders of earlier prompts that are remembered, 32 bytes each
# Layers whose keys and values are replaced by longer ones and never written into: a copy may share them.
_REPLACED = (DynamicLayer.update, DynamicSlidingWindowLayer.update)


def copied(cache: Any) -> Any:
    """A cache that goes on from the same state. Recurrent states are copied, for they are written in place."""
    grown = [layer for layer in cache.layers if getattr(type(layer), "update", None) in _REPLACED]
    shared = [x for layer in grown for x in (layer.keys, layer.values) if x is not None]
    with torch.inference_mode():
        return copy.deepcopy(cache, {id(x): x for x in shared})


def nbytes(cache: Any) -> int:
    """Bytes of a cache's tensors."""
    held = [value for layer in cache.layers for value in vars(layer).values()]
    flat = [x for value in held for x in (value.values() if isinstance(value, dict) else (value,))]
    return sum(x.nbytes for x in flat if isinstance(x, torch.Tensor))


@dataclass(frozen=True)
class State:
    """After `length` tokens."""

    length: int
    cache: Any
    nbytes: int


class States:
    """At most `limit` bytes of states, by the digest of the tokens that led there, least recently used first out.

    A state takes far more than a page's share of keys and values, so only some borders have one: the last one of each
    prompt, that where a prompt parts from earlier ones, and the last one of an answer.
    """

    def __init__(self, limit: int, page: int) -> None:
        self.limit = limit
        self._page = page
        self._used = 0
        self._kept: OrderedDict[bytes, State] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def find(self, paths: Sequence[bytes]) -> State | None:
        """That of the longest of the prefixes which end with these pages."""
        for path in reversed(paths):
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        return None

    def borders(self, paths: Sequence[bytes]) -> set[int]:
        """After how many tokens of a prompt with these pages a state should be kept."""
        common = next((at for at, path in enumerate(paths) if path not in self._seen), len(paths))
        for path in paths:
            self._seen[path] = None
            self._seen.move_to_end(path)
        while len(self._seen) > _SEEN:
            self._seen.popitem(last=False)
        return {count * self._page for count in (common, len(paths)) if count}

    def keep(self, path: bytes, length: int, cache: Any) -> None:
        if path in self._kept:
            self._kept.move_to_end(path)
            return
        size = nbytes(cache)
        if size > self.limit:
            return
        self._kept[path] = State(length, copied(cache), size)
        self._used += size
        while self._used > self.limit:
            self.drop(next(iter(self._kept)))

    def drop(self, path: bytes) -> None:
        if state := self._kept.pop(path, None):
            self._used -= state.nbytes

    def flush(self) -> int:
        """Forget all; how many there were."""
        count = len(self._kept)
        self._kept.clear()
        self._seen.clear()
        self._used = 0
        return count


def paths_of(tokens: Sequence[int], page: int, paths: Sequence[bytes] = ()) -> list[bytes]:
    """The digests at the ends of the full pages of `tokens`, the first of which are known."""
    found = list(paths)
    for at in range(len(found) * page, len(tokens) - page + 1, page):
        found.append(path_after(found[-1] if found else b"", tokens[at : at + page]))
    return found
