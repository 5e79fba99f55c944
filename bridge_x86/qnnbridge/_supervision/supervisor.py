"""Keep one host alive: start the host when needed, investigate its death, start the next generation.

The supervisor has no thread. The first caller that needs a host starts it, and other callers wait for this start.
All callers that notice a death share one investigation. No caller waits longer than its own deadline.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from qnnbridge._supervision.deaths import DeathHandler, DeathReport
from qnnbridge._supervision.host_process import EXIT_WAIT_S, HostProcess, Launch
from qnnbridge._supervision.restart_policy import RestartPolicy
from qnnbridge._threads import refuse_at_the_end
from qnnbridge._transport.channel import CallContext, CallTimedOut, ChannelFailed
from qnnbridge_os import fds
from qnnbridge_os.native import Lock, RLock, check_locks, sleep
from qnnbridge_os.processes import Spawner
from qnnbridge_os.shield import Changes, shielded, start_thread
from qnnbridge_protocol.connection import DAEMON_FEATURE, LEAVING, MAKE_WAY_FEATURE
from qnnbridge_protocol.errors import (
    BridgeError,
    Closed,
    DeadlineExceeded,
    ForkedClient,
    HostCrashed,
    VersionMismatch,
    WorkerDied,
)
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.supervisor")

CLOSE_TIMEOUT_S = 5.0
# Maximum seconds that an investigation may continue after the caller's deadline.
GRACE_S = 0.25

# Seconds that a planned restart waits for open calls. Calls that remain open are repeated in the next host.
RETIRE_TIMEOUT_S = 30.0


# Number of attempts to connect if an older daemon is ending. Its end may take a second, and meanwhile another
# program may start another older daemon.
MAKE_WAY_TRIES = 8


@dataclasses.dataclass
class Counters:
    """Statistics since the creation of the supervisor; see `qnnbridge.HostStats`."""

    generation: int = 0
    crashes: int = 0
    planned_restarts: int = 0
    retried_calls: int = 0
    cpu_fallbacks: int = 0
    last_crash: HostCrashed | None = None


class Supervisor:
    """Keep one host alive, and handle its deaths. Thread-safe.

    Args:
        reach: function that prepares a start within the caller's deadline. After `DeadlineExceeded` the next start
            calls it again.
    """

    def __init__(
        self,
        make_launch: Callable[[], Launch],
        spawner: Spawner,
        policy: RestartPolicy,
        investigator: DeathHandler,
        reach: Callable[[float | None], None] = lambda deadline: None,
    ) -> None:
        self._make_launch = make_launch
        self._launch: Launch | None = None
        self._spawner = spawner
        self._policy = policy
        self._investigator = investigator
        self._reach = reach
        self.counters = Counters()
        self._owner_pid = os.getpid()
        self._forks = fds.forks
        self._process: HostProcess | None = None
        # Generation that has not sent its HELLO yet.
        self._starting: HostProcess | None = None
        # Order of locks: first the start lock, then the death lock, never the reverse. A failing start investigates
        # (`lost`) while it holds the start lock.
        self._start_lock = Lock()
        self._death_lock = Lock()
        # Reports by process. A report is kept as long as any caller refers to the process, because a call may
        # notice the death late.
        self._deaths: weakref.WeakKeyDictionary[HostProcess, DeathReport] = weakref.WeakKeyDictionary()
        self._is_closed = False
        self._closing: Changes[bool] = Changes()
        self._retired: list[HostProcess] = []
        # Whether the interpreter is ending. Callers in daemon threads then wait forever, because an error would
        # only print a traceback.
        self.exiting = False

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def foreign(self) -> bool:
        """Whether this process is a fork of the process that owns the host."""
        return self._owner_pid != os.getpid()

    @property
    def running(self) -> HostProcess | None:
        """Generation that accepts calls; ``None`` if there is none, or in a fork of the process that owns the
        host."""
        process = self._process
        return process if process is not None and process.usable and not self.foreign else None

    @property
    def current(self) -> HostProcess | None:
        """Generation of the running host, determined without a system call. Used by fast calls."""
        process = self._process
        return process if process is not None and process.usable and self._forks == fds.forks else None

    def process(self, deadline: float | None) -> HostProcess:
        """Return a generation that accepts calls. Start a new generation if needed.

        Raises:
            HostStartFailed, BreakerOpen, Closed, ForkedClient, DeadlineExceeded: a host is not available.
        """
        # Check here and not during the import whether eventlet has replaced the locks, because a program may import
        # qnnbridge and never use it.
        check_locks()
        refuse_at_the_end()
        process = self._process
        # If a generation is running, no lock is needed, because the generation is stored in one attribute.
        if process is not None and process.usable and self._owner_pid == os.getpid():
            return process
        if self.foreign:
            raise ForkedClient(
                f"This process is a fork of process {self._owner_pid}, which owns the host.",
                cause="Two processes cannot share the pipes to a host.",
                fix="Create sessions after the fork, or use the spawn start method of multiprocessing.",
            )
        # Start the host in another thread: if the caller is interrupted, the start continues, and the next caller
        # uses the result.
        return shielded("qnnbridge start", lambda: self._start(deadline))

    def _start(self, deadline: float | None) -> HostProcess:
        # Only the first of many callers starts a process. The others wait for the lock and find the running
        # process.
        if not self._start_lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise _too_late()
        try:
            # Check the flag under the lock. `close` sets the flag and then waits for the lock, so no start can
            # follow `close`.
            if self._is_closed:
                raise Closed("The host was closed.", fix="Create a new qnnbridge.Host.")
            process = self._process
            if process is None or not process.usable:
                process = self._process = self._fitting_generation(deadline)
            return process
        finally:
            self._start_lock.release()

    def lost(self, process: HostProcess, failure: ChannelFailed, deadline: float | None = None) -> BridgeError:
        """Return why `process` ended. The first caller investigates; each caller gets a separate copy of the error.

        Raises:
            DeadlineExceeded: the caller's deadline expired during the investigation. The next caller gets the
                result.
        """
        if self.exiting:
            # Only daemon threads still run. Let them wait: an error would only print a traceback after the last
            # output of the application.
            while True:
                sleep(3600)
        return shielded("qnnbridge death", lambda: self._lost(process, failure, deadline))

    def _lost(self, process: HostProcess, failure: ChannelFailed, deadline: float | None) -> BridgeError:
        if not self._death_lock.acquire(timeout=_with_grace(deadline, -1)):
            raise _too_late()
        try:
            report = self._deaths.get(process)
            if report is None:
                report = self._deaths[process] = self._investigate(process, failure, deadline=deadline)
        finally:
            self._death_lock.release()
        # Return a separate copy to each caller, because an exception that several threads raise would collect all
        # their tracebacks.
        return report.error.copy()

    def may_be_caused_by(self, process: HostProcess, failure: ChannelFailed) -> bool:
        """Return whether the call that got `failure` may have caused the death that `lost` investigated.

        The call is not the cause if the host was ended from outside, if only other calls were inside native code,
        or if the host never received the request. Also return ``False`` if several models were inside native code:
        each is repeated alone, which shows whether it crashes the host.
        """
        report = self._deaths[process]
        own = failure.request_id
        # If the report lists suspects, only a suspect may have caused the death. Without suspects, any request that
        # the host received may have caused the death.
        if report.from_outside or report.suspects:
            return own in report.suspects - report.undecided and not report.from_outside
        return any(one.request_id == own and one.sent for one in process.channel.requests.lost)

    def npu_lost(self, process: HostProcess, error: BridgeError, context: CallContext) -> None:
        """End `process`, which can no longer use the NPU (QNN error 1011, or repeated resets)."""

        def investigate() -> None:
            # Fail the channel while holding the lock. Otherwise another call that gets the same failure could
            # investigate first without knowing the suspect.
            with self._death_lock:
                failure = process.channel.fail(error)
                if process not in self._deaths:
                    self._deaths[process] = self._investigate(process, failure, context)

        shielded("qnnbridge death", investigate)

    def worker_died(self, process: HostProcess, error: WorkerDied, context: CallContext) -> HostCrashed:
        """Return the error for the death of the compiler process of `process`. The model is blamed, not the
        host."""

        def investigate() -> HostCrashed:
            with self._death_lock:
                return self._investigator.investigate_worker(process, error, context)

        return shielded("qnnbridge death", investigate)

    def good_reply(self, context: CallContext, phase: str) -> None:
        """Record a successful response: the host is productive, and the model of the call did not crash it."""
        self._policy.on_good_reply()
        self._investigator.on_good_reply(context, phase)

    def check_quarantine(self, context: CallContext) -> None:
        """Raise `ModelQuarantined` if the model is in quarantine."""
        self._investigator.check_quarantine(context)

    def retire(self, process: HostProcess, *, wait: bool) -> None:
        """Replace the host as planned: the old host finishes the running calls, and new calls go to the next host.
        wait: whether to return only after the old host has ended; otherwise it ends in a background thread."""
        shielded("qnnbridge retire", lambda: self._retire(process, wait=wait))

    def _retire(self, process: HostProcess, *, wait: bool) -> None:
        with self._start_lock:
            if self._process is not process or not process.usable:
                return
            self.counters.planned_restarts += 1
            # Change both attributes under the start lock, so that the next `process()` starts the next generation
            # while running calls keep the old one.
            process.retiring = True
            self._process = None
            self._retired.append(process)
        if wait:
            self._let_go(process)
        else:
            start_thread("qnnbridge retire", self._let_go, process)

    def _let_go(self, process: HostProcess) -> None:
        process.channel.requests.wait_idle(RETIRE_TIMEOUT_S)
        process.close()
        with contextlib.suppress(ValueError):
            self._retired.remove(process)

    def close(self) -> None:
        """End the host. Running calls raise `Closed`. Idempotent; takes a limited time."""
        shielded("qnnbridge close", self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._closing.notify()
        if self.foreign:
            return
        reason = Closed("The host was closed during the call.")
        starting = self._starting
        if starting is not None:
            # Set the reason before the kill, so that the thread that waits for HELLO and holds the lock raises
            # `Closed` instead of reporting a crash.
            starting.channel.fail(reason)
            starting.kill("it was closed")
        if not self._start_lock.acquire(timeout=CLOSE_TIMEOUT_S):
            return
        try:
            # Read the attributes under the lock: the interrupted start, for which `close` has waited, has cleared
            # `_starting`, and another start may have set `_process`.
            for process in (self._starting, self._process, *self._retired):
                if process is not None:
                    process.close(reason=reason, quietly=self.exiting)
            self._starting = self._process = None
        finally:
            self._start_lock.release()

    def leave_to_parent(self) -> None:
        """Forget the hosts of the parent process in a forked child, which has its own supervisor."""
        for process in (self._process, *self._retired):
            if process is not None:
                process.retiring = True

    # --- start ---

    def _fitting_generation(self, deadline: float | None) -> HostProcess:
        """Return the next generation.

        An older daemon ends when a newer application connects. If the daemon ends for this reason, this method
        starts a daemon of the current version.
        """
        for tries_left in reversed(range(MAKE_WAY_TRIES)):
            try:
                return self._next_generation(deadline)
            except VersionMismatch as error:
                # Try again only if the daemon ends because it is older. Any other mismatch would happen again.
                if not tries_left or error.details.get(LEAVING) != MAKE_WAY_FEATURE:
                    raise
            except HostCrashed as error:  # the daemon closed the connection before it answered our HELLO
                if not tries_left or error.details.get("daemon") != DAEMON_FEATURE:
                    raise
        raise AssertionError("unreachable")

    def _next_generation(self, deadline: float | None) -> HostProcess:
        process = self._starting
        if process is None:
            process = self._starting = self._spawn(deadline)
        try:
            process.greet(deadline)
        except CallTimedOut:
            # Only this caller's deadline has expired. The next caller continues to wait for the same host.
            raise _too_late() from None
        except ChannelFailed as failure:
            self._starting = None
            # Investigate before `_release`, which releases stderr and the exit code.
            error = self.lost(process, failure, deadline)
            self._release(process, deadline)
            raise error from None
        except BaseException as error:
            self._starting = None
            process.close()
            self._note_failed_start(error)
            raise
        self._starting = None
        # Record the time of the HELLO. Only the first good response, or a minute without a crash, resets the
        # restart delay.
        self._policy.on_ready()
        self._investigator.on_ready(process)
        if process.channel.preamble:
            _log.warning("the host printed text before its HELLO: %r", process.channel.preamble[:200])
        peer = process.peer
        _log.info("host generation %d is ready: pid %d, %s", process.generation, peer.pid, peer.executable)
        return process

    def forget_launch(self) -> None:
        """Discard the host's command and environment, so that they are determined again for the next process."""
        self._launch = None

    def _spawn(self, deadline: float | None) -> HostProcess:
        if self._process is not None:
            self._release(self._process, deadline)
            self._process = None
        start = self._policy.next_start()
        if start.delay_s:
            if deadline is not None and time.monotonic() + start.delay_s > deadline:
                raise _too_late()
            # Hold the start lock while waiting, so that no other caller starts a host. `close` ends the wait early.
            if self._closing.wait_for(lambda: self._is_closed, start.delay_s):
                raise Closed("The host was closed.")
        try:
            self._reach(deadline)
        except DeadlineExceeded:
            raise  # the caller's deadline expired
        except BridgeError as error:
            self._note_failed_start(error)
            raise
        launch = self._launch  # a local copy, because another thread may clear the attribute
        if launch is None:
            launch = self._launch = self._make_launch()
        self._policy.on_start()
        # Increment the number before the process starts, so that no two processes get the same number, even if this
        # start fails.
        self.counters.generation += 1
        try:
            return HostProcess(launch, self._spawner, self.counters.generation)
        except BaseException as error:
            self._note_failed_start(error)
            raise

    def _note_failed_start(self, error: BaseException) -> None:
        if isinstance(error, BridgeError):
            self._policy.on_death(incurable=error if error.retry == "pointless" else None)

    def _release(self, process: HostProcess, deadline: float | None) -> None:
        """Release the resources of a dead generation, after its investigation."""
        if process.channel.failed:
            self.lost(process, process.channel.fail(None), deadline)
        process.close()

    # --- deaths ---

    def _investigate(
        self,
        process: HostProcess,
        failure: ChannelFailed,
        suspect: CallContext | None = None,
        deadline: float | None = None,
    ) -> DeathReport:
        # After an orderly end no evidence is needed, so do not wait for an exit code.
        if isinstance(failure.reason, Closed):
            return DeathReport(failure.reason, None)
        patience_s = min(EXIT_WAIT_S, _with_grace(deadline, EXIT_WAIT_S))
        finding = self._investigator.investigate(process, failure, suspect, patience_s)
        error = finding.error
        if isinstance(error, HostCrashed) and not finding.on_purpose:
            self.counters.crashes += 1
            self.counters.last_crash = error
            _log.warning("%s %s", error.message, error.cause or "")
        # An incurable error prevents all later starts. If a model may have crashed the host, do not report the
        # error as incurable, so that other models can still start a host.
        incurable = error.retry == "pointless" and not error.details.get("suspects")
        self._policy.on_death(finding.status, error if incurable else None, booked=finding.booked)
        return finding


def _with_grace(deadline: float | None, unlimited: float) -> float:
    """Return the seconds until the deadline plus `GRACE_S`; `unlimited` without a deadline."""
    return unlimited if deadline is None else max(0.0, deadline - time.monotonic()) + GRACE_S


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The time limit of the call expired before the host was ready.",
        fix="Increase the time limit, or start the host beforehand with Host.start().",
        details={"state": "not-started"},
    )


# --- dropped sessions and objects, until the next call reports them to the host ------------------------------

# Entry of the queue that releases nothing, but makes the next call take the slow path.
_SLOW = ("", -1, 0)


class Releases:
    """Queue of dropped objects, which the next call reports to the host. Any thread and finalizers may use it.

    Attributes:
        waiting: for each object, the operation that releases it, the generation of its host, and its number.
    """

    def __init__(self) -> None:
        # `deque.append` is atomic, so a finalizer that interrupts any other line does no harm.
        self.waiting: collections.deque[tuple[str, int, int]] = collections.deque()
        # Reentrant: a signal handler may make a call while its thread is inside `send`.
        self._lock = RLock()

    def add(self, operation: str, generation: int, number: int) -> None:
        """Queue a release. Take no lock and never block."""
        self.waiting.append((operation, generation, number))

    def keep_slow(self) -> None:
        """Make the next call take the slow path."""
        self.waiting.append(_SLOW)

    def send(self, process: HostProcess) -> None:
        """Release the queued objects that exist in this process. Objects of earlier processes no longer exist."""
        if not self.waiting:
            return
        with self._lock:
            # Remove objects from the queue only after all were released, so that an interrupt can only cause a
            # second release, which is harmless.
            known = list(self.waiting)
            mine = [one for one in known if one[1] == process.generation]
            for operation, _, number in mine:
                if operation != "object.release":
                    process.channel.one_way.add({"op": operation, "session": number})
            objects = [number for operation, _, number in mine if operation == "object.release"]
            if objects:
                process.channel.one_way.add({"op": "object.release", "objects": objects})
            # Remove only the released objects: the next call releases those that were appended meanwhile.
            for _ in known:
                self.waiting.popleft()


def call_if_alive(method: weakref.WeakMethod[Callable[..., Any]], *arguments: Any) -> None:
    """Call a method if its object still exists."""
    function = method()
    if function is not None:
        function(*arguments)
