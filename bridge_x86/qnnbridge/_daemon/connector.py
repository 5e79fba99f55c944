"""Connect to a daemon, authenticate, and handle the loss of the connection.

`DaemonConnector` is the spawner of a `Host` whose process is a daemon: instead of starting a process it connects to
the running daemon. `reach` does the slow steps within the caller's deadline: find the daemon, start a daemon if
none runs and `DaemonAccess.start` is true, and authenticate. After `DeadlineExceeded`, `reach` may be called again
and continues where it stopped. `spawn` returns the connection. `LostDaemon` reports the loss of a connection and
blames no model: the daemon investigates crashes of the NPU host, keeps the quarantine and repeats the calls.

The supervisor's start lock ensures that only one thread at a time calls these methods.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge._daemon import DaemonAccess, command
from qnnbridge._daemon.discovery import Discovery, Starting, existing_runtime_folder, read_discovery, runtime_folder
from qnnbridge._supervision.deaths import DeathReport
from qnnbridge._supervision.host_process import EXIT_WAIT_S, HostProcess
from qnnbridge._supervision.restart_policy import RestartPolicy
from qnnbridge._transport.channel import CallContext, ChannelFailed
from qnnbridge_os.daemon_endpoint import (
    DaemonStream,
    abandon_stream,
    connect_to_daemon,
    connection_ended,
    release_stream,
)
from qnnbridge_os.fds import OwnedFds
from qnnbridge_os.native import Lock, sleep
from qnnbridge_os.processes import ChildProcess
from qnnbridge_protocol.auth import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    AdmissionCode,
    ClientIdentity,
    ClientSide,
    DaemonAnswer,
    NotProven,
)
from qnnbridge_protocol.connection import DAEMON_FEATURE, LEAVE_FEATURE, MAKE_WAY_FEATURE
from qnnbridge_protocol.errors import (
    BridgeError,
    Closed,
    DeadlineExceeded,
    ForkedClient,
    HostCrashed,
    HostError,
    HostHung,
    HostStartFailed,
    WorkerDied,
)

if TYPE_CHECKING:
    from qnnbridge._diagnosis.exit_codes import ExitStatus

DIALOGUE_TIMEOUT_S: Final = 5.0
_MORE_ROOM: Final = (
    "Close applications that use the daemon, or restart the daemon from a shell with a higher limit of open "
    "files (ulimit -Hn): " + command("host restart --daemon")
)


class Unreachable(Exception):
    """Raised if no daemon can be reached now. The text is a clause for messages: it starts in lower case and has no
    full stop. fix: advice for the user, if there is any."""

    def __init__(self, text: str, fix: str | None = None) -> None:
        super().__init__(text)
        self.fix = fix


def enter_daemon(deadline: float) -> DaemonLink:
    """Connect to the daemon of this user.

    Raises:
        Unreachable: no daemon can be reached now.
        HostStartFailed: other users can access the daemon's folder.
        VersionMismatch: the daemon's version is incompatible.
    """
    folder = existing_runtime_folder()
    discovery = None if folder is None else read_discovery(folder)
    if folder is None or discovery is None:
        raise Unreachable(f"there is no daemon.json in {runtime_folder()}")
    try:
        return enter(discovery, folder, deadline)
    except PermissionError as error:
        raise Unreachable(f"the daemon's endpoint cannot be used ({error})") from error
    except (FileNotFoundError, ConnectionRefusedError):
        raise Unreachable("no daemon listens at the endpoint in daemon.json") from None
    except TimeoutError:
        raise Unreachable(f"the daemon (process {discovery.pid}) did not answer at its endpoint in time") from None
    except NotProven as problem:
        raise Unreachable(f"the endpoint in daemon.json does not belong to this daemon: {problem}") from None
    except OSError as error:
        raise Unreachable(f"the authentication failed ({error.strerror or error})") from error


def enter(discovery: Discovery, folder: Path, deadline: float) -> DaemonLink:
    """Connect to the daemon that `discovery`, the contents of a `daemon.json`, describes.

    Raise `OSError`, `NotProven`, `Unreachable` or `VersionMismatch`."""
    deadline = min(deadline, time.monotonic() + DIALOGUE_TIMEOUT_S)
    stream = connect_to_daemon(discovery.endpoint, folder, deadline)
    # Descriptors of the connection: closed here after a failure, otherwise owned by the `DaemonLink`.
    fds = OwnedFds()
    try:
        # Check the peer before sending the proof of the token, which another user's process must not get.
        stream.check_peer()
        answer = _talk(stream, discovery, fds, deadline)
        if answer.verdict is not AdmissionCode.WELCOME:
            if answer.verdict is AdmissionCode.LEAVING:
                raise Unreachable("the daemon is ending")
            raise Unreachable("the daemon's limit of open files is reached, so it accepts no client", _MORE_ROOM)
        read_fd, write_fd = stream.ends(answer.handles, fds)
        # Prefer the process id that the system reports, because the process id in daemon.json may be stale.
        return DaemonLink(stream.peer_pid or discovery.pid, read_fd, write_fd, fds)
    except BaseException:
        fds.close_all()
        raise
    finally:
        # Close the connection that was used for the authentication. The `DaemonLink` uses the descriptors in `fds`.
        stream.close()


def _talk(stream: DaemonStream, discovery: Discovery, fds: OwnedFds, deadline: float) -> DaemonAnswer:
    # Each side proves that it has the token without sending the token (`qnnbridge_protocol.auth`).
    side = ClientSide(discovery.token, discovery.instance, ClientIdentity(os.getpid(), program_name()))
    stream.send(side.prove(stream.receive(CHALLENGE_BYTES, deadline)), deadline)
    return side.check(stream.receive_with_ends(ANSWER_BYTES, fds, deadline))


def program_name() -> str:
    """Return a readable name of this program: the script, or else the module, or else the interpreter."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program in ("", "-c", "-m"):
        program = sys.executable or "python"
    name = os.path.basename(program)
    return os.path.basename(os.path.dirname(program)) if name == "__main__.py" else name


# Exit code of a daemon whose connection has ended: the real exit code is unknown. With 0, losing a daemon does not
# count as a crash, and no model is blamed.
ENDED: Final = 0


class DaemonLink:
    """A `ChildProcess` for the connection to a daemon. `pid` is the daemon's process id, from the system or else
    from daemon.json."""

    def __init__(self, pid: int, read_fd: int, write_fd: int, fds: OwnedFds) -> None:
        self.pid = pid
        self.stdin_fd = write_fd
        self.stdout_fd = read_fd
        self._fds = fds
        # Empty pipe for stderr, which `HostProcess` reads: the daemon writes to its log file instead.
        self.stderr_fd, end = fds.pipe()
        fds.close(end)
        self._owner = os.getpid()
        self._lock = Lock()
        self._given_up = False

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout_s: float | None) -> int | None:
        if self._owner != os.getpid():
            raise ForkedClient(
                f"The connection to the daemon belongs to process {self._owner}, of which this process is a fork.",
                fix="Connect in each process: qnnbridge.connect().",
            )
        if self._given_up or self.stdout_fd < 0:
            return ENDED
        # A daemon is not a child process and has no exit code here, so wait for the end of the stream.
        return ENDED if connection_ended(self.stdout_fd, timeout_s) else None

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        """Shut the connection down. The daemon notices the end of the stream and closes its end, which wakes the
        threads of this process that wait for data."""
        with self._lock:
            if self._owner != os.getpid() or self._given_up or self.stdin_fd < 0:
                return
            self._given_up = True
            abandon_stream(self.stdin_fd)
            # The descriptor now refers to the null device. Record its new identity, so that the channel does not
            # conclude that other code closed and reopened the descriptor.
            self._fds.mark_again(self.stdin_fd)

    def close(self) -> None:
        with self._lock:
            if self._owner != os.getpid() or self.stdin_fd < 0:
                return
            self._given_up = True
            release_stream(self.stdin_fd, self.stdout_fd)
            self.stdin_fd = self.stdout_fd = self.stderr_fd = -1
        self._fds.close_all()


_LOG_LINES: Final = 5
_LOG_BYTES: Final = 8 * 1024


class LostDaemon:
    """Handle the loss of the connection to a daemon. Implements `DeathHandler`."""

    def on_ready(self, process: HostProcess) -> None:
        """Do nothing: the versions of a daemon are not recorded."""

    def check_quarantine(self, context: CallContext) -> None:
        """Do nothing: the daemon checks the quarantine."""

    def on_good_reply(self, context: CallContext, phase: str) -> None:
        """Do nothing: the daemon decides which models are suspects."""

    def investigate(
        self,
        process: HostProcess,
        failure: ChannelFailed,
        suspect: CallContext | None = None,
        patience_s: float = EXIT_WAIT_S,
    ) -> DeathReport:
        """Return why the connection failed, and shut the connection down."""
        # `DaemonLink.kill` only closes the connection, because the daemon also serves other applications.
        process.kill(failure.reason.message if failure.reason is not None else "the connection to the daemon ended")
        error = _error(process, failure.reason)
        error.details.setdefault("generation", process.generation)
        # The daemon runs no native code, so a call can end the connection only by sending invalid data, and
        # `failure.reason` then contains the error. If the connection ended without an error, or the daemon hung, no
        # call is the cause, and calls are repeated without reducing `retry`.
        outside = failure.reason is None or isinstance(failure.reason, HostHung)
        return DeathReport(error, None, from_outside=outside)

    def investigate_worker(self, process: HostProcess, error: WorkerDied, context: CallContext) -> HostCrashed:
        """Return the error unchanged, because the daemon itself investigates the deaths of compiler processes."""
        return HostCrashed(error.message, cause=error.cause, fix=error.fix, evidence=error.evidence)


def _error(process: HostProcess, reason: BridgeError | None) -> HostError:
    if isinstance(reason, HostHung):
        return HostHung(
            f"The qnnbridge daemon (process {process.real_pid}) does not respond.",
            cause=reason.cause or reason.message,
            fix=f"The next call connects again. If that fails, too: {command('host restart --daemon')}",
            details=reason.details,
        )
    if isinstance(reason, HostError):
        return reason
    log, cause = _traces_of_daemon()
    return HostCrashed(
        f"The qnnbridge daemon (process {process.real_pid}) closed the connection.",
        cause=reason.message if reason is not None else cause,
        fix=f"Nothing to do: the next call connects again. If it happens often, see {command('host logs')}",
        evidence=reason.evidence if reason is not None else _tail(log),
        details={"daemon_pid": process.real_pid, "log_file": log, "daemon": DAEMON_FEATURE},
    )


def _traces_of_daemon() -> tuple[str, str]:
    """Return the daemon's log file ('' if unknown), and the probable reason for its end from daemon.json."""
    try:
        folder = existing_runtime_folder()
        discovery = None if folder is None else read_discovery(folder)
    except BridgeError as error:
        return "", error.message
    if discovery is None:
        return "", f"It was stopped, or {runtime_folder()} was removed."
    return discovery.log_file, "It was killed or crashed, or it was stopped and another daemon replaced it."


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


# Seconds to wait for a lost daemon if the application must not start a daemon: a service manager may start it.
RECONNECT_TIMEOUT_S: Final = 5.0

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25
# First pause before the next start of a daemon. A daemon that is ending may report "ready" or "running" although no
# client can reach it. The pause doubles with each attempt.
_START_AGAIN_S: Final = 0.5
# Maximum number of consecutive daemons that end without output before they are ready (after a kill, for example).
_MOST_SILENT_ENDS: Final = 3

# Tolerance in seconds for comparing the deadline with the end of the search for the daemon. The two times are
# computed one after the other, so they differ slightly even if the time limits are equal.
_SAME_TIME_S: Final = 0.5


class DaemonConnector:
    """Spawner of a `Host` whose process is a daemon. The supervisor also uses `policy` and `death_handler`."""

    def __init__(self, access: DaemonAccess) -> None:
        self.policy = ReconnectPolicy()
        self.death_handler = LostDaemon()
        self._access = access
        self._ready: DaemonLink | None = None
        self._starting: Starting | None = None
        self._was_there = False
        self._silent_ends = 0
        self._closed = False

    @property
    def features(self) -> frozenset[str]:
        """Features that the application's HELLO offers. If both sides offer `DAEMON_FEATURE`, the handshake fails
        for releases that are too far apart."""
        if self._access.any_release:
            return frozenset({LEAVE_FEATURE})
        return frozenset({DAEMON_FEATURE, MAKE_WAY_FEATURE} if self._access.start else {DAEMON_FEATURE})

    def reach(self, deadline: float | None) -> None:
        """Prepare a connection for `spawn`. Raise `HostStartFailed`, `VersionMismatch` or `DeadlineExceeded`."""
        # Use the connection of an earlier call that was interrupted by its caller's deadline.
        if self._ready is not None and self._ready.poll() is None:
            return
        link, self._ready = self._ready, None
        if link is not None:
            link.close()
        begin, patience_s = time.monotonic(), self._access.start_timeout_s
        if not self._access.start:
            patience_s = min(RECONNECT_TIMEOUT_S, patience_s) if self._was_there else 0.0
        give_up_at = begin + patience_s
        until = give_up_at if deadline is None else min(deadline, give_up_at)
        pause_s, start_at = _FIRST_PAUSE_S, begin
        start_again_s = _START_AGAIN_S
        while True:
            try:
                # Pass the deadline, not `until` (end of the search): authentication may continue after the search.
                self._ready = enter_daemon(math.inf if deadline is None else deadline)
                self._was_there = True
                self._silent_ends = 0
                self._forget_start()
                return
            except Unreachable as problem:
                why, fix = str(problem), problem.fix
            if self._closed:
                self._forget_start()
                raise Closed("The host was closed.", fix="Call qnnbridge.connect() again.")
            if time.monotonic() >= until:
                raise self._too_late(why, fix, deadline, give_up_at)
            if self._access.start and self._starting is None and time.monotonic() >= start_at:
                self._starting = Starting(self._access.arguments, self._access.python)
            if self._await_start(min(until, time.monotonic() + pause_s)):
                # Double the pause, so that a daemon that always exits is not started in a tight loop.
                start_at, start_again_s = time.monotonic() + start_again_s, start_again_s * 2
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ChildProcess:
        """Return the connection; see `Spawner`. Ignore the arguments, because the daemon is already running."""
        if self._ready is None:
            self.reach(None)
        assert self._ready is not None
        link, self._ready = self._ready, None
        return link

    def close(self) -> None:
        """Make a thread that waits in `reach` raise `Closed`, because the host is being closed. Thread-safe."""
        self._closed = True

    def _await_start(self, until: float) -> bool:
        """Wait until the given time, or until the started daemon reports its state. Return True if the daemon has
        reported its state, or has ended."""
        if self._starting is None:
            sleep(max(0.0, until - time.monotonic()))
            return False
        try:
            outcome = self._starting.wait(until)
        except HostStartFailed as error:
            self._forget_start()
            self._silent_ends += 1
            if error.retry != "safe" or self._silent_ends > _MOST_SILENT_ENDS:
                raise
            return True
        except BaseException:
            self._forget_start()
            raise
        if outcome is not None:
            self._starting = None
        return outcome is not None

    def _too_late(self, why: str, fix: str | None, deadline: float | None, give_up_at: float) -> BridgeError:
        cause = f"{why[:1].upper()}{why[1:]}."
        if deadline is not None and deadline < give_up_at - _SAME_TIME_S:
            return DeadlineExceeded(
                "The time limit of the call expired before the daemon was reached.",
                cause=cause,
                fix="Increase the time limit, or connect beforehand with qnnbridge.connect().",
                details={"state": "not-started"},
            )
        if self._access.start:
            return HostStartFailed(
                f"The qnnbridge daemon could not be reached within {self._access.start_timeout_s:g} s.",
                cause=cause,
                fix=fix or f"See its log: {command('host logs')}",
                details={"folder": str(runtime_folder())},
            )
        return HostStartFailed(
            "No qnnbridge daemon could be reached.",
            cause=cause,
            fix=fix or f"Start one: {command('host start')}   (qnnbridge.connect(start=True) also does).",
            details={"folder": str(runtime_folder())},
        )

    def _forget_start(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.close()


class ReconnectPolicy(RestartPolicy):
    """Policy for reconnecting to a lost daemon: immediately, and as often as needed.

    An attempt costs little, and the user may correct the daemon's version or folder while the application runs.
    """

    def __init__(self) -> None:
        # The breaker is disabled, because an attempt to connect is cheap and the daemon may return at any moment.
        super().__init__(first_delay_s=0.05, max_delay_s=1.0, breaker_deaths=1_000_000)

    def on_death(
        self, status: ExitStatus | None = None, incurable: BridgeError | None = None, *, booked: bool = False
    ) -> None:
        super().on_death(status)
