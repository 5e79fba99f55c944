"""32 concurrent clients of every kind: each answer is compared, and the server's memory, files and threads stay
bounded.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from serve_models import ELEMENTS, write_identity
from serving import PRIVATE, Server, serving
from tests import needs

pytestmark = [pytest.mark.process, needs.posix]

CLIENTS = 32
REQUESTS = needs.length(2_400, 8_000)
# Number of requests after which memory does not grow further, except for leaks.
WARM = needs.length(1_200, 3_000)
MOST_GROWTH = 24 * 1024**2
TYPES = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "UINT8": np.uint8, "BOOL": np.bool_}
SPARE = "FP64"


class Client:
    """A client thread, with the list of its failures."""

    def __init__(self, server: Server, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        host, port = server.address.rsplit(":", 1)
        self._address = (host, int(port))
        self._connection = http.client.HTTPConnection(*self._address, timeout=60)
        self.asked = 0
        self.unloaded = 0
        self.wrong: list[str] = []

    def work(self, count: int) -> None:
        try:
            for _ in range(count):
                self._one()
                self.asked += 1
        except Exception as error:
            self.wrong.append(repr(error))
        finally:
            self._connection.close()

    def _one(self) -> None:
        kind = self._rng.random()
        if kind < 0.02:
            self._control("unload" if self._rng.random() < 0.5 else "load")
        elif kind < 0.04:
            self._vanish()
        elif kind < 0.05:
            self._read_slowly()
        elif kind < 0.07:
            self._ask_wrongly()
        else:
            self._infer()

    def _infer(self) -> None:
        name, values = self._values()
        body, headers = self._request(name, values)
        self._connection.request("POST", f"/v2/models/{name}/infer", body, headers)
        response = self._connection.getresponse()
        self._compare(name, values, response.status, dict(response.getheaders()), response.read())

    def _values(self) -> tuple[str, Any]:
        name = str(self._rng.choice([*TYPES, "BYTES"]))
        shape = self._rng.integers(0, 9, 2)
        if name == "BYTES":
            texts = np.empty(int(shape.prod()), object)
            texts[:] = ["x" * int(size) + "é" for size in self._rng.integers(0, 20, texts.size)]
            return name, texts.reshape(shape)
        if name in ("FP32", "FP64"):
            return name, self._rng.standard_normal(shape).astype(TYPES[name])
        return name, self._rng.integers(0, 2 if name == "BOOL" else 200, shape).astype(TYPES[name])

    def _request(self, name: str, values: Any) -> tuple[bytes, dict[str, str]]:
        part: dict[str, Any] = {"name": "x", "datatype": name, "shape": list(values.shape)}
        document: dict[str, Any] = {"inputs": [part]}
        headers: dict[str, str] = {}
        raw = b""
        form = self._rng.integers(0, 3)
        if form == 0:
            part["data"] = values.tolist()
        elif form == 1:
            part["data"] = values.reshape(-1).tolist()
        else:
            raw = packed(values)
            part["parameters"] = {"binary_data_size": len(raw)}
        if self._rng.random() < 0.5:
            document["parameters"] = {"binary_data_output": True}
        head = json.dumps(document).encode()
        if form == 2:
            headers["Inference-Header-Content-Length"] = str(len(head))
        body = head + raw
        squeeze = self._rng.random()
        if squeeze < 0.2:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        elif squeeze < 0.3:
            body, headers["Content-Encoding"] = zlib.compress(body, 1), "deflate"
        if self._rng.random() < 0.1:
            headers["Accept-Encoding"] = "gzip"
        return body, headers

    def _compare(self, name: str, values: Any, status: int, headers: dict[str, str], body: bytes) -> None:
        headers = {key.lower(): value for key, value in headers.items()}
        if status in (400, 404, 503) and name == SPARE:
            self.unloaded += 1
            return
        if status != 200:
            self.wrong.append(f"{name} {values.shape}: {status} {body[:200]!r}")
            return
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        size = int(headers.get("inference-header-content-length", len(body)))
        (output,) = json.loads(body[:size])["outputs"]
        if "data" in output:
            found = np.array(output["data"], values.dtype).reshape(output["shape"])
        else:
            found = unpacked(body[size:], values.dtype).reshape(output["shape"])
        if found.shape != values.shape or not bool((found == values).all()):
            self.wrong.append(f"{name} {values.shape}: another answer")

    def _control(self, what: str) -> None:
        self._connection.request("POST", f"/v2/repository/models/{SPARE}/{what}", b"")
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            self.wrong.append(f"{what}: {response.status} {body[:200]!r}")

    def _ask_wrongly(self) -> None:
        body = bytes(self._rng.integers(0, 256, 30).astype(np.uint8))
        self._connection.request("POST", "/v2/models/FP32/infer", b'{"inputs": [' + body)
        response = self._connection.getresponse()
        response.read()
        if response.status != 400:
            self.wrong.append(f"nonsense: {response.status}")

    def _open(self) -> tuple[socket.socket, str, Any]:
        name, values = self._values()
        body, headers = self._request(name, values)
        lines = [f"POST /v2/models/{name}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{key}: {value}" for key, value in headers.items()]
        client = socket.create_connection(self._address, timeout=60)
        client.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        return client, name, values

    def _vanish(self) -> None:
        client, _, _ = self._open()
        client.close()

    def _read_slowly(self) -> None:
        client, name, values = self._open()
        with client:
            parts = []
            while part := client.recv(97):
                parts.append(part)
                time.sleep(0.001)
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        self._compare(name, values, int(first.split()[1]), headers, body)


def packed(values: Any) -> bytes:
    if not values.dtype.hasobject:
        return bytes(values.tobytes())
    texts = [text.encode() for text in values.reshape(-1)]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def unpacked(data: bytes, dtype: Any) -> Any:
    if not dtype.hasobject:
        return np.frombuffer(data, dtype)
    texts, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + size].decode())
        at += 4 + size
    found = np.empty(len(texts), object)
    found[:] = texts
    return found


def test_under_load_every_answer_is_right_and_memory_does_not_grow(tmp_path: Path) -> None:
    models: list[str] = []
    for name in (*TYPES, "BYTES"):
        path = tmp_path / f"{name}.onnx"
        write_identity(path, ELEMENTS[name])
        models += ["--model", f"{name}={path}"]
    # Enough connections that none is refused.
    with serving(*PRIVATE, *models, "--queue", "512") as server:
        process = psutil.Process(server.process.pid)
        clients = [Client(server, seed) for seed in range(CLIENTS)]
        threads = [threading.Thread(target=one.work, args=(REQUESTS // CLIENTS,)) for one in clients]
        for thread in threads:
            thread.start()
        while sum(one.asked for one in clients) < WARM and any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
        warm = process.memory_info().rss
        for thread in threads:
            thread.join()
        wrong = [words for one in clients for words in one.wrong]
        assert not wrong, f"{len(wrong)}: {wrong[:5]}"
        assert sum(one.asked for one in clients) == REQUESTS // CLIENTS * CLIENTS
        assert sum(one.unloaded for one in clients) < REQUESTS / 6
        assert process.memory_info().rss - warm < MOST_GROWTH
        until_settled(process)
        assert server.end() == 0
        assert "Traceback" not in server.errors()


def until_settled(process: psutil.Process) -> None:
    """The connections of disconnected clients are closed, and their threads have ended."""
    end = time.monotonic() + 30
    while process.num_fds() > 60 or process.num_threads() > 60:
        assert time.monotonic() < end, (process.num_fds(), process.num_threads(), os.getpid())
        time.sleep(0.1)
