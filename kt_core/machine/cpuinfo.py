"""/proc/cpuinfo in any of its layouts: the processor's name, its design and the features that may be used."""

import ctypes
import platform
import re
from dataclasses import dataclass

from kt_core.machine.sysfiles import Tree, whole

_X86 = ("avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8", "avx_ifma", "avx_ne_convert")
_AVX512 = (
    "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_vbmi2",
    "avx512ifma", "avx512_bitalg", "avx512_vpopcntdq", "gfni", "avx512_bf16", "avx512_fp16",
)  # fmt: skip
AMX = ("amx_tile", "amx_int8", "amx_bf16", "amx_fp16")
_ARM = ("asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "svebf16", "sme")
FEATURES = frozenset(_X86 + _AVX512 + AMX + _ARM)

# (family, model, lowest stepping) -> design, the highest stepping that is not above the CPU's. As the kernel and the
# vendors' lists have them.
_INTEL = {
    (6, 60, 0): "haswell", (6, 63, 0): "haswell", (6, 69, 0): "haswell", (6, 70, 0): "haswell",
    (6, 61, 0): "broadwell", (6, 71, 0): "broadwell", (6, 79, 0): "broadwell", (6, 86, 0): "broadwell",
    (6, 78, 0): "skylake", (6, 94, 0): "skylake", (6, 142, 0): "kaby_lake", (6, 158, 0): "coffee_lake",
    (6, 165, 0): "comet_lake", (6, 85, 0): "skylake_x", (6, 85, 5): "cascade_lake", (6, 85, 10): "cooper_lake",
    (6, 106, 0): "ice_lake_sp", (6, 108, 0): "ice_lake_sp", (6, 125, 0): "ice_lake", (6, 126, 0): "ice_lake",
    (6, 140, 0): "tiger_lake", (6, 141, 0): "tiger_lake", (6, 167, 0): "rocket_lake", (6, 143, 0): "sapphire_rapids",
    (6, 207, 0): "emerald_rapids", (6, 173, 0): "granite_rapids", (6, 174, 0): "granite_rapids",
    (6, 175, 0): "sierra_forest", (6, 151, 0): "alder_lake", (6, 154, 0): "alder_lake", (6, 183, 0): "raptor_lake",
    (6, 186, 0): "raptor_lake", (6, 191, 0): "raptor_lake", (6, 170, 0): "meteor_lake", (6, 172, 0): "meteor_lake",
    (6, 197, 0): "arrow_lake", (6, 198, 0): "arrow_lake", (6, 189, 0): "lunar_lake",
}  # fmt: skip
_AMD = (  # family, models from, to, design
    (23, 0, 15, "zen1"), (23, 16, 31, "zen1"), (23, 48, 255, "zen2"), (25, 0, 15, "zen3"), (25, 16, 31, "zen4"),
    (25, 32, 95, "zen3"), (25, 96, 127, "zen4"), (25, 160, 175, "zen4"), (26, 0, 127, "zen5"),
)  # fmt: skip
_PARTS = {  # implementer and part of an ARM core -> its name
    "0x41:0xd03": "Cortex-A53", "0x41:0xd07": "Cortex-A57", "0x41:0xd08": "Cortex-A72", "0x41:0xd0b": "Cortex-A76",
    "0x41:0xd0c": "Neoverse-N1", "0x41:0xd40": "Neoverse-V1", "0x41:0xd49": "Neoverse-N2", "0x41:0xd4f": "Neoverse-V2",
    "0x41:0xd84": "Neoverse-V3", "0x41:0xd8e": "Neoverse-N3", "0x41:0xd85": "Cortex-X925", "0x41:0xd87": "Cortex-A725",
    "0x48:0xd01": "Kunpeng-920", "0x48:0xd02": "Kunpeng-920-V200", "0xc0:0xac3": "AmpereOne", "0xc0:0xac4": "AmpereOne",
    "0x46:0x001": "A64FX", "0x51:0x001": "Oryon", "0x43:0x0af": "ThunderX2",
}  # fmt: skip
_ARCH_GET_XCOMP_SUPP, _XTILE_DATA = 0x1021, 1 << 18  # arch_prctl: what the kernel saves when it switches tasks
_SYS_ARCH_PRCTL = 158


@dataclass(frozen=True)
class CpuInfo:
    model: str
    architecture: str
    features: tuple[str, ...]
    generation: str
    vendor: str
    flags: frozenset[str]  # all that every CPU has
    processors: dict[int, dict[str, str]]


def read_cpuinfo(tree: Tree) -> CpuInfo:
    """What is absent or odd is left empty. A feature counts when every CPU has it and the system lets it be used."""
    text = tree.text("/proc/cpuinfo")
    if not text:
        tree.note("machine.no_cpuinfo")
    blocks = [_fields(block) for block in (text or "").split("\n\n")]
    shared = {k: v for block in blocks for k, v in block.items()}
    processors = {n: b for b in blocks if (n := whole(b.get("processor", ""))) is not None and n >= 0}
    flag_sets = [frozenset(b[k].lower().split()) for b in blocks for k in ("flags", "features") if k in b]
    flags = frozenset.intersection(*flag_sets) if flag_sets else frozenset()
    architecture = _architecture(tree, shared)
    features = FEATURES & flags
    if features & set(AMX) and tree.live and not _tiles_allowed():
        tree.note("machine.amx_refused")
        features -= set(AMX)
    parts = sorted({part for b in blocks if (part := _part(b))}, reverse=True)
    names = [shared[k] for k in ("model name", "processor", "cpu", "hardware") if _is_name(shared.get(k))]
    generation = _generation(shared) or "_".join(parts).lower().replace("-", "_")
    return CpuInfo(
        model=names[0] if names else " + ".join(parts),
        architecture=architecture,
        features=tuple(sorted(features)),
        generation=generation,
        vendor=shared.get("vendor_id", ""),
        flags=flags,
        processors=processors,
    )


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip().casefold(): " ".join(value.split()) for key, _, value in pairs}


def _is_name(value: str | None) -> bool:
    return bool(value) and not str(value).isdecimal()


def _architecture(tree: Tree, fields: dict[str, str]) -> str:
    if tree.live:
        return platform.machine() or "unknown"
    if "flags" in fields:
        return "x86_64" if "lm" in fields["flags"].split() else "i686"
    if "cpu implementer" in fields or "features" in fields:
        return "aarch64" if fields.get("cpu architecture", "").startswith(("8", "9", "AArch64")) else "arm"
    return "ppc64" if "power" in fields.get("cpu", "").casefold() else "unknown"


def _generation(fields: dict[str, str]) -> str:
    numbers = [whole(fields.get(name, "")) for name in ("cpu family", "model", "stepping")]
    family, model, stepping = (-1 if number is None else number for number in numbers)
    if fields.get("vendor_id") == "GenuineIntel":
        found = {step: name for (f, m, step), name in _INTEL.items() if (f, m) == (family, model) and step <= stepping}
        return found[max(found)] if found else ""
    if fields.get("vendor_id") == "AuthenticAMD":
        return next((name for f, low, high, name in _AMD if f == family and low <= model <= high), "")
    return ""


def _part(fields: dict[str, str]) -> str:
    """The name of a block's ARM core; its numbers where the name is not known."""
    numbers = f"{fields.get('cpu implementer', '')}:{fields.get('cpu part', '')}".lower()
    return _PARTS.get(numbers, numbers) if re.fullmatch(r"0x[0-9a-f]{1,3}:0x[0-9a-f]{1,4}", numbers) else ""


def _tiles_allowed() -> bool:
    """Whether the kernel keeps AMX tiles: sandboxes and old kernels do not, though the flag is there."""
    supported = ctypes.c_ulong(0)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.syscall(_SYS_ARCH_PRCTL, _ARCH_GET_XCOMP_SUPP, ctypes.byref(supported))
    except (OSError, AttributeError):
        return False
    return failed == 0 and bool(supported.value & _XTILE_DATA)
