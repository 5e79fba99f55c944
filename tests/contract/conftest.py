"""The real host for the contract."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import qnnbridge

# Before anything imports onnxruntime here, for comparison: it sends telemetry from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@pytest.fixture(scope="module")
def host() -> Iterator[qnnbridge.Host]:
    """One host for all tests of a module, with QNN on the simulator."""
    pytest.importorskip("onnxruntime_qnn")
    with qnnbridge.Host() as host:
        # Now, so that the guard of the first test does not take it for one that this test left behind.
        host.start()
        yield host
