"""What no exception of a signal handler can leave half done.

A signal handler of the application may raise: `KeyboardInterrupt`, the limit of `signal.alarm`, pytest-timeout.
CPython runs handlers in the main thread only: at the entry of a function of Python, behind a call, at a jump
backwards, and in a C function that waits. So in the main thread

- ``x = f()`` may lose what a C function `f` has made or taken: the handler runs before the assignment;
- ``lock.acquire()`` before a ``try`` may leave the lock taken for ever;
- an ``__enter__`` or ``__exit__`` in Python may be skipped: `threading.Condition`, `Event`, `Semaphore`,
  `concurrent.futures.Future`, and with an `Event` also `threading.Thread.start`.

What the bridge uses instead:

- ``with lock:`` for a lock of C: nothing comes between taking it and the block; `in_turn` where there is a timeout;
- single steps of C: `SimpleQueue`, `deque.append`, ``dict[key] = value``, ``dict.pop(key, None)``;
  ``list.extend(map(f, ...))`` keeps what `f` made within the same step;
- counts that are computed: the length of a dict from which each user takes itself away;
- a callback of a weak reference that is a C function, in place of ``__del__``;
- for what is rare and long (starting, explaining and ending a host) another thread: `shielded`. The main thread
  only waits there. Interrupted, it leaves, and the work goes on to its end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from qnnbridge_os.native import Lock, RLock, SimpleQueue, get_ident, start_new_thread, threads_are_replaced

T = TypeVar("T")

# On Windows a signal does not end a wait for a lock.
_SLICE_S = 0.1 if sys.platform == "win32" else 1.0
# A thread that has not begun by then never will.
BEGIN_S = 5.0


class TooLate(Exception):
    """The turn did not come in time."""


def in_turn(lock: RLock, timeout_s: float, work: Callable[[], T]) -> T:
    """`work`, while this thread has the lock. timeout_s: -1 waits for ever. Raises `TooLate`.

    The lock is taken inside of the ``try``, and a re-entrant one knows whether this thread has it.
    """
    try:
        if not lock.acquire(timeout=timeout_s):
            raise TooLate
        return work()
    finally:
        try:
            lock.release()
        except RuntimeError:
            # This thread does not have it: its time was over, or the exception came first.
            pass


def is_interruptible() -> bool:
    """Whether signal handlers run in this thread."""
    # With greenlets the main thread has another number. What is done elsewhere without need does no harm.
    return threads_are_replaced() or get_ident() == threading.main_thread().ident


class _Once:
    """The work of a thread: done by the first thread that comes to it."""

    def __init__(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._work = work
        self._arguments = arguments
        self._begun = Lock()

    def __call__(self) -> None:
        if self._begun.acquire(blocking=False):
            self._work(*self._arguments)


def start_thread(name: str, work: Callable[..., object], *arguments: Any) -> None:
    """Start a daemon thread, in one step of C. Raises `RuntimeError` if there can be no more threads."""
    _start_thread(name, _Once(work, arguments))


def _start_thread(name: str, once: _Once) -> None:
    try:
        start_new_thread(_start, (name, once))
    except MemoryError:
        raise RuntimeError("no memory for another thread") from None


def _start(name: str, once: _Once) -> None:
    if threads_are_replaced():
        once()  # a `Thread` would be a greenlet
        return
    # Here nothing interrupts `Thread.start`.
    try:
        threading.Thread(target=once, name=name, daemon=True).start()
    except (RuntimeError, MemoryError):
        once()  # this thread is the last one


def shielded(name: str, work: Callable[[], T]) -> T:
    """The result of `work`, which is done in another thread if a signal handler could raise in the midst of it.

    It must end by itself if the caller is interrupted, and keep what it makes where the next caller finds it.
    """
    if not is_interruptible():
        return work()
    # Nothing from here to the end of the wait may need memory: a thread that cannot report its end is waited for.
    results: list[T | None] = [None]
    errors: list[BaseException | None] = [None]
    ended = Lock()
    ended.acquire()

    def do() -> None:
        try:
            results[0] = work()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            errors[0] = error
        finally:
            ended.release()

    once = _Once(do, ())
    try:
        _start_thread(name, once)
    except RuntimeError:  # the interpreter is ending, or there can be no more threads
        once()
    patience_s = BEGIN_S
    while not ended.acquire(timeout=_SLICE_S):
        patience_s -= _SLICE_S
        if patience_s <= 0:
            once()  # nothing, unless the thread has had no memory to begin
    error = errors[0]
    if error is None:
        return results[0]  # type: ignore[return-value]
    try:
        raise error
    finally:
        error = errors[0] = None  # else it and this frame would keep each other


class Changes(Generic[T]):
    """Wakes the threads that wait for a change of something; in place of a `Condition`. Any thread."""

    def __init__(self) -> None:
        self._waiting: dict[SimpleQueue[None], None] = {}

    def notify(self) -> None:
        """Something has changed."""
        # The copy is one step of C. Threads come and go meanwhile.
        for one in list(self._waiting):
            one.put(None)

    def wait_for(self, held: Callable[[], T], timeout_s: float | None) -> T:
        """What `held` says last: something true, or when the time is over."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        woken: SimpleQueue[None] = SimpleQueue()
        # Before the first look at `held`, so that no change in between is missed.
        self._waiting[woken] = None
        try:
            while not (value := held()):
                # In slices: who changed it may have been interrupted before it could notify.
                left_s = _SLICE_S if until is None else min(_SLICE_S, until - time.monotonic())
                if left_s <= 0:
                    break
                with contextlib.suppress(queue.Empty):
                    woken.get(timeout=left_s)
            return value
        finally:
            self._waiting.pop(woken, None)


class _Watch(weakref.ref[Any]):
    """clean: what is to be done when the object is gone."""

    __slots__ = ("clean",)
    clean: Callable[[], object]


class _Watched:
    """Of this process: a fork has none of its threads."""

    def __init__(self) -> None:
        self.gone: SimpleQueue[_Watch] = SimpleQueue()
        # By their `id`: a weak reference is as little to be hashed as its object.
        self.watches: dict[int, _Watch] = {}
        self.cleaner = False


_watched = _Watched()


def when_gone(thing: object, clean: Callable[[], object]) -> Callable[[], object]:
    """`clean` in a thread of ours when nothing refers to the thing any more; in place of ``__del__``, which an
    exception could cut in two. What it refers to must not keep the thing. Not at the end of the program.

    Returns what calls it off.
    """
    watched = _watched
    # Two threads may come here at once. Two cleaners do no harm: both take from one queue.
    if not watched.cleaner:
        start_thread("qnnbridge cleaner", _clean_for_ever, watched)
        watched.cleaner = True
    # The callback is a method of C, and gets the weak reference itself.
    watch = _Watch(thing, watched.gone.put)
    watch.clean = clean
    watched.watches[id(watch)] = watch
    return functools.partial(watched.watches.pop, id(watch), None)


def _clean_for_ever(watched: _Watched) -> None:
    while True:
        watch = watched.gone.get()
        watched.watches.pop(id(watch), None)
        with contextlib.suppress(Exception):
            watch.clean()
        del watch


def _forget_watches() -> None:
    global _watched
    _watched = _Watched()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget_watches)
