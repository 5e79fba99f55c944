"""Timeouts as an application gives them, and the points in time that they mean."""

from __future__ import annotations

import math
import time

from qnnbridge_protocol.errors import OptionError

# Eleven days. Locks and polls cannot wait much longer, and nobody means it.
LONGEST_S = 1_000_000.0


def deadline_after(timeout: float | None) -> float | None:
    """The point of `time.monotonic()` at which `timeout` seconds are over; ``None`` and infinity are for ever.

    Raises `OptionError` for what is no length of time.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout) or timeout < 0:
        raise OptionError(
            f"timeout={timeout!r} is no length of time.", fix="Give seconds, 0 or more, or None to wait for ever."
        )
    return None if math.isinf(timeout) else time.monotonic() + min(timeout, LONGEST_S)
