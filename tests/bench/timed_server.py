"""An OpenAI-compatible server that answers on a timetable, and keeps its own clock of it."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class TimedServer:
    """Each answer has max_tokens pieces: the first after `wait` seconds, the others `gap` seconds apart."""

    def __init__(self, wait: float = 0.0, gap: float = 0.0) -> None:
        self.wait, self.gap = wait, gap
        self.refuse = False
        self.bytes = b""  # what every answer is instead
        self.tokenizes = True
        self.bodies: list[dict[str, Any]] = []
        self.most_at_once = 0
        self.at_once = 0
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "TimedServer":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler_of(owner: TimedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._json(200, {"data": [{"id": "timed"}]} if self.path == "/v1/models" else {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize":
                ids = [len(word) for word in body["prompt"].split()]
                self._json(200 if owner.tokenizes else 404, {"tokens": ids})
            elif owner.refuse:
                self._json(400, {"error": {"message": "too long by far"}})
            else:
                self._answer(body)

        def _answer(self, body: dict[str, Any]) -> None:
            with owner.lock:
                owner.bodies.append(body)
                owner.at_once += 1
                owner.most_at_once = max(owner.most_at_once, owner.at_once)
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            time.sleep(owner.wait)
            if owner.bytes:
                self.wfile.write(owner.bytes)
                self.close_connection = True
                return
            for number in range(body["max_tokens"]):
                if number:
                    time.sleep(owner.gap)
                self._event({"choices": [{"text": "word ", "finish_reason": None}]})
            prompt = body["prompt"]
            length = len(prompt if isinstance(prompt, list) else prompt.split())
            with owner.lock:
                owner.at_once -= 1
            self._event({"choices": [], "usage": {"prompt_tokens": length, "completion_tokens": body["max_tokens"]}})
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def _event(self, data: Any) -> None:
            self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
            self.wfile.flush()

        def _json(self, status: int, data: Any) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    return Handler
