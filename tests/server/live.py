"""A real server on a free port, over whatever runner a test wants."""

import socket
import threading
import time

import httpx
import uvicorn

from kt_core.server.app import build_app
from kt_core.server.connections import HEAD_BYTES, IDLE_SECONDS, Connection
from kt_core.server.state import State


class Running:
    def __init__(self, state: State) -> None:
        self.state = state
        self.engine = state.engine
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            build_app(state),
            http=Connection,
            h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=IDLE_SECONDS,
            access_log=False,
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=2,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        self.http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def chat(self, **fields):
        return self.http.post("/v1/chat/completions", json={"messages": [USER], **fields})

    def complete(self, **fields):
        return self.http.post("/v1/completions", json={"prompt": "hello", **fields})

    def wait_idle(self, seconds=5.0):
        end = time.monotonic() + seconds
        while self.engine.state()["running"]:
            assert time.monotonic() < end, "still generating"
            time.sleep(0.005)

    def close(self):
        self.http.close()
        if self.engine:
            self.engine.close(5)
        self._server.should_exit = True
        self._thread.join(10)


USER = {"role": "user", "content": "hello"}


def error_of(response, status, code=None, param=None):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) >= {"message", "type", "param", "code"}
    parts = [body["error"].get(part, "") for part in ("what", "why", "next")]  # kt's own; not with the router's errors
    assert not any(parts) or body["error"]["message"] == " ".join(filter(None, parts))
    error = body["error"]
    assert error["message"] and isinstance(error["message"], str)
    assert code is None or error["code"] == code
    assert param is None or error["param"] == param
    return error["message"]
