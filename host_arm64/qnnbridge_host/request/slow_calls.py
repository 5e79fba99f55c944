"""Report a call that computes on QNN's simulator for longer than two seconds, once for each session.

The simulator takes seconds for what an NPU does in milliseconds, so a call of minutes looks like a hang. On an NPU
nothing is reported. Only calls that arrive as requests are watched, and only until the first one has ended: repeated
calls take the fast path, which this module does not touch.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from qnnbridge_host.model.work import seconds_on_simulator

SLOW_S: Final = 2.0


class SlowCallReport:
    """Watches the first call of a session on the simulator.

    Args:
        label: of the model.
        model: path or bytes of the original model, for the estimate.
        sizes: of its free dimensions, as the session fixes them.
    """

    def __init__(self, label: str, model: str | bytes, sizes: Mapping[str, int]) -> None:
        self._label = label
        self._model: str | bytes | None = model
        self._sizes = sizes

    @contextlib.contextmanager
    def watching(self, emit: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        """Send the event `slow_call` if the block takes longer than `SLOW_S`."""
        # The bytes of a model are not kept for longer than they are needed.
        model, self._model = self._model, None
        if model is None:
            yield
            return
        timer = threading.Timer(SLOW_S, self._report, (model, emit))
        timer.name, timer.daemon = "qnnbridge slow call", True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            # An event must not follow the answer of its request.
            timer.join()

    def _report(self, model: str | bytes, emit: Callable[[dict[str, Any]], None]) -> None:
        event: dict[str, Any] = {"event": "slow_call", "seconds": SLOW_S, "label": self._label}
        estimate = seconds_on_simulator(model, self._sizes)
        if estimate is not None:
            products, least, most = estimate
            event |= {"products": products, "least_s": least, "most_s": most}
        emit(event)
