"""A model hub with one repository on this machine."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SHA = "0123456789abcdef"
SHARD = b"\x02\0\0\0\0\0\0\0{}" + bytes(3000)
FILES = {
    "config.json": b'{"model_type": "x"}',
    "tokenizer.json": b"{}" * 50,
    "model-00001-of-00002.safetensors": SHARD,
    "model-00002-of-00002.safetensors": SHARD + b"2",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    ).encode(),
    "README.md": b"#",
    "pytorch_model.bin": b"pickle",
    "original/consolidated.safetensors": SHARD,
}


class Hub(BaseHTTPRequestHandler):
    """`files` are the repository's; `sent` the names that were asked for; a file in `wrong` is sent with other content,
    one in `cut` breaks off after so many bytes, once."""

    files: dict[str, bytes]
    sent: list[str]
    wrong: set[str]
    cut: dict[str, int]

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.startswith("/api/models/"):
            siblings = [_published(name, content) for name, content in self.files.items()]
            self._answer(200, json.dumps({"sha": SHA, "siblings": siblings}).encode())
            return
        name = path.partition(f"/resolve/{SHA}/")[2]
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.sent.append(f"{name}@{start}" if start else name)
        content = self.files[name][::-1] if name in self.wrong else self.files[name]
        self._answer(206 if start else 200, content[start:], self.cut.pop(name, None))

    def _answer(self, status: int, data: bytes, cut: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])

    def log_message(self, *_: object) -> None:
        pass


def _published(name: str, content: bytes) -> dict[str, object]:
    blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
    if name.endswith((".safetensors", ".gguf")):
        entry |= {"blobId": "of the pointer", "lfs": {"sha256": hashlib.sha256(content).hexdigest()}}
    return entry


@contextmanager
def serving() -> Iterator[tuple[type[Hub], str]]:
    """A hub, which a test may change, and its address."""
    handler = type("OneHub", (Hub,), {"files": dict(FILES), "sent": [], "wrong": set(), "cut": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield handler, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
