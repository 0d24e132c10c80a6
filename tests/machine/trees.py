"""Small copies of /proc and /sys, written by code: each is modelled on a kind of machine that broke other programs."""

from pathlib import Path

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for folder in sorted({(root / name).parent for name in files}):
        folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / name).write_text(text)
    return root


def x86_cpuinfo(cpus: int, flags: str = "fpu lm sse2 avx2 fma f16c") -> str:
    block = "processor\t: {}\nvendor_id\t: GenuineIntel\nmodel name\t: Test CPU\nflags\t\t: {}\n"
    return "\n".join(block.format(i, flags) for i in range(cpus))


def meminfo(total_gib: float, available_gib: float) -> str:
    def kib(gib: float) -> int:
        return int(gib * 2**20)

    return f"MemTotal: {kib(total_gib)} kB\nMemFree: 1000 kB\nMemAvailable: {kib(available_gib)} kB\n"


def cores(groups: list[list[int]]) -> dict[str, str]:
    """Sibling lists: each group of CPU ids shares a physical core."""
    files = {}
    for group in groups:
        for cpu in group:
            path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
            files[path] = ",".join(map(str, group)) + "\n"
    everyone = sorted(cpu for group in groups for cpu in group)
    files["sys/devices/system/cpu/online"] = ",".join(map(str, everyone)) + "\n"
    return files


def nodes(lists: dict[int, str]) -> dict[str, str]:
    return {f"sys/devices/system/node/node{node}/cpulist": text + "\n" for node, text in lists.items()}


def smt(count: int) -> list[list[int]]:
    """`count` cores of two threads, numbered as on most x86 machines: 0 and count, 1 and count + 1, ..."""
    return [[i, i + count] for i in range(count)]


def single(count: int) -> list[list[int]]:
    return [[i] for i in range(count)]


def machine(root: Path, groups: list[list[int]], gib: float = 16, free: float = 12, **more: str) -> Path:
    """A tree with topology, cpuinfo and memory; `more` maps file names, / written as __, to texts."""
    files = cores(groups) | {"proc/cpuinfo": x86_cpuinfo(sum(map(len, groups))), "proc/meminfo": meminfo(gib, free)}
    return write(root, files | {name.replace("__", "/"): text for name, text in more.items()})


def cache(cpu: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> dict[str, str]:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    files = {"level": str(level), "size": size, "shared_cpu_list": shared}
    files |= {} if kind == "Unified" else {"type": kind}
    return {f"{folder}/{name}": f"{text.strip()}\n" for name, text in files.items()}
