"""Log the host's report of a call that runs on QNN's simulator for a long time."""

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
    needed, seconds = header.get("processor_s"), header.get("seconds")
    estimate = ""
    if isinstance(needed, (int, float)):
        estimate = f" The call takes roughly {_text(needed)} of processor time, and longer on a busy computer."
    _log.warning(
        "%s: this call computes on QNN's simulator, not on an NPU, and takes longer than %.0f s.%s",
        header.get("label"),
        seconds if isinstance(seconds, (int, float)) else 0.0,
        estimate,
    )


def _text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"
