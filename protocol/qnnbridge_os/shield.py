"""Operations that an exception of a signal handler cannot leave incomplete.

A signal handler of the application may raise: `KeyboardInterrupt`, the limit of `signal.alarm`, pytest-timeout.
CPython runs handlers in the main thread only: at the entry of a Python function, after a call, at a backward jump,
and in a C function that waits. So in the main thread

- ``x = f()`` may lose an object that a C function `f` has created or taken, because the handler runs before the
  assignment;
- ``lock.acquire()`` before a ``try`` may leave the lock locked forever;
- an ``__enter__`` or ``__exit__`` in Python may be skipped: `threading.Condition`, `Event`, `Semaphore`,
  `concurrent.futures.Future`, and `threading.Thread.start`, which waits for an `Event`.

qnnbridge uses instead:

- ``with lock:`` for a C lock, because no handler runs between acquiring the lock and the block; `in_turn` if there
  is a timeout;
- single C operations: `SimpleQueue`, `deque.append`, ``dict[key] = value``, ``dict.pop(key, None)``;
  ``list.extend(map(f, ...))`` stores the results of `f` within the same operation;
- computed counts: the length of a dict from which each user removes itself;
- a callback of a weak reference that is a C function, instead of ``__del__``;
- another thread for rare and long work (starting, explaining and ending a host): `shielded`. The main thread only
  waits. If the main thread is interrupted, the work continues to its end.
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

# Longest uninterrupted wait. It is short on Windows, where signal handlers run only between waits.
_SLICE_S = 0.1 if sys.platform == "win32" else 1.0
# Time limit for the start of a thread. A thread that has not begun to run by then never will.
BEGIN_S = 5.0


class TooLate(Exception):
    """The lock was not released within the timeout."""


def in_turn(lock: RLock, timeout_s: float, work: Callable[[], T]) -> T:
    """Run `work` while this thread holds the lock. `timeout_s` -1 waits forever. Raise `TooLate` after the timeout.

    The lock is acquired inside the ``try``, because releasing a reentrant lock checks whether this thread holds it.
    """
    try:
        if not lock.acquire(timeout=timeout_s):
            raise TooLate
        return work()
    finally:
        try:
            lock.release()
        except RuntimeError:
            # This thread does not hold the lock, because the timeout expired or the exception came before the lock
            # was acquired.
            pass


def is_interruptible() -> bool:
    """Return whether signal handlers run in this thread."""
    # Under greenlets the main thread has a different id, so return True: unnecessary protection is harmless.
    return threads_are_replaced() or get_ident() == threading.main_thread().ident


class _Once:
    """Work that is done once, by the first thread that calls the object."""

    def __init__(self, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        self._work = work
        self._arguments = arguments
        self._begun = Lock()

    def __call__(self) -> None:
        if self._begun.acquire(blocking=False):
            self._work(*self._arguments)


def start_thread(name: str, work: Callable[..., object], *arguments: Any) -> None:
    """Start a daemon thread in one C operation. Raise `RuntimeError` if no more threads can be created."""
    _start_thread(name, _Once(work, arguments))


def _start_thread(name: str, once: _Once) -> None:
    try:
        start_new_thread(_start, (name, once))
    except MemoryError:
        raise RuntimeError("no memory for another thread") from None


def _start(name: str, once: _Once) -> None:
    if threads_are_replaced():
        once()  # run the work in this system thread: `threading.Thread` would start a greenlet
        return
    # `_start` never runs in the main thread, so no signal handler can interrupt `Thread.start`.
    try:
        threading.Thread(target=once, name=name, daemon=True).start()
    except (RuntimeError, MemoryError):
        once()  # no further thread can be created, so this thread does the work


def shielded(name: str, work: Callable[[], T]) -> T:
    """Return the result of `work`. Run `work` in another thread if a signal handler could interrupt it in this
    thread.

    If the caller is interrupted, `work` must end by itself and store its result where the next caller finds it.
    """
    if not is_interruptible():
        return work()
    # Allocate all memory before the thread starts. If `do` had to allocate memory to report its end and failed, the
    # caller would wait forever.
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
    except RuntimeError:  # the interpreter is ending, or no more threads can be created
        once()
    patience_s = BEGIN_S
    while not ended.acquire(timeout=_SLICE_S):
        patience_s -= _SLICE_S
        if patience_s <= 0:
            once()  # `once` does nothing, unless the thread had too little memory to start
    error = errors[0]
    if error is None:
        return results[0]  # type: ignore[return-value]
    try:
        raise error
    finally:
        error = errors[0] = None  # otherwise the error and this frame would keep each other alive


class Changes(Generic[T]):
    """Wakes threads that wait for a change, like a `Condition`. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[SimpleQueue[None], None] = {}

    def notify(self) -> None:
        """Wake the waiting threads after a change."""
        # Copy in one C operation, because other threads add and remove themselves at any time.
        for one in list(self._waiting):
            one.put(None)

    def wait_for(self, held: Callable[[], T], timeout_s: float | None) -> T:
        """Wait until `held()` is true or the timeout expires. Return the last result of `held()`."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        woken: SimpleQueue[None] = SimpleQueue()
        # Register before the first call of `held`, so that no change in between is missed.
        self._waiting[woken] = None
        try:
            while not (value := held()):
                # Wait in short intervals: the thread that made the change may have been interrupted before it could
                # notify.
                left_s = _SLICE_S if until is None else min(_SLICE_S, until - time.monotonic())
                if left_s <= 0:
                    break
                with contextlib.suppress(queue.Empty):
                    woken.get(timeout=left_s)
            return value
        finally:
            self._waiting.pop(woken, None)


class _Watch(weakref.ref[Any]):
    """Weak reference that stores a function to call when the object is gone."""

    __slots__ = ("clean",)
    clean: Callable[[], object]


class _Watched:
    """Watched objects of this process. A forked child starts without watched objects, because it has no cleaning
    thread."""

    def __init__(self) -> None:
        self.gone: SimpleQueue[_Watch] = SimpleQueue()
        # The key is the `id` of the weak reference, because a weak reference is hashable only if its object is.
        self.watches: dict[int, _Watch] = {}
        self.cleaner = False


_watched = _Watched()


def when_gone(thing: object, clean: Callable[[], object]) -> Callable[[], object]:
    """Call `clean` in a background thread when the object is no longer referenced.

    This replaces ``__del__``, which an exception could interrupt. `clean` must not refer to the object. It is not
    called at the end of the program.

    Returns:
        A function that cancels the call of `clean`.
    """
    watched = _watched
    # Two threads may get here at the same time. Two cleaning threads are harmless, because both read from one
    # queue.
    if not watched.cleaner:
        start_thread("qnnbridge cleaner", _clean_for_ever, watched)
        watched.cleaner = True
    # The callback is a C method, which is called with the weak reference itself.
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
