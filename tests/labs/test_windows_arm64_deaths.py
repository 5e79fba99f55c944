"""Real crashes of a Windows ARM64 host, seen by a Windows ARM64 application and by a Linux application.

Under Wine on ARM64 as on x64 a true stack overflow ends only its thread, and a damaged heap is not detected: these
two are raised natively. An integer division by zero does not cause a fault on ARM64 processors, so there is no such
test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import HERE, WindowsArm64Lab
from tests.fakes.hosts import fake_host, script

import qnnbridge
from qnnbridge import errors

# A dozen starts of a Python under Wine and qemu.
DEATHS_TIMEOUT_S = 420.0

pytestmark = pytest.mark.timeout(WindowsArm64Lab.SET_UP_TIMEOUT_S + DEATHS_TIMEOUT_S + 60.0)

X = np.arange(4, dtype=np.float32)

# Name of the crash: the exit code that a Windows parent gets, and its name.
DEATHS = {
    "access violation": (0xC0000005, "STATUS_ACCESS_VIOLATION"),
    "illegal instruction": (0xC000001D, "STATUS_ILLEGAL_INSTRUCTION"),
    "fast fail": (0xC0000409, "STATUS_STACK_BUFFER_OVERRUN"),
    "stack overflow": (0xC00000FD, "STATUS_STACK_OVERFLOW"),
    "C++ exception": (0xE06D7363, "C++"),
    "heap corruption": (0xC0000374, "STATUS_HEAP_CORRUPTION"),
    "abort": (3, "abort"),
    "terminated": (1, ""),
}
# For a Linux application, which gets 8 bits: the exit code that it derives from them and from stderr.
SEEN_BY_LINUX = {
    "read_null": (0xC0000005, "STATUS_ACCESS_VIOLATION"),
    "machine_code:e080005260003ed4": (0xC0000409, "STATUS_STACK_BUFFER_OVERRUN"),
    "signal:9": (0xC0000409, "STATUS_STACK_BUFFER_OVERRUN"),
}


@pytest.fixture(scope="module")
def report(windows_arm64: WindowsArm64Lab) -> dict[str, Any]:
    return windows_arm64.run(HERE / "windows_deaths.py", *DEATHS, timeout_s=DEATHS_TIMEOUT_S).json()


@pytest.mark.parametrize("death", DEATHS)
def test_a_windows_application_gets_all_bits_of_exit_codes_explains_them_and_continues(
    report: dict[str, Any], death: str
) -> None:
    number, name = DEATHS[death]
    told = report[death]
    assert told["error"] == "HostCrashed", told["error"]
    assert told["unsigned"] == number
    assert name in told["name"]
    assert "while running" in told["text"]
    assert told["cause"]
    assert told["fix"]
    assert told["report"]
    assert told["next model works"] is True
    assert told["starts"] == 1


# Windows itself ends the second one with 0xC0000139.
@pytest.mark.parametrize(("what", "number"), [("library missing", 0xC0000135), ("entry point missing", 0x80000100)])
def test_an_interpreter_that_cannot_be_loaded_is_reported(report: dict[str, Any], what: str, number: int) -> None:
    told = report[what]
    assert told["error"] == "HostStartFailed", told["error"]
    assert told["unsigned"] == number
    assert told["fix"]


@pytest.fixture(scope="module")
def linux_view(windows_arm64: WindowsArm64Lab) -> Iterator[qnnbridge.Host]:
    with fake_host(python=str(windows_arm64.python)) as host:
        host.start()
        yield host


@pytest.mark.parametrize("action", SEEN_BY_LINUX)
def test_a_linux_application_derives_the_exit_code_from_its_low_byte(
    linux_view: qnnbridge.Host, action: str, tmp_path: Path
) -> None:
    number, name = SEEN_BY_LINUX[action]
    other = qnnbridge.InferenceSession(script(scale=3), host=linux_view)
    deadly = qnnbridge.InferenceSession(script(on_run=[action]), host=linux_view)
    with pytest.raises(errors.HostCrashed) as caught:
        deadly.run(None, {"x": X}, retry=0)
    code = caught.value.details["exit"]
    assert (code["unsigned"], code["name"], code["platform"]) == (number, name, "win32")
    assert caught.value.cause
    assert np.array_equal(other.run(None, {"x": X})[0], X * 3)
