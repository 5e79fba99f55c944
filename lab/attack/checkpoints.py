"""Interrupt work at its n-th checkpoint, so that every position where CPython can run a signal handler is covered.

The interpreter checks for signals in the main thread when a Python function is entered, after a call, and at a
backward jump, but at no other bytecode. An opcode tracer makes a real signal pending just before the n-th of these
checkpoints, so that the handler raises its exception exactly where a signal of the system could. POSIX only.
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

# Opcodes at which the interpreter checks for signals: calls and backward jumps. Opcode names differ
# between Python versions.
_CHECKING_OPCODES = frozenset(
    code
    for name, code in dis.opmap.items()
    if name.startswith("CALL") or ("JUMP" in name and "FORWARD" not in name and "NO_INTERRUPT" not in name)
)
# Modules of the standard library with locks and context managers. Their checkpoints count, too, because the
# interrupted code calls these modules.
_LIBRARY = tuple(
    os.path.join(os.path.dirname(os.__file__), *parts)
    for parts in (("threading.py",), ("contextlib.py",), ("weakref.py",), ("concurrent", "futures", "_base.py"))
)
_PACKAGES = (qnnbridge, qnnbridge_os, qnnbridge_protocol)
_OURS = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in _PACKAGES)


class Interrupted(BaseException):
    """Exception that the signal handler raises."""


class _MakePending:
    # Subscripting an instance calls `interrupt_main`. CPython checks for signals after a call but not after a
    # subscript, so the tracer itself is not interrupted. `interrupt_main` only marks the signal as pending;
    # `signal.raise_signal` would run the handler at once.
    __getitem__: ClassVar[Any] = _thread.interrupt_main


_make_pending: Any = _MakePending()


class Walker:
    """Run work in the main thread and interrupt it once. Not thread-safe."""

    def __init__(self) -> None:
        # Position in the source code at which the work was interrupted; empty if it was not interrupted.
        self.place = ""
        self._left = 0
        self._files: tuple[str, ...] = ()

    def run(self, work: Callable[[], object], checkpoint: int, files: tuple[str, ...] = _OURS) -> bool:
        """Run `work` and interrupt it at a checkpoint. Return False if `work` has fewer checkpoints.

        Args:
            checkpoint: number of the checkpoint, from 1.
            files: path prefixes of the source files whose checkpoints count.
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
        if event == "opcode" and frame.f_code.co_code[frame.f_lasti] in _CHECKING_OPCODES:
            self._left -= 1
            if self._left == 0:
                self.place = (
                    f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"
                )
                _make_pending[NUMBER]
        return self._step


def _raise(number: int, frame: types.FrameType | None) -> None:
    raise Interrupted
