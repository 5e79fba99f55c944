"""Real crashes of a Windows host, detected and explained by a Windows application: see `windows_deaths.py`."""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab

# Some twenty starts of a Python under Wine; an eighth of it on an idle machine.
DEATHS_TIMEOUT_S = 600.0

pytestmark = pytest.mark.timeout(DEATHS_TIMEOUT_S + 60.0)

# Wine's C runtime ends abort() with 3; that of Windows ends it as fast fail.
DEATHS = {
    "access violation": (0xC0000005, "STATUS_ACCESS_VIOLATION"),
    "illegal instruction": (0xC000001D, "STATUS_ILLEGAL_INSTRUCTION"),
    "fast fail": (0xC0000409, "STATUS_STACK_BUFFER_OVERRUN"),
    "division by zero": (0xC0000094, "STATUS_INTEGER_DIVIDE_BY_ZERO"),
    "stack overflow": (0xC00000FD, "STATUS_STACK_OVERFLOW"),
    "C++ exception": (0xE06D7363, "C++"),
    "heap corruption": (0xC0000374, "STATUS_HEAP_CORRUPTION"),
    "ctrl-c": (0xC000013A, "STATUS_CONTROL_C_EXIT"),
    "abort": (3, "abort"),
    "still active": (259, "STILL_ACTIVE"),
    "terminated": (1, ""),
}


@pytest.fixture(scope="module")
def report(windows_python: WindowsLab) -> dict[str, Any]:
    return windows_python.run(HERE / "windows_deaths.py", timeout_s=DEATHS_TIMEOUT_S).json()


@pytest.mark.parametrize("death", DEATHS)
def test_a_crash_is_reported_with_all_bits_of_its_exit_code_and_explained(
    report: dict[str, Any], death: str
) -> None:
    number, name = DEATHS[death]
    told = report[death]
    assert told["error"] == "HostCrashed", told["error"]
    assert told["unsigned"] == number
    assert name in told["name"]
    assert told["phase"] == "running"
    assert "while running" in told["text"]
    if number > 0xFFFF:
        assert f"0x{number:08X}" in told["text"]
    assert told["cause"]
    assert told["fix"]
    assert told["report"]
    if name == "STATUS_ILLEGAL_INSTRUCTION":
        assert "an instruction that the processor, or the emulator that runs it, does not have" in told["cause"]
        assert ", under Wine " in told["cause"]


@pytest.mark.parametrize("death", DEATHS)
def test_the_next_model_works_without_any_action(report: dict[str, Any], death: str) -> None:
    assert report[death]["next model works"] is True
    assert report[death]["starts"] == 1


def test_a_model_that_crashes_repeatedly_is_quarantined_on_windows_too(report: dict[str, Any]) -> None:
    assert report["poison"] == {"seen": ["HostCrashed", "ModelQuarantined"], "generation": 2}


def test_an_interpreter_with_a_missing_library_is_explained_and_not_tried_again(report: dict[str, Any]) -> None:
    told = report["library missing"]
    assert told["error"] == "HostStartFailed", told["error"]
    assert told["unsigned"] == 0xC0000135
    assert "0xC0000135" in told["text"]
    assert "before it was ready" in told["text"]
    assert told["fix"]
    assert told["again"] == "HostStartFailed"
    assert told["starts"] == 1
