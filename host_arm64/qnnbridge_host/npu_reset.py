"""What to do when the NPU resets under a living process (SSR, QNN code 1007).

The driver restarts the NPU's own processor; everything that was loaded into it is gone, in all sessions. That is
no reason to end the host: the session is made again in place and the call repeated once; every other session is
made again by its next call. If it happens again within a minute, or QNN says that the NPU is gone for good (1011),
only a new process helps; the error then says so to the client in ``details["host_must_restart"]``.

Where the codes come from: QNN's error table; which exception carries them differs between releases
(`DeviceReset` since onnxruntime 1.28, `EngineError` or `EPFail` with a code before).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import BridgeError, DeviceReset, EngineError, EPFail, ModelChanged
from qnnbridge_protocol.specs import RunSpec, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.engine import EngineSession, StopHandle

QNN = "QNNExecutionProvider"

COMMUNICATION = 1007
"""QNN_COMMON_ERROR_SYSTEM_COMMUNICATION: the NPU restarted; it can be used again."""

COMMUNICATION_FATAL = 1011
"""QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL: it cannot, from this process."""

CODE_MASK = 0xFFFF
"""ONNX Runtime prints QNN's whole number; the code is in its low 16 bits."""

REPEATED_WITHIN_S = 60.0

_CODE = re.compile(r"[Cc]ode: (\d+)")


class Npu:
    """The state of the NPU as this process has seen it. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_reset: float | None = None
        self.resets = 0
        """How often it was reset: the number tells a session whether it was made before the last one."""

    def note_reset(self, seen_before: int) -> bool:
        """A call failed by a reset. Whether it is worth to try again in this process."""
        with self._lock:
            if self.resets != seen_before:
                return True  # another session has met the same reset
            now = self._clock()
            again = self._last_reset is not None and now - self._last_reset < REPEATED_WITHIN_S
            self._last_reset = now
            self.resets += 1
            return not again


Enter = Callable[[str], None]
"""Declares the native step that a request is about to enter."""


class ResettableSession:
    """A session that comes back from a reset of the NPU. Its runs come one at a time (the NPU's lane).

    make: makes it, as often as need be; it keeps what that takes, a model given as bytes included.
    """

    def __init__(self, npu: Npu, spec: SessionSpec, make: Callable[[Enter], EngineSession], enter: Enter) -> None:
        self._npu = npu
        self._path = spec.model_path
        self._stamp = _stamp(self._path)
        self._made_at_reset = npu.resets
        self._make: Callable[[Enter], EngineSession] | None = make
        self._session: EngineSession = self._first(make, enter)
        self.info: SessionInfo = self._session.info
        placement = self.info.placement
        # Before onnxruntime 1.24 nobody can say where the nodes are.
        self.on_npu = bool(placement.qnn_nodes) or (not placement.known and QNN in self.info.providers)
        if not self.on_npu:
            self._make = None

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run: RunSpec | None,
        stop: StopHandle | None,
        enter: Enter,
    ) -> list[Any]:
        """See `EngineSession.run`."""
        if self._make is not None and self._made_at_reset != self._npu.resets:
            self._rebuild(self._make, enter)
        enter("running")
        try:
            return self._session.run(output_names, feeds, run, stop)
        except BridgeError as error:
            if self._make is None:
                raise
            self._after(error)
        self._rebuild(self._make, enter)
        enter("running")
        try:
            return self._session.run(output_names, feeds, run, stop)
        except BridgeError as error:
            if is_reset(error):
                raise _needs_restart(error) from None
            raise

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        self._session.set_ep_dynamic_options(options)

    def end_profiling(self) -> str:
        return self._session.end_profiling()

    def close(self) -> None:
        self._session.close()

    def _first(self, make: Callable[[Enter], EngineSession], enter: Enter) -> EngineSession:
        try:
            return make(enter)
        except BridgeError as error:
            self._after(error)
        self._made_at_reset = self._npu.resets
        return make(enter)

    def _after(self, error: BridgeError) -> None:
        """Returns if the call is to be repeated here; raises `error` if not."""
        if not is_reset(error):
            raise error
        if code_of(error) == COMMUNICATION_FATAL or not self._npu.note_reset(self._made_at_reset):
            raise _needs_restart(error)

    def _rebuild(self, make: Callable[[Enter], EngineSession], enter: Enter) -> None:
        if self._path is not None and _stamp(self._path) != self._stamp:
            raise ModelChanged(
                f"The NPU was reset, and {self._path} has changed since the session was made from it.",
                fix="Create the session again.",
                details={"path": self._path},
            )
        self._session.close()
        self._made_at_reset = self._npu.resets
        self._session = make(enter)


def is_reset(error: BridgeError) -> bool:
    """Whether the NPU was reset under the call."""
    if isinstance(error, (DeviceReset, EngineError)):
        return True
    return isinstance(error, EPFail) and (
        code_of(error) in (COMMUNICATION, COMMUNICATION_FATAL) or "SSR detected" in error.message
    )


def code_of(error: BridgeError) -> int | None:
    """The QNN code in the text of an error."""
    found = _CODE.search(error.message)
    return int(found.group(1)) & CODE_MASK if found else None


def _needs_restart(error: BridgeError) -> BridgeError:
    error.details["host_must_restart"] = True
    error.cause = error.cause or "The NPU was reset by its driver, and is not usable from this process any more."
    error.fix = error.fix or "The host is started again. If it happens again, update the NPU driver."
    return error


def _stamp(path: str | None) -> tuple[int, int] | None:
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
