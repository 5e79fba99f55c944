"""Shielded work is done once despite exceptions of signal handlers, even if no thread can be started."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from qnnbridge_os import shield
from qnnbridge_os.shield import shielded, start_thread


def no_memory_before(thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
    raise MemoryError


def no_memory_behind(thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
    start(thread)
    raise MemoryError


def no_thread(thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
    raise RuntimeError("can't start new thread")


def lost(thread: threading.Thread, start: Callable[[threading.Thread], None]) -> None:
    """Thread start that ends before its work has started."""


FAULTS = [no_memory_before, no_memory_behind, no_thread]


@pytest.fixture
def break_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., None]], None]:
    start = threading.Thread.start

    def install(fault: Callable[..., None]) -> None:
        monkeypatch.setattr(threading.Thread, "start", lambda thread: fault(thread, start))

    return install


@pytest.mark.parametrize("fault", [*FAULTS, lost])
def test_shielded_work_is_done_once_whatever_happens_to_its_thread(
    fault: Callable[..., None], break_threads: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shield, "BEGIN_S", 0.5)
    monkeypatch.setattr(shield, "_SLICE_S", 0.1)
    break_threads(fault)
    done: list[int] = []

    def work() -> str:
        done.append(1)
        return "done"

    assert shielded("test", work) == "done"
    time.sleep(0.05)
    assert done == [1]

    def fail() -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        shielded("test", fail)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_work_of_a_started_thread_is_done_once(
    fault: Callable[..., None], break_threads: Callable[..., None]
) -> None:
    break_threads(fault)
    done: list[int] = []
    came = threading.Event()

    def work(number: int) -> None:
        done.append(number)
        came.set()

    start_thread("test", work, 7)
    assert came.wait(20)
    time.sleep(0.05)
    assert done == [7]


def test_a_thread_that_lacks_memory_raises_the_error_of_too_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(shield, "start_new_thread", refuse)
    with pytest.raises(RuntimeError, match="no memory"):
        start_thread("test", print)
    assert shielded("test", lambda: 3) == 3
