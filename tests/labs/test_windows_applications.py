"""Windows applications without standard streams, and inside a foreign job: `windows_applications.py`."""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab


@pytest.fixture(scope="module")
def report(windows_python: WindowsLab) -> dict[str, Any]:
    return windows_python.run(HERE / "windows_applications.py").json()


def test_an_application_without_standard_streams_can_start_a_host(report: dict[str, Any]) -> None:
    """With pythonw, descriptors 0, 1 and 2 are free, so the pipes to the host may get these numbers."""
    assert report["without streams"] == {"streams": [True, True, True], "works": True, "survives a death": True}


def test_an_application_in_a_job_that_ends_with_its_owner_ends_its_host_too(report: dict[str, Any]) -> None:
    assert report["in a job"] == {"works": True, "the host ends with the job": True}


def test_ctrl_c_interrupts_the_application_and_not_its_host(report: dict[str, Any]) -> None:
    """Ctrl+C reaches all programs of a console. The same host answers the next call."""
    console, ready, sent, said, right, generation, exit_code = report["ctrl-c"]
    assert (console, ready, sent) == (True, "ready", True)
    assert (said, right, generation, exit_code) == ("KeyboardInterrupt", True, 1, 0)
