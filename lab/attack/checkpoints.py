"""Interrupts work at its n-th checkpoint: every place at which CPython can run a signal handler, one after the other.

The interpreter looks for signals in the main thread at the entry of a function of Python, behind a call, and at a jump
backwards; nowhere else between two bytecodes. A tracer of opcodes makes a real signal pending just before the n-th of
those, so that its handler runs, and raises, exactly where a signal of the system could have made it. POSIX only.
"""

from __future__ import annotations

import _thread
import dis
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import qnnbridge
import qnnbridge_os
import qnnbridge_protocol

NUMBER = signal.SIGVTALRM

# Where the interpreter looks: behind calls, and at jumps backwards (their names differ between releases).
_LOOKS = frozenset(
    code
    for name, code in dis.opmap.items()
    if name.startswith("CALL") or ("JUMP" in name and "FORWARD" not in name and "NO_INTERRUPT" not in name)
)
# Of the standard library: locks and context managers, which our steps go through.
_LIBRARY = tuple(
    os.path.join(os.path.dirname(os.__file__), *parts)
    for parts in (("threading.py",), ("contextlib.py",), ("weakref.py",), ("concurrent", "futures", "_base.py"))
)
_PACKAGES = (qnnbridge, qnnbridge_os, qnnbridge_protocol)
_OURS = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in _PACKAGES)


class Interrupted(BaseException):
    """What the handler raises."""


class _MakePending:
    # A subscript calls the C function and does not look for signals behind it, as a call would: the tracer itself
    # is not interrupted. `signal.raise_signal` looks by itself; this one only notes that there is a signal.
    __getitem__: ClassVar[Any] = _thread.interrupt_main


_make_pending: Any = _MakePending()


class Walker:
    """Runs work in the main thread with one interruption. Not for two threads."""

    def __init__(self) -> None:
        # Where it was interrupted; empty if it was not.
        self.place = ""
        self._left = 0
        self._files: tuple[str, ...] = ()

    def run(self, work: Callable[[], object], checkpoint: int, files: tuple[str, ...] = _OURS) -> bool:
        """`work`, interrupted at this checkpoint of its own. False if it has fewer.

        files: beginnings of the names of those whose checkpoints count.
        """
        self.place, self._left, self._files = "", checkpoint, files
        before = signal.signal(NUMBER, _raise)
        try:
            sys.settrace(self._enter)
            try:
                work()
            finally:
                sys.settrace(None)
        except Interrupted:
            pass
        finally:
            signal.signal(NUMBER, before)
        return bool(self.place)

    def _enter(self, frame: types.FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_LIBRARY) and not name.startswith(self._files):
            return None
        frame.f_trace_opcodes = True
        self._left -= 1
        if self._left == 0:
            self.place = f"{os.path.basename(name)}:{frame.f_lineno} entry of {frame.f_code.co_name}"
            _make_pending[NUMBER]
        return self._step

    def _step(self, frame: types.FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in _LOOKS:
            self._left -= 1
            if self._left == 0:
                self.place = (
                    f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
                )
                _make_pending[NUMBER]
        return self._step


def _raise(number: int, frame: types.FrameType | None) -> None:
    raise Interrupted
