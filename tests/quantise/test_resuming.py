"""Kill -9 at any point, and go on: the same bytes as without."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from kt_core.errors import BadData, DoesNotFit, KTError, UsageError
from kt_core.quantise import layout, make, write


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def killed(prepared: make.Prepared, after: int) -> None:
    """Run the job in a process that dies at its `after`-th report."""
    child = os.fork()
    if child == 0:
        left = iter(range(after))

        def told(*progress: object) -> None:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            make.run(prepared, told)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("method", ["int4", "Q8_0"])
def test_killed_ten_times(folder, job, monkeypatch, method):
    monkeypatch.setattr(write, "AT_ONCE", 1 << 13)
    monkeypatch.setattr(layout, "SHARD", 1)
    source = folder("qwen3moe", hidden_size=128, moe_intermediate_size=64, num_hidden_layers=5)
    whole = make.prepare(job(source, method, out="whole"))
    expected = contents(make.run(whole, lambda *_: None))
    reports: list[int] = []
    counted = make.prepare(job(source, method, out="counted"))
    make.run(counted, lambda *_: reports.append(1))
    rng = random.Random(4)
    name = "whole"  # the file of a GGUF model and its label are named after the output
    shutil.rmtree(whole.job.out)
    for _ in range(10):
        killed(make.prepare(job(source, method, out=name)), rng.randrange(len(reports) // 3))
        assert not Path(whole.job.out).exists()
    begun: list[int] = []
    make.run(make.prepare(job(source, method, out=name)), lambda *_: begun.append(1))
    assert contents(Path(whole.job.out)) == expected
    assert len(begun) < len(reports)  # finished layers were not made again


def test_work_of_another_job_is_not_taken_up(folder, job, monkeypatch):
    source = folder("qwen3moe", hidden_size=128, moe_intermediate_size=64)
    expected = contents(make.run(make.prepare(job(source, "int4", out="a")), lambda *_: None))
    shutil.rmtree(Path(job(source, "int4", out="a").out))
    killed(make.prepare(job(source, "int4", out="a", zero_point=True)), 20)
    make.run(make.prepare(job(source, "int4", out="a")), lambda *_: None)
    assert contents(Path(job(source, "int4", out="a").out)) == expected


@pytest.mark.parametrize("change", ["gone", "shorter", "header", "source"])
def test_work_that_has_changed_since_is_begun_anew(folder, job, monkeypatch, change):
    """Part of what was written is gone, or the source has other numbers at places that its identity does not look at."""
    monkeypatch.setattr(write, "AT_ONCE", 1 << 13)
    source = folder("qwen3moe", hidden_size=128, moe_intermediate_size=64, num_hidden_layers=3)
    prepared = make.prepare(job(source, "int4", out="a"))
    begun: list[int] = []
    make.run(make.prepare(job(source, "int4", out="counted")), lambda *_: begun.append(1))
    killed(prepared, len(begun) * 3 // 4)
    partial = write.unfinished(Path(prepared.job.out))
    assert (partial / write.JOURNAL).exists()
    data, weights = partial / "model.safetensors", next(Path(source).glob("*.safetensors"))
    if change == "gone":
        data.unlink()
    elif change == "shorter":
        os.truncate(data, data.stat().st_size - 1)
    elif change == "header":
        with data.open("r+b") as file:
            file.write(bytes(16))
    else:
        stored = bytearray(weights.read_bytes())
        stored[-4096:] = bytes(value ^ 128 if at % 2 else value for at, value in enumerate(stored[-4096:]))  # signs
        weights.write_bytes(stored)
    out = make.run(make.prepare(job(source, "int4", out="a")), lambda *_: None)
    expected = make.run(make.prepare(job(source, "int4", out="b")), lambda *_: None)
    assert (out / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_unfinished_output_is_left_alone(folder, job, tmp_path, kind):
    prepared = make.prepare(job(folder("llama"), "int4"))
    partial = write.unfinished(Path(prepared.job.out))
    partial.parent.mkdir(parents=True, exist_ok=True)
    mine = tmp_path / "mine" if kind == "link" else partial / "mine"
    mine.mkdir(parents=True)
    (mine / "file").write_text("precious")
    if kind == "link":
        partial.symlink_to(mine, target_is_directory=True)
    with pytest.raises(UsageError, match="no unfinished output"):
        make.run(prepared, lambda *_: None)
    assert (mine / "file").read_text() == "precious" and not Path(prepared.job.out).exists()


def test_a_source_that_is_refused_half_way_leaves_nothing(folder, job):
    """Another source begins anew, so what was written of this one is of no use."""
    source = folder("llama")
    weights = next(Path(source).glob("*.safetensors"))
    stored = bytearray(weights.read_bytes())
    stored[-64:] = b"\xff" * 64
    weights.write_bytes(stored)
    prepared = make.prepare(job(source, "int4"))
    with pytest.raises(BadData):
        make.run(prepared, lambda *_: None)
    assert not write.unfinished(Path(prepared.job.out)).exists()


def test_two_at_once(folder, job):
    """The second one is refused, does no harm, and leaves nothing behind; one that failed at once leaves nothing either."""
    prepared = make.prepare(job(folder("llama"), "int4"))
    out = Path(prepared.job.out)
    refused = []

    def told(*_: object) -> None:
        with pytest.raises(UsageError, match="Another process"):
            make.run(prepared, lambda *_: None)
        refused.append(1)

    make.run(prepared, told)
    assert refused and contents(out)
    shutil.rmtree(out)
    with write.claimed(out):
        with pytest.raises(UsageError, match="Another process"):
            make.run(prepared, lambda *_: None)
        assert write.unfinished(out).exists()
    assert not write.unfinished(out).exists()


def test_a_full_disk(folder, job, monkeypatch):
    prepared = make.prepare(job(folder("llama"), "int4"))
    monkeypatch.setattr(write.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 9))
    with pytest.raises(DoesNotFit, match="GiB"):
        make.run(prepared, lambda *_: None)
    monkeypatch.undo()

    def refuses(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write.os, "pwrite", refuses)
    with pytest.raises(KTError, match="No space left"):
        make.run(prepared, lambda *_: None)
