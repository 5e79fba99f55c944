"""The supervisor keeps one host alive: it starts the host when needed, investigates deaths, starts the next
generation.

It does not use a thread. The caller that needs a host starts it (others wait for the same start); the callers that
see a death share one investigation. Waiting is bounded by the caller's deadline.
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
# Longest time that one step may take after a caller's deadline, to find the reason.
GRACE_S = 0.25

# A planned restart waits this long for calls under way before it ends their host (they are repeated).
RETIRE_TIMEOUT_S = 30.0


# Consecutive connections to a daemon that reports its end: ending may take a second, and something may restart it.
MAKE_WAY_TRIES = 8


@dataclasses.dataclass
class Counters:
    """Statistics so far; see `qnnbridge.HostStats`."""

    generation: int = 0
    crashes: int = 0
    planned_restarts: int = 0
    retried_calls: int = 0
    cpu_fallbacks: int = 0
    last_crash: HostCrashed | None = None


class Supervisor:
    """Keeps one host alive, and handles its deaths. Thread-safe."""

    def __init__(
        self,
        make_launch: Callable[[], Launch],
        spawner: Spawner,
        policy: RestartPolicy,
        investigator: DeathHandler,
        reach: Callable[[float | None], None] = lambda deadline: None,
    ) -> None:
        """Initialize. `reach` prepares a start within the caller's deadline; it may be called again after a
        timeout."""
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
        # Order of locks: the start lock, then the death lock, never the reverse. A failing start investigates
        # (`lost`) while it holds the start lock.
        self._start_lock = Lock()
        self._death_lock = Lock()
        # Kept as long as any caller holds the process: a call may notice its death late.
        self._deaths: weakref.WeakKeyDictionary[HostProcess, DeathReport] = weakref.WeakKeyDictionary()
        self._is_closed = False
        self._closing: Changes[bool] = Changes()
        self._retired: list[HostProcess] = []
        # The interpreter is about to end: no caller gets an answer any more.
        self.exiting = False

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def foreign(self) -> bool:
        """Whether this process is a fork of the owner of the host."""
        return self._owner_pid != os.getpid()

    @property
    def running(self) -> HostProcess | None:
        """Generation that accepts calls, if there is one; never in a fork."""
        process = self._process
        return process if process is not None and process.usable and not self.foreign else None

    @property
    def current(self) -> HostProcess | None:
        """`running` for fast calls: without a system call."""
        process = self._process
        return process if process is not None and process.usable and self._forks == fds.forks else None

    def process(self, deadline: float | None) -> HostProcess:
        """Return a generation that accepts calls; start one if needed.

        Raises:
            HostStartFailed, BreakerOpen, Closed, ForkedClient, DeadlineExceeded: a host is not available.
        """
        # Raised here, where a host is needed, and not at the import: a program may import qnnbridge and never use
        # it.
        check_locks()
        refuse_at_the_end()
        process = self._process
        # The usual case takes no lock: a running generation is one attribute.
        if process is not None and process.usable and self._owner_pid == os.getpid():
            return process
        if self.foreign:
            raise ForkedClient(
                f"This process is a fork of process {self._owner_pid}, which owns the host.",
                cause="Pipes cannot be shared by two processes.",
                fix="Create sessions after the fork, or use the spawn start method of multiprocessing.",
            )
        # In another thread, like everything that starts and ends hosts: if the caller is interrupted the start
        # continues, and the next caller uses it.
        return shielded("qnnbridge start", lambda: self._start(deadline))

    def _start(self, deadline: float | None) -> HostProcess:
        # Many callers, one start: the others wait for the lock and find the process of the first.
        if not self._start_lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise _too_late()
        try:
            # Checked under the lock: `close` sets the flag first and then waits for the lock, so no start follows
            # it.
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
            DeadlineExceeded: the investigation takes longer than the caller's time; the next caller gets its
                result.
        """
        if self.exiting:
            # Only daemon threads are left; an error in one would only be noise after the application's last output.
            while True:
                sleep(3600)
        return shielded("qnnbridge death", lambda: self._lost(process, failure, deadline))

    def _lost(self, process: HostProcess, failure: ChannelFailed, deadline: float | None) -> BridgeError:
        if not self._death_lock.acquire(timeout=_patience(deadline, -1)):
            raise _too_late()
        try:
            report = self._deaths.get(process)
            if report is None:
                report = self._deaths[process] = self._investigate(process, failure, deadline=deadline)
        finally:
            self._death_lock.release()
        # A copy for each: an exception that several threads raise would collect all their tracebacks.
        return report.error.copy()

    def may_be_caused_by(self, process: HostProcess, failure: ChannelFailed) -> bool:
        """Return whether the call that got `failure` may have caused the death that `lost` investigated.

        It did not if the end came from outside, if others were inside native code and it was not, or if the host
        never received its request. The result is also False if several models were inside: repeated alone, each
        shows its effect.
        """
        report = self._deaths[process]
        own = failure.request_id
        # If the host declared suspects, only they may have caused the death; otherwise any request that the host
        # received.
        if report.from_outside or report.suspects:
            return own in report.suspects - report.undecided and not report.from_outside
        return any(one.request_id == own and one.sent for one in process.channel.requests.lost)

    def npu_lost(self, process: HostProcess, error: BridgeError, context: CallContext) -> None:
        """End `process`, which cannot use the NPU any more (QNN 1011, or repeated resets)."""

        def investigate() -> None:
            # Fail the channel under the lock: otherwise another call that this ends could investigate first,
            # without knowing the suspect.
            with self._death_lock:
                failure = process.channel.fail(error)
                if process not in self._deaths:
                    self._deaths[process] = self._investigate(process, failure, context)

        shielded("qnnbridge death", investigate)

    def worker_died(self, process: HostProcess, error: WorkerDied, context: CallContext) -> HostCrashed:
        """Return the error for the death of the process that compiles for `process`. Blames the model, not the
        host."""

        def investigate() -> HostCrashed:
            with self._death_lock:
                return self._investigator.investigate_worker(process, error, context)

        return shielded("qnnbridge death", investigate)

    def good_reply(self, context: CallContext, phase: str) -> None:
        """Record a successful answer: the start of the host was worth it, and the model is not to blame for that
        moment."""
        self._policy.on_good_reply()
        self._investigator.on_good_reply(context, phase)

    def check_quarantine(self, context: CallContext) -> None:
        """Raise `ModelQuarantined` if the model is in quarantine."""
        self._investigator.check_quarantine(context)

    def retire(self, process: HostProcess, *, wait: bool) -> None:
        """Restart as planned: calls under way finish in the old host, new calls go to the next one at once.

        `wait`: return after the old host has ended; otherwise it ends in a background thread.
        """
        shielded("qnnbridge retire", lambda: self._retire(process, wait=wait))

    def _retire(self, process: HostProcess, *, wait: bool) -> None:
        with self._start_lock:
            if self._process is not process or not process.usable:
                return
            self.counters.planned_restarts += 1
            # Both under the start lock: the next `process()` starts the next generation, and calls under way keep
            # the old one.
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
        """End the host. Calls under way get `Closed`. Idempotent; bounded in time."""
        shielded("qnnbridge close", self._close)

    def _close(self) -> None:
        self._is_closed = True
        self._closing.notify()
        if self.foreign:
            return
        reason = Closed("The host was closed while the call was under way.")
        starting = self._starting
        if starting is not None:
            # The reason before the kill: the thread that waits for HELLO, and holds the lock, then raises `Closed`
            # and reports no crash.
            starting.channel.fail(reason)
            starting.kill("it was closed")
        if not self._start_lock.acquire(timeout=CLOSE_TIMEOUT_S):
            return
        try:
            # Read again under the lock: the start that was just ended has cleared `_starting`, or a later one has
            # set `_process`.
            for process in (self._starting, self._process, *self._retired):
                if process is not None:
                    process.close(reason=reason, quietly=self.exiting)
            self._starting = self._process = None
        finally:
            self._start_lock.release()

    def leave_to_parent(self) -> None:
        """Forget the hosts of the parent in a forked child: the child has its own supervisor."""
        for process in (self._process, *self._retired):
            if process is not None:
                process.retiring = True

    # --- starting ---

    def _fitting_generation(self, deadline: float | None) -> HostProcess:
        """Return the next generation.

        An older daemon that makes way, for this application or for another whose HELLO came first, is followed by
        the daemon that this application starts.
        """
        for tries_left in reversed(range(MAKE_WAY_TRIES)):
            try:
                return self._next_generation(deadline)
            except VersionMismatch as error:
                # Any other difference of versions is final: the same daemon would give the same answer again.
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
            # The caller's time is up, not the host's: the next caller continues to wait for it.
            raise _too_late() from None
        except ChannelFailed as failure:
            self._starting = None
            # Before `_release`, which releases what the investigation needs (stderr, exit code).
            error = self.lost(process, failure, deadline)
            self._release(process, deadline)
            raise error from None
        except BaseException as error:
            self._starting = None
            process.close()
            self._note_failed_start(error)
            raise
        self._starting = None
        # HELLO alone proves little: the restart delay is reset at the first good answer, or after a minute.
        self._policy.on_ready()
        self._investigator.on_ready(process)
        if process.channel.preamble:
            _log.warning("the host printed text before its HELLO: %r", process.channel.preamble[:200])
        peer = process.peer
        _log.info("host generation %d is ready: pid %d, %s", process.generation, peer.pid, peer.executable)
        return process

    def forget_launch(self) -> None:
        """Determine the command and environment again for the next process."""
        self._launch = None

    def _spawn(self, deadline: float | None) -> HostProcess:
        if self._process is not None:
            self._release(self._process, deadline)
            self._process = None
        start = self._policy.next_start()
        if start.delay_s:
            if deadline is not None and time.monotonic() + start.delay_s > deadline:
                raise _too_late()
            # The delay passes under the start lock, so that other callers do not start meanwhile; `close` ends it
            # early.
            if self._closing.wait_for(lambda: self._is_closed, start.delay_s):
                raise Closed("The host was closed.")
        try:
            self._reach(deadline)
        except DeadlineExceeded:
            raise  # the caller's time was up
        except BridgeError as error:
            self._note_failed_start(error)
            raise
        launch = self._launch  # another thread may clear it
        if launch is None:
            launch = self._launch = self._make_launch()
        self._policy.on_start()
        # Incremented before the spawn, so that two processes never get the same number, even if this start fails.
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
        """Release the resources of a dead generation, after its end and its investigation."""
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
        # An orderly end needs no evidence, and must not wait for an exit code.
        if isinstance(failure.reason, Closed):
            return DeathReport(failure.reason, None)
        patience_s = min(EXIT_WAIT_S, _patience(deadline, EXIT_WAIT_S))
        finding = self._investigator.investigate(process, failure, suspect, patience_s)
        error = finding.error
        if isinstance(error, HostCrashed) and not finding.on_purpose:
            self.counters.crashes += 1
            self.counters.last_crash = error
            # A call that is repeated successfully raises nothing, so the log is the only trace.
            _log.warning("%s %s", error.message, error.cause or "")
        # A model that crashes the host does not justify giving up the host for other models.
        incurable = error.retry == "pointless" and not error.details.get("suspects")
        self._policy.on_death(finding.status, error if incurable else None, booked=finding.booked)
        return finding


def _patience(deadline: float | None, forever: float) -> float:
    """Return the seconds that may be spent for a caller with this deadline: slightly more than its remaining
    time."""
    return forever if deadline is None else max(0.0, deadline - time.monotonic()) + GRACE_S


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The time limit of the call expired before the host was ready.",
        fix="Give it more time, or start the host ahead with Host.start().",
        details={"state": "not-started"},
    )


# --- dropped sessions and objects, until the next call reports them to the host ------------------------------

# Entry that keeps calls off the fast path.
_SLOW = ("", -1, 0)


class Releases:
    """Objects that the next call reports to the host as dropped. Safe from any thread and from finalizers.

    Attributes:
        waiting: operation that releases the object, generation, and number of each.
    """

    def __init__(self) -> None:
        # A deque: `append` is atomic, so a finalizer in the middle of any other line does no harm.
        self.waiting: collections.deque[tuple[str, int, int]] = collections.deque()
        # Re-entrant: a signal handler may make a call while its thread is inside `send`.
        self._lock = RLock()

    def add(self, operation: str, generation: int, number: int) -> None:
        """Queue a release. Neither locks nor blocks."""
        self.waiting.append((operation, generation, number))

    def keep_slow(self) -> None:
        """Make the next call take the slow path."""
        self.waiting.append(_SLOW)

    def send(self, process: HostProcess) -> None:
        """Release the queued objects of this process; those of other processes are gone."""
        if not self.waiting:
            return
        with self._lock:
            # Removed after all are released: an interrupt only causes some to be released twice, which does no
            # harm.
            known = list(self.waiting)
            mine = [one for one in known if one[1] == process.generation]
            for operation, _, number in mine:
                if operation != "object.release":
                    process.channel.one_way.add({"op": operation, "session": number})
            objects = [number for operation, _, number in mine if operation == "object.release"]
            if objects:
                process.channel.one_way.add({"op": "object.release", "objects": objects})
            # Not `clear`: what was appended meanwhile stays for the next call.
            for _ in known:
                self.waiting.popleft()


def call_if_alive(method: weakref.WeakMethod[Callable[..., Any]], *arguments: Any) -> None:
    """Call a method, unless its object is gone."""
    function = method()
    if function is not None:
        function(*arguments)
