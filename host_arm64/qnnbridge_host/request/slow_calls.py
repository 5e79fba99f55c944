"""Report a call that takes more than two seconds on QNN's simulator, once for each session.

The simulator takes seconds where an NPU takes milliseconds, so a call may take minutes and look like a hang. On an
NPU nothing is reported. Only the first call of a session is watched: repeated calls use the fast path, which this
module does not affect.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qnnbridge_host.model.work import seconds_on_simulator

SLOW_S: Final = 2.0
# Threshold in seconds for a call with an estimated duration below `SLOW_S`.
LATE_S: Final = 10.0


class SlowCallReport:
    """Watches the first call of a session on the simulator.

    Args:
        label: name of the model in messages.
        model: path or bytes of the original model, for the estimate.
        sizes: sizes of the model's free dimensions in this session.
    """

    def __init__(self, label: str, model: str | bytes, sizes: Mapping[str, int]) -> None:
        self._label = label
        self._model: str | bytes | None = model
        self._sizes = sizes

    @contextlib.contextmanager
    def watching(self, emit: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        """Send the event `slow_call` if the block takes longer than `SLOW_S`, or `LATE_S` for a small model."""
        # Do not keep the bytes of a model longer than they are needed.
        model, self._model = self._model, None
        if model is None:
            yield
            return
        done = threading.Event()
        arguments = (model, emit, done)
        watch = threading.Thread(target=self._watch, args=arguments, name="qnnbridge slow call", daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            # An event must not follow the answer to its request.
            watch.join()

    def _watch(self, model: str | bytes, emit: Callable[[dict[str, Any]], None], done: threading.Event) -> None:
        if done.wait(SLOW_S):
            return
        waited, estimate = SLOW_S, seconds_on_simulator(model, self._sizes)
        if estimate is not None and estimate < SLOW_S:
            # Wait longer before reporting: the computer is probably busy, and the answer follows soon.
            if done.wait(LATE_S - SLOW_S):
                return
            waited, estimate = LATE_S, None
        event: dict[str, Any] = {"event": "slow_call", "seconds": waited, "label": self._label}
        if estimate is not None:
            event["processor_s"] = estimate
        emit(event)
