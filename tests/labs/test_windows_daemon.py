"""The daemon on Windows: its pipe and access list, its folder, two clients, start and stop; see
`windows_daemon.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab

EXPECTED: dict[str, Any] = {
    "access_list_of_the_pipe": ["SY", "me"],
    "name_of_the_pipe": [True, True],
    "both_ends_report_each_other": [[True, True], True, "TimeoutError", "BrokenPipeError"],
    "client_that_disconnected_early_does_not_block_others": "abc",
    "waiting_for_a_client_can_be_cancelled": ["ConnectionAbortedError"],
    "folder_is_private": [None, ["SY", "me"]],
    "folder_that_other_users_may_use": False,
    "users_with_sddl_aliases": [None, None, "other users have access to it (NS)"],
    "command_for_any_shell": [False, True],
    "permissions_are_checked_on_the_open_file": ["priv", "PermissionError"],
    "start_from_a_job_without_breakaway": [
        False,
        "HostStartFailed The daemon cannot be started from here: it would end together with this program.",
        "started",
    ],
    "without_permission_to_start": ["HostStartFailed", "No qnnbridge daemon could be reached."],
    "start_use_and_stop": {
        "same daemon": True,
        "not this process": True,
        "pings": [True, True],
        "results": 1,
        "gone": True,
        "left": ["daemon.lock"],
    },
    "daemon_replaces_another": [True, True, 7, True],
}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def facts(windows_python: WindowsLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        # A folder that is private on Windows has other permissions on Linux.
        patch.setenv("QNNBRIDGE_RUNTIME_DIR", str(tmp_path_factory.mktemp("windows") / "run"))
        return windows_python.run(HERE / "windows_daemon.py", timeout_s=200.0).json()


@pytest.mark.parametrize("name", EXPECTED)
def test_the_daemon_on_windows_behaves_as_recorded(facts: dict[str, Any], name: str) -> None:
    assert facts[name] == EXPECTED[name]


def test_every_recorded_behaviour_of_the_daemon_is_checked(facts: dict[str, Any]) -> None:
    assert facts.keys() == EXPECTED.keys()
