"""What to do when the NPU resets under a living process (SSR, QNN code 1007).

The driver restarts the NPU's own processor; everything that was loaded into it is gone, in all sessions. That is
no reason to end the host: the session is made again in place and the call repeated once; every other session is
made again by its next call. If it happens again within a minute, or QNN reports that the NPU is lost permanently
(1011), only a new process helps; the error then says so to the client in ``details["host_must_restart"]``.

`engine.ort_errors` decides which error is a reset when it reads ONNX Runtime's texts, and records it in its
details: ``npu_reset``, ``qnn_code``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from qnnbridge_protocol.errors import BridgeError, Closed, ModelChanged, StateLost
from qnnbridge_protocol.specs import RunSpec, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.engine import EngineSession, StopHandle
    from qnnbridge_host.engine.calls import BoundCall

T = TypeVar("T")

QNN = "QNNExecutionProvider"

# A reset now and again is the driver's normal recovery; two in a minute are a cause that a new session does
# not cure.
REPEATED_WITHIN_S = 60.0


class Npu:
    """The state of the NPU as this process has seen it. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last_reset: float | None = None
        # How often it was reset: the number shows a session whether it was made before the last one.
        self.resets = 0

    def note_reset(self, seen_before: int) -> bool:
        """A call failed by a reset. Whether it is worth to try again in this process."""
        with self._lock:
            # The session was made before a reset that another session has counted already.
            if self.resets != seen_before:
                return True  # another session has met the same reset
            now = self._clock()
            again = self._last_reset is not None and now - self._last_reset < REPEATED_WITHIN_S
            self._last_reset = now
            self.resets += 1
            return not again


# Declares the native step that a request is about to enter.
Enter = Callable[[str], None]


class ResettableSession:
    """A session that comes back from a reset of the NPU. Its runs come one at a time (the NPU's lane).

    make: makes it, as often as need be; it keeps what that takes, a model given as bytes included.
    Invariants: when it could not be made again, the next call tries it again.
    """

    def __init__(
        self,
        npu: Npu,
        files: Sequence[str],
        spec: SessionSpec,
        make: Callable[[Enter], EngineSession],
        enter: Enter,
    ) -> None:
        """files: absolute paths of all that it is made from."""
        self._npu = npu
        # Taken before it is made for the first time: a file that changes later makes the session
        # `ModelChanged`, not another model.
        self._stamps = {path: _stamp(path) for path in files}
        self._make: Callable[[Enter], EngineSession] | None = make
        self._profiling = bool(spec.options.get("enable_profiling"))
        self._profile_lost = False
        # All dynamic options that were set, in this order.
        self._dynamic: dict[str, str] = {}
        # How many there had been when the attempt that is under way began.
        self._seen_resets = npu.resets
        session = self._first(make, enter)
        self._session: EngineSession | None = session
        self._made_at_reset = self._seen_resets
        self._closed = False
        self.info: SessionInfo = session.info
        placement = self.info.placement
        # Before onnxruntime 1.24 nothing says where the nodes are.
        self.on_npu = bool(placement.qnn_nodes) or (not placement.known and QNN in self.info.providers)
        if not self.on_npu:
            # A session on the CPU never meets a reset, and need not keep the model's bytes for it.
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
        return self._with_reset(lambda session: session.run(output_names, feeds, run, stop), enter)

    def run_bound(self, call: BoundCall, stop: StopHandle, enter: Enter) -> list[Any] | None:
        """See `EngineSession.run_bound`."""
        session, resets = self._session, self._npu.resets
        if session is None or (self._make is not None and self._made_at_reset != resets):
            return self._with_reset(lambda session: session.run_bound(call, stop), enter)
        # The inner step of `_with_reset` before the first reset.
        self._seen_resets = resets
        enter("running")
        try:
            return session.run_bound(call, stop)
        except BridgeError as error:
            if self._make is None:
                raise
            self._after(error)
        return self._once_more(lambda session: session.run_bound(call, stop), enter)

    def set_ep_dynamic_options(self, options: Mapping[str, str], enter: Enter) -> None:
        """See `EngineSession`. They are kept, and set again whenever the session is made again."""
        self._with_reset(lambda session: session.set_ep_dynamic_options(options), enter)
        self._dynamic.update(options)

    def assignment(self) -> list[Any]:
        """See `EngineSession.assignment`."""
        session = self._session
        if session is None:
            raise _closed()
        return session.assignment()

    def end_profiling(self) -> str:
        session = self._session
        if self._closed:
            raise _closed()
        if self._profile_lost:
            self._profile_lost = False
            raise StateLost(
                "The profile is lost: the session was made again after a reset of the NPU.",
                fix="Run the session again; the next end_profiling() gives what was recorded since the reset.",
            )
        self._profiling = False
        return session.end_profiling() if session is not None else ""

    def close(self) -> None:
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _first(self, make: Callable[[Enter], EngineSession], enter: Enter) -> EngineSession:
        try:
            return make(enter)
        except BridgeError as error:
            self._after(error)
        self._seen_resets = self._npu.resets
        return make(enter)

    def _with_reset(self, call: Callable[[EngineSession], T], enter: Enter) -> T:
        try:
            return self._attempt(call, enter)
        except BridgeError as error:
            if self._make is None:
                raise
            self._after(error)
        return self._once_more(call, enter)

    def _once_more(self, call: Callable[[EngineSession], T], enter: Enter) -> T:
        try:
            return self._attempt(call, enter)
        except BridgeError as error:
            if is_reset(error):
                raise _needs_restart(error) from None
            raise

    def _attempt(self, call: Callable[[EngineSession], T], enter: Enter) -> T:
        self._seen_resets = self._npu.resets
        session = self._session
        if self._make is not None and (session is None or self._made_at_reset != self._seen_resets):
            session = self._rebuild(self._make, enter)
        if session is None:
            raise _closed()
        enter("running")
        return call(session)

    def _after(self, error: BridgeError) -> None:
        """Returns if the call is to be repeated here; raises `error` if not."""
        if not is_reset(error):
            raise error
        from qnnbridge_host.engine.ort_errors import QNN_COMMUNICATION_FATAL

        if error.details.get("qnn_code") == QNN_COMMUNICATION_FATAL or not self._npu.note_reset(self._seen_resets):
            raise _needs_restart(error)

    def _rebuild(self, make: Callable[[Enter], EngineSession], enter: Enter) -> EngineSession:
        if self._closed:
            raise _closed()
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                raise ModelChanged(
                    f"The NPU was reset, and {path} has changed since the session was made from it.",
                    fix="Create the session again.",
                    details={"path": path},
                )
        if self._session is not None and self._profiling:
            self._profile_lost = True
        # First release the old one: two at once may not fit into the NPU.
        old, self._session = self._session, None
        if old is not None:
            old.close()
        session = make(enter)
        if self._dynamic:
            enter("running")
            try:
                session.set_ep_dynamic_options(self._dynamic)
            except BaseException:
                session.close()
                raise
        self._made_at_reset = self._seen_resets
        self._session = session
        if self._closed:  # meanwhile
            self.close()
            raise _closed()
        return session


def is_reset(error: BridgeError) -> bool:
    """Whether the NPU was reset under the call."""
    return bool(error.details.get("npu_reset"))


def _closed() -> Closed:
    return Closed("The session is closed.", fix="Create a new one.")


def _needs_restart(error: BridgeError) -> BridgeError:
    error.details["host_must_restart"] = True
    error.cause = error.cause or "The NPU was reset by its driver, and is not usable from this process any more."
    error.fix = error.fix or "The host is started again. If it happens again, update the NPU driver."
    return error


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
