"""Runs of a session as `concurrent.futures.Future`, for threads or an event loop.

>>> future = qnnbridge.futures.submit(session, None, {"x": x}) >>> outputs = future.result(timeout=1)

Each run waits in a separate daemon thread, so that a call that never returns cannot prevent the program from
exiting. `stop` asks the host to cancel a run and does not wait for the end of the run. Any thread may call these
functions.
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

# Number of threads for all sessions together. The host accepts 64 calls at the same time and refuses more.
THREADS = 32

Future = concurrent.futures.Future


class _FutureOfRun(Future[list[Any]]):
    """A `Future` that does not use its own lock to wait for the result.

    With its own lock, an exception of a signal handler during the wait could leave the lock locked, so that the
    thread of the run could never set the result (see `shield`).
    """

    def __init__(self) -> None:
        super().__init__()
        self.over = False
        self.changes: Changes[bool] = Changes()
        self.add_done_callback(_notify_waiters)

    def result(self, timeout: float | None = None) -> list[Any]:
        self.changes.wait_for(lambda: self.over, timeout)
        return super().result(timeout=0)  # raises TimeoutError if there is no result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.changes.wait_for(lambda: self.over, timeout)
        return super().exception(timeout=0)


def _notify_waiters(future: Future[list[Any]]) -> None:
    # This callback is a function, because a future that stores its own bound method is a reference cycle.
    assert isinstance(future, _FutureOfRun)
    future.over = True
    future.changes.notify()


_runs = Background("qnnbridge future", threads=THREADS)


@dataclasses.dataclass(frozen=True, slots=True)
class StartedRun:
    """A started run. `future` receives its outputs or its error."""

    future: Future[list[Any]]
    _options: RunOptions

    def stop(self) -> None:
        """Cancel the run: if it is waiting, it does not start; if it is running, the host stops it. Return without
        waiting until the run has stopped."""
        if not self.future.cancel():
            self._options.terminate = True


def submit(
    session: InferenceSession,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, Any],
    run_options: RunOptions | Any = None,
    **keywords: Any,
) -> Future[list[Any]]:
    """Start a run. Arguments and errors are the same as for `InferenceSession.run`."""
    return start(session, output_names, input_feed, run_options, **keywords).future


def start(
    session: InferenceSession,
    output_names: Sequence[str] | None,
    input_feed: Mapping[str, Any],
    run_options: RunOptions | Any = None,
    **keywords: Any,
) -> StartedRun:
    """Start a run like `submit`, but return an object that can stop the run."""
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
    """Return a copy of the options for one run. Setting `terminate` of the copy stops only this run; setting
    `terminate` of the given options stops this run, too."""
    if given is None:
        return RunOptions()
    shared = coerce_run_options(given)
    own = shared.copy()

    def follow(terminate: bool) -> None:
        own.terminate = terminate

    remove = shared.add_terminate_listener(follow)
    own.terminate = shared.terminate  # copy the flag, which may have been set before `add_terminate_listener`
    future.add_done_callback(lambda _: remove())
    return own
