"""Send small requests that once stopped `qnnbridge serve`, all at once, while an ordinary client works.

Each attack is a thread that repeats its requests until the time is over. The ordinary client alternates between a
health check, an inference and a chat completion. The report contains the longest response times and the failures of
the ordinary client, and the memory of server and host.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import psutil

from lab.attack.report import Report

# Limit for the ordinary client, from the request to the end of the response.
WORST_S: Final = 10.0
# Limit for the memory growth of server and host together: four times the memory that the server admits for
# requests.
MOST_MB: Final = 4096
TIMEOUT_S: Final = 30.0

# Requests with a huge dimension next to a dimension of 0, or with shapes that do not fit the size of their data.
DOCUMENTS: Final = (
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[2,0,%d],"data":[[],[]]}]}',
    '{"inputs":[{"name":"x","datatype":"BYTES","shape":[1,0,%d],"data":[[]]}]}',
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,0],"data":[[]]}]}',
    '{"inputs":[{"name":"x","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}]}',
)
SCHEMAS: Final[tuple[dict[str, Any], ...]] = (
    {"const": -(2**63)},
    {"enum": [1, -(2**63) + 1]},
    {"type": "object", "properties": {"a": {"const": [[-(2**63) + 10]]}}},
    {"type": "integer", "multipleOf": 123456789},
    {"type": "number", "multipleOf": 99.999},
    {"type": "object", "required": [f"name{n}" for n in range(20000)]},
    {"type": "object", "properties": {f"k{n}": {"type": "integer", "multipleOf": 10007 + n} for n in range(50)}},
    {"const": {f"k{n}": n for n in range(20000)}},
    {"const": "k" * 900_000},
    {"type": "string", "pattern": "^(a{1000}){1000}$"},
    {"$ref": "#"},
    {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
    {"$ref": "#/nowhere"},
    {"anyOf": [{"const": f"v{n}"} for n in range(20000)]},
    {"type": "array", "minItems": 10**9},
)


# Origin headers of pages in a browser on this machine, and host names that a network may resolve to this machine.
ORIGINS: Final = ("http://evil.example", "null", "http://127.0.0.1:1", "http://x.localhost", "https://127.0.0.1")
HOSTS: Final = ("evil.example", "x.localhost", "127.0.0.1.nip.io", "")
OWN_PATHS: Final = (
    "/",
    "/status",
    "/openapi.json",
    "/page/page.js",
    "/page/../status",
    "/page/%2e%2e/x",
    "/metrics",
)

# Data rate of `small_chunks`, as on a slow connection, because these attacks do not test flooding.
BYTES_PER_S: Final = 1_000_000
CHUNKS: Final = b"1\r\nx\r\n" * 10_000
PAUSE_S: Final = 0.2


class Target:
    """The attacked server.

    Args:
        model: name of a model with the input x, FP32 of shape [1, 3].
        big: name of a model with large responses, and the body of a request to this model.
        language: name of a language model.
    """

    def __init__(self, address: str, model: str, big: tuple[str, bytes], language: str) -> None:
        self.address, self.model, self.big, self.language = address, model, big, language
        host, _, port = address.rpartition(":")
        self.where = (host, int(port))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.where, TIMEOUT_S)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.where, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def numbers(target: Target, rng: random.Random, report: Report) -> None:
    """Send requests that declare more data than they contain."""
    text = rng.choice(DOCUMENTS)
    body = (text % ((10 ** rng.randrange(6, 19),) * text.count("%d"))).encode()
    status, _ = target.ask("POST", f"/v2/models/{target.model}/infer", body)
    report.count(f"numbers: {status}")
    report.expect(status in (400, 413, 429), f"{body!r}: {status}")


def schemas(target: Target, rng: random.Random, report: Report) -> None:
    """Send JSON schemas that crash or block the guidance library."""
    schema = rng.choice(SCHEMAS)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked = {"model": target.language, "messages": [{"role": "user", "content": "x"}], "response_format": form}
    status, body = target.ask("POST", "/v1/chat/completions", json.dumps({**asked, "max_tokens": 4}).encode())
    report.count(f"schemas: {status}")
    report.expect(status in (400, 429), f"{json.dumps(schema)[:100]}: {status} {body[:200]!r}")


def small_chunks(target: Target, rng: random.Random, report: Report) -> None:
    """Send a body in chunks of one byte, to URL paths that read the body and to paths that ignore it."""
    path = rng.choice([f"/v2/models/{target.model}/infer", "/v2/models/none/infer", "/v1/chat/completions"])
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with target.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(head.encode())
        for _ in range(20):
            connection.sendall(CHUNKS)
            time.sleep(len(CHUNKS) / BYTES_PER_S)
    report.count("small chunks")


def unread(target: Target, rng: random.Random, report: Report) -> None:
    """Request large responses without reading them."""
    name, body = target.big
    head = f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    held = []
    try:
        for _ in range(20):
            connection = target.connect()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            held.append(connection)
            connection.sendall(head.encode() + body)
            report.count("unread answers")
        time.sleep(rng.uniform(1, 5))
    finally:
        for connection in held:
            connection.close()


def half_requests(target: Target, rng: random.Random, report: Report) -> None:
    """Send unfinished heads and bodies, contradictory body sizes, and random bytes."""
    head = f"POST /v2/models/{target.model}/infer HTTP/1.1\r\nHost: localhost\r\n"
    data = rng.choice(
        [
            head.encode(),
            f"{head}Content-Length: 1000000\r\n\r\n{{".encode(),
            f"{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\n\r\n".encode(),
            rng.randbytes(rng.randrange(1, 5000)),
        ]
    )
    with target.connect() as connection, contextlib.suppress(OSError):
        connection.settimeout(2)
        connection.sendall(data)
        connection.recv(4096)
    report.count("half requests")


def foreign_pages(target: Target, rng: random.Random, report: Report) -> None:
    """Send requests with foreign origins or host names, which must all be refused."""
    own = "{}:{}".format(*target.where)
    host, origin = (rng.choice(HOSTS), None) if rng.random() < 0.5 else (own, rng.choice(ORIGINS))
    if rng.random() < 0.3:  # DNS rebinding: a foreign name resolves to this machine, so host and origin agree
        host = f"{rng.choice(HOSTS[:3])}:{target.where[1]}"
        origin = f"http://{host}"
    path = rng.choice([*OWN_PATHS, f"/v2/models/{target.model}/infer", "/v2/repository/index"])
    method = rng.choice(["GET", "POST", "OPTIONS"])
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Content-Length: 0", "Connection: close"]
    lines += [f"Origin: {origin}"] if origin else []
    answer = b""
    with target.connect() as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        while len(answer) < 4096 and (data := connection.recv(4096)):
            answer += data
    status = int(answer.split(maxsplit=2)[1]) if answer.startswith(b"HTTP/") else 0
    report.count(f"foreign pages: {status}")
    report.expect(400 <= status < 500, f"{lines}: {answer[:80]!r}")


def strangers(target: Target, rng: random.Random, report: Report) -> None:
    """Repeat another user's prompt: the count of cached tokens must not reveal that it was sent before."""
    secret = f"{rng.random():.9f} " * 4

    def cached(user: str) -> int | None:
        asked = {"model": target.language, "prompt": secret, "max_tokens": 2, "temperature": 0, "user": user}
        status, body = target.ask("POST", "/v1/completions", json.dumps(asked).encode())
        report.count(f"strangers: {status}")
        report.expect(status in (200, 429), f"a completion: {status} {body[:200]!r}")
        return int(json.loads(body)["usage"]["prompt_tokens_details"]["cached_tokens"]) if status == 200 else None

    first, own, other = cached("ann"), cached("ann"), cached("bob")
    report.expect(not other, f"another user got {other} cached tokens")
    if first is not None and own:
        report.count("strangers: own tokens kept")


ATTACKS: Final[tuple[Callable[[Target, random.Random, Report], None], ...]] = (
    numbers,
    schemas,
    small_chunks,
    small_chunks,
    small_chunks,
    small_chunks,
    unread,
    half_requests,
    foreign_pages,
    strangers,
)


def attack(target: Target, process: psutil.Process, seconds: float, seed: int) -> Report:
    """Run all attacks and the ordinary client.

    Args:
        process: the server, whose memory is measured with that of its host.
    """
    report = Report("serving")
    end, begun = time.monotonic() + seconds, _memory_mb(process)

    def repeat(number: int, one: Callable[[Target, random.Random, Report], None]) -> None:
        for turn in itertools.count():
            if time.monotonic() >= end:
                return
            try:
                one(target, random.Random(f"{seed} {number} {turn}"), report)
            except (OSError, http.client.HTTPException) as error:
                report.count(f"{one.__name__}: {type(error).__name__}")
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=repeat, args=one) for one in enumerate(ATTACKS)]
    for thread in threads:
        thread.start()
    most = begun
    times: dict[str, list[float]] = {}
    for turn in itertools.count():
        if time.monotonic() >= end:
            break
        what, method, path, body = _ordinary(target)[turn % 3]
        before = time.monotonic()
        try:
            status, _ = target.ask(method, path, body)
        except OSError as error:
            status = -1
            report.finding(f"ordinary {what} requests: {type(error).__name__}")
        times.setdefault(what, []).append(time.monotonic() - before)
        report.count(f"ordinary {what} requests: {status}")
        report.expect(status in (-1, 200), f"ordinary {what} requests: status {status}")
        most = max(most, _memory_mb(process))
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    for what, found in times.items():
        report.rows.append(f"ordinary {what} requests: {len(found)}, the slowest took {max(found):.2f} s")
        report.expect(max(found) < WORST_S, f"ordinary {what} requests: the slowest took {max(found):.1f} s")
    report.rows.append(f"memory of server and host: {begun:.0f} MB before the attack, {most:.0f} MB at its peak")
    report.expect(most - begun < MOST_MB, f"the memory of server and host grew by {most - begun:.0f} MB")
    return report


def _ordinary(target: Target) -> tuple[tuple[str, str, str, bytes | None], ...]:
    asked = {"model": target.language, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    data = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}
    return (
        ("health", "GET", "/v2/health/live", None),
        ("inference", "POST", f"/v2/models/{target.model}/infer", json.dumps(data).encode()),
        ("chat", "POST", "/v1/chat/completions", json.dumps(asked).encode()),
    )


def _memory_mb(process: psutil.Process) -> float:
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += one.memory_info().rss
    return total / 2**20
