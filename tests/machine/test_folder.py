"""Free space where files are to be."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import psutil

from kt_core.machine.folder import free_bytes


def test_a_folder_that_is_not_there_yet(tmp_path):
    free = free_bytes(tmp_path / "a" / "b")
    assert abs(free - shutil.disk_usage(tmp_path).free) < 1 << 30 or free == 0


def test_what_lies_in_memory_is_no_disk(tmp_path, monkeypatch):
    def mounts(kind):
        return [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype=kind)]

    for kind, room in (("tmpfs", False), ("ext4", True)):
        monkeypatch.setattr(psutil, "disk_partitions", lambda all, kind=kind: mounts(kind))
        assert (free_bytes(tmp_path / "cache") > 0) == room
        assert free_bytes(Path("/")) > 0


def test_nothing_is_raised(monkeypatch, tmp_path):
    def broken(all):
        raise OSError

    monkeypatch.setattr(psutil, "disk_partitions", broken)
    assert free_bytes(tmp_path) == 0
