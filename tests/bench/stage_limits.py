"""Four ways to hold a run back, really staged, and what `kt bench` says limits it. On a machine that is idle otherwise, as root.

    python tests/bench/stage_limits.py [NAME]

Twice as many threads as cores; a CPU quota of half of them (a control group, version 1 or 2); a lower kernel tier than the CPU
runs; and other processes that read memory all the time. Exits with 1 where a name is not the expected one.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

KT = [sys.executable, "-m", "kt_cli"]
CASE = ("--prompt", "64", "--output", "96", "--repeats", "2", "--json")
PERIOD = 100_000  # microseconds
READER = "import numpy as np\na = np.ones(1 << 27, np.uint8)\nprint(flush=True)\nwhile True: a.max()"


def limit(name: str, *words: str, into: Sequence[Path] = (), **environment: str) -> str:
    """What a run is said to be limited by. It is a member of the groups `into`."""

    def join() -> None:
        for group in into:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [*KT, "bench", "inference", name, *words, *CASE],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | environment,
        preexec_fn=join,
    )
    run = json.loads(done.stdout.splitlines()[-1])
    sys.stdout.write(f"    {run['rows'][0]['decode_rate']:.1f} tok/s, {run['limit']}\n")
    return str(run["limit"]["name"])


@contextlib.contextmanager
def quota(cores: float) -> Iterator[list[Path]]:
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    group = (first if first.is_dir() else second) / "kt-stage-limits"
    group.mkdir(exist_ok=True)
    try:
        if first.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(round(cores * PERIOD)))
        else:
            (group / "cpu.max").write_text(f"{round(cores * PERIOD)} {PERIOD}")
        yield [group]
    finally:
        group.rmdir()


@contextlib.contextmanager
def readers(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", READER], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for one in busy:
            assert one.stdout is not None
            one.stdout.readline()
        yield
    finally:
        for one in busy:
            one.kill()
            one.wait()


def main() -> int:
    from kt_core.machine import probe

    name = sys.argv[1] if len(sys.argv) > 1 else "demo"
    cores = probe().physical_cores
    subprocess.run([*KT, "bench", "machine", "--json"], stdout=subprocess.DEVNULL, check=True)
    found = {"nothing staged": limit(name)}
    found["threads"] = limit(name, "--threads", str(2 * cores))
    with quota(cores / 2) as groups:
        found["quota"] = limit(name, "--threads", str(cores), into=groups)
    found["tier"] = limit(name, KT_KERNEL_CPU_VARIANT="avx2")
    with readers(cores):
        found["memory"] = limit(name)
    for staged, named in found.items():
        sys.stdout.write(f"{staged}: {named}\n")
    return int(any(staged != named for staged, named in found.items() if staged != "nothing staged"))


if __name__ == "__main__":
    sys.exit(main())
