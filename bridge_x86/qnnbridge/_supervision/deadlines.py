"""Timeouts of an application as points in time, and the end of a call whose time is up.

A call cannot be interrupted inside of native code. With ``on_deadline="kill"`` the host is ended under it
instead; the application wanted that end, so it is no crash, and all other calls are repeated in the next host.
Any thread.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, Literal

from qnnbridge_protocol.errors import DeadlineExceeded, HostHung, OptionError

if TYPE_CHECKING:
    from qnnbridge._supervision.host_process import HostProcess
    from qnnbridge._transport.channel import CallContext, Deadline

# Eleven days. Locks and polls cannot wait much longer.
LONGEST_S = 1_000_000.0


def deadline_after(timeout: float | None) -> float | None:
    """The point of `time.monotonic()` at which `timeout` seconds are over; ``None`` and infinity are for ever.

    Raises `OptionError` for a value that is no length of time.
    """
    if timeout is None:
        return None
    # A bool is an int for Python: timeout=True would be one second.
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout) or timeout < 0:
        raise OptionError(
            f"timeout={timeout!r} is no length of time.", fix="Give seconds, 0 or more, or None to wait for ever."
        )
    return None if math.isinf(timeout) else time.monotonic() + min(timeout, LONGEST_S)


# How long a call without a deadline is repeated after deaths of the host that it did not cause.
# Long enough for some cold starts of a host under load, and an end for a program that is killed again and
# again.
INNOCENT_S: Final = 300.0


class Patience:
    """How long one call is repeated after deaths that it did not cause: until its deadline, or `INNOCENT_S`."""

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline
        self._began: float | None = None

    def is_left(self) -> bool:
        """Whether it may be repeated once more. The first death starts the clock of a call without a deadline."""
        now = time.monotonic()
        # The clock starts with the first death and not with the call: a run may take hours before it.
        if self._began is None:
            self._began = now
        return now < (self._began + INNOCENT_S if self._deadline is None else self._deadline)


OnDeadline = Literal["raise", "kill"]

# In the details of a reason why a host was ended: the application asked for it.
ASKED_FOR: Final = "asked_for"


def overdue(
    process: HostProcess, late: Deadline, context: CallContext, timeout_s: float | None, on_deadline: OnDeadline
) -> DeadlineExceeded:
    """The error for the caller. Ends the host if the call is inside of it, or stuck behind abandoned work."""
    state = late.state
    # A call that has not started waits for others; they are not ended for it, unless their work is abandoned.
    blocked = state == "still-running" or (state == "not-started" and process.channel.requests.abandoned)
    if on_deadline == "kill" and blocked:
        what = "ran past its" if state == "still-running" else "waited, behind abandoned work, past its"
        reason = HostHung(
            f"The host was ended: {context.model} {what} deadline of {timeout_s:g} s.",
            details={"model": context.model, ASKED_FOR: True},
        )
        # The reason first: a thread that sees the end of the stream before it would report a crash.
        process.channel.fail(reason)
        process.kill("a call ran past its deadline (on_deadline='kill')")
        state = "stopped"
    error = DeadlineExceeded(
        f"{context.model}: no answer within {timeout_s:g} s (the work is {state}).",
        fix="Allow more time: timeout=.",
        details={"state": state, "model": context.model},
    )
    if state == "still-running":
        inside = "inside of a QNN partition" if context.op == "session.run" else "while native code works on it"
        error.cause = f"A call cannot be interrupted {inside}."
        error.fix = "Wait longer, or give on_deadline='kill' to end the host (other calls are replayed)."
    return error
