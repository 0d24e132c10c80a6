"""Detection never throws: whatever is missing, garbled or no file at all, the probe answers, and its answer holds together."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import boxes
import pytest
from boxes import Box, Card
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import GOLD, GROUP, nvme
from test_machines import holds_together
from trees import GIB

from kt_core.machine import probe
from kt_core.machine.sysfiles import Tree

NASTY = (
    "",
    "-1",
    "0",
    "9" * 30,
    "9" * 6000,
    "NaN",
    "0x10",
    "0-",
    "5-3",
    "0-70000",
    "1e9",
    "\0\0",
    "max",
    "٣",
    "a: b: c",
)


@pytest.fixture(scope="module")
def tree(module_path: Path) -> Path:
    """A small machine that has some of everything."""
    group = f"{GROUP}/a/b"
    files = nvme("nvme0n1", 1) | {
        "proc/self/cgroup": "0::/a/b\n4:cpu,cpuacct:/a\n",
        "proc/self/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
        "proc/self/status": "Cpus_allowed_list:\t0-3,8-11\nMems_allowed_list:\t0-1\n",
        "proc/self/numa_maps": "7f00 bind:0-1 anon=1\n",
        "proc/self/limits": "Max locked memory         8388608              8388608              bytes\n",
        "proc/version": "Linux version 6.1\n",
        f"{group}/cpu.max": "350000 100000",
        f"{group}/cpuset.cpus.effective": "0-5,8-13\n",
        f"{group}/cpuset.mems.effective": "0-1\n",
        f"{group}/memory.max": str(8 * GIB),
        f"{group}/memory.current": str(2 * GIB),
        f"{group}/memory.stat": f"inactive_file {GIB}\nactive_file 5\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "5\n",
    }
    cards = (Card("NVIDIA X", 24, numa=1), Card("", 16, vendor="0x1002", address="0000:41:00.0"))
    box = Box(GOLD, 4, 2, gib=16, cards=cards, files=files, extra_nodes={2: 8}, fast=6)
    return boxes.build(module_path, box)


def _as(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text.encode("utf-8", "surrogateescape"))


DAMAGE = st.one_of(
    st.just(lambda path: None),  # it is gone
    st.just(lambda path: path.mkdir()),
    st.just(lambda path: path.symlink_to("nowhere")),
    st.just(lambda path: path.symlink_to(path.name)),  # to itself
    st.just(os.mkfifo),  # whoever opens it would wait for a writer
    st.sampled_from(NASTY).map(_as),
    st.binary(max_size=80).map(lambda data: lambda path: path.write_bytes(data)),
    st.text(max_size=80).map(lambda text: _as(text.encode("utf-8", "replace").decode())),
)


@contextlib.contextmanager
def damaged(path: Path, how: Callable[[Path], object]) -> Iterator[None]:
    kept = path.with_name(f"{path.name}.kept")
    path.rename(kept)
    try:
        how(path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        kept.rename(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_probe_survives_any_damage(tree: Path, data: st.DataObject) -> None:
    files = sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink())
    chosen = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=12, unique=True), label="files")
    with contextlib.ExitStack() as stack:
        for path in chosen:
            stack.enter_context(damaged(path, data.draw(DAMAGE, label=path.name)))
        holds_together(probe(tree))


def test_each_file_matters_to_nobody(tree: Path) -> None:
    """Every single file garbled in the same way, one after the other."""
    for path in sorted(p for p in tree.rglob("*") if p.is_file() and not p.is_symlink()):
        with damaged(path, _as("garbage 9999999999999999999999 -,-")):
            holds_together(probe(tree))


def test_folders_in_place_of_all_files(tmp_path: Path, tree: Path) -> None:
    for path in tree.rglob("*"):
        if path.is_file():
            (tmp_path / path.relative_to(tree)).mkdir(parents=True)
    holds_together(probe(tmp_path))


@pytest.mark.parametrize("at", ["proc", "sys", "sys/devices/system/cpu", "sys/devices/system/node", "proc/self"])
def test_a_file_in_place_of_a_folder(tree: Path, at: str) -> None:
    with damaged(tree / at, _as("x")):
        holds_together(probe(tree))


def test_a_link_that_leads_to_itself(tree: Path) -> None:
    """A card's place on the bus, from which the slot above it is found."""
    link = next((tree / "sys/bus/pci/devices").iterdir())
    where = link.readlink()
    link.unlink()
    link.symlink_to(link.name)
    try:
        assert Tree(tree).above(f"/sys/bus/pci/devices/{link.name}") == ""
        holds_together(probe(tree))
    finally:
        link.unlink()
        link.symlink_to(where)
