"""A small part of ``python -m lab.faultlab.calls_back``: the host calls functions of the application while faults
occur."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")

import onnxruntime
from lab.faultlab.calls_back import run_test

pytestmark = pytest.mark.process


@pytest.mark.skipif(
    not hasattr(onnxruntime, "set_default_logger_callback"), reason="needs onnxruntime 1.32 or newer"
)
def test_calls_back_to_the_application_end_in_time_and_leak_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The complete test is ``python -m lab.faultlab.calls_back --calls 10000 --faults 10``."""
    made = run_test(calls=200, faults=1, kills=1)
    assert made.broken == []
    assert made.calls >= 200
    assert made.faults >= 7
