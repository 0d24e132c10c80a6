"""A small OpenAI-compatible server with scripted answers."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer:
    """Answers POST /v1/chat/completions with `answer`, a word at a time, `delay` seconds apart."""

    def __init__(self) -> None:
        self.models = ["fake-model"]
        self.sees: bool | None = None  # what its list of models says of images; None: nothing
        self.files: dict[str, bytes] = {}  # path -> what GET answers with
        self.health: dict[str, Any] = {"status": "ok", "running": 1, "waiting": 2, "context": 4096}
        self.answer = "Paris is the **capital** of France."
        self.reasoning = ""  # sent before the answer
        self.delay = 0.0
        self.wait = 0.0  # seconds before anything is sent
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.broken = threading.Event()  # set when a client left in the middle of an answer
        self.key = ""
        self.cut = False  # close the connection in the middle
        self.error: tuple[int, Any] | None = None
        self.timings: dict[str, float] = {"prompt_per_second": 50.0, "predicted_per_second": 7.5}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def entry(self, name: str) -> dict[str, Any]:
        """What the list of models says of one."""
        kinds = ["text", "image"] if self.sees else ["text"]
        return {"id": name, "context_length": 4096, **({} if self.sees is None else {"input_modalities": kinds})}

    def __enter__(self) -> "FakeServer":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def handler_of(owner: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self._json(200 if owner.health["status"] == "ok" else 503, owner.health)
            elif self.path == "/v1/models":
                self._json(200, {"data": [owner.entry(name) for name in owner.models]})
            elif self.path in owner.files:
                self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + owner.files[self.path])
            else:
                self._json(404, {"error": {"message": f"GET {self.path}: Not Found"}})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            owner.requests.append(json.loads(body))
            owner.headers.append(dict(self.headers))
            if owner.key and self.headers.get("Authorization") != f"Bearer {owner.key}":
                self._json(401, {"error": {"message": "wrong key"}})
            elif owner.error:
                self._json(*owner.error)
            else:
                self._stream()

        def _stream(self) -> None:
            time.sleep(owner.wait)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            pieces = [owner.answer[i : i + 5] for i in range(0, len(owner.answer), 5)]
            try:
                if owner.reasoning:
                    self._event({"choices": [{"delta": {"reasoning_content": owner.reasoning}, "finish_reason": None}]})
                for number, piece in enumerate(pieces):
                    if owner.cut and number == 2:
                        return
                    self._event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
                    self.wfile.write(b": ping\n\n")
                    time.sleep(owner.delay)
                last = {"choices": [{"delta": {}, "finish_reason": "stop"}], "timings": owner.timings}
                self._event(last)
                self._event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": len(pieces)}})
                self.wfile.write(b"data: [DONE]\n\n")
            except (BrokenPipeError, ConnectionResetError):
                owner.broken.set()

        def _event(self, data: Any) -> None:
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()

        def _json(self, status: int, data: Any) -> None:
            content = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
