"""Decisions on the prefix cache's tiers below the pages that are computed with: their byte limits."""

from collections.abc import Mapping
from typing import Any

from kt_core.errors import UsageError
from kt_core.machine.sizes import parse_size
from kt_core.messages import t
from kt_core.types import Decision

SHARE = 10  # the tier takes at most one part in so many of what is free
HOST_SHARE = 4  # of the memory that the model leaves: the rest is the files' cache of the system, and other programs'
TIMES = 4  # and so many times the cache in memory: past that, little of it would be asked for again
LEAST = 1 << 30  # bytes; less is not worth the writing
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


def prefix_host(wishes: Mapping[str, Any], left: int, cache: int) -> Decision:
    """Bytes of prefixes in the CPU's memory, 0 for none, beside `cache` bytes on a device, where the model leaves `left`.
    Raises UsageError."""
    wished = wishes.get("prefix_host")
    if wished is not None:
        return Decision("prefix_host", size(str(wished), "--prefix-host"), t("plan.chosen"), "user")
    count = max(0, min(left // HOST_SHARE, TIMES * cache))
    return Decision(
        "prefix_host", count, t("plan.prefix_host", size=_gib(count), times=TIMES, share=HOST_SHARE), "machine"
    )


def size(text: str, option: str = "--prefix-disk") -> int:
    """Bytes of "off" or of a size as parse_size takes it. Raises UsageError for anything else."""
    if text.strip().lower() in ("off", "0"):
        return 0
    found = parse_size(text)
    if found is None:
        raise UsageError("plan.prefix_disk_bad", option=option, value=text)
    return found


def _gib(count: int) -> str:
    return f"{count / _GIB:.2f} GiB"
