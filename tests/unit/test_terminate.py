"""Setting a terminate flag stops the right request."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

from qnnbridge._threads import TerminateFlag, TerminateRelay


def test_a_relay_leaves_nothing_for_the_garbage_collector() -> None:
    """A relay is created for each token: garbage would be collected in the middle of a generation."""
    channel: Any = SimpleNamespace()
    flag = TerminateFlag()
    relay = TerminateRelay(flag, channel)
    was_on = gc.isenabled()
    gc.disable()
    try:
        with relay as on_sent:
            assert on_sent is not None
            on_sent(7)
        gone = weakref.ref(relay)
        del relay, on_sent
        assert gone() is None
        flag.assign(True)
    finally:
        if was_on:
            gc.enable()
