"""Log the host's report of a call that computes on the simulator for long."""

from __future__ import annotations

from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.session")
_MINUTE_S = 60.0


def log_slow_call(frame: Frame) -> None:
    """Log the event `slow_call`; ignore any other frame. Never raises."""
    header = frame.header
    if header.get("event") != "slow_call":
        return
    least, most = header.get("least_s"), header.get("most_s")
    estimate = ""
    if isinstance(least, (int, float)) and isinstance(most, (int, float)):
        estimate = f" By the size of the model one call takes roughly {_text(least)} to {_text(most)}."
    _log.warning(
        "%s: this call computes on QNN's simulator, not on an NPU, and takes longer than %.0f s.%s",
        header.get("label"),
        header.get("seconds") if isinstance(header.get("seconds"), (int, float)) else 0.0,
        estimate,
    )


def _text(seconds: float) -> str:
    return f"{max(1.0, seconds):.0f} s" if seconds < 2 * _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"
