"""A broker in threads of the test, and `Host` objects of applications, connected to it by pipes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import qnnbridge
from qnnbridge._daemon import DaemonAccess
from qnnbridge_daemon.accounts import BrokerSettings
from qnnbridge_daemon.broker import Broker
from qnnbridge_daemon.listener import ClientEnds
from qnnbridge_os.fds import OwnedFds
from qnnbridge_os.processes import enlarge_pipe

# Timeout that only a defect reaches.
GRACE_S = 20.0


def pipes() -> tuple[ClientEnds, int, int]:
    """Open a connection; return the daemon's ends, and the client's descriptors for writing and reading."""
    in_fd, to_daemon = os.pipe()
    from_daemon, out_fd = os.pipe()
    for fd in (to_daemon, from_daemon):
        enlarge_pipe(fd)
    return ClientEnds(in_fd, out_fd, os.getpid(), "test"), to_daemon, from_daemon


class Connected:
    """A connection to the broker with the interface of a process."""

    def __init__(self, stdin_fd: int, stdout_fd: int, stderr_fd: int, thread: threading.Thread) -> None:
        self.pid = os.getpid()
        self._fds = OwnedFds()
        self.stdin_fd, self.stdout_fd, self.stderr_fd = map(self._fds.adopt, (stdin_fd, stdout_fd, stderr_fd))
        if sys.platform != "win32":
            os.set_blocking(stdin_fd, False)
        self._thread = thread

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, timeout_s: float | None) -> int | None:
        self._thread.join(timeout_s)
        return self.poll()

    def terminate(self) -> None:
        self.close()

    def kill(self) -> None:
        self.close()

    def close(self) -> None:
        self.stdin_fd = self.stdout_fd = self.stderr_fd = -1
        self._fds.close_all()


class Lab:
    """A broker in threads of the test, and the hosts connected to it."""

    def __init__(self, npu_host: qnnbridge.Host, settings: BrokerSettings | None = None) -> None:
        self.npu_host = npu_host
        self.broker = Broker(npu_host, settings)
        self._hosts: list[qnnbridge.Host] = []

    def client(self, **options: Any) -> qnnbridge.Host:
        """Return a host that represents another application."""
        host = qnnbridge.Host(_daemon=DaemonAccess(start=False), **options)
        host.supervisor._spawner = self
        host.supervisor._reach = lambda _deadline: None
        self._hosts.append(host)
        return host

    def connect(self) -> tuple[int, int, threading.Thread]:
        """Open a connection without a host; return the client's descriptors (write, read) and the serving thread."""
        ends, to_daemon, from_daemon = pipes()
        thread = threading.Thread(target=self.broker.serve, args=(ends,), daemon=True)
        thread.start()
        return to_daemon, from_daemon, thread

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> Connected:
        to_daemon, from_daemon, thread = self.connect()
        stderr, stderr_end = os.pipe()
        os.close(stderr_end)
        return Connected(to_daemon, from_daemon, stderr, thread)

    def close(self) -> None:
        while self._hosts:
            self._hosts.pop().close()
        self.broker.stop(GRACE_S)
        self.npu_host.close()


@contextlib.contextmanager
def lab(npu_host: qnnbridge.Host, settings: BrokerSettings | None = None) -> Iterator[Lab]:
    made = Lab(npu_host, settings)
    try:
        yield made
    finally:
        made.close()


def until(condition: Callable[[], bool], told: Callable[[], object] = lambda: "it did not happen") -> None:
    """Wait until the condition is true. told: returns the message of a failure."""
    deadline = time.monotonic() + GRACE_S
    while not condition():
        assert time.monotonic() < deadline, told()
        threading.Event().wait(0.005)


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Run all functions at the same time; return their results, or raise the first exception."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(work) for work in works]]
