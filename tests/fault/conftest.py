"""Check after each injected fault that no open file, thread, child process or shared memory remains.

`tests/conftest.py` checks temporary files and processes for all tests.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from lab.faultlab.leaks import Holdings, holdings

# Threads that read a dead host's stderr end a moment after it.
END_TIMEOUT_S = 20.0


def grown(before: Holdings, now: Holdings) -> dict[str, object]:
    """Return the resources that have grown, by count, since a shared host may have been replaced."""
    more: dict[str, object] = dict(now.more_than(before))
    if len(now.threads) <= len(before.threads):
        more.pop("threads", None)
    if len(now.children) <= len(before.children):
        more.pop("children", None)
    more.pop("temporary", None)
    return more


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = holdings()
    yield
    if "qnnbridge._host" in sys.modules:
        sys.modules["qnnbridge._host"].default_host().close()
    until = time.monotonic() + END_TIMEOUT_S
    while (left := grown(before, holdings())) and time.monotonic() < until:
        threading.Event().wait(0.02)
    assert not left, f"left open: {left}"
