"""Keys, origins, ids, limits, and what goes into the log."""

import contextlib
import http.client
import json
import logging
import re
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from live import USER, Running, error_of
from tinymodel import Scripted, byte_tokens

from kt_core.server import bodies, connections, logs
from kt_core.server.app import KEYED

SECRET = "zebra-crossing"


def raw(server, data):
    """Send bytes as they are: (status, body). Raises ConnectionError where the connection ends without an answer."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(data)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read()


# --- keys


def test_each_of_several_keys_opens(serve):
    server = serve()
    server.state.api_keys = ("one", "two")
    for key in ("one", "two"):
        assert server.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert server.http.get("/v1/models", headers={"X-Api-Key": key}).status_code == 200
    for key in ("on", "onetwo", "", "one two"):
        error_of(server.http.get("/v1/models", headers={"X-Api-Key": key}), 401)


def test_every_route_but_health_asks_for_the_key(serve):
    server = serve(api_key="k")
    for route in (route for room in KEYED for route in room.router.routes):
        for method in route.methods - {"HEAD"}:
            response = server.http.request(method, route.path.replace("{name:path}", "x"))
            assert response.status_code == 401, route.path
    assert server.http.get("/health").status_code == 200


# --- origins


def test_no_web_page_may_use_the_server_unless_asked(server):
    response = server.http.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    preflight = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert server.http.options("/v1/chat/completions", headers=preflight).status_code == 405


def test_the_pages_that_may(server):
    state = server.state
    running = Running(type(state)("tiny/model", engine=state.engine, cors=("https://a.example",)))
    running.engine = None  # it is the other server's
    try:
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        good = running.http.options("/v1/chat/completions", headers={"Origin": "https://a.example", **preflight})
        assert good.status_code == 200 and good.headers["access-control-allow-origin"] == "https://a.example"
        bad = running.http.options("/v1/chat/completions", headers={"Origin": "https://b.example", **preflight})
        assert bad.status_code == 400 and "access-control-allow-origin" not in bad.headers
    finally:
        running.close()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:30000", 200), ("192.168.1.9:30000", 200), ("kt.localhost", 200),
        ("evil.example", 403), ("localhost.evil.example:30000", 403), ("1.2.3.4.evil.example", 403), ("a.example", 200),
    ],
)  # fmt: skip
def test_a_name_that_was_made_to_point_here(server, host, status):
    """DNS rebinding: the page's own name in Host. With a key, or where others may reach the server, any name will do."""
    state = server.state
    state.local, state.cors = True, ("https://a.example",)
    try:
        assert server.http.get("/v1/models", headers={"Host": host}).status_code == status
        assert server.http.get("/health", headers={"Host": host}).status_code == 200
        state.api_keys = ("k",)
        assert server.http.get("/v1/models", headers={"Host": host, "X-Api-Key": "k"}).status_code == 200
        state.api_keys, state.local = (), False
        assert server.http.get("/v1/models", headers={"Host": host}).status_code == 200
    finally:
        state.local, state.cors, state.api_keys = False, (), ()


# --- ids and ignored fields


@pytest.mark.parametrize("path", ["/v1/models", "/nowhere", "/api/tags", "/health"])
def test_request_ids(server, path):
    given = server.http.get(path, headers={"X-Request-Id": "abc-1.2:3_4"})
    assert given.headers["x-request-id"] == "abc-1.2:3_4"
    made = {server.http.get(path).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("a b", "x" * 129, "é".encode(), "a\tb", "<script>"):
        echoed = server.http.get(path, headers={"X-Request-Id": bad}).headers["x-request-id"]
        assert len(echoed) == 32 and echoed.isalnum()


@pytest.mark.parametrize("stream", [False, True])
def test_ignored_fields_are_listed(server, stream):
    fields = {"user": "u", "no_such": 1, "seed": 1, "echo": False, "metadata": None, "bad name\n": 1, "é": 2}
    response = server.chat(max_tokens=1, stream=stream, **fields)
    assert response.status_code == 200 and response.headers["x-kt-ignored"] == "no_such, user"
    assert "x-kt-ignored" not in server.chat(max_tokens=1).headers
    options = {"options": {"num_ctx": 9, "num_predict": 1}, "keep_alive": "5m", "messages": [USER]}
    assert server.http.post("/api/chat", json=options).headers["x-kt-ignored"] == "keep_alive, options.num_ctx"
    many = server.chat(max_tokens=1, **{f"field_{n}": 1 for n in range(500)}).headers["x-kt-ignored"]
    assert many.count(",") == 31


# --- limits


def test_a_chunked_body_has_the_limit_too(server, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_BODY", 1000)
    chunk = b"%x\r\n" % 600 + b"x" * 600 + b"\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, body = raw(server, head + 3 * chunk)  # without an end
    assert status == 413 and b"too_large" in body
    announced = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n"
    assert raw(server, announced)[0] == 413  # before any of it comes
    error_of(server.complete(prompt="x" * 1000), 413)


def test_a_body_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.05)
    status, body = raw(server, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
    assert status == 408 and b"too_slow" in body


def test_a_head_that_does_not_come(server, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    with pytest.raises(ConnectionError):
        raw(server, b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: ")


def test_the_second_head_of_a_connection_has_the_limit_too(server, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        first = http.client.HTTPResponse(connection)
        first.begin()
        assert first.status == 200 and first.read()
        connection.sendall(b"GET /hea")
        with contextlib.suppress(ConnectionError):
            assert connection.recv(65536) == b""  # cut, without an answer


def test_a_head_that_does_not_end(server):
    endless = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (connections.HEAD_BYTES + 1000)
    with contextlib.suppress(ConnectionError):  # it may be cut while it is still being sent
        assert raw(server, endless)[0] == 400
    assert server.http.get("/health").status_code == 200


def test_a_client_that_does_not_read(serve, monkeypatch):
    """Once its buffers are full the connection is cut, and with it the request."""
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.1)
    server = serve(Scripted(byte_tokens("ab" * 50), loop=True))
    body = json.dumps({"prompt": "x", "stream": True, "n": 8, "logprobs": 20, "max_tokens": 100000}).encode()
    address = urlsplit(server.url)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((address.hostname, address.port))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        connection.sendall(head + body)
        deadline = time.monotonic() + 30
        while (
            len(ended := re.findall(r"\nvllm:request_success_total{(.*)} (.*)", server.http.get("/metrics").text)) < 1
        ):
            assert time.monotonic() < deadline
    server.wait_idle()
    assert [labels for labels, _ in ended] == ['finished_reason="abort",model_name="tiny/model"']


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://127.0.0.1:9/x", "data:text/plain;base64,aGk="])
def test_nothing_is_fetched_for_a_client(server, url):
    part = {"type": "image_url", "image_url": {"url": url}}
    error_of(server.chat(messages=[{"role": "user", "content": [part]}]), 400)
    block = {"type": "image", "source": {"type": "url", "url": url}}
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    assert server.http.post("/v1/messages", json=body).status_code == 400
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    error_of(server.http.post("/v1/responses", json={"input": [item]}), 400)
    assert server.http.post("/api/generate", json={"prompt": "x", "images": [url]}).status_code == 400


# --- the log


def bodies_with_a_secret():
    message = {"role": "user", "content": SECRET}
    wrong = {"messages": [message], "temperature": SECRET}
    return [
        ("/v1/chat/completions", {"messages": [message], "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": [message], "max_tokens": 2, "stream": True}),
        ("/v1/chat/completions", wrong),
        ("/v1/chat/completions", {"messages": [message, message]}),
        ("/v1/chat/completions?q=" + SECRET, {"messages": [message], "max_tokens": 10**7, "logit_bias": {"1": 100}}),
        ("/v1/completions", {"prompt": SECRET, "max_tokens": 2}),
        ("/v1/completions", {"prompt": SECRET * 5000}),
        ("/v1/responses", {"input": SECRET, "max_output_tokens": 2}),
        ("/v1/messages", {"messages": [message], "max_tokens": 2}),
        ("/api/chat", {"messages": [message], "options": {"num_predict": 2}}),
        ("/api/generate", {"prompt": SECRET, "options": {"num_predict": 2}}),
        ("/tokenize", {"content": SECRET}),
        ("/apply-template", {"messages": [message]}),
    ]


def test_prompts_are_not_logged_unless_asked(server, caplog):
    caplog.set_level(logging.DEBUG, "kt_core")
    for path, body in bodies_with_a_secret():
        server.http.post(path, json=body, headers={"X-Request-Id": "told"})
    assert "http told: POST /v1/responses: 200" in caplog.text and SECRET not in caplog.text
    assert re.search(r"request resp_\w+: for http told", caplog.text)
    server.state.log_prompts = True
    try:
        server.chat(messages=[{"role": "user", "content": SECRET}], max_tokens=1)
    finally:
        server.state.log_prompts = False
    assert SECRET in caplog.text


def test_nor_where_a_request_fails(serve, caplog):
    def before(step):
        raise RuntimeError("boom")

    server = serve(Scripted(byte_tokens("ab"), before=before))
    error_of(server.chat(messages=[{"role": "user", "content": SECRET}]), 500)
    assert "boom" in caplog.text and SECRET not in caplog.text


def test_a_path_cannot_write_lines_into_the_log(server, caplog):
    caplog.set_level(logging.INFO, "kt_core.server.outer")
    server.http.get("/x%0A2026 INFO forged%1b[31m")
    assert all("\n" not in r.getMessage() and "\x1b" not in r.getMessage() for r in caplog.records)


def test_the_log_rotates_and_standard_error_moves_along(tmp_path):
    script = (
        "import logging, os, sys\nfrom kt_core.server import logs\nlogs.LOG_BYTES = 2000\nlogs.set_up()\n"
        "for n in range(100): logging.info('line %d %s', n, 'x' * 40)\n"
        "os.write(2, b'from a library\\n')"
    )
    log = tmp_path / "20261130-120000-77-m.log"
    with log.open("ab") as sink:
        subprocess.run([sys.executable, "-c", script], stderr=sink, check=True, timeout=60)
    parts = sorted(path.name for path in tmp_path.iterdir())
    stem = log.stem
    assert parts == sorted([log.name, *(f"{stem}.{n}.log" for n in range(1, logs.KEPT + 1))])
    assert all(path.stat().st_size <= 2100 for path in tmp_path.iterdir())
    assert log.read_text().splitlines()[-2].endswith("line 99 " + "x" * 40)
    assert log.read_text().endswith("from a library\n")
