"""A test run that is killed leaves no daemon behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from tests import needs

# Timeout that only a defect reaches.
GRACE_S = 30.0

RUN = """
    import os, signal, subprocess, sys
    from pathlib import Path
    from tests.orphan_watch import orphans_end_with_this_process
    with orphans_end_with_this_process(Path(sys.argv[1])):
        sleeper = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            env={**os.environ, "TMPDIR": sys.argv[1]},
            start_new_session=True,
        )
        print(sleeper.pid, flush=True)
        if sys.argv[2] != "end":
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
            signal.pause()
    print("alive" if sleeper.poll() is None else "ended")
    sleeper.kill()
    sleeper.wait()
"""


def run(folder: Path, end: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), str(folder), end],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.stdout.split()


@pytest.mark.process
@needs.posix
@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_processes_of_a_killed_test_run_are_ended(tmp_path: Path, end: str) -> None:
    (pid,) = run(tmp_path, end)
    try:
        psutil.Process(int(pid)).wait(GRACE_S)
    except psutil.NoSuchProcess:
        pass
    assert not psutil.pid_exists(int(pid))


@pytest.mark.process
def test_a_test_run_that_ends_normally_is_left_to_its_own_guards(tmp_path: Path) -> None:
    assert run(tmp_path, "end")[1] == "alive"
