"""A program of a Windows lab runs a second time if Wine lost a process, and for no other failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from labs import WindowsLab

LOST = "OSError: [WinError 1359] Internal error"
OTHER = "OSError: [WinError 2] File not found"


@pytest.mark.parametrize(
    ("failures", "runs", "code"),
    [([LOST], 2, 0), ([LOST, LOST], 2, 1), ([OTHER], 1, 1), ([], 1, 0)],
    ids=["lost once", "lost twice", "a failure of its own", "no failure"],
)
def test_a_program_runs_again_only_after_wine_lost_a_process(
    failures: list[str], runs: int, code: int, tmp_path: Path
) -> None:
    for number, words in enumerate(failures, 1):
        (tmp_path / f"failure{number}").write_text(words)
    python = tmp_path / "python-win"
    python.write_text(
        f"""#!/bin/sh
        cd '{tmp_path}'
        echo run >> runs
        failure=failure$(wc -l < runs)
        [ -e "$failure" ] || exit 0
        cat "$failure" >&2
        exit 1
        """
    )
    python.chmod(0o755)
    ran = WindowsLab(tmp_path).run(tmp_path / "program.py")
    assert ran.returncode == code
    assert len((tmp_path / "runs").read_text().splitlines()) == runs


def test_a_report_of_facts_about_a_lost_process_is_created_again(tmp_path: Path) -> None:
    """A report of facts exits with 0: one fact that fails does not hide the others."""
    python = tmp_path / "python-win"
    python.write_text(
        f"""#!/bin/sh
        cd '{tmp_path}'
        [ ! -e reported ] || {{ echo '{{"fact": 1}}'; exit 0; }}
        touch reported
        echo '{{"fact": "{LOST}"}}'
        """
    )
    python.chmod(0o755)
    assert WindowsLab(tmp_path).run(tmp_path / "program.py").json() == {"fact": 1}
