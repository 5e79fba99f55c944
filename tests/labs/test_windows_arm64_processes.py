"""Application and host both on Windows ARM64: the results of `windows_processes.py` and similar programs are those
of x64."""

from __future__ import annotations

from typing import Any

import pytest
import test_labs_quick_calls
import test_windows_daemon
import test_windows_handles
import test_windows_processes
from labs import HERE, WindowsArm64Lab

pytestmark = pytest.mark.timeout(WindowsArm64Lab.SET_UP_TIMEOUT_S + 600.0)

TIMEOUT_S = 500.0

EXPECTED: dict[str, dict[str, Any]] = {
    # Pipes, exit codes, jobs, kill on close, inherited handles, standard streams, the watch of the parent.
    "windows_processes.py": {**test_windows_processes.EXPECTED, "machines": ["ARM64", "ARM64", "ARM64"]},
    # Repeated calls of a real session, with and without unnamed sections.
    "quick_calls.py": {"shared": test_labs_quick_calls.SHARED, "connection": test_labs_quick_calls.CONNECTION},
    # Sections and channels that one process passes to another, also through a daemon.
    "windows_handles.py": test_windows_handles.EXPECTED,
    # Named pipes and their access lists, the private folder, start, stop, two clients.
    "windows_daemon.py": test_windows_daemon.EXPECTED,
    "windows_applications.py": {
        "without streams": {"streams": [True, True, True], "works": True, "survives a death": True},
        "in a job": {"works": True, "the host ends with the job": True},
        "ctrl-c": [True, "ready", True, "KeyboardInterrupt", True, 1, 0],
    },
}


@pytest.mark.parametrize("script", EXPECTED)
def test_windows_arm64_behaves_as_recorded(
    script: str, windows_arm64: WindowsArm64Lab, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder that is private on Windows has other permissions on Linux.
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", str(tmp_path / "run"))
    facts = windows_arm64.run(HERE / script, timeout_s=TIMEOUT_S).json()
    wanted = EXPECTED[script]
    assert {name: facts.get(name) for name in wanted} == wanted
