"""Several processes: what accelerate reads, and that two train what one does."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import tinyrun
import yaml
from safetensors.torch import load_file

from kt_core.errors import BadData, NotFound, UsageError
from kt_core.machine import probe
from kt_core.train import described, launcher

DOCS = (Path(__file__).parents[2] / "docs" / "sft.md").read_text()
TWO = yaml.safe_load(re.search(r"```yaml\n(compute_environment.*?)```", DOCS, re.DOTALL)[1])


def written(tmp_path, values):
    file = tmp_path / "accelerate.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_the_documented_file_is_accelerates(tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    found = config_args.load_config_from_file(str(written(tmp_path, TWO)))
    assert (found.num_processes, found.fsdp_config["fsdp_version"], found.mixed_precision) == (2, 2, "bf16")


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    with pytest.raises(UsageError, match="num_processes is 64"):
        launcher.read(written(tmp_path, TWO | {"num_processes": 64}), probe())
    with pytest.raises(BadData, match="not a YAML file"):
        launcher.read(written(tmp_path, [1]), probe())
    with pytest.raises(NotFound, match=r"none\.yaml"):
        launcher.read(tmp_path / "none.yaml", probe())


@pytest.mark.full
def test_two_processes_train_what_one_does(tmp_path):
    """With FSDP2 over gloo; experts are in the first process alone."""
    base, data = tinyrun.base(tmp_path / "base", 0.5), tinyrun.dataset(tmp_path)
    older = {"kt_config": {"kt_num_threads": 1}}  # as recipes of an older generation have it
    several = launcher.read(written(tmp_path, TWO | {"use_cpu": True, "mixed_precision": "no"} | older), probe())
    assert several.kt_config == older["kt_config"]
    reading, writing = os.pipe()  # a process of kt ends with its standard input
    alone = [sys.executable, "-m", "kt_core.train"]
    for name, batch, command in (("one", 4, alone), ("two", 2, several.words(tmp_path))):
        more = {"per_device_train_batch_size": batch, "save_only_model": True, "learning_rate": 1e-3}
        s = tinyrun.chosen(base, data, tmp_path / name, **more)
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(s)))
        done = subprocess.run(
            [*command, "--settings", str(tmp_path / f"{name}.json")],
            capture_output=True, text=True, timeout=120, stdin=reading, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    os.close(writing)
    os.close(reading)
    one, two = (load_file(tmp_path / name / described.WEIGHTS) for name in ("one", "two"))
    assert one.keys() == two.keys()
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-5
    assert sorted(path.name for path in (tmp_path / "two").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
