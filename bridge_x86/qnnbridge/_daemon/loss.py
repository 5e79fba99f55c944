"""What is said when the connection to the daemon is lost, and what is not done: nobody is blamed.

Crashes of the NPU host are the daemon's business: it investigates them, keeps the quarantine and repeats the calls.
That the daemon itself is gone says nothing about a model. Any thread; one investigation at a time (the supervisor's
lock).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qnnbridge._daemon.discovery import read_discovery
from qnnbridge._daemon.folder import existing_runtime_folder, runtime_folder
from qnnbridge._supervision.deaths import DeathReport
from qnnbridge._transport.channel import ChannelFailed, Note
from qnnbridge._transport.host_process import EXIT_WAIT_S, HostProcess
from qnnbridge_protocol.errors import BridgeError, HostCrashed, HostError, HostHung
from qnnbridge_protocol.hello import DAEMON_FEATURE

_LOG_LINES: Final = 5
_LOG_BYTES: Final = 8 * 1024


class LostDaemon:
    """See `DeathHandler`."""

    def on_ready(self, process: HostProcess) -> None:
        """Nothing is remembered about the versions of a daemon."""

    def check_quarantine(self, note: Note) -> None:
        """The daemon does that."""

    def on_good_reply(self, note: Note, phase: str) -> None:
        """Nobody was under suspicion."""

    def investigate(
        self,
        process: HostProcess,
        failure: ChannelFailed,
        suspect: Note | None = None,
        patience_s: float = EXIT_WAIT_S,
    ) -> DeathReport:
        """Why the connection failed. Gives up our ends of it."""
        process.kill(failure.reason.message if failure.reason is not None else "the connection to the daemon ended")
        error = _error(process, failure.reason)
        error.details.setdefault("generation", process.generation)
        return DeathReport(error, None, on_purpose=False)


def _error(process: HostProcess, reason: BridgeError | None) -> HostError:
    if isinstance(reason, HostHung):
        return HostHung(
            f"The qnnbridge daemon (process {process.real_pid}) does not move.",
            cause=reason.cause or reason.message,
            fix="The next call connects again. If that fails, too: qnnbridge host restart --daemon",
            details=reason.details,
        )
    if isinstance(reason, HostError):
        return reason
    log, cause = _what_is_left()
    return HostCrashed(
        f"The qnnbridge daemon (process {process.real_pid}) closed the connection.",
        cause=reason.message if reason is not None else cause,
        fix="Nothing to do: the next call connects again. Should it happen often, see qnnbridge host logs",
        evidence=reason.evidence if reason is not None else _tail(log),
        details={"daemon_pid": process.real_pid, "log_file": log, "daemon": DAEMON_FEATURE},
    )


def _what_is_left() -> tuple[str, str]:
    """The log's path, empty if it is not known, and what the daemon's file says about its end."""
    try:
        folder = existing_runtime_folder()
        discovery = None if folder is None else read_discovery(folder)
    except BridgeError as error:
        return "", error.message
    if discovery is None:
        return "", f"It was stopped (qnnbridge host stop), or {runtime_folder()} was removed."
    return discovery.log_file, "It was killed or crashed, or it was stopped and another one took its place."


def _tail(log: str) -> list[str]:
    if not log:
        return []
    try:
        with Path(log).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [f"{log}: {line}" for line in lines[-_LOG_LINES:]]
