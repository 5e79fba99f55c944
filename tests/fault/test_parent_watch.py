"""The host ends when its application ends, in whatever way. The test kills real processes with SIGKILL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qnnbridge
from qnnbridge_os.processes import wait_readable

# The limit that the README promises.
END_TIMEOUT_S = 5.0

START_TIMEOUT_S = 30.0

# A host that ignores the end of its input: only the watch can end it. {extra} is the code that then runs.
HOST = """
import os, sys, time
{before}
from qnnbridge_host.start import watch_parent
means = watch_parent(int(sys.argv[1]), lambda: os._exit(0))
print(os.getpid(), *means, flush=True)
{extra}
"""

APPLICATION = """
import os, subprocess, sys, threading
child = None
def start():
    global child
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    print(child.stdout.readline().decode(), end="", flush=True)
{application}
sys.stdin.read()
"""

SLEEP = "time.sleep(120)"
HOLD_THE_GIL = "import ctypes; ctypes.PyDLL(None).sleep(120)"
NO_SIGNAL = "import ctypes; ctypes.CDLL = lambda *a, **k: None"
NO_PIDFD = "del os.pidfd_open"


def application(host: str = "", before: str = "", what: str = "start()") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            APPLICATION.format(application=what),
            HOST.format(before=before, extra=host or SLEEP),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@contextlib.contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Return a descriptor that is readable when the host has ended, and the kind of the watch."""
    assert process.stdout is not None
    assert wait_readable(process.stdout.fileno(), START_TIMEOUT_S)
    pid, *means = process.stdout.readline().decode().split()
    watch = os.pidfd_open(int(pid))
    try:
        yield watch, means
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
        process.kill()
        process.communicate()
        os.close(watch)


@pytest.mark.parametrize(
    ("host", "before", "expected"),
    [
        pytest.param(SLEEP, "", ["pdeathsig", "pidfd"], id="idle"),
        pytest.param(HOLD_THE_GIL, "", ["pdeathsig", "pidfd"], id="native code holds the GIL"),
        pytest.param(SLEEP, NO_SIGNAL, ["pidfd"], id="no signal"),
        pytest.param(SLEEP, NO_PIDFD + "\n" + NO_SIGNAL, ["polling"], id="neither signal nor pidfd"),
    ],
)
def test_the_host_ends_with_an_application_that_is_killed(host: str, before: str, expected: list[str]) -> None:
    process = application(host, before)
    with watched(process) as (watch, means):
        assert means == expected
        process.kill()
        assert wait_readable(watch, END_TIMEOUT_S)


def test_a_fork_of_the_application_does_not_keep_the_host_running() -> None:
    """The fork keeps the pipes open, so the host never sees the end of its input."""
    process = application(what="start()\nif os.fork() == 0:\n    os.setsid(); os.read(0, 1); os._exit(0)")
    with watched(process) as (watch, _):
        process.kill()
        assert wait_readable(watch, END_TIMEOUT_S)


def test_a_host_ends_with_an_application_that_exits_normally() -> None:
    process = application()
    with watched(process) as (watch, _):
        assert process.stdin is not None
        process.stdin.close()
        assert wait_readable(watch, END_TIMEOUT_S)
        process.stdin = None


def test_a_host_started_by_a_wrapper_watches_the_application_itself() -> None:
    """Put a shell between both: the host must end with the application, and not with the shell."""
    start = """
shell = '"$0" -c "$1" "$2" & read line'
wrapper = subprocess.Popen(["sh", "-c", shell, sys.executable, sys.argv[1], str(os.getpid())],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(wrapper.stdout.readline().decode(), end="", flush=True)
wrapper.stdin.close()
wrapper.wait()
print("wrapper ended", flush=True)
"""
    process = application(what=start)
    with watched(process) as (watch, means):
        assert process.stdout is not None
        assert means == ["pidfd"]
        assert process.stdout.readline() == b"wrapper ended\n"
        assert not wait_readable(watch, 0.2)
        process.kill()
        assert wait_readable(watch, END_TIMEOUT_S)


def test_a_host_whose_application_has_already_ended_ends_immediately(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    program = HOST.format(before="", extra="raise SystemExit('not reached')")
    ran = subprocess.run(
        [sys.executable, "-c", program, str(gone.pid)], capture_output=True, timeout=START_TIMEOUT_S, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, b"")
    assert b"its application has ended" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_the_caller_may_choose_how_the_host_exits() -> None:
    program = (
        "import os, sys, threading\nfrom qnnbridge_host.start import watch_parent\n"
        "watch_parent(int(sys.argv[1]), lambda: os._exit(77))\n"
        "print('up', flush=True)\nthreading.Event().wait()"
    )
    parent = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    host = subprocess.Popen([sys.executable, "-c", program, str(parent.pid)], stdout=subprocess.PIPE)
    assert host.stdout is not None
    assert host.stdout.readline() == b"up\n"
    parent.kill()
    assert host.wait(END_TIMEOUT_S) == 77
    parent.communicate()
    host.communicate()


def test_a_host_that_waits_for_hello_ends_with_its_application() -> None:
    """Another process keeps the pipes open, so the host never sees their end, and no HELLO arrives."""
    owner = subprocess.Popen(["sleep", "120"])
    command = [sys.executable, "-I", "-m", "qnnbridge_host", "--parent", str(owner.pid)]
    host = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        owner.kill()
        owner.wait()
        assert host.wait(START_TIMEOUT_S) == 0
    finally:
        host.kill()
        host.communicate()


def test_a_parent_on_another_system_is_not_watched_and_the_host_ends_with_its_stdin() -> None:
    """The parent's process id belongs to another process on this system, or to none."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    elsewhere = f"{gone.pid}@elsewhere"
    with qnnbridge.Host(
        _command=[
            sys.executable,
            "-I",
            "-m",
            "qnnbridge_host",
            "--parent",
            elsewhere,
            "--worker",
            '["/no/program"]',
        ]
    ) as host:
        host.start()
        assert host.info.pid
        process = host.info.pid
    assert not Path(f"/proc/{process}").exists()


def test_a_parent_id_that_is_not_a_number_is_a_wrong_command_line() -> None:
    command = [sys.executable, "-I", "-m", "qnnbridge_host", "--parent", "x@elsewhere"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("usage: ")
    assert len(ran.stderr.splitlines()) == 1
