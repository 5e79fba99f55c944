"""Handles that a process passes to another one on Windows, and how they are closed: see `windows_handles.py`."""

from __future__ import annotations

from typing import Any

import pytest
from labs import HERE, WindowsLab

GIVEN = [True, True]
REFUSED = [GIVEN, "InvalidArgument", True]

EXPECTED: dict[str, Any] = {
    "refused_channel": {
        "no such memory": REFUSED,
        "no proper number": [GIVEN, "ProtocolDesync", True],
        "one end only": REFUSED,
        "no end at all": REFUSED,
        "too many": REFUSED,
    },
    "refused_memory": {
        "taken": [True, "none", False],
        "known": [True, "InvalidArgument", False],
        "no size": [True, "ProtocolDesync", False],
        "too large": [True, "InvalidArgument", False],
    },
    "handles_that_were_not_sent_are_reclaimed": [GIVEN, "CallTimedOut", True],
    "first_handle_is_reclaimed_if_the_second_cannot_be_passed": True,
    "memory_of_a_client_is_mapped_by_the_npu_host": {
        "results": True,
        "results of the next host": True,
        "by channels": [True, True, 2],
        "memory of the daemon": False,
        "kept": True,
    },
}


@pytest.fixture(scope="module")
def facts(windows_python: WindowsLab) -> dict[str, Any]:
    return windows_python.run(HERE / "windows_handles.py").json()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_handle_that_one_process_passes_to_another_is_closed_by_its_owner(
    facts: dict[str, Any], name: str
) -> None:
    assert facts[name] == EXPECTED[name]


def test_every_recorded_behaviour_of_handles_is_checked(facts: dict[str, Any]) -> None:
    assert facts.keys() == EXPECTED.keys()
