"""Decision on the prefix cache's tier on disk: its byte limit."""

import re
from collections.abc import Mapping
from typing import Any

from kt_core.errors import UsageError
from kt_core.messages import t
from kt_core.types import Decision

SHARE = 10  # the tier takes at most one part in so many of what is free
TIMES = 4  # and so many times the cache in memory: past that, little of it would be asked for again
LEAST = 1 << 30  # bytes; less is not worth the writing
_UNITS = {"": 1, **{letter: 1 << 10 * power for power, letter in enumerate("KMGT", 1)}}
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMGT]?)(I?B)?", re.IGNORECASE)
_GIB = 2**30


def prefix_disk(wishes: Mapping[str, Any], free: int, cache: int) -> Decision:
    """Bytes of prefixes on a disk with `free` bytes, 0 for none, beside `cache` bytes in memory. Raises UsageError."""
    wished = wishes.get("prefix_disk")
    if wished is not None:
        return Decision("prefix_disk", size(str(wished)), t("plan.chosen"), "user")
    count = min(free // SHARE, TIMES * cache)
    if free // SHARE < LEAST:
        return Decision(
            "prefix_disk", 0, t("plan.prefix_disk_off", free=_gib(free), least=_gib(LEAST * SHARE)), "machine"
        )
    return Decision("prefix_disk", count, t("plan.prefix_disk", size=_gib(count), times=TIMES, share=SHARE), "machine")


def size(text: str) -> int:
    """Bytes of "off", "20GiB", "500 MB" or a bare number; K, M, G, T with iB or nothing are powers of 1024, with B of
    1000. Raises UsageError for anything else."""
    if text.strip().lower() in ("off", "0"):
        return 0
    found = _SIZE.fullmatch(text.strip())
    if not found or not float(found[1]):
        raise UsageError("plan.prefix_disk_bad", value=text)
    unit = found[2].upper()
    decimal = unit and (found[3] or "").upper() == "B"
    return int(float(found[1]) * (1000 ** ("KMGT".index(unit) + 1) if decimal else _UNITS[unit]))


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
