"""Child processes, pipes, stderr and the host's standard streams on Windows: see `windows_processes.py`."""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab

EXPECTED: dict[str, Any] = {
    "echo": ["abcabc", 0],
    "exit_codes": {
        "access violation": [0xC0000005, 0xC0000005],
        "fast fail": [0xC0000409, 0xC0000409],
        "still active": [259, 259],
        "exception": [1, 1],
        "fine": [0, 0],
    },
    "killed": [None, None, 1, None],
    "kill_ends_grandchildren": [True, True],
    "close_ends_a_running_child": [True, True],
    "application_killed": [True, True],
    "inherits_three_handles_only": "none",
    "error_mode_of_the_application": True,
    "environment_names_in_any_case": ["2", "True"],
    "waiting_for_output": [False, True, True],
    "writing_to_a_child_that_does_not_read": [True, True, True, True, False],
    "closing_a_child_whose_descriptors_others_have_closed": True,
    "writing_to_an_ended_child": "BrokenPipeError",
    "closing_during_a_blocked_read_and_write": [True, False, False],
    "collected_stderr": ["wide ä\r\n", True, True],
    "handles_are_closed_after_use": 0,
    "handles_without_a_descriptor_are_closed": [["OSError", "OSError", "HostStartFailed"], 0],
    "guarded_streams": ["890a0d0a1a0d0a", 0, ["print", "puts", "child", "handle"]],
    "parent_watch": ["('handle',)", True, 77, 78],
    "libraries_of_a_frozen_application": ["", "", "C:\\app"],
    "machines": ["x64", "x64", "x64"],
    "registry": [["QnnbridgeTest/3.13-arm64", [3, 13], "C:\\Python313-arm64\\python.exe"]],
}


@pytest.fixture(scope="module")
def facts(windows_python: WindowsLab) -> dict[str, Any]:
    return windows_python.run(HERE / "windows_processes.py").json()


@pytest.mark.parametrize("name", EXPECTED)
def test_windows_behaves_as_recorded(facts: dict[str, Any], name: str) -> None:
    assert facts[name] == EXPECTED[name]


def test_every_recorded_behaviour_is_checked(facts: dict[str, Any]) -> None:
    assert facts.keys() - EXPECTED.keys() == {"start_errors", "wrong_interpreters"}


@pytest.mark.parametrize(
    ("name", "says"),
    [("missing", "no such file"), ("not a program", "not a program"), ("no folder", "working folder")],
)
def test_a_program_that_cannot_be_started_is_an_error_with_its_cause(
    facts: dict[str, Any], name: str, says: str
) -> None:
    kind, cause, evidence = facts["start_errors"][name]
    assert kind == "HostNotFound"
    assert says in cause
    assert evidence[0].startswith("WinError ")


@pytest.mark.parametrize(
    ("name", "says"),
    [("script", "not a Windows program"), ("store", "alias of the Microsoft Store"), ("folder", "a folder")],
)
def test_a_file_that_is_not_an_interpreter_is_refused_with_an_explanation(
    facts: dict[str, Any], name: str, says: str
) -> None:
    assert says in facts["wrong_interpreters"][name]
