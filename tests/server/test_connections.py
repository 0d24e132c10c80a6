"""What becomes of a client's connection when a request fails."""

import http.client
import json
import socket
import time
from urllib.parse import urlsplit

import pytest
from live import USER

from kt_core.server import bodies


@pytest.mark.parametrize("stream", [False, True])
def test_an_unforeseen_failure_leaves_the_connection_usable(serve, monkeypatch, stream):
    """The answer is whole, and the next request of a client that keeps its connection is answered on the same one."""
    server = serve()
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)

    def ask():
        body = json.dumps({"messages": [USER], "max_tokens": 2, "stream": stream})
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    for number in range(5):
        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "submit", broken)
            status, body = ask()
            assert status == 500 and "TypeError" in json.loads(body)["error"]["message"]
        if number == 0:
            first = connection.sock
        time.sleep(0.05)  # a close would have arrived by now
        assert ask()[0] == 200 and connection.sock is first


@pytest.mark.parametrize("sent", [b"no http at all\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n"])
def test_what_is_no_http_gets_the_envelope_of_errors(server, sent):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 400 and answer.getheader("content-type") == "application/json"
        assert answer.getheader("connection") == "close"
        error = json.loads(answer.read())["error"]
        assert error["type"] == "invalid_request_error" and error["code"] == "invalid_http" and error["message"]


def broken(*_):
    raise TypeError("unforeseen")


def test_a_refused_upload_ends_cleanly(server, monkeypatch):
    """More than the limit, sent in pieces: the answer comes whole, whatever becomes of the connection."""
    monkeypatch.setattr(bodies, "MAX_BODY", 1000)
    answer = server.http.post("/v1/completions", content=iter([b"x" * 600] * 5))
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "too_large"
    assert server.complete(max_tokens=1).status_code == 200
