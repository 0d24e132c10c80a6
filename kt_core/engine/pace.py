"""How long things take here: the share of a step that prompts may have beside decoding, and when to come again."""

import math
from collections.abc import Sequence

# A step with a piece of a prompt may take so many times one that only decodes. Time between tokens then stays within
# this factor while prompts come in.
SLOWER = 3
LEAST = 32  # tokens of prompts in a step; fewer cost nearly as much, since the weights are read all the same
_NEW = 0.2  # weight of the latest measurement
_LONGEST = 300  # seconds that a client is told to wait


class Pace:
    """Moving averages over steps and requests."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode = 0.0  # seconds of a step that only decodes
        self._token = 0.0  # seconds of a prompt's token
        self._request = 0.0  # seconds of a request, from its turn to its end

    @property
    def beside(self) -> int:
        """Tokens of prompts that a step may compute beside decoding."""
        if not self._token or not self._decode:
            return self._max_tokens
        return min(max(int((SLOWER - 1) * self._decode / self._token), LEAST), self._max_tokens)

    def step(self, counts: Sequence[int], seconds: float) -> None:
        """A step was taken that computed so many tokens of each of its sequences."""
        prompts = sum(count for count in counts if count > 1)
        decode = self._decode if 1 in counts else 0.0
        if not prompts:
            self._decode = _mean(self._decode, seconds)
        elif seconds > decode:
            self._token = _mean(self._token, (seconds - decode) / prompts)

    def request(self, seconds: float) -> None:
        """A request has ended."""
        self._request = _mean(self._request, seconds)

    def retry_after(self, running: int) -> int:
        """Seconds, at least 1, until one of the running requests is likely to have ended."""
        return min(max(1, math.ceil(self._request / max(1, running))), _LONGEST)


def _mean(old: float, new: float) -> float:
    return old + _NEW * (new - old) if old else new
