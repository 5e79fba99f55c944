"""A connection to the daemon in the place of a child process.

For a `HostProcess` a host is something with two streams that can be asked whether it lives, and be ended. Of a
daemon only the connection is ours: it "lives" as long as the daemon holds its ends, and to end it is to give up our
own. There is no exit code and no stderr; the daemon keeps its own log.

Threads: any. In a fork of this process the descriptors are closed, see `ChildProcess`.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from qnnbridge._platform import OwnedFds, abandon_stream, connection_ended, release_stream
from qnnbridge_protocol.errors import ForkedClient

# What `poll` gives when the connection has ended; nobody knows how the daemon did.
ENDED: Final = 0


class DaemonLink:
    """See `ChildProcess`. pid: the daemon's, as the system told it, else as the daemon says."""

    def __init__(self, pid: int, read_fd: int, write_fd: int, fds: OwnedFds) -> None:
        self.pid = pid
        self.stdin_fd = write_fd
        self.stdout_fd = read_fd
        self._fds = fds
        self.stderr_fd = self._nothing()
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._given_up = False

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout_s: float | None) -> int | None:
        self._refuse_fork()
        if self._given_up or self.stdout_fd < 0:
            return ENDED
        return ENDED if connection_ended(self.stdout_fd, timeout_s) else None

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        """The daemon sees the end of our stream and ends its own, which wakes whoever waits here."""
        with self._lock:
            if self._owner != os.getpid() or self._given_up or self.stdin_fd < 0:
                return
            self._given_up = True
            abandon_stream(self.stdin_fd)

    def close(self) -> None:
        with self._lock:
            if self._owner != os.getpid() or self.stdin_fd < 0:
                return
            self._given_up = True
            release_stream(self.stdin_fd, self.stdout_fd)
            self.stdin_fd = self.stdout_fd = self.stderr_fd = -1
        self._fds.close_all()

    def _nothing(self) -> int:
        """A pipe that is at its end, for who reads the stderr of a host."""
        read_fd, write_fd = self._fds.pipe()
        self._fds.close(write_fd)
        return read_fd

    def _refuse_fork(self) -> None:
        if self._owner != os.getpid():
            raise ForkedClient(
                f"The connection to the daemon belongs to process {self._owner}, of which this process is a fork.",
                fix="Connect in each process: qnnbridge.connect().",
            )
