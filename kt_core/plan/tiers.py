"""Kernel tiers by name, lowest first, and the CPU features that each needs, as Linux spells them in /proc/cpuinfo."""

from kt_core.types import Machine

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
TIERS: dict[str, frozenset[str]] = {
    "scalar": frozenset(),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_vnni": _AVX512 | {"avx512_vnni"},
    "avx512_vbmi": _AVX512 | {"avx512_vnni", "avx512vbmi"},
    "avx512_bf16": _AVX512 | {"avx512vbmi", "avx512_bf16"},
    "amx": _AVX512 | {"avx512_vnni", "avx512vbmi", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
}


def runnable(machine: Machine) -> list[str]:
    """The tiers that the CPU's flags allow, lowest first. The extension also asks the system for AMX."""
    return [name for name, needed in TIERS.items() if needed <= set(machine.features)]
