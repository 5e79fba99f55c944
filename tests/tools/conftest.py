"""Fixtures for tests of several tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from lab.sweep.driver import Worker


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A process that runs cases of the sweep on QNN and on the CPU."""
    pytest.importorskip("onnxruntime_qnn")
    process = Worker(sys.executable, "60")
    process.start()
    yield process
    process.close()
