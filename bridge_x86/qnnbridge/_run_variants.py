"""Ways to run a session that end in `run` or `run_values`: in the background, with `OrtValue`, with a binding.

Also what all ways of running check. Any thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._background import Background
from qnnbridge._metadata import SessionMetadata
from qnnbridge._supervision.deadlines import deadline_after
from qnnbridge_protocol.errors import BridgeError, OptionError, RemoteError, RemoteValueError

if TYPE_CHECKING:
    from qnnbridge._feeds import FeedChecker
    from qnnbridge._io_binding import IOBinding
    from qnnbridge._ort_value import OrtValue
    from qnnbridge._run_options import RunOptions
    from qnnbridge._supervision.deadlines import OnDeadline

_log = logging.getLogger("qnnbridge.session")


class RunVariants(SessionMetadata):
    """See the module."""

    run: Callable[..., list[Any]]
    run_values: Callable[..., list[Any]]
    _output_names: list[str]
    _checker: FeedChecker
    _background: Background
    _timeout: float | None

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> None:
        """Run in the background and call ``callback(results, user_data, error_text)`` from another thread.

        As in ONNX Runtime, what is no value for an input at all is raised here, and the rest told to the callback.
        The time of `timeout` begins here, not when the run comes to its turn.
        """
        check_call(timeout, retry, on_deadline)
        deadline = deadline_after(self._timeout if timeout is None else timeout)
        try:
            self._checker.check(input_feed)
        except RemoteError:
            raise
        except BridgeError:
            pass  # the run finds it again

        def work() -> None:
            try:
                left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
                results = self.run(
                    output_names, input_feed, run_options, timeout=left_s, retry=retry, on_deadline=on_deadline
                )
                error = ""
            except Exception as failure:  # noqa: BLE001 - the callback is told
                results, error = [], str(failure)
            try:
                callback(results, user_data, error)
            except Exception:  # noqa: BLE001 - it would be lost otherwise
                _log.exception("The callback of run_async failed.")

        self._background.submit(work)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> list[OrtValue]:
        """Like `run`, with `OrtValue` in and out."""
        from qnnbridge._ort_value import OrtValue

        feed = {name: value.value for name, value in input_dict_ort_values.items()}
        types = {node.name: node.type for node in self._outputs}
        values = self.run_values(
            output_names, feed, run_options, timeout=timeout, retry=retry, on_deadline=on_deadline
        )
        return [OrtValue(v, types[n]) for n, v in zip(output_names or self._output_names, values, strict=True)]

    def io_binding(self) -> IOBinding:
        """An empty binding for `run_with_iobinding`."""
        from qnnbridge._io_binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(
        self,
        iobinding: IOBinding,
        run_options: RunOptions | Any = None,
        *,
        timeout: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
    ) -> None:
        """Run with bound inputs; results go into the bound outputs. Keywords as for `run`."""
        if iobinding.session is not self:
            # ONNX Runtime's own words.
            raise RemoteValueError("IOBinding must be used with the session that created it.")
        iobinding.run(run_options, timeout=timeout, retry=retry, on_deadline=on_deadline)


def check_call(timeout: float | None, retry: int | None, on_deadline: str) -> None:
    """Raises `OptionError` for what would otherwise be noticed too late."""
    deadline_after(timeout)
    if retry is not None and (isinstance(retry, bool) or not isinstance(retry, int) or retry < 0):
        raise OptionError(f"retry={retry!r} is no number of repetitions.", fix="Give 0, 1 or more.")
    if on_deadline not in ("raise", "kill"):
        raise OptionError(f"on_deadline={on_deadline!r} is not known.", fix="Give 'raise' or 'kill'.")


def read_only(results: list[Any]) -> list[Any]:
    import numpy as np

    for result in results:
        if isinstance(result, np.ndarray):
            result.flags.writeable = False
    return results
