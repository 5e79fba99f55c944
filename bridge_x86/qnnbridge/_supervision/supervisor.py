"""Keeps one host alive: starts it when it is needed, finds out how it died, starts the next generation.

There is no thread of its own. The caller that needs a host starts it (others wait for the same start), the
callers that see a death share one investigation of it. Waiting is bounded by the caller's deadline.
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
from qnnbridge._transport.channel import CallContext, ChannelFailed, Deadline
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
# The most that one step may spend after a caller's deadline to find out the reason.
GRACE_S = 0.25

# A planned restart waits this long for calls under way before it ends the host under them (they are replayed).
RETIRE_TIMEOUT_S = 30.0


# Connections in a row to a daemon that says that it leaves: it may take a second, and something may start it anew.
MAKE_WAY_TRIES = 8


@dataclasses.dataclass
class Counters:
    """What happened so far; see `qnnbridge.HostStats`."""

    generation: int = 0
    crashes: int = 0
    planned_restarts: int = 0
    retried_calls: int = 0
    cpu_fallbacks: int = 0
    last_crash: HostCrashed | None = None


class Supervisor:
    """Keeps one host alive, and answers for its deaths. All methods may be called from any thread."""

    def __init__(
        self,
        make_launch: Callable[[], Launch],
        spawner: Spawner,
        policy: RestartPolicy,
        investigator: DeathHandler,
        reach: Callable[[float | None], None] = lambda deadline: None,
    ) -> None:
        """reach: what has to be done before a start, within the caller's deadline; may be called again after
        that."""
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
        # A generation that has not said HELLO yet.
        self._starting: HostProcess | None = None
        # Order of locks: the start lock, then the death lock, never the other way round. A start that fails
        # investigates (`lost`) while it holds the start lock.
        self._start_lock = Lock()
        self._death_lock = Lock()
        # Kept as long as any caller still holds the process: a call may learn of its death late.
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
        """Whether this process is a fork of the one that owns the host."""
        return self._owner_pid != os.getpid()

    @property
    def running(self) -> HostProcess | None:
        """The generation that takes calls, if there is one; never in a fork."""
        process = self._process
        return process if process is not None and process.usable and not self.foreign else None

    @property
    def current(self) -> HostProcess | None:
        """`running`, for the path of quick calls: without a system call."""
        process = self._process
        return process if process is not None and process.usable and self._forks == fds.forks else None

    def process(self, deadline: float | None) -> HostProcess:
        """A generation that takes calls; starts one if need be.

        Raises `HostStartFailed`, `BreakerOpen`, `Closed`, `ForkedClient`, `DeadlineExceeded`.
        """
        # Raised here, where a host is needed, and not at the import: a program may import qnnbridge and never
        # use it.
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
        # In another thread, as all that starts and ends hosts: if the caller is interrupted the start goes on, and
        # the next caller has it.
        return shielded("qnnbridge start", lambda: self._start(deadline))

    def _start(self, deadline: float | None) -> HostProcess:
        # Many callers, one start: the others wait for the lock and find the process of the first.
        if not self._start_lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise _too_late()
        try:
            # Looked at under the lock: `close` sets it first and then waits for the lock, so no start comes
            # after it.
            if self._is_closed:
                raise Closed("The host was closed.", fix="Create a new qnnbridge.Host.")
            process = self._process
            if process is None or not process.usable:
                process = self._process = self._fitting_generation(deadline)
            return process
        finally:
            self._start_lock.release()

    def lost(self, process: HostProcess, failure: ChannelFailed, deadline: float | None = None) -> BridgeError:
        """Why `process` ended. The first caller finds out, the others get the same; each a copy of its own.

        Raises `DeadlineExceeded` if that takes longer than the caller has; the next one then knows.
        """
        if self.exiting:
            # Only daemon threads are left; an error in one would only be noise behind the application's last words.
            while True:
                sleep(3600)
        return shielded("qnnbridge inquest", lambda: self._lost(process, failure, deadline))

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
        """Whether the call that got `failure` may have caused the death that `lost` has looked into.

        It may not if the end came from outside, if others were inside native code and it was not, or if the host
        never had its request. Nor does it count if several models were inside: repeated alone, each shows what it
        does.
        """
        report = self._deaths[process]
        own = failure.request_id
        # With suspects named by the host only they may have caused it. Without, any request that the host had
        # may have.
        if report.from_outside or report.suspects:
            return own in report.suspects - report.undecided and not report.from_outside
        return any(one.request_id == own and one.sent for one in process.channel.requests.lost)

    def npu_lost(self, process: HostProcess, error: BridgeError, context: CallContext) -> None:
        """The NPU cannot be used from `process` any more (QNN 1011, or resets again and again): end it."""

        def investigate() -> None:
            # The failure under the lock: else another call that it ends could look into it first, and would not
            # know whose fault it is.
            with self._death_lock:
                failure = process.channel.fail(error)
                if process not in self._deaths:
                    self._deaths[process] = self._investigate(process, failure, context)

        shielded("qnnbridge inquest", investigate)

    def worker_died(self, process: HostProcess, error: WorkerDied, context: CallContext) -> HostCrashed:
        """The process that compiles for `process` has died. Booked on its model; no death of the host."""

        def investigate() -> HostCrashed:
            with self._death_lock:
                return self._investigator.investigate_worker(process, error, context)

        return shielded("qnnbridge inquest", investigate)

    def good_reply(self, context: CallContext, phase: str) -> None:
        """A call was answered well: the host is worth its start, and the model is not to blame for that moment."""
        self._policy.on_good_reply()
        self._investigator.on_good_reply(context, phase)

    def check_quarantine(self, context: CallContext) -> None:
        """Raises `ModelQuarantined`."""
        self._investigator.check_quarantine(context)

    def retire(self, process: HostProcess, *, wait: bool) -> None:
        """A planned restart: calls under way are finished in the old host, new ones go to the next at once.

        wait: return when the old one has ended; else that goes on behind the caller's back.
        """
        shielded("qnnbridge retire", lambda: self._retire(process, wait=wait))

    def _retire(self, process: HostProcess, *, wait: bool) -> None:
        with self._start_lock:
            if self._process is not process or not process.usable:
                return
            self.counters.planned_restarts += 1
            # Both under the start lock: the next `process()` starts the next generation, and calls under way
            # keep the old one.
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
            # The thread that waits for its HELLO holds the lock, and gives it up when it notices this.
            # The reason before the kill: the thread that waits for HELLO then raises `Closed` and reports no
            # crash.
            starting.channel.fail(reason)
            starting.kill("it was closed")
        if not self._start_lock.acquire(timeout=CLOSE_TIMEOUT_S):
            return
        try:
            # Read again under the lock: the start that was just ended has cleared `_starting`, or a later one
            # has set `_process`.
            for process in (self._starting, self._process, *self._retired):
                if process is not None:
                    process.close(reason=reason, quietly=self.exiting)
            self._starting = self._process = None
        finally:
            self._start_lock.release()

    def leave_to_parent(self) -> None:
        """Forget the hosts of the parent in the child of a fork: the child has its own supervisor."""
        for process in (self._process, *self._retired):
            if process is not None:
                process.retiring = True

    # --- starting ---

    def _fitting_generation(self, deadline: float | None) -> HostProcess:
        """The next generation.

        A daemon of an older version that makes way, for us or for another application whose HELLO came first, is
        followed by the one that we start.
        """
        for tries_left in reversed(range(MAKE_WAY_TRIES)):
            try:
                return self._next_generation(deadline)
            except VersionMismatch as error:
                # Any other difference of versions is final: the same daemon would answer the same again.
                if not tries_left or error.details.get(LEAVING) != MAKE_WAY_FEATURE:
                    raise
            except HostCrashed as error:  # it closed the connection before it answered our HELLO
                if not tries_left or error.details.get("daemon") != DAEMON_FEATURE:
                    raise
        raise AssertionError("unreachable")

    def _next_generation(self, deadline: float | None) -> HostProcess:
        process = self._starting
        if process is None:
            process = self._starting = self._spawn(deadline)
        try:
            process.greet(deadline)
        except Deadline:
            # The caller's time is up, not the host's: the next caller goes on waiting for it.
            raise _too_late() from None
        except ChannelFailed as failure:
            self._starting = None
            # Before `_bury`: what the investigation needs (stderr, exit code) is released there.
            error = self.lost(process, failure, deadline)
            self._bury(process, deadline)
            raise error from None
        except BaseException as error:
            self._starting = None
            process.close()
            self._note_failed_start(error)
            raise
        self._starting = None
        # HELLO alone proves little: the delay of restarts falls back at the first good answer, or after a
        # minute.
        self._policy.on_ready()
        self._investigator.on_ready(process)
        if process.channel.preamble:
            _log.warning("the host printed before its HELLO: %r", process.channel.preamble[:200])
        peer = process.peer
        _log.info("host generation %d is ready: pid %d, %s", process.generation, peer.pid, peer.executable)
        return process

    def forget_launch(self) -> None:
        """The next process is started with a command and an environment that are asked for anew."""
        self._launch = None

    def _spawn(self, deadline: float | None) -> HostProcess:
        if self._process is not None:
            self._bury(self._process, deadline)
            self._process = None
        start = self._policy.next_start()
        if start.delay_s:
            if deadline is not None and time.monotonic() + start.delay_s > deadline:
                raise _too_late()
            # The delay is waited for under the start lock, so that other callers do not start meanwhile;
            # `close` ends it early.
            if self._closing.wait_for(lambda: self._is_closed, start.delay_s):
                raise Closed("The host was closed.")
        try:
            self._reach(deadline)
        except DeadlineExceeded:
            raise  # the caller's time was up
        except BridgeError as error:
            self._note_failed_start(error)
            raise
        launch = self._launch  # another thread may forget it
        if launch is None:
            launch = self._launch = self._make_launch()
        self._policy.on_start()
        # Counted before the spawn, so that a number is never given to two processes, even if this one cannot
        # be started.
        self.counters.generation += 1
        try:
            return HostProcess(launch, self._spawner, self.counters.generation)
        except BaseException as error:
            self._note_failed_start(error)
            raise

    def _note_failed_start(self, error: BaseException) -> None:
        if isinstance(error, BridgeError):
            self._policy.on_death(incurable=error if error.retry == "pointless" else None)

    def _bury(self, process: HostProcess, deadline: float | None) -> None:
        """Release what a dead generation holds; make sure it is dead, and that its death was looked into."""
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
            # A call that is repeated well raises nothing; the log is then the only trace.
            _log.warning("%s %s", error.message, error.cause or "")
        # What a model does to the host is no reason to give the host up for the other models.
        incurable = error.retry == "pointless" and not error.details.get("suspects")
        self._policy.on_death(finding.status, error if incurable else None, booked=finding.booked)
        return finding


def _patience(deadline: float | None, forever: float) -> float:
    """Seconds that may be spent on a caller with this deadline: a little more than it has."""
    return forever if deadline is None else max(0.0, deadline - time.monotonic()) + GRACE_S


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "The time of the call was over before the host was ready.",
        fix="Give it more time, or start the host ahead with Host.start().",
        details={"state": "not-started"},
    )


# --- what the application has dropped, until the next call reports it to the host ---------------------------

# In the queue it keeps calls from the fast path.
_SLOW = ("", -1, 0)


class Releases:
    """What the next call reports as dropped. Any thread, finalizers too.

    waiting: operation that releases it, generation and number of each.
    """

    def __init__(self) -> None:
        # A deque: `append` is atomic, so a finalizer in the middle of any other line does no harm.
        self.waiting: collections.deque[tuple[str, int, int]] = collections.deque()
        # Re-entrant: a signal handler may make a call while its thread is in here.
        self._lock = RLock()

    def add(self, operation: str, generation: int, number: int) -> None:
        """Neither locks nor blocks."""
        self.waiting.append((operation, generation, number))

    def keep_slow(self) -> None:
        """The next call takes the slow path."""
        self.waiting.append(_SLOW)

    def send(self, process: HostProcess) -> None:
        """Release what lives in this process; what lived in others is gone."""
        if not self.waiting:
            return
        with self._lock:
            # Taken out when all are released: an interrupt has some released twice, which does no harm.
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
    """Nothing, if its object is gone."""
    function = method()
    if function is not None:
        function(*arguments)
