"""The model hub's client against a small hub on this machine: a whole download, and one that is taken up again."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kt_core.errors import BadData, EnvironmentProblem
from kt_core.models import download
from kt_core.models.registry import Entry, HubFile

CONTENT = bytes(range(256)) * (3 << 12)  # 3 MiB; the client writes in pieces of 1 MiB
ENTRY = Entry(
    name="tiny",
    aliases=(),
    description="models.about_demo",
    file="tiny.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    sources=(HubFile("somebody/tiny", "tiny.gguf", len(CONTENT)),),
)


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one file; `hang_at` stops sending after that many bytes, `starts` are ranges asked for."""

    hang_at = 0
    starts: list[int]
    free = threading.Event()

    def do_GET(self) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.starts.append(start)
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self._head(start)
        if self.hang_at:
            self.wfile.write(CONTENT[start : self.hang_at])
            self.free.wait(30)
        else:
            self.wfile.write(CONTENT[start:])

    def _head(self, start: int) -> None:
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    handler = type("OneHub", (Hub,), {"starts": [], "free": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield handler
    handler.free.set()
    server.shutdown()
    server.server_close()


def test_whole_download(hub: type[Hub], tmp_path: Path) -> None:
    path = download.fetch(ENTRY, tmp_path, lambda *_: None)
    assert path.read_bytes() == CONTENT
    assert hub.starts == [0]
    assert download.fetch(ENTRY, tmp_path, lambda *_: pytest.fail("again")) == path


def test_an_interrupted_download_is_taken_up_again(
    hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.hang_at = 5 << 19
    monkeypatch.setattr(download, "STALL_SECONDS", 2.0)
    with pytest.raises(EnvironmentProblem, match="somebody/tiny"):
        download.fetch(ENTRY, tmp_path, lambda *_: None)
    hub.hang_at = 0
    assert download.fetch(ENTRY, tmp_path, lambda *_: None).read_bytes() == CONTENT
    assert hub.starts == [0, 2 << 20]
    assert [p.name for p in tmp_path.iterdir() if p.suffix in (".gguf", ".part")] == ["tiny.gguf"]


def test_a_finished_part_is_only_checked(hub: type[Hub], tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf.part").write_bytes(CONTENT)
    assert download.fetch(ENTRY, tmp_path, lambda *_: None).read_bytes() == CONTENT


def test_a_part_of_something_else_is_not_used(hub: type[Hub], tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf.part").write_bytes(b"x" * 1000)
    with pytest.raises(BadData, match=ENTRY.sha256):
        download.fetch(ENTRY, tmp_path, lambda *_: None)
    assert download.fetch(ENTRY, tmp_path, lambda *_: None).read_bytes() == CONTENT


def test_offline_is_honoured(hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EnvironmentProblem, match="HF_HUB_OFFLINE"):
        download.fetch(ENTRY, tmp_path, lambda *_: None)
    assert hub.starts == []
