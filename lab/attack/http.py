"""Send mutated HTTP requests to `qnnbridge serve`.

Each request must get a status or a closed connection, and the log must not contain a traceback.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from lab.attack.report import Report

ANSWER_TIMEOUT_S = 6.0
CLIENTS = 8
# Maximum response time in seconds while half-open connections exist.
SOON_S = 3.0

METHODS = [
    "GET",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "",
    "\0",
    "A" * 300,
]
PATHS = [
    *("/v2", "/v2/health/live", "/v2/health/ready", "/metrics", "/v2/repository/index", "/", "*", "", "//", "/v2/"),
    *("/v2/models/{model}", "/v2/models/{model}/ready", "/v2/models/{model}/infer", "/v2/models/none/infer"),
    *("/v2/models/{model}/versions/1/infer", "/v2/models/{model}/versions/-1", "/v2/models/..%2f..%2fetc/infer"),
    *(
        "/v2/models/%00/ready",
        "/v2/models/%ff%fe/ready",
        "/v2/models/" + "x" * 9000,
        "http://127.0.0.1/v2",
        "/v2?x=\t",
    ),
    *("/v2/repository/models/none/load", "/v2/repository/models/{model}/unload%00"),
]
HEADERS = [
    *("Content-Length: 0", "Content-Length: -1", "Content-Length: 5", "Content-Length: 99999999999999999999"),
    *("Content-Length: 1, 2", "Content-Length:", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked"),
    *(
        "Transfer-Encoding: xchunked",
        "Expect: 100-continue",
        "Expect: nothing",
        "Connection: close",
        "Connection: upgrade",
    ),
    *(
        "Upgrade: websocket",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABkAARAAAAA",
        "Sec-WebSocket-Key: x",
        "Host: evil.example",
    ),
    *("Host:", "Host: a", "Origin: http://evil.example", "Content-Encoding: gzip", "Content-Encoding: br"),
    *("Inference-Header-Content-Length: 5", "Inference-Header-Content-Length: -5", "Accept-Encoding: gzip"),
    *(
        "X: " + "y" * 70_000,
        "No-Colon",
        " folded",
        "X : y",
        "X\0: y",
        "Content-Type: application/json",
        "Range: bytes=0-1",
    ),
]
BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b'{"inputs": []}',
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}',
    b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1e99], "data": [[[]]]}]}',
    b"{" * 5000,
    b"\xff\xfe\0\0",
    b"5\r\nhello\r\n0\r\n\r\n",
    b"5\r\nhel",
    b"zz\r\n",
    b"x" * 100_000,
    b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
]
HALF_BODY = b"POST /v2/models/mul_1/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{"
VERSIONS = [*["HTTP/1.1"] * 12, "HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 x", ""]


def attack(address: str, model: str, count: int, seed: int) -> Report:
    """Send `count` mutated requests to the server at ``HOST:PORT`` that serves `model`."""
    report = Report("http")
    numbers = iter(range(count))
    lock = threading.Lock()

    def work(_client: int) -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            data, whole = request(random.Random(f"{seed} {number}"), model)
            outcome = ask(address, data, whole)
            report.count(outcome)
            if outcome == "no answer":
                report.finding(f"request {seed} {number}: no answer in {ANSWER_TIMEOUT_S:g} s to {data[:300]!r}")

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(work, range(CLIENTS)))
    return report


def half_open(address: str, count: int, seed: int) -> Report:
    """Open connections that send nothing, a part of a request, or single bytes; check that other clients are
    served."""
    report = Report("half-open http")
    host, _, port = address.rpartition(":")
    whole = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    held = []
    try:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            connection = socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S)
            held.append(connection)
            connection.sendall(rng.choice([b"", whole[: rng.randrange(len(whole))], HALF_BODY]))
            report.count("half-open connections")
            if number % 20 == 19:
                begin = time.monotonic()
                outcome = ask(address, whole, True)
                report.count(f"other clients: {outcome}")
                report.expect(outcome == "status 2xx", f"with {number} half-open connections: {outcome}")
                report.expect(
                    time.monotonic() - begin < SOON_S, f"a late response with {number} half-open connections"
                )
                with contextlib.suppress(OSError):
                    rng.choice(held).sendall(b"x")
    except OSError as error:
        report.finding(f"after {len(held)} half-open connections: {error}")
    finally:
        for connection in held:
            connection.close()
    report.expect(ask(address, whole, True) == "status 2xx", "no answer after the half-open connections")
    return report


def request(rng: random.Random, model: str) -> tuple[bytes, bool]:
    """Return the bytes of a request, and whether the request is complete. After an incomplete request `ask` shuts
    down its sending side; else the server would wait for more bytes."""
    method, version = rng.choice(METHODS[:4] * 8 + METHODS), rng.choice(VERSIONS)
    path = rng.choice(PATHS[:4] + PATHS)
    body = rng.choice(BODIES)
    lines = [f"{method} {path.format(model=model)} {version}"]
    whole = True
    if rng.random() < 0.9:
        lines.append("Host: localhost")
    length = rng.random()
    if length < 0.7:
        lines.append(f"Content-Length: {len(body)}")
    elif length < 0.8:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    odd = rng.sample(HEADERS, rng.choice([0, 0, 1, 1, 2, 5]))
    # With one of these headers the server may wait for more bytes than are sent, so the request is incomplete.
    whole = not any(header.startswith(("Content-Length", "Transfer-Encoding", "Expect")) for header in odd)
    lines += odd
    data = bytearray("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
    if rng.random() < 0.15:
        whole = False
        for _ in range(rng.choice([1, 3, 10])):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.1:
        whole = False
        del data[rng.randrange(len(data)) :]
    return bytes(data), whole


def ask(address: str, data: bytes, whole: bool) -> str:
    """Send a request; return the status class of the response, "closed", "no answer" or "no HTTP"."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + ANSWER_TIMEOUT_S
    with socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            if not whole:
                connection.shutdown(socket.SHUT_WR)
            heard = b""
            while len(heard) < 12:
                connection.settimeout(max(0.01, until - time.monotonic()))
                part = connection.recv(65536)
                if not part:
                    return "closed"
                heard += part
        except TimeoutError:
            return "no answer"
        except OSError:
            return "closed"
    return f"status {heard[9:10].decode(errors='replace')}xx" if heard.startswith(b"HTTP/1.") else "no HTTP"


def log_findings(log: str) -> list[str]:
    """Return a finding for each text in a server's log that must not occur there."""
    found = []
    for word in ("Traceback", "LocalProtocolError", "pip install"):
        if word in log:
            at = log.index(word)
            found.append(f"the log contains {word!r}: {log[max(0, at - 300) : at + 2500]}")
    return found
