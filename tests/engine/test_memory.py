"""What a process takes at most, against its plan."""

import subprocess
import sys

import pytest

# One conversation of the whole context, then one more, in the server's process: every page has been written.
SCRIPT = """
import sys
from pathlib import Path
import kt_core.server.serve
from kt_core.engine.start import start
from kt_core.machine import probe
from kt_core.models import read_spec, resolve
from kt_core.plan import make_plan
from kt_core.types import Request, Sampling

files = resolve(sys.argv[1])
plan = make_plan(probe(), files, read_spec(files), {"context": 1024, "max_running": 1})
engine = start(plan, lambda *_: None)
for first in (5, 6):
    prompt = tuple(range(first, first + 1000))
    for chunk in engine.submit(Request("r", tokens=prompt, sampling=Sampling(temperature=0.0), max_tokens=20)):
        pass
engine.close(5)
most = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(plan.device_bytes["cpu"] - plan.memory_parts["templates"], int(most.split()[1]) * 1024)
"""


@pytest.mark.alone
def test_the_plan_is_what_is_taken(demo_file):
    done = subprocess.run([sys.executable, "-c", SCRIPT, demo_file], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    planned, taken = map(int, done.stdout.split())
    assert taken == pytest.approx(planned, rel=0.05)
