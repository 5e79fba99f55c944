"""Runs suspects alone, so that a second death has one suspect only.

A suspect that waits for its turn goes before all that come later: under steady load of the others it would never
be alone otherwise.

Nothing is counted as long as there is no suspect: the gate then costs one attribute look-up.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from qnnbridge._supervision.blame import Blame
from qnnbridge._transport.channel import Deadline, Note


class IsolationLock:
    """Calls of suspects exclude all others; the others run together. Any thread."""

    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self._changed = threading.Condition()
        self._together = 0
        self._alone = False
        self._waiting_alone = 0

    @contextlib.contextmanager
    def enter(self, note: Note, deadline: float | None) -> Iterator[None]:
        """Around one call. Raises `Deadline` if its turn does not come in time."""
        if not self._blame.active:
            yield
            return
        alone = self._blame.must_run_alone(note.fingerprint)
        with self._changed:
            self._wait(alone, deadline)
            self._alone = alone
            self._together += not alone
        try:
            yield
        finally:
            with self._changed:
                if alone:
                    self._alone = False
                else:
                    self._together -= 1
                self._changed.notify_all()

    def _wait(self, alone: bool, deadline: float | None) -> None:
        def free() -> bool:
            if alone:
                return not self._alone and not self._together
            return not self._alone and not self._waiting_alone

        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        self._waiting_alone += alone
        try:
            if not self._changed.wait_for(free, timeout):
                raise Deadline("not-started")
        finally:
            self._waiting_alone -= alone
            if alone:
                self._changed.notify_all()  # it may have given up: the others need not wait for it any more
