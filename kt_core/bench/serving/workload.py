"""What is asked of the server: lengths of prompts and answers, how many requests at a time, how often."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from kt_core.errors import UsageError
from kt_core.flags import whole
from kt_core.formats.problems import shown

MOST_TOKENS = 1 << 26  # of a length: more than any context, and their text still fits into memory
# Common words, each a token or two of most vocabularies. A prompt is a row of them that no other prompt begins with, so
# that nothing of it lies in a prefix cache.
WORDS: str = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face level "
    "office door health person art war history party result change morning reason research girl guy moment air teacher force"
)


@dataclass(frozen=True)
class Length:
    """Tokens: `low` to `high`, both taken; each request draws its own."""

    low: int
    high: int

    def draw(self, chance: random.Random) -> int:
        return chance.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class Case:
    """One row of the report: `repeats` rounds of `concurrency` requests at a time.

    Every prompt has `prompt` new tokens behind `depth` tokens that the server has in its cache, and gets an answer of
    `output` tokens whatever the model would say.
    """

    prompt: Length
    output: Length
    concurrency: int
    depth: int
    repeats: int

    @property
    def requests(self) -> int:
        return self.concurrency * self.repeats

    @property
    def longest(self) -> int:
        """Tokens of context that the longest request may need."""
        return self.depth + self.prompt.high + self.output.high


def parse_lengths(text: str, option: str) -> tuple[Length, ...]:
    """ "512,2048" or "64-512", or both. Raises UsageError for another text, for 0, and for a range that runs backwards."""
    found = []
    for word in text.split(","):
        low, dash, high = (part.strip() for part in word.partition("-"))
        numbers = [whole(part) or 0 for part in ((low, high) if dash else (low, low))]
        if not 0 < numbers[0] <= numbers[1] <= MOST_TOKENS:
            raise UsageError("bench.bad_lengths", option=option, text=shown(word.strip()))
        found.append(Length(*numbers))
    return tuple(dict.fromkeys(found))


def cases(
    prompts: Sequence[Length],
    outputs: Sequence[Length],
    concurrency: Sequence[int],
    depths: Sequence[int],
    repeats: int,
) -> Iterator[Case]:
    """Every combination, in the order in which a reader compares: concurrency last."""
    for depth, prompt, output, clients in product(depths, prompts, outputs, concurrency):
        yield Case(prompt, output, clients, depth, repeats)


def words(count: int, chance: random.Random) -> str:
    """A text of `count` words."""
    return " ".join(chance.choices(WORDS.split(), k=count))
