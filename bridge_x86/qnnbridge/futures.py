"""Runs of a session as `concurrent.futures.Future`, for threads or an event loop.

>>> future = qnnbridge.futures.submit(session, None, {"x": x}) >>> outputs = future.result(timeout=1)

Each run waits in a separate daemon thread, so that a call that never returns cannot keep the program from ending.
`stop` makes the host cancel a run and does not wait for it. Any thread.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._session.runs import RunOptions, coerce_run_options
from qnnbridge._threads import Background
from qnnbridge.errors import as_onnxruntime
from qnnbridge_os.shield import Changes
from qnnbridge_protocol.errors import BridgeError

if TYPE_CHECKING:
    from qnnbridge._inference_session import InferenceSession

# For all sessions together. The host accepts 64 calls at once and refuses more as busy.
THREADS = 32

Future = concurrent.futures.Future


class _FutureOfRun(Future[list[Any]]):
    """Waits for its end without the lock of a `Future`, which is Python's: an exception of a signal handler during
    the wait could leave the lock locked, and the thread of the run could never set the result (see `shield`)."""

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self.changes: Changes[bool] = Changes()
        self.add_done_callback(_tell)

    def result(self, timeout: float | None = None) -> list[Any]:
        self.changes.wait_for(lambda: self.over, timeout)
        return super().result(timeout=0)  # or its TimeoutError

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.changes.wait_for(lambda: self.over, timeout)
        return super().exception(timeout=0)


def _tell(future: Future[list[Any]]) -> None:
    # Not a method: the future would refer to itself.
    assert isinstance(future, _FutureOfRun)
    future.over = True
    future.changes.notify()


_runs = Background("qnnbridge future", threads=THREADS)


@dataclasses.dataclass(frozen=True, slots=True)
class StartedRun:
    """A running call. `future`: its outputs, or its error."""

    future: Future[list[Any]]
    _options: RunOptions

    def stop(self) -> None:
        """Cancel: a waiting run never starts; a running one is stopped in the host. Returns soon."""
        if not self.future.cancel():
            self._options.terminate = True


def submit(
    session: InferenceSession,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, Any],
    run_options: RunOptions | Any = None,
    **keywords: Any,
) -> Future[list[Any]]:
    """Start a run. Arguments and errors are those of `InferenceSession.run`."""
    return start(session, output_names, input_feed, run_options, **keywords).future


def start(
    session: InferenceSession,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, Any],
    run_options: RunOptions | Any = None,
    **keywords: Any,
) -> StartedRun:
    """Do `submit`, but return a handle that can stop the run."""
    future = _FutureOfRun()
    options = _own_options(run_options, future)
    try:
        names, feed = session.arguments_now(output_names, input_feed)
    except Exception as error:  # noqa: BLE001 - raised in the waiting thread
        future.set_exception(as_onnxruntime(error) if isinstance(error, BridgeError) else error)
        return StartedRun(future, options)

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = session.run(names, feed, options, **keywords)
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            future.set_exception(error)
        else:
            future.set_result(result)

    _runs.submit(work)
    return StartedRun(future, options)


def _own_options(given: Any, future: Future[list[Any]]) -> RunOptions:
    """Return options with which only this run can be stopped; stopping the given options stops it as well."""
    if given is None:
        return RunOptions()
    shared = coerce_run_options(given)
    own = shared.copy()

    def follow(terminate: bool) -> None:
        own.terminate = terminate

    remove = shared.add_terminate_listener(follow)
    own.terminate = shared.terminate  # may have been assigned in between
    future.add_done_callback(lambda _: remove())
    return own
