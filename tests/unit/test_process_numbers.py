"""Process ids: values that a host accepts as the id of its application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import needs

from qnnbridge_protocol.process_names import name_of, number_here, this_system

ELSEWHERE = "4711@win32:ARM"


def test_a_process_of_this_system_is_found_by_its_name() -> None:
    assert number_here(name_of(4711)) == 4711
    assert number_here("4711") == 4711


@pytest.mark.parametrize("name", [ELSEWHERE, "12@", "12@linux", f"12@{this_system()}x"])
def test_a_process_name_from_another_system_is_not_resolved(name: str) -> None:
    assert number_here(name) is None


@pytest.mark.parametrize("name", ["", "@", "-1", "1.5", "x", "\u0661", f"x@{this_system()}", "@linux"])
def test_an_invalid_process_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a process"):
        number_here(name)


@pytest.mark.process
@needs.linux
def test_a_process_namespace_counts_as_a_separate_system(tmp_path: Path) -> None:
    program = "from qnnbridge_protocol.process_names import this_system; print(this_system())"
    here, there = (
        subprocess.run([*before, sys.executable, "-c", program], capture_output=True, text=True, check=False)
        for before in ([], ["unshare", "--user", "--map-root-user", "--pid", "--fork"])
    )
    assert here.stdout.strip() == this_system()
    if there.returncode == 0:  # if user namespaces are allowed
        assert there.stdout.strip() not in ("", this_system())
