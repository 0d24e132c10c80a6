"""A run that is killed again and again, also while it saves, and gone on with: it ends as the unbroken one, to the bit."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import tinyrun
import torch
from safetensors.torch import load_file

from kt_core.train import described
from kt_core.train.trainer import STAGING, checkpoints

STEPS = 40


def started(folder, s):
    (folder / "run.json").write_text(json.dumps(dataclasses.asdict(s)))
    command = [sys.executable, "-m", "kt_core.train", "--settings", str(folder / "run.json")]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def last(folder):
    """The step of the last checkpoint."""
    found = checkpoints(folder)
    return int(found[-1].name.rpartition("-")[2]) if found else 0


@pytest.mark.full
@pytest.mark.timeout(300)
def test_kills_at_any_moment(tmp_path):
    base, data = tinyrun.base(tmp_path / "base"), tinyrun.dataset(tmp_path)
    more = {"max_steps": STEPS, "save_steps": 1, "save_total_limit": 3, "use_cpu": True}
    tinyrun.train(tinyrun.chosen(base, data, tmp_path / "whole", **more))
    out, killed, saving = tmp_path / "broken", 0, 0
    for _ in range(5):
        whole, last_before = checkpoints(out), last(out)
        s = tinyrun.chosen(base, data, out, resume_from_checkpoint=True if whole else None, **more)
        process = started(tmp_path, s)
        # Half of the kills come while a checkpoint is being written, the others some time after that began.
        while process.poll() is None and last(out) < last_before + 2:
            time.sleep(0.001)
        while process.poll() is None and not (out / STAGING).exists():
            time.sleep(0.0005)
        time.sleep((killed % 2) * 0.03)
        if process.poll() is None:
            saving += (out / STAGING).exists()
            os.kill(process.pid, signal.SIGKILL)
        if process.wait() == 0:
            break
        assert process.returncode == -signal.SIGKILL, process.stderr.read().decode()[-500:]
        killed += 1
        assert last(out) >= last_before
        for path in checkpoints(out):
            load_file(path / described.WEIGHTS)
            assert json.loads((path / "trainer_state.json").read_text())["global_step"] > 0
    else:
        s = tinyrun.chosen(base, data, out, resume_from_checkpoint=True, **more)
        assert started(tmp_path, s).wait() == 0
    assert killed >= 3 and saving >= 1
    found, expected = (load_file(path / described.WEIGHTS) for path in (out, tmp_path / "whole"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
