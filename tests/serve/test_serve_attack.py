"""A short run of the attack on HTTP. The complete attack is ``python -m lab.attack http``."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import serve_models as models
from lab.attack import http
from serving import PRIVATE, serving

pytestmark = pytest.mark.process

REQUESTS = 3000
HALF_OPEN = 200
MODEL = f"mul_1={models.MODELS / 'mul_1.onnx'}"
# A request with a body that is not a chunk, and a second request, on one connection.
HEAD_WITHOUT_BODY = b"HEAD /v2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"


def exchange(address: str, data: bytes) -> bytes:
    """Return all data that the server sends until it closes the connection."""
    host, _, port = address.rpartition(":")
    heard = b""
    with socket.create_connection((host, int(port)), http.ANSWER_TIMEOUT_S) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            heard += part
    return heard


def test_every_request_gets_a_status_or_a_closed_connection_and_the_log_no_traceback(tmp_path: Path) -> None:
    with serving(*PRIVATE, "--model", MODEL, QNNBRIDGE_STATE_DIR=str(tmp_path)) as server:
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(server.errors()))
        reader.start()
        assert exchange(server.address, HEAD_WITHOUT_BODY).startswith(b"HTTP/1.1 ")
        assert b'{"error": "This is not a valid HTTP request."}' in exchange(server.address, b"nonsense\r\n\r\n")
        answered = exchange(server.address, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\nnonsense\r\n\r\n")
        assert b"200 OK" in answered
        upgrade = b"GET /v2 HTTP/1.0\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert b"200 OK" in exchange(server.address, upgrade)
        report = http.attack(server.address, "mul_1", REQUESTS, seed=1)
        report.add(http.half_open(server.address, HALF_OPEN, seed=1))
        assert server.ask("GET", "/v2/health/live").status == 200
        server.end()
        reader.join()
    assert report.good, str(report)
    assert report.counts["status 2xx"] > REQUESTS / 50, str(report)
    assert http.log_findings(said[0]) == []
