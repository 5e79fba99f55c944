"""The machine of the Windows ARM64 lab: its errors if it cannot be set up, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from labs import HERE, WindowsArm64Lab

pytestmark = pytest.mark.timeout(WindowsArm64Lab.SET_UP_TIMEOUT_S + 400.0)

SET_UP = HERE / WindowsArm64Lab.SCRIPT
UNSUITABLE, CEILING, BUSY = 69, 70, 75
END_TIMEOUT_S = 20.0

HOLDS_A_MACHINE = """
import subprocess, sys
machine = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(machine.stdout.readline().decode(), end="", flush=True)
sys.stdin.read()
"""


def run(*command: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], lab: Path) -> str:
    """Return the message of a set-up that refuses, and check that the set-up leaves nothing."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert not lab.exists()
    (sentence,) = done.stderr.splitlines()
    return sentence


def in_a_namespace(commands: str, lab: Path) -> subprocess.CompletedProcess[str]:
    """Run the set-up in a new user namespace, in which `commands` make the kernel refuse something."""
    script = f'{commands} && exec bash "$0" "$1"'
    return run("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, SET_UP, lab)


def test_without_user_namespaces_the_set_up_reports_that(tmp_path: Path) -> None:
    done = in_a_namespace("echo 0 > /proc/sys/user/max_user_namespaces", tmp_path / "lab")
    assert "does not allow user namespaces" in refused(done, tmp_path / "lab")


def test_without_binfmt_misc_the_set_up_reports_that(tmp_path: Path) -> None:
    """Kernels before 6.7 behave in this way."""
    tools = tmp_path / "bin"
    tools.mkdir()
    mount = tools / "mount"
    mount.write_text("#!/bin/sh\necho 'mount: /x: permission denied.' >&2\nexit 32\n")
    mount.chmod(0o755)
    done = run("bash", SET_UP, tmp_path / "lab", env={"PATH": f"{tools}:{os.environ['PATH']}"})
    assert "no binfmt_misc in user namespaces (it needs Linux 6.7)" in refused(done, tmp_path / "lab")


def test_with_too_little_disk_space_the_set_up_reports_that_and_removes_its_partial_folder(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    half = small / "lab"
    done = in_a_namespace(
        f"mount -t tmpfs -o size=64m none '{small}' && mkdir '{half}' && touch '{half}/python'", half
    )
    assert "too little disk" in refused(done, half)
    assert "needs 4000 MB" in done.stderr


def test_a_partially_built_lab_counts_as_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "windows_arm64").mkdir()
    (tmp_path / "windows_arm64" / "python").touch()
    monkeypatch.setenv("QNNBRIDGE_LAB_DIR", str(tmp_path))
    monkeypatch.setenv("QNNBRIDGE_REQUIRE_LABS", "1")
    with pytest.raises(pytest.fail.Exception, match=r"lab absent: .*setup_windows_arm64\.sh"):
        WindowsArm64Lab.set_up()


def test_two_test_runs_cannot_use_the_machine_at_the_same_time(windows_arm64: WindowsArm64Lab) -> None:
    assert run(windows_arm64.folder / "machine").returncode == BUSY


@pytest.fixture
def at_rest(windows_arm64: WindowsArm64Lab) -> Iterator[WindowsArm64Lab]:
    """A lab whose machine is not started."""
    windows_arm64.stop()
    yield windows_arm64
    windows_arm64.start()


def left_of(lab: WindowsArm64Lab) -> list[str]:
    """Return processes and mounts of the lab, after a time in which they may end."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while True:
        found = [line for line in Path("/proc/mounts").read_text().splitlines() if str(lab.folder) in line]
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if process.pid != os.getpid() and any(str(lab.folder) in word for word in words):
                found.append(" ".join(words))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_the_machine_ends_completely_with_a_message_when_it_reaches_a_limit(at_rest: WindowsArm64Lab) -> None:
    for name, value, words in (
        ("LAB_PROCESSES", "3", "processes (at most 3 are allowed)"),
        ("LAB_MEMORY_MB", "1", "MB of memory (at most 1 are allowed)"),
    ):
        done = run(at_rest.folder / "machine", env={name: value})
        assert done.returncode == CEILING
        (sentence,) = done.stderr.splitlines()
        assert words in sentence
        assert left_of(at_rest) == []


def test_kill_9_of_a_test_run_leaves_no_process_and_no_mount(at_rest: WindowsArm64Lab) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_MACHINE, at_rest.folder / "machine"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    sleeper = subprocess.Popen(
        [at_rest.python, "-c", "import time; time.sleep(600)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert sleeper.wait(END_TIMEOUT_S) != 0
    assert left_of(at_rest) == []
    without = run(at_rest.python, "-c", "")
    assert without.returncode == UNSUITABLE
    assert "the machine does not run: start" in without.stderr
