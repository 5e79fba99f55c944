"""Start one process of the host, perform the handshake, watch the process, and end it.

A `HostProcess` is never restarted: the supervisor creates a new `HostProcess` for the next generation.

A call cannot be interrupted inside native code. With ``on_deadline="kill"`` the supervisor ends the host during the
call. The application requested this, so it is not a crash, and all other calls are repeated in the next host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge._launch.stderr import StderrCollector
from qnnbridge._transport.channel import CallContext, CallTimedOut, Channel, ChannelFailed
from qnnbridge_os.native import Lock
from qnnbridge_os.processes import ChildProcess, Spawner, out_of_memory_kills
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES, Hello, elsewhere
from qnnbridge_protocol.errors import (
    BridgeError,
    DeadlineExceeded,
    HandshakeFailed,
    HostHung,
    HostStartFailed,
    OptionError,
    VersionMismatch,
)
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.process_names import this_system
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._fastpath import Sharing
    from qnnbridge._fastpath.channel_pool import ChannelPool

_log = log_of("qnnbridge.host_process")

# Seconds to wait for the end of the host process after its output has ended.
EXIT_WAIT_S = 5.0

# Phases of the host that have a time limit.
LOADING = {"importing": "importing ONNX Runtime", "registering": "loading the QNN execution provider"}

# Time limits of the four steps of `close`: answer to GOODBYE, end of the process, terminate, kill. Including
# reading the rest of stderr and releasing the pipes, `close` takes at most 9 s.
DRAIN_TIMEOUT_S = 2.0
STDIN_CLOSED_TIMEOUT_S = 2.0
TERMINATE_TIMEOUT_S = 1.0
KILL_TIMEOUT_S = 2.0
# Seconds to wait, after the process has ended, until the last caller stops reading from the pipe.
RELEASE_TIMEOUT_S = 1.0

# Number of consecutive checks, five seconds apart, that must find the process stopped before the host is ended (25
# to 30 s), so that a short stop by a debugger has no effect.
STOPPED_CHECKS = 6

# Number of consecutive checks that must find the loading time exceeded: after the machine was asleep, a single
# check would be wrong.
LOADING_CHECKS = 2

# Seconds to wait for the end of stderr after the process has ended, because a child process of the host may keep
# stderr open.
STDERR_TIMEOUT_S = 1.0


@dataclasses.dataclass(frozen=True)
class Launch:
    """Parameters for the start of a host.

    Attributes:
        timeout_s: time limit in seconds for the host's HELLO. The same limit applies again for loading ONNX Runtime
            and QNN.
        features: features that the bridge's HELLO offers in addition to those offered to every host.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None
    limits: Limits
    timeout_s: float
    sharing: Sharing | None = None
    features: frozenset[str] = frozenset()


class HostProcess:
    """One generation of the host, from its start to its end. Thread-safe; `close` is idempotent."""

    def __init__(self, launch: Launch, spawner: Spawner, generation: int) -> None:
        self.generation = generation
        self.started_at = time.monotonic()
        self._start_timeout_s = launch.timeout_s
        self.ready_at: float | None = None
        # Reason why qnnbridge ended the process; ``None`` if it did not.
        self.killed_because: str | None = None
        # Names of the steps that were needed to end the process.
        self.end_steps: list[str] = []
        self.retiring = False
        self._seen_stopped = 0
        self.sharing = launch.sharing
        # The pool of fast channels, once `pool` has created it.
        self.open_pool: ChannelPool | None = None
        self._pool_lock = Lock()
        self._seen_loading = 0
        self.load_timeout_s = launch.timeout_s
        self._hello = hello = Hello(
            features=launch.features
            | (FEATURES - SHARING_FEATURES if self.sharing is None else self.sharing.features()),
            limits=launch.limits,
            pid=os.getpid(),
            python="{}.{}.{}".format(*sys.version_info[:3]),
            platform=sys.platform,
            system=this_system(),
        )
        # The kernel's counter of out-of-memory kills (Linux), read before the process starts, to compare with the
        # counter after its death.
        self._memory_kills = out_of_memory_kills()
        self._child: ChildProcess = spawner.spawn(launch.argv, launch.env, launch.cwd)
        try:
            self.stderr = StderrCollector(self._child.stderr_fd)
            self.channel = Channel(self._child.stdin_fd, self._child.stdout_fd, hello, self._check)
        except BaseException as error:
            # The connection could not be created (no descriptors or memory left). Do not leave a process running
            # without a connection.
            self._child.kill()
            self._child.wait(KILL_TIMEOUT_S)
            self._child.close()
            if isinstance(error, OSError):
                raise HostStartFailed(
                    "The host cannot be started.",
                    cause=f"{error.strerror or error}.",
                    fix="Close open files and try again.",
                ) from None
            raise

    @property
    def pid(self) -> int:
        """Id of the started process. The host reports its own id in `peer`, which may differ."""
        return self._child.pid

    @property
    def real_pid(self) -> int:
        """Id of the host process itself. With a virtual environment on Windows, `pid` is the id of the launcher.
        For a host in a container or on another machine, `real_pid` is the id of the local process that connects to
        the host."""
        peer = self.channel.peer if self.ready_at is not None else None
        return self.pid if peer is None or elsewhere(self._hello, peer) else peer.pid or self.pid

    @property
    def pool(self) -> ChannelPool | None:
        """Pool of fast channels for repeated calls; ``None`` if fast channels are not available."""
        # Check the pool twice, the second time under the lock, so that most calls need no lock.
        sharing = self.sharing
        if self.open_pool is None and sharing is not None and sharing.why_not is None and self.ready_at is not None:
            from qnnbridge._fastpath.channel_pool import ChannelPool  # imports numpy

            with self._pool_lock:
                if self.open_pool is None:
                    self.open_pool = ChannelPool(self.channel, sharing, self._check_and_fail)
        return self.open_pool

    @property
    def peer(self) -> Hello:
        return self.channel.peer

    @property
    def versions(self) -> dict[str, str]:
        """Versions from the host's HELLO, and QNN's versions once the host has found QNN."""
        return {**self.peer.versions, **self.channel.requests.host_versions}

    @property
    def seeks_qnn(self) -> bool:
        """Whether the version of QNN is unknown. The HELLO contains it only if QNN comes from a Python package."""
        requests = self.channel.requests
        known = requests.host_versions or "onnxruntime_qnn" in self.peer.versions
        return not known and requests.host_phase != "ready"

    @property
    def usable(self) -> bool:
        return not (self.channel.failed or self.retiring)

    def greet(self, deadline: float | None = None) -> None:
        """Perform the handshake. If the caller's deadline expires (`CallTimedOut`), the method may be called again.

        Raises:
            ChannelFailed: the process ended.
            HandshakeFailed, VersionMismatch: the process is not a usable host.
        """
        # The time limit starts with the process and not with this call, because several callers may wait for the
        # same HELLO.
        until = self.started_at + self._start_timeout_s
        try:
            self.channel.greet(until if deadline is None else min(until, deadline))
        except CallTimedOut:
            if time.monotonic() < until:
                raise
            preamble = self.channel.preamble[:200]
            self.kill("it did not send HELLO in time")
            raise HandshakeFailed(
                f"The host did not send HELLO within {self._start_timeout_s:g} s.",
                cause="The program is not a qnnbridge host, it is blocked, or the machine is very busy.",
                evidence=[f"printed instead: {preamble!r}"] if preamble else (),
                fix="Check the host interpreter; raise Host(start_timeout=...) on a slow machine.",
            ) from None
        # End the process, because the two sides have no common protocol.
        except (HandshakeFailed, VersionMismatch):
            self.kill("it is incompatible")  # do not send GOODBYE, which the process may not support
            raise
        self.ready_at = time.monotonic()

    def ping(self, deadline: float | None) -> None:
        """Wait until the host answers a PING, over a fast channel if one is idle. See `Channel.ping`."""
        if self.open_pool is None or not self.open_pool.ping(deadline):
            self.channel.ping(deadline)

    def exit_code(self, timeout_s: float = EXIT_WAIT_S) -> int | None:
        """Return the raw exit code (32 bits unsigned on Windows, minus the signal on POSIX); ``None`` while the
        process runs."""
        return self._child.wait(timeout_s)

    @property
    def memory_ran_out(self) -> bool | None:
        """Whether the kernel's out-of-memory killer was active on the machine since the host's start; ``None`` if
        unknown."""
        # The counter applies to the whole machine and does not list processes, so an increase only makes it
        # plausible that the kernel killed the host.
        before, now = self._memory_kills, out_of_memory_kills()
        return None if before is None or now is None else now > before

    def kill(self, because: str) -> None:
        """End the process at once. Waiting callers get `ChannelFailed`."""
        if self.killed_because is None:
            self.killed_because = because
        self._child.kill()

    def close(self, *, reason: BridgeError | None = None, quietly: bool = False) -> None:
        """End the process, gracefully if possible, within a bounded time; release all descriptors.

        `quietly`: the application is ending, so log at a lower level.
        """
        # Whether the end of the process is known already: a caller has noticed and investigates it, or qnnbridge
        # caused it. Read the state before sending GOODBYE, which ends the connection.
        known = self.channel.failed or self.killed_because is not None
        if not self.channel.failed and self._child.poll() is None:
            answered = self.channel.goodbye(time.monotonic() + DRAIN_TIMEOUT_S)
            self.end_steps.append("goodbye" if answered else "goodbye unanswered")
        # The host answered GOODBYE, or its output ended, so the process is about to end, too.
        leaving = "goodbye" in self.end_steps or (not known and self.channel.failed)
        # From here on no thread reads or writes. Waiting callers get the failure.
        self.channel.fail(reason)
        self.killed_because = self.killed_because or "it was closed"
        # Wait only if the host answered GOODBYE or its output ended. Any other host does not end by itself.
        self._end_by_force(STDIN_CLOSED_TIMEOUT_S if leaving else 0)
        if self.open_pool is not None:
            self.open_pool.close()
        if not known:
            self._log_death_at_the_end(logging.INFO if quietly else logging.WARNING)
        # Read the rest of stderr, which ends with the process.
        self.stderr.drain(STDERR_TIMEOUT_S)
        # Close descriptors only if no thread reads from them, because the next opened file may get the number of a
        # closed descriptor.
        if self.channel.release(RELEASE_TIMEOUT_S):
            self._child.close()
        else:
            # A thread still reads from the pipe, so leave the two descriptors open, and record this.
            self.end_steps.append("descriptors kept")
        self.stderr.close()

    def _check_and_fail(self) -> ChannelFailed | None:
        """Run `_check` for callers that wait on fast channels, and fail the connection if the host has failed."""
        if self.channel.requests.failure is not None:
            return self.channel.requests.failure
        # If all callers wait on fast channels, no thread reads the connection, so check here whether it has ended.
        seen = self._check()
        if seen is not None:
            return self.channel.fail(seen.reason)
        self.channel.take_in()
        return self.channel.requests.failure

    def _log_death_at_the_end(self, level: int) -> None:
        """Log a death after the last response. QNN crashes most often during its cleanup, when no call can fail and
        report the crash."""
        code = self._child.poll()
        if not code or self.end_steps[-1:] not in ([], ["goodbye"], ["goodbye unanswered"]):
            return  # no death to log: the process still runs, or ended as planned, or qnnbridge ended it
        from qnnbridge._diagnosis.exit_codes import ExitStatus

        status = ExitStatus(code, "win32" if sys.platform == "win32" else "posix")
        _log.log(
            level,
            "the host (pid %d) died after its work was done, with exit code %s; no call was lost",
            self.real_pid,
            status.describe(),
        )

    def _check(self) -> ChannelFailed | None:
        """Check, after a period of silence, whether the process still exists and can make progress.

        If another process keeps the output open, the stream does not end when the host dies. A stopped process will
        not answer. Checks are counted instead of seconds: after the machine was asleep, the clock would show that a
        healthy process has exceeded its limit.
        """
        # `poll` reaps the process on POSIX; `exit_code` returns the stored exit code afterwards.
        if self._child.poll() is not None:
            return ChannelFailed()
        return self._check_stopped() or self._check_loading()

    def _check_loading(self) -> ChannelFailed | None:
        """Check the time limit for loading libraries. Loading a model is limited by the timeout of its call."""
        phase = self.channel.requests.host_phase
        since = self.ready_at
        # Check the limit only while the host declares a loading phase.
        over = phase in LOADING and since is not None and time.monotonic() - since > self.load_timeout_s
        self._seen_loading = self._seen_loading + 1 if over else 0
        if self._seen_loading < LOADING_CHECKS:
            return None
        what = LOADING[str(phase)]
        return ChannelFailed(
            HostHung(
                f"The host did not finish {what} within {self.load_timeout_s:g} s.",
                cause="Loading a native library hangs, or the machine is very busy.",
                fix="Reinstall onnxruntime-qnn in the host's Python and update the NPU driver; raise "
                "Host(start_timeout=...) on a slow machine.",
                details={"pid": self.real_pid, "phase": phase},
            )
        )

    def _check_stopped(self) -> ChannelFailed | None:
        import psutil  # imported here because the import takes 12 ms and is rarely needed

        try:
            stopped = psutil.Process(self.real_pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            stopped = False
        self._seen_stopped = self._seen_stopped + 1 if stopped else 0
        if self._seen_stopped < STOPPED_CHECKS:
            return None
        return ChannelFailed(
            HostHung(
                "The host process is stopped and does not continue.",
                cause="Another process stopped it (with SIGSTOP, a debugger, or by suspending it).",
                fix="Nothing to do: qnnbridge ends the host and starts it again with the next call.",
                details={"pid": self.real_pid, "from_outside": True},
            )
        )

    def _end_by_force(self, patience_s: float) -> None:
        """Wait `patience_s` seconds for the end of the process, then terminate it, and finally kill it. Record the
        steps in `end_steps`."""
        if self._child.wait(patience_s) is not None:
            return
        for name, act, seconds in (
            ("terminate", self._child.terminate, TERMINATE_TIMEOUT_S),
            ("kill", self._child.kill, KILL_TIMEOUT_S),
        ):
            self.end_steps.append(name)
            with contextlib.suppress(OSError):
                act()
            if self._child.wait(seconds) is not None:
                return
        # A process that waits inside the kernel (in a driver) survives SIGKILL until this wait ends.
        self.end_steps.append("abandoned")


class FastCallFailed(Exception):
    """A call on the fast path failed. The slow path explains the failure and repeats the call in the remaining
    time.

    Remove the traceback before the call is repeated (`without_traceback`): it would keep the call's frames in a
    reference cycle, and the application's arrays would stay until the garbage collector runs.

    Args:
        in_place: whether the host may have changed the inputs, so that the call must not be repeated.
    """

    def __init__(
        self, process: HostProcess, error: Exception, deadline: float | None, *, in_place: bool = False
    ) -> None:
        super().__init__(str(error))
        self.process = process
        self.deadline = deadline
        self.in_place = in_place
        # Error of the call without its traceback, which would keep the call's frames alive; ``None`` after `take`.
        self.error: Exception | None = _without_traceback(error)

    def without_traceback(self) -> FastCallFailed:
        """Remove traceback and context from the exception, and return the exception."""
        self.__traceback__ = self.__context__ = None
        return self

    def take(self) -> Exception:
        """Return the error, which the caller raises again. May be called only once."""
        error, self.error = self.error, None
        assert error is not None
        return error


def _without_traceback(error: Exception) -> Exception:
    """Remove the tracebacks of the error and of the errors in its context, and return the error."""
    part: BaseException | None = error
    while part is not None:
        part.__traceback__ = None
        part = part.__context__
    return error


# --- conversion of timeouts to deadlines, and calls that miss their deadline ------------------

# Maximum timeout in seconds (eleven days). Functions that wait for locks and descriptors do not accept much larger
# values.
LONGEST_S = 1_000_000.0


def deadline_after(timeout: float | None) -> float | None:
    """Convert a timeout in seconds to a time of `time.monotonic()`; ``None`` and infinity mean forever.

    Raises:
        OptionError: `timeout` is not a number of seconds.
    """
    if timeout is None:
        return None
    # Reject bools, which are ints in Python: timeout=True would mean one second.
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout) or timeout < 0:
        raise OptionError(
            f"timeout={timeout!r} is not a number of seconds.", fix="Give seconds, 0 or more, or None for no limit."
        )
    return None if math.isinf(timeout) else time.monotonic() + min(timeout, LONGEST_S)


def seconds_left(deadline: float | None) -> float | None:
    """Return the seconds left until a deadline (a result of `deadline_after`), at least 0; ``None`` for no
    deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


# Seconds during which a call without a deadline is repeated after deaths of the host that the call did not cause.
# The limit allows several slow starts under load, but ends the repetition if the host is killed again and again.
REPEAT_WINDOW_S: Final = 300.0


class RepeatWindow:
    """Time during which one call is repeated after deaths of the host that it did not cause: until the call's
    deadline, or for `REPEAT_WINDOW_S` seconds."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._began: float | None = None

    def is_open(self) -> bool:
        """Return whether the call may be repeated."""
        now = time.monotonic()
        # For a call without a deadline, the window starts with the first death and not with the call, because a run
        # may take hours.
        if self._began is None:
            self._began = now
        return now < (self._began + REPEAT_WINDOW_S if self._deadline is None else self._deadline)


OnDeadline = Literal["raise", "kill"]

# Key in the details of a `HostHung`: whether the application requested the end of the host (on_deadline="kill").
ASKED_FOR: Final = "asked_for"


def overdue(
    process: HostProcess, late: CallTimedOut, context: CallContext, timeout_s: float | None, on_deadline: OnDeadline
) -> DeadlineExceeded:
    """Return the error for a missed deadline. With "kill", end the host if it works on the call, or if the call
    waits for calls that were abandoned."""
    state = late.state
    # A call that has not started waits for other calls. End the host only if the other calls were abandoned.
    blocked = state == "still-running" or (state == "not-started" and process.channel.requests.abandoned)
    if on_deadline == "kill" and blocked:
        what = "ran past its" if state == "still-running" else "waited for abandoned calls until after its"
        reason = HostHung(
            f"The host was ended: {context.model} {what} deadline of {timeout_s:g} s.",
            details={"model": context.model, ASKED_FOR: True},
        )
        # Set the reason before the kill. Otherwise a thread that notices the end of the stream would report a
        # crash.
        process.channel.fail(reason)
        process.kill("a call ran past its deadline (on_deadline='kill')")
        state = "stopped"
    error = DeadlineExceeded(
        f"{context.model}: no answer within {timeout_s:g} s (the work is {state}).",
        fix="Allow more time: timeout=.",
        details={"state": state, "model": context.model},
    )
    if state == "still-running":
        inside = "inside a QNN partition" if context.op == "session.run" else "while native code works on it"
        error.cause = f"A call cannot be interrupted {inside}."
        error.fix = "Wait longer, or pass on_deadline='kill' to end the host (other calls are repeated)."
    return error
