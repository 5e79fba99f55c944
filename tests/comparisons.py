"""Wait for the comparisons with the CPU that sessions run in the background."""

from __future__ import annotations

import threading
import time

import qnnbridge

WAIT_S = 60.0
# `qnnbridge._session.numbers_check` gives its background threads this name.
THREAD = "qnnbridge verify"


def settled(session: qnnbridge.InferenceSession) -> qnnbridge.NumbersReport:
    """Return the verdict about `session` once it is reached and the warning about it, if any, is shown."""
    until = time.monotonic() + WAIT_S
    while session.verified.state == "pending":
        assert time.monotonic() < until, "no verdict"
        time.sleep(0.02)
    # The verdict is visible before its thread warns.
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(until - time.monotonic())
            assert not thread.is_alive(), "a comparison that does not end"
    return session.verified
