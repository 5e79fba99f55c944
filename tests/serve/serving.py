"""Start a real `qnnbridge serve` in a separate process and send HTTP requests to it."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

START_TIMEOUT_S = 90.0
END_TIMEOUT_S = 60.0
HTTP_TIMEOUT_S = 90.0

COMMAND = [sys.executable, "-m", "qnnbridge_tools", "serve"]
PRIVATE = ("--host", "private", "--provider", "cpu", "--http", "127.0.0.1:0")


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        document = self.document
        assert list(document) == ["error"]
        assert "Traceback" not in document["error"]
        return str(document["error"])


class Server:
    """A server that has printed its address. address: ``127.0.0.1:PORT``."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._watchdog = threading.Timer(
            START_TIMEOUT_S, process.kill
        )  # limits the time that the test waits for lines
        self._watchdog.daemon = True
        self._watchdog.start()
        self.said: list[str] = []
        self.address = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.said.append(line.rstrip())
            if line.startswith("Listening on http://"):
                self.address = line.split("http://")[1].split(",")[0]
                return
        raise AssertionError(f"it ended with {process.wait(END_TIMEOUT_S)}: {self.errors()}")

    def stop_watching(self) -> None:
        self._watchdog.cancel()

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip())
            if line == "Ready.\n":
                self._watchdog.cancel()
                return
        raise AssertionError(f"it ended with {self.process.wait(END_TIMEOUT_S)}: {self.errors()}")

    def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request on a new connection. A body that is not bytes is sent as JSON."""
        if body is not None and not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=HTTP_TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def infer(self, model: str, *inputs: dict[str, Any], **fields: Any) -> Answer:
        return self.ask("POST", f"/v2/models/{model}/infer", {"inputs": list(inputs), **fields})

    def host(self) -> psutil.Process:
        """Return the process of the server's private host."""
        (host,) = psutil.Process(self.process.pid).children()
        return host

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(END_TIMEOUT_S)

    def errors(self) -> str:
        """Return the server's stderr; blocks until the server has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def starting(*arguments: str | Path, **environment: str) -> Iterator[Server]:
    """Start a server, which may still be loading its models; end it after the block."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, **environment},
    )
    try:
        server = Server(process)
        try:
            yield server
        finally:
            server.stop_watching()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def serving(*arguments: str | Path, **environment: str) -> Iterator[Server]:
    """Start a server and wait until it has loaded its models; end it after the block."""
    with starting(*arguments, **environment) as server:
        server.wait_until_ready()
        yield server


def refused(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a server command that is expected to fail at its start."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=START_TIMEOUT_S,
        check=False,
    )
