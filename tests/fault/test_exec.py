"""A program that calls `exec` keeps its process, and with it the hosts that the process started before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import needs

pytestmark = needs.posix

ROOT = Path(__file__).parents[2]
TIMES = 4
WAIT_S = 60

PROGRAM = f"""
import os, subprocess, sys, time
from pathlib import Path
from tests.fakes.hosts import fake_host
time_left, *others = map(int, sys.argv[2:])
if time_left == {TIMES}:  # not the host's: an exit code that this program wants to see
    named = "open('/proc/self/comm', 'w').write('qnnbridge-host'); raise SystemExit(3)"
    kept = [subprocess.Popen([sys.executable, "-c", named]),
            subprocess.Popen(["sh", "-c", "exit 3"], start_new_session=True)]
    others = [process.pid for process in kept]
host = fake_host()
host.start()
main = Path(f"/proc/self/task/{{os.getpid()}}/children")
if time_left:
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], str(time_left - 1), *map(str, others)])
end = time.monotonic() + 10
while set(map(int, main.read_text().split())) != set(others) and time.monotonic() < end:
    time.sleep(0.05)
print(sorted(set(map(int, main.read_text().split())) - set(others)))
print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in others])
print(host.ping(5.0) >= 0)
host.close()
"""


def test_hosts_from_before_exec_are_collected_and_no_other_process() -> None:
    """Every time a program started itself by `exec`, a zombie remained."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, PROGRAM, str(TIMES)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=WAIT_S,
        check=False,
    )
    assert done.stdout.splitlines() == ["[]", "[3, 3]", "True"], done.stderr
