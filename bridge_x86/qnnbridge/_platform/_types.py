"""The seam to the operating system: what a child process and its starter look like to everybody else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import subprocess

    from qnnbridge._platform._fds import OwnedFds


class ChildProcess(Protocol):
    """A running program and our ends of its three standard streams.

    The descriptors belong to this object; after `close` they read -1. Any thread may call any method.
    In a fork of the owning process the descriptors are closed, `kill`, `terminate` and `close` do nothing, and
    `poll` and `wait` raise `ForkedClient`.
    """

    # As the operating system told it. With a virtual environment on Windows this is the redirector's.
    pid: int

    # To write to with `write_some`; never blocks on POSIX.
    stdin_fd: int

    stdout_fd: int
    stderr_fd: int

    def poll(self) -> int | None:
        """The exit code, or ``None`` while it runs. Unsigned 32 bit on Windows; code or -signal on POSIX."""

    def wait(self, timeout_s: float | None) -> int | None:
        """`poll` after the end of the process or of the time."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM). Windows knows no such thing for a process without a window: `kill`."""

    def kill(self) -> None:
        """End it and everything that it started, at once. Does not wait."""

    def close(self) -> None:
        """Give up descriptors and handles; twice does no harm. Never blocks, never waits for the child.

        A POSIX child that is still alive goes on and sees the end of its input; a Windows child dies with the
        job that holds it.
        """


class Spawner(Protocol):
    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ChildProcess:
        """Start a program without a shell, inheriting nothing but its three standard streams.

        Raises `HostStartFailed`, or `HostNotFound` where trying again is pointless.
        """


class DetachedBase:
    """A program that leads a life of its own. stderr_fd: to read its words until it closes its end."""

    def __init__(self, process: subprocess.Popen[bytes], fds: OwnedFds, stderr_fd: int) -> None:
        self._process = process
        self._fds = fds
        self.stderr_fd = stderr_fd

    def close(self) -> None:
        self.stderr_fd = -1
        self._fds.close_all()
