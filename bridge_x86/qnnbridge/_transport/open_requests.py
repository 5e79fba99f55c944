"""The open requests of one connection and their states, and requests for whose answers no caller waits.

States of a request, with the method that changes each:

    asked
      | add: before its first byte is written
    queued ------ withdraw: nothing was written ----------------> forgotten
      | sent: written completely
    started ----- withdraw: the host will not begin it ---------> forgotten
      | declare: the host declares the native step
    in phase
      | answer
    answered: passed to its waiter

    abandoned: `leave` in any of the states above. The caller has given up the call; `answer` then drops the answer.
    lost: `fail` in any state. The connection has failed; every waiter gets the failure.

A call on a fast channel has the same states, stored in attributes of `FastChannel`: `busy` (from "queued" to
"answered"), `sent` (from "started" on), `phase`, `abandoned`, and `broken` if the channel cannot be used again.

Invariant: the table contains a request from before its first byte is written until its answer has arrived or the
connection has failed, whether or not a caller still waits. `lost` is a copy of the table at the moment of failure.
One lock protects the whole table. It is held only for short operations.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from qnnbridge_os.native import Lock, RLock, local
from qnnbridge_os.shield import Changes, TooLate, in_turn
from qnnbridge_protocol.errors import (
    BridgeError,
    CallBackFailed,
    Cancelled,
    ForkedClient,
    HostCrashed,
    HostHung,
    ProtocolDesync,
    from_wire,
)
from qnnbridge_protocol.frames import Frame

Header = dict[str, Any]

# Maximum number of concurrent calls whose answers come in several parts: half of the 64 requests that a host
# accepts by default, so that other calls remain possible.
MAX_STREAMS = 32


class OneWayRequests:
    """Send requests that release memory and sessions. No caller waits for their answers. Thread-safe.

    Invariant: a request is written as soon as the sender's lock is free. `add` appends the request and then tries
    the lock. If another thread holds the lock, that thread calls `send` after it has released the lock, and sends
    the request. If the pipe is full, a request waits until the next frame is written, or until `send` is called. No
    method waits for the lock.

    Args:
        lock: the lock of the sender.
        write: function that writes a request, or returns False to postpone it. It is called with the lock held.
    """

    def __init__(self, lock: RLock, write: Callable[[Header], bool]) -> None:
        self._lock = lock
        self._write = write
        self._waiting: collections.deque[Header] = collections.deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, header: Header) -> None:
        """Send the request: immediately if no wait is needed, otherwise as soon as possible."""
        # Append the request before trying the lock (see the invariant).
        self._waiting.append(header)
        self.send()

    def send(self) -> None:
        """Send the queued requests without waiting. Stop if the pipe is full or another thread is sending."""
        with contextlib.suppress(TooLate):
            while self._waiting:
                # Do not wait for the lock (timeout 0): the thread that holds the lock sends this request after
                # releasing it.
                if not in_turn(self._lock, 0, self._send_next):
                    return

    def _send_next(self) -> bool:
        # Remove the request only after it is written. If an exception prevents the removal, the request is sent
        # twice, which is harmless.
        try:
            header = self._waiting[0]
        except IndexError:  # the last thread that held the lock has sent the request
            return True
        written = self._write(header)
        # Remove the request only if it is still the first: a call in a signal handler may have sent and removed it.
        if written and self._waiting and self._waiting[0] is header:
            self._waiting.popleft()
        return written


class CallTimedOut(Exception):
    """The caller's deadline has expired. `state` is the state of the work in the host."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


class ChannelRetired(Exception):
    """The connection is being closed as planned. The host did not process the call; the next host can."""


class ChannelFailed(Exception):
    """The connection has failed: the host has ended, hangs, or violates the protocol (`reason`). `request_id` is
    the id of the caller's request; ``None`` if the caller has not sent a request."""

    def __init__(self, reason: BridgeError | None = None) -> None:
        super().__init__(str(reason or "end of stream"))
        # Remove the traceback: the reason is stored as long as the connection exists, and would keep the frames of
        # the thread that detected the failure alive.
        self.reason = reason if reason is None else reason.with_traceback(None)
        self.request_id: int | None = None

    def again(self) -> ChannelFailed:
        """Return a copy to raise, because raising the stored exception would keep frames and arrays of callers
        alive."""
        return ChannelFailed(self.reason)


def error_of(answer: Frame, *, retired: bool) -> Exception:
    """Return the exception for an ERROR frame. retired: whether GOODBYE was sent, which cancels requests."""
    error = from_wire(answer.header.get("error") or {})
    # After GOODBYE the host cancels requests that it has not started. The next generation processes these calls.
    return ChannelRetired() if retired and isinstance(error, Cancelled) else error


def stalled(verb: str, seconds: float) -> HostHung:
    return HostHung(
        f"The host stopped in the middle of a message: it did not {verb} any data for {seconds:g} s.",
        cause="The host process is stopped (debugger, SIGSTOP, suspended) or the machine is out of memory.",
        fix="Nothing to do: qnnbridge ends the host and starts it again with the next call.",
    )


# Thread-local data. `channel` is the connection of a host that waits for a function in this thread. The function
# must not wait for that host.
inside = local()


def reentered(op: object) -> CallBackFailed:
    return CallBackFailed(
        f"A function that was called by the host calls the same host ({op}).",
        cause="The host waits for the function, so it cannot answer.",
        fix="Make the call before or after the function, or use a separate host: host=qnnbridge.Host().",
        details={"reason": "reentered"},
    )


def forked(owner: int) -> ForkedClient:
    return ForkedClient(
        f"This process is a fork of process {owner}, which owns the host.",
        fix="Create sessions after the fork, or use the spawn start method of multiprocessing.",
    )


def descriptors_closed() -> HostCrashed:
    return HostCrashed(
        "The connection to the host is lost: this program has closed the connection's descriptors.",
        cause="Other code closed all open files (os.closerange, or a library that turns the program into a "
        "daemon).",
        fix="Make that code close only its own files, or run it before the first session is created. The next "
        "call restarts the host.",
        details={"from_outside": True},
    )


def interrupted() -> ProtocolDesync:
    return ProtocolDesync(
        "The position in the stream was lost because Ctrl+C interrupted the parsing of a message.",
        fix="Nothing to do: the host is restarted with the next call.",
    )


@dataclasses.dataclass(frozen=True)
class CallContext:
    """Description of a call. If the host dies, the death can be attributed to the call.

    Attributes:
        op: the operation, for example ``session.run``.
        model: label of the model.
        fingerprint: fingerprint of the model or cache entry that is blamed for a death.
        options_hash: hash of the session's options.
        without_qnn: whether QNN was not requested, or runs no node of the session.
        entry: whether the fingerprint identifies the cache entry from which the model was loaded.
        known: description of a known fault of the model on QNN, and its fix.
    """

    op: str
    model: str = ""
    fingerprint: str = ""
    options_hash: str = ""
    without_qnn: bool = False
    entry: bool = False
    known: str = ""

    def about(self, phase: Mapping[str, Any]) -> CallContext:
        """Return the context with the model or cache entry from a PHASE frame."""
        fingerprint, label = phase.get("fingerprint"), phase.get("label")
        if type(fingerprint) is not str:
            return self
        model = label if type(label) is str else self.model
        known = phase.get("known")
        known = known if type(known) is str else self.known
        return dataclasses.replace(self, fingerprint=fingerprint, model=model, entry="entry" in phase, known=known)


@dataclasses.dataclass(frozen=True)
class Lost:
    """A request that was open when the connection failed.

    Attributes:
        phase: the native step that the host declared, if any.
        sent: whether the request was written completely, so that the host may have started it.
    """

    request_id: int
    context: CallContext
    phase: str | None
    sent: bool = True


class ChannelInUse(Protocol):
    """Interface of a fast channel that the table of open requests uses."""

    busy: bool
    sent: bool
    context: CallContext

    @property
    def abandoned(self) -> bool: ...
    @property
    def call_id(self) -> int: ...
    @property
    def phase(self) -> str | None: ...
    def answered(self) -> bool: ...


def remaining(deadline: float | None) -> float:
    """Return the seconds until the deadline; -1 without a deadline, with which `Lock.acquire` waits forever."""
    return -1 if deadline is None else max(0.0, deadline - time.monotonic())


class WakeEvent:
    """Event that wakes one waiting thread. Any thread may set the event, even a signal handler that has interrupted
    the waiting thread."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # Use a lock instead of `threading.Event`: `Event.set` takes a lock that is not reentrant, so a signal
        # handler that interrupts `set` and calls it again would deadlock.
        self._lock = Lock()
        self._lock.acquire()

    def wake(self) -> None:
        try:
            self._lock.release()
        except RuntimeError:
            pass  # the event is already set

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set. Return whether it was set before the timeout."""
        return self._lock.acquire(timeout=max(0.0, timeout_s))


class Waiter(WakeEvent):
    """A caller that waits for an answer. The caller is woken when the answer has arrived, the lead (the right to
    read) is free, or the connection has failed.

    Args:
        on_news: function that the reading thread calls with each PHASE, EVENT and CALL_BACK frame of the request.
            It must not block.
    """

    __slots__ = ("answer", "news", "on_news", "request_id")

    def __init__(self, on_news: Callable[[Frame], None] | None = None) -> None:
        super().__init__()
        self.answer: Frame | None = None
        # Id of the request; set before the first byte of the request is written.
        self.request_id: int | None = None
        # EVENT frames that the caller must process before it continues to wait; empty if it only needs the answer.
        self.news: collections.deque[Frame] | tuple[()] = ()
        self.on_news = on_news


class Callers:
    """The callers of one connection in the order of their arrival. At most `room` callers may proceed at a time, in
    this order; the others wait. Thread-safe.

    Each caller removes itself from `waiting`, because an interrupt could make a counter wrong.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.waiting: dict[Waiter, None] = {}
        self._left: Changes[bool] = Changes()

    def enter(self, me: Waiter, timeout_s: float | None) -> bool:
        """Wait until this caller is among the first `room` callers. Return False if the timeout expires first."""
        self.waiting[me] = None
        if len(self.waiting) <= self.room:
            return True
        # The dict preserves the order of arrival, so a caller's position only moves forwards.
        return self._left.wait_for(lambda: me in list(self.waiting)[: self.room], timeout_s)

    def has_left(self) -> None:
        """Notify the other callers after a caller has removed itself."""
        if len(self.waiting) >= self.room:
            self._left.notify()


class _Open:
    __slots__ = ("context", "phase", "sent", "waiter")

    def __init__(self, waiter: Waiter | None, context: CallContext) -> None:
        self.waiter = waiter
        self.context = context
        self.phase: str | None = None
        self.sent = False


class OpenRequests:
    """The requests of one connection that have no final answer yet. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may make a call while its thread holds the lock.
        self._lock = RLock()
        self._open: dict[int, _Open] = {}
        self._changes: Changes[bool] = Changes()
        # Whether a thread waits in `wait_idle` and must be notified when a request ends.
        self.idle_wanted = False
        # All fast channels by number. A busy channel is an open request.
        self.channels: Mapping[int, ChannelInUse] = {}
        # Function that is called, in any thread, when a caller abandons a request whose answer may still arrive.
        self.on_left: Callable[[], None] | None = None
        # Calls whose answers come in several parts (`ReplyStream`); at most `MAX_STREAMS`.
        self.streams: dict[object, None] = {}
        # Native step that the host declared for no particular request, such as its start.
        self.host_phase: str | None = None
        # Versions that the host reported after it had found QNN.
        self.host_versions: dict[str, str] = {}
        # Function that receives each report of versions.
        self.on_versions: Callable[[Mapping[str, str]], None] | None = None
        self.failure: ChannelFailed | None = None
        # Requests that were open when the connection failed, oldest first.
        self.lost: tuple[Lost, ...] = ()

    @property
    def waiting(self) -> int:
        """Number of requests whose callers still wait."""
        with self._lock:
            waiting = sum(entry.waiter is not None for entry in self._open.values())
            return waiting + sum(channel.busy and not channel.abandoned for channel in list(self.channels.values()))

    @property
    def abandoned(self) -> bool:
        """Whether the host may be working on abandoned calls."""
        with self._lock:
            if any(entry.waiter is None and entry.context.op for entry in self._open.values()):
                return True
            return any(channel.abandoned and not channel.answered() for channel in list(self.channels.values()))

    def channel_is_free(self) -> None:
        """Record the end of a call on a fast channel."""
        with self._lock:
            self._notify_if_idle_wanted()

    def add(self, request_id: int, waiter: Waiter | None, context: CallContext) -> None:
        """Add a request that is about to be written."""
        with self._lock:
            if self.failure is not None:
                raise self.failure.again()
            if waiter is not None:
                # Set the id under the lock and before the first byte is written, so that an interrupted caller can
                # withdraw the request from here on.
                waiter.request_id = request_id
            self._open[request_id] = _Open(waiter, context)

    def sent(self, request_id: int) -> None:
        """Record that the request was written completely."""
        entry = self._open.get(request_id)
        if entry is not None:
            entry.sent = True

    def withdraw(self, request_id: int) -> None:
        """Remove a request of which no byte was written, or that the host will not start."""
        with self._lock:
            self._open.pop(request_id, None)
            self._notify_if_idle_wanted()

    def leave(self, request_id: int) -> bool:
        """Record that the caller abandoned the request; the host may still process it. Return False if the request
        was withdrawn before."""
        with self._lock:
            entry = self._open.get(request_id)
            if entry is not None:
                entry.waiter = None
                self._notify_if_idle_wanted()
        # Call `on_left` without the lock, because the maintenance thread that it wakes also takes the lock.
        if entry is not None and entry.context.op and self.on_left is not None:
            self.on_left()
        return entry is not None

    def declare(self, frame: Frame) -> None:
        """Record that the host is about to enter a native step. Also record the model, if the request does not
        contain it."""
        phase = str(frame.header.get("phase"))
        if not frame.request_id:  # the phase of the host itself, not of a request
            self.host_phase = phase
            versions = frame.header.get("versions")
            if isinstance(versions, Mapping):
                self.host_versions = {str(name): str(text) for name, text in versions.items()}
                if self.on_versions is not None:
                    self.on_versions(self.host_versions)
            return
        with self._lock:
            # The entry is missing if the answer of the request arrived before this PHASE frame. This can happen if
            # the host received a second request at the moment at which the first request ended.
            entry = self._open.get(frame.request_id)
            if entry is not None:
                entry.phase = None if phase == "ready" else phase
                entry.context = entry.context.about(frame.header)
        self.pass_on(frame)

    def pass_on(self, frame: Frame) -> None:
        """Pass news (PHASE, EVENT, CALL_BACK frames) of a request to its caller, if the caller still waits."""
        entry = self._open.get(frame.request_id)
        waiter = entry.waiter if entry is not None else None
        if waiter is not None and waiter.on_news is not None:
            waiter.on_news(frame)

    def answer(self, frame: Frame) -> None:
        """Pass an answer to its waiter."""
        with self._lock:
            # The entry or its waiter is missing if the call was withdrawn or abandoned. `Connection` has checked
            # that the id belongs to a request.
            entry = self._open.pop(frame.request_id, None)
            self._notify_if_idle_wanted()
        if entry is not None and entry.waiter is not None:
            entry.waiter.answer = frame
            entry.waiter.wake()

    def wake_next(self) -> None:
        """Wake one waiting caller, which then takes the lead and reads."""
        with self._lock:
            for entry in self._open.values():
                # Wake the oldest caller. Skip callers that have their answers, because they would not read.
                if entry.waiter is not None and entry.waiter.answer is None:
                    entry.waiter.wake()
                    return

    def fail(self, reason: BridgeError | None) -> ChannelFailed:
        """Record that the connection has failed. Only the first reason is recorded."""
        with self._lock:
            if self.failure is None:
                # Copy the requests, so that later answers and withdrawals do not change which calls are blamed.
                self.lost = tuple(
                    Lost(number, entry.context, entry.phase, entry.sent)
                    for number, entry in sorted(self._open.items())
                    if entry.context.op
                ) + tuple(
                    Lost(channel.call_id, channel.context, channel.phase, channel.sent)
                    for channel in list(self.channels.values())
                    if channel.busy and channel.context.op
                )
                self.failure = ChannelFailed(reason)
            failure = self.failure.again()
            waiters = [entry.waiter for entry in self._open.values() if entry.waiter is not None]
            self._changes.notify()
        # Wake the callers after releasing the lock, because each of them takes the lock next.
        for waiter in waiters:
            waiter.wake()
        return failure

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no caller waits for an answer. Return False if a caller still waits after the timeout."""
        self.idle_wanted = True
        return self._changes.wait_for(lambda: self.failure is not None or not self.waiting, timeout_s)

    def _notify_if_idle_wanted(self) -> None:
        if self.idle_wanted:
            self._changes.notify()


# Context of internal requests: pings and cancels.
NO_CONTEXT = CallContext("")


__all__ = ["Header", "OneWayRequests"]
