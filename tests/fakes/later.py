"""A model whose fault starts on request, and helpers for tests of repeated calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors
from tests.fakes.hosts import script

X = np.arange(4, dtype=np.float32)
# Timeout that only a defect reaches.
GRACE_S = 20.0


def warm(session: qnnbridge.InferenceSession, x: np.ndarray = X) -> None:
    """Make calls so that the next one uses an open channel and an existing plan."""
    for _ in range(2):
        session.run(None, {"x": x})


class Later:
    """A model that works normally until `now` is called, and then performs its actions once."""

    def __init__(self, folder: Path, *actions: str, scale: float = 3, **more: Any) -> None:
        self._once, self.path = folder / "once", folder / "model"
        self._once.touch()
        self.path.write_bytes(script(scale=scale, on_run=list(actions), once=str(self._once), **more))

    def now(self) -> None:
        self._once.unlink()

    @property
    def begun(self) -> bool:
        """True once the actions have started."""
        return self._once.exists()

    def late(self, call: Callable[[], Any]) -> errors.DeadlineExceeded:
        """Call `late` for this model."""
        return late(call, lambda: self.begun)


def late(call: Callable[[], Any], begun: Callable[[], bool]) -> errors.DeadlineExceeded:
    """Return the error of a call whose deadline expires during its work.

    On a busy machine the deadline may expire before the work starts; then the call is repeated.

    Args:
        begun: returns whether the host has started the work.
    """
    while True:
        with pytest.raises(errors.DeadlineExceeded) as caught:
            call()
        # If the host has not reported the state of the call in time, the work may start later, or never.
        if begun() or (caught.value.state == "still-running" and comes(begun)):
            return caught.value


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    out: list[Any] = []

    def work() -> None:
        try:
            out.append(call())
        except BaseException as error:
            out.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, out


def until(condition: Callable[[], bool]) -> None:
    assert comes(condition)


def comes(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true; return False after a timeout."""
    end = time.monotonic() + GRACE_S
    while not condition():
        if time.monotonic() >= end:
            return False
        threading.Event().wait(0.005)
    return True


def is_taken(lock: threading.RLock) -> bool:
    if not lock.acquire(blocking=False):
        return True
    lock.release()
    return False


@contextmanager
def taken_by_another(lock: threading.RLock) -> Iterator[None]:
    over = threading.Event()

    def hold() -> None:
        with lock:
            over.wait(GRACE_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        until(lambda: is_taken(lock))
        yield
    finally:
        over.set()
        thread.join()
