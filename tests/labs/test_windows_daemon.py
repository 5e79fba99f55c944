"""The daemon on Windows: its pipe and the pipe's rights, its folder, two clients, start and stop;
`windows_daemon.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab

EXPECTED: dict[str, Any] = {
    "access_list_of_the_pipe": ["SY", "me"],
    "name_of_the_pipe": [True, True],
    "both_ends_know_each_other": [[True, True], True, "TimeoutError", "BrokenPipeError"],
    "who_came_and_went_keeps_nobody_out": "abc",
    "who_waits_can_be_sent_away": ["ConnectionAbortedError"],
    "folder_is_private": [None, ["SY", "me"]],
    "folder_that_others_may_use": False,
    "users_that_sddl_has_words_for": [None, None, "other users have access to it (NS)"],
    "command_for_any_shell": [False, True],
    "file_is_judged_as_it_was_opened": ["priv", "PermissionError"],
    "start_from_a_job_that_lets_nobody_leave": [
        False,
        "HostStartFailed The daemon cannot be started from here: it would end together with this program.",
        "started",
    ],
    "without_leave_to_start": ["HostStartFailed", "No qnnbridge daemon could be reached."],
    "start_use_and_stop": {
        "same daemon": True,
        "not this process": True,
        "pings": [True, True],
        "results": 1,
        "gone": True,
        "left": ["daemon.lock"],
    },
    "one_takes_the_place_of_another": [True, True, 7, True],
}

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def facts(windows_python: WindowsLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        # A folder that Windows has made private is not private in the eyes of Linux.
        patch.setenv("QNNBRIDGE_RUNTIME_DIR", str(tmp_path_factory.mktemp("windows") / "run"))
        return windows_python.run(HERE / "windows_daemon.py", timeout_s=200.0).json()


@pytest.mark.parametrize("name", EXPECTED)
def test_fact_of_the_daemon_holds_on_windows(facts: dict[str, Any], name: str) -> None:
    assert facts[name] == EXPECTED[name]


def test_every_fact_of_the_daemon_is_checked(facts: dict[str, Any]) -> None:
    assert facts.keys() == EXPECTED.keys()
