"""The order in which calls enter the NPU host.

At most `slots` calls are in the host at a time, enough to keep the NPU busy between two calls; all other calls wait
here, where they can still be ordered fairly and withdrawn. Clients take turns. A client with many threads must not
displace a client with a single thread, which has no call for a moment between two calls. So while other clients are
or recently were active, a client gets at most an equal share of the slots, and at most as many slots as each of the
other active clients can use.

Thread-safe. A caller that finds a free slot takes it without waking a thread.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from qnnbridge_daemon.accounts import busy
from qnnbridge_protocol.errors import Cancelled

# Seconds after its last call during which a client counts as active: its threads may be between two calls. A slot
# that is reserved for a client without further calls is idle for at most this time.
ACTIVE_S = 0.05


class _Waiter:
    __slots__ = ("granted", "late", "wakeup", "withdrawn")

    def __init__(self) -> None:
        self.wakeup = threading.Lock()
        # Acquire this lock now, so that the thread's next `acquire` waits until another thread releases the lock.
        self.wakeup.acquire()
        self.granted = False
        self.late = False
        self.withdrawn = False


class Queue:
    """Calls of one client. Protected by the lock of its `FairShare`."""

    __slots__ = ("_peak_now", "_peak_until", "_peaks", "last_seen", "late", "running", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting: collections.deque[_Waiter] = collections.deque()
        self.last_seen = float("-inf")
        # Number of calls that arrived after `FairShare.close`.
        self.late = 0
        # Largest number of slots that the client could use in this interval of ACTIVE_S and in the previous one.
        self._peaks = (0, 0)
        self._peak_until = 0.0

    def update_demand(self, now: float) -> None:
        """Update the demand when calls arrive or end."""
        asked = self.running + len(self.waiting)
        if now > self._peak_until:
            self._peaks = (asked, self._peaks[0] if now < self._peak_until + ACTIVE_S else 0)
            self._peak_until = now + ACTIVE_S
        else:
            self._peaks = (max(asked, self._peaks[0]), self._peaks[1])
        self.last_seen = now

    @property
    def demand(self) -> int:
        """Number of slots that the client can use, estimated from its recent calls."""
        return max(1, self.running + len(self.waiting), *self._peaks)


class FairShare:
    """Admits calls to the NPU host, client by client. `clock` is for tests."""

    def __init__(self, slots: int, max_queued: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = max(1, slots)
        self._max_queued = max_queued
        self._clock = clock
        self._lock = threading.Lock()
        # One lock for all queues. It is held for microseconds, and never while a call runs or a waiting thread is
        # woken.
        self._idle = threading.Condition(self._lock)
        # Clients in the order of their turns. A client that gets a slot moves to the end, so the first client has
        # waited longest.
        self._queues: collections.OrderedDict[Queue, None] = collections.OrderedDict()
        self._looking_again = False
        self.closed = False
        self.running = 0

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(len(queue.waiting) for queue in self._queues)

    def join(self) -> Queue:
        """Add a client; return its queue."""
        queue = Queue()
        with self._lock:
            self._queues[queue] = None
        return queue

    def leave(self, queue: Queue) -> None:
        """Remove a client that has disconnected. Its running calls keep their slots."""
        with self._lock:
            self._queues.pop(queue, None)
            granted = self._grant()
        _wake(granted)

    @contextlib.contextmanager
    def turn(self, queue: Queue, cancellation: Cancellation, *, again: bool = False) -> Iterator[None]:
        """Wait for the turn of a call, and hold the slot during the call. Raise `Busy` or `Cancelled`.

        `again`: the request has already had a turn, so the limit of waiting calls does not apply to its next turn.
        """
        cancellation.check()
        waiter = self._enter(queue, again)
        if waiter is not None:
            self._wait(queue, waiter, cancellation)
        try:
            yield
        finally:
            self._exit(queue)

    def close(self) -> None:
        """Start no calls that arrive from now on; earlier calls continue.

        A later call waits until its client's connection ends, which cancels the call; the client can then repeat it
        with another daemon.
        """
        with self._lock:
            self.closed = True

    def wait_idle(self, until: float) -> bool:
        """Wait until no call runs or waits; return False if a call still runs or waits at the time `until`
        (`time.monotonic`)."""
        with self._idle:
            return self._idle.wait_for(
                lambda: not self.running and not any(q.waiting for q in self._queues),
                max(0.0, until - time.monotonic()),
            )

    # --- internal ----------------------------------------------------------------------------------------

    def _enter(self, queue: Queue, again: bool) -> _Waiter | None:
        """Return ``None`` if the call may run now, otherwise the object on which the call waits. Raise `Busy`, or
        `Cancelled` for a disconnected client."""
        with self._lock:
            if queue not in self._queues:  # a queue that was removed never gets a turn
                raise Cancelled("The client has disconnected.")
            now = self._clock()
            free = not self.closed and not queue.waiting and self.running < self.slots
            # Fast path: a slot is free and no earlier call of this client waits.
            if free and queue.running < self._cap(queue, now):
                queue.running += 1
                self.running += 1
                queue.update_demand(now)
                self._to_the_end(queue)
                return None
            if len(queue.waiting) >= self._max_queued and not again:
                raise busy(
                    "queued",
                    self._max_queued,
                    f"{self._max_queued} of its calls wait for their turn",
                    "Wait for answers before sending more calls",
                )
            waiter = _Waiter()
            if self.closed:
                # Do not queue the call, so that it never gets a slot. The end of the connection cancels it.
                waiter.late = True
                queue.late += 1
                return waiter
            queue.waiting.append(waiter)
            queue.update_demand(now)
            if self.running < self.slots:
                self._grant_later()
            return waiter

    def _wait(self, queue: Queue, waiter: _Waiter, cancellation: Cancellation) -> None:
        remove = cancellation.on_stop(lambda: self._withdraw(queue, waiter))
        try:
            waiter.wakeup.acquire()
        finally:
            remove()
        if not waiter.granted:
            cancellation.check()
            raise AssertionError("unreachable: the thread was woken without a slot")

    def _withdraw(self, queue: Queue, waiter: _Waiter) -> None:
        with self._lock:
            # If a slot was granted at the same moment, the call starts, and the cancellation stops it in the NPU
            # host.
            if waiter.granted or waiter.withdrawn:
                return
            waiter.withdrawn = True
            queue.late -= waiter.late
            with contextlib.suppress(ValueError):
                queue.waiting.remove(waiter)
        waiter.wakeup.release()

    def _exit(self, queue: Queue) -> None:
        with self._lock:
            queue.running -= 1
            self.running -= 1
            queue.update_demand(self._clock())
            # Grant slots under the lock, but wake the threads afterwards, so that they need not wait for the lock.
            granted = self._grant()
            if not self.running:
                self._idle.notify_all()
        _wake(granted)

    def _grant(self) -> list[_Waiter]:
        """Give free slots to the next calls. The caller holds the lock, and later wakes the returned calls."""
        granted: list[_Waiter] = []
        now = self._clock()
        while self.running < self.slots:
            # The time of this search is linear in the number of clients, which is small (tens).
            queue = next((q for q in self._queues if q.waiting and q.running < self._cap(q, now)), None)
            if queue is None:
                self._grant_later()
                break
            waiter = queue.waiting.popleft()
            waiter.granted = True
            queue.running += 1
            self.running += 1
            self._to_the_end(queue)
            granted.append(waiter)
        return granted

    def _grant_later(self) -> None:
        """Check again later if slots are free but reserved for active clients that may make no further call."""
        if self._looking_again or not any(queue.waiting for queue in self._queues):
            return
        # Start only one timer at a time, however many calls wait.
        self._looking_again = True
        timer = threading.Timer(ACTIVE_S, self._grant_now)
        timer.name, timer.daemon = "qnnbridge fair share", True
        timer.start()

    def _grant_now(self) -> None:
        with self._lock:
            self._looking_again = False
            granted = self._grant()
        _wake(granted)

    def _to_the_end(self, queue: Queue) -> None:
        if queue in self._queues:
            self._queues.move_to_end(queue)

    def _cap(self, queue: Queue, now: float) -> int:
        """Return how many slots the client may have now, at least one."""
        others = [
            other
            for other in self._queues
            if other is not queue and (other.running or other.waiting or now - other.last_seen < ACTIVE_S)
        ]
        if not others:
            return self.slots
        # Each client gets at least one slot (`max`), even if there are more clients than slots: in that case
        # clients take turns.
        share = self.slots // (len(others) + 1)
        return max(1, min(share, *(other.demand for other in others)))


def _wake(waiters: list[_Waiter]) -> None:
    for waiter in waiters:
        waiter.wakeup.release()


class Cancellation:
    """Cancellation of one call. Any thread may call `stop`. Implements `qnnbridge._threads.Terminable`."""

    __slots__ = ("_listeners", "_lock", "_terminate")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._terminate = False
        self._listeners: list[Callable[[], None]] = []

    @property
    def terminate(self) -> bool:
        return self._terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self.stop()

    def stop(self) -> None:
        """Cancel the call. Return immediately."""
        with self._lock:
            if self._terminate:
                return
            self._terminate = True
            # Iterate over a copy, because a listener may remove itself.
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def check(self) -> None:
        """Raise `Cancelled` if the call was cancelled."""
        if self._terminate:
            raise Cancelled("The request was cancelled before it started.")

    def on_stop(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener when the call is cancelled, or immediately if the call was cancelled before. The
        listener must not wait. Return a function that removes the listener."""
        with self._lock:
            stopped = self._terminate
            if not stopped:
                self._listeners.append(listener)
        if stopped:
            listener()
        return lambda: self._remove(listener)

    def add_terminate_listener(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call the listener in a separate thread when the call is cancelled, because it may wait for the NPU host.
        Return a function that removes the listener."""

        def ask() -> None:
            threading.Thread(target=listener, args=(True,), name="qnnbridge cancel", daemon=True).start()

        with self._lock:
            self._listeners.append(ask)
        return lambda: self._remove(ask)

    def _remove(self, listener: Callable[[], Any]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)
