"""Energy of the CPU packages, where the system lets this user read it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = "intel-rapl:[0-9]*"  # AMD's are under the same name; parts of a package have two colons
MICRO = 1e-6


@contextmanager
def meter(root: Path = Path("/sys/class/powercap")) -> Iterator[Callable[[], float | None]]:
    """Joules from the block's begin to the call; None where no counter can be read. Counters that ran over are set right."""
    zones = [zone for zone in root.glob(PACKAGES) if zone.name.count(":") == 1] if root.is_dir() else []
    before = {zone: _count(zone / "energy_uj") for zone in zones}

    def joules() -> float | None:
        total, read = 0, False
        for zone, start in before.items():
            end = _count(zone / "energy_uj")
            if start < 0 or end < 0:
                continue
            read = True
            total += end - start if end >= start else end - start + max(0, _count(zone / "max_energy_range_uj"))
        return total * MICRO if read else None

    yield joules


def _count(file: Path) -> int:
    """-1 for a counter that cannot be read; most systems show it to root alone."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return -1
