"""Starting a program that outlives this one, on Linux. Any thread."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from qnnbridge._platform._fds import OwnedFds, no_fork

assert sys.platform != "win32"

_FORK_TIMEOUT_S: Final = 5.0


class Detached:
    """A program that leads a life of its own. stderr_fd: to read what it says until it closes its end."""

    def __init__(self, process: subprocess.Popen[bytes], fds: OwnedFds, stderr_fd: int) -> None:
        self._process = process
        self._fds = fds
        self.stderr_fd = stderr_fd

    def close(self) -> None:
        """Listen no more. Collects the process that was started, which has left the real one behind long ago."""
        self.stderr_fd = -1
        self._fds.close_all()
        try:
            self._process.wait(_FORK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass


def start_detached(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> Detached:
    """In a session of its own. The program forks at once and goes on in the child, so that it has no parent here
    that would have to collect it. Raises `OSError`."""
    fds = OwnedFds()
    ours, theirs = fds.pipe()
    try:
        with no_fork:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=theirs,
                env=dict(env),
                cwd=cwd,
                close_fds=True,
                start_new_session=True,
            )
    except BaseException:
        fds.close_all()
        raise
    fds.close(theirs)
    return Detached(process, fds, ours)
