"""GPUs as nvidia-smi reports them."""

import shutil
import subprocess

from kt_core.machine.sysfiles import Tree
from kt_core.types import Gpu

TIMEOUT_SECONDS = 5.0  # a wedged driver makes nvidia-smi hang
_QUERY = "--query-gpu=name,memory.total,memory.free,driver_version"


def read_gpus(tree: Tree) -> tuple[Gpu, ...]:
    """The GPUs of this machine; none, with a note, when nvidia-smi is there and fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        run = subprocess.run(
            [program, _QUERY, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        tree.note("machine.no_gpu_query", reason=error)
        return ()
    output = run.stdout.decode(errors="replace").strip()
    if run.returncode:
        reason = (output or run.stderr.decode(errors="replace").strip() or str(run.returncode)).splitlines()[-1]
        tree.note("machine.no_gpu_query", reason=reason)
        return ()
    return parse_gpus(output)


def parse_gpus(output: str) -> tuple[Gpu, ...]:
    """GPUs from nvidia-smi's CSV; a size it does not know ("[N/A]", memory shared with the CPU) is 0."""
    rows = (line.rsplit(",", 3) for line in output.splitlines())
    return tuple(Gpu(r[0].strip(), _mib(r[1]), _mib(r[2]), r[3].strip()) for r in rows if len(r) == 4)


def _mib(text: str) -> int:
    return int(text) << 20 if text.strip().isdecimal() else 0
