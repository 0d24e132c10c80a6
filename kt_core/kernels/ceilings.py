"""What the machine can do at best, measured: the memory's read rate and the peak of each arithmetic unit."""

from typing import Any

from kt_core.kernels.native import load
from kt_core.kernels.pool import Pool, native_pool


class ReadProbe:
    """Memory that a pool's threads (None: the process's own) read in one pass, again and again: the ceiling of decoding.

    `nbytes` should be more than the caches hold. Raises MemoryError when there is not that much.
    """

    def __init__(self, nbytes: int, pool: Pool | None = None) -> None:
        self._native = load().ReadProbe(nbytes, native_pool(pool))

    def rate(self) -> float:
        """Bytes per second of one pass."""
        return float(self._native.rate())


def units(tier: str | None = None) -> tuple[str, ...]:
    """The arithmetic units that a tier (None: the process's choice) computes with.

    Of "f32", "bf16", "int8" (vectors; where there is no dot product, the instructions used instead), "tile_bf16"
    and "tile_int8". Raises RuntimeError for a tier that cannot run here.
    """
    return tuple(load().units(tier or ""))


def peak_rate(unit: str, tier: str | None = None, seconds: float = 0.01, pool: Pool | None = None) -> float:
    """Operations per second, a multiply and an add counted as two, of a unit on all threads of a pool.

    Raises ValueError for a unit that the tier does not have.
    """
    return float(load().peak_rate(unit, tier or "", seconds, native_pool(pool)))


def formats(tier: str | None = None, assumed: bool = False) -> dict[str, dict[str, Any]]:
    """info()["formats"] of a tier. `assumed`: as a CPU with all of the tier's features has it, whatever runs here.

    Raises RuntimeError for a tier that cannot run here, ValueError for an assumed one that was not built.
    """
    found: dict[str, dict[str, Any]] = load().formats(tier or "", assumed)
    return found
