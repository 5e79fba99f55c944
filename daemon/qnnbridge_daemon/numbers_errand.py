"""Measure the operators in the known-wrong table on the NPU while the daemon is idle.

`qnnbridge_tools.doctor.measure_rows` measures in a separate process, which stores each row at once and skips rows
that were already measured with this chip, driver and version of QNN. When a client connects, the process is ended;
in the next idle time it continues with the next row.
"""

from __future__ import annotations

import logging
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

_log = logging.getLogger("qnnbridge.daemon")

# Seconds of idle time before a measurement, so that no measurement begins while a program is being restarted.
AFTER_S: Final = 60.0


def numbers_command(host_python: str | None) -> list[str]:
    """Return the command line of the measuring process, which does nothing if QNN computes on a simulator."""
    command = [sys.executable, "-m", "qnnbridge_tools.doctor.measure_rows", "--missing", "--npu"]
    return command + (["--host-python", host_python] if host_python else [])


def may_have_npu() -> bool:
    """Return whether this computer may have a Qualcomm NPU. On Windows, an x64 Python may be emulated."""
    return sys.platform == "win32" or platform.machine().lower() in ("arm64", "aarch64")


class NumbersErrand:
    """Run the measuring process while the daemon is idle, until all rows are measured. Not thread-safe.

    Args:
        command: command line of the measuring process.
        idle_for_s: function that returns the seconds without a client.
    """

    def __init__(self, command: Sequence[str], idle_for_s: Callable[[], float], after_s: float = AFTER_S) -> None:
        self._command = list(command)
        self._idle_for_s = idle_for_s
        self._after_s = after_s
        self._process: subprocess.Popen[bytes] | None = None
        self.done = False

    def poll(self) -> None:
        """Start or end the measuring process, or read its exit code. The daemon calls this method periodically."""
        if self.done:
            return
        idle_s = self._idle_for_s()
        if self._process is None:
            if idle_s >= self._after_s:
                self._start()
            return
        code = self._process.poll()
        if code is not None:
            # An error is treated as permanent by this daemon; the next daemon tries again.
            self._process, self.done = None, True
            _log.info("the known-wrong operators were measured (exit code %d)", code)
        elif not idle_s:
            self.stop()

    def stop(self) -> None:
        """End the measuring process. The stored measurements are kept. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            self.done = True
            _log.info("the known-wrong operators are not measured: %s", error)
