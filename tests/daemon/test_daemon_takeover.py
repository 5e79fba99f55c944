"""If a daemon ends while applications work, they start a new one immediately and report the right cause."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from filelock import FileLock

from qnnbridge._daemon.discovery import (
    DETACHED,
    LOCK_NAME,
    TAKE_OVER,
    Starting,
    make_runtime_folder,
    write_discovery,
)
from qnnbridge_daemon import main
from qnnbridge_daemon.main import FolderLock, parse_options
from qnnbridge_tools.host import link
from tests import needs
from tests.daemon.brokers import until
from tests.daemon.daemons import GRACE_S, MODEL, daemons_alive, new_discovery, program, stop_daemon, told

pytestmark = [needs.posix, pytest.mark.timeout(180)]

COMMAND = [sys.executable, "-m", "qnnbridge_tools", "host"]
RESTARTS = needs.length(1, 3)
CLIENTS = 3

WORKS_ON = """
import sys, threading, numpy as np, qnnbridge
session = qnnbridge.InferenceSession(sys.argv[1], host="daemon", providers=["CPUExecutionProvider"])
x = np.arange(6, dtype=np.float32).reshape(3, 2)
first = session.run(None, {"X": x})[0].tolist()
print("ready", flush=True)
end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
while not end.is_set():
    assert session.run(None, {"X": x})[0].tolist() == first
print("all right", flush=True)
"""


@pytest.fixture(autouse=True)
def no_daemon_left() -> Iterator[None]:
    yield
    stop_daemon()


@contextlib.contextmanager
def working_clients() -> Iterator[None]:
    programs = [program(WORKS_ON, MODEL) for _ in range(CLIENTS)]
    try:
        assert [one.stdout.readline() for one in programs if one.stdout is not None] == ["ready\n"] * CLIENTS
        yield
    finally:
        for one in programs:
            assert one.stdin is not None
            with contextlib.suppress(OSError):
                one.stdin.write("\n")
                one.stdin.flush()
        ends = [told(one) for one in programs]
    assert ends == [["all right"]] * CLIENTS


def host(*arguments: str) -> Any:
    ran = subprocess.run(
        [*COMMAND, *arguments, "--json"], capture_output=True, text=True, timeout=4 * GRACE_S, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def test_a_restarted_daemon_has_the_requested_options_while_clients_work() -> None:
    with working_clients():
        for slots in range(5, 5 + RESTARTS):
            before = host("status")["daemon"]["instance"]
            restarted = host("restart", "--daemon", "--slots", str(slots))
            status = host("status")
            assert restarted["started"] is True
            assert restarted["daemon"]["instance"] == status["daemon"]["instance"] != before
            assert status["queue"]["slots"] == slots


def test_a_newly_started_daemon_is_not_mistaken_for_the_stopped_one() -> None:
    folder = make_runtime_folder()
    now_there = new_discovery(folder)
    write_discovery(folder, now_there)
    with FileLock(folder / LOCK_NAME):
        assert not link.wait_for_end(0.0, now_there.instance.hex())
        assert link.wait_for_end(0.0, new_discovery(folder).instance.hex())
    (folder / "daemon.json").unlink()


def test_a_successor_ends_when_the_process_that_started_it_ends() -> None:
    host("start")
    successor = Starting([TAKE_OVER, "600"])
    assert successor.wait(time.monotonic() + GRACE_S) == "waiting"
    assert len(daemons_alive()) == 2
    successor.close()
    until(lambda: len(daemons_alive()) == 1)


def test_a_successor_is_ready_when_the_old_daemon_has_ended() -> None:
    old = host("start")["daemon"]
    successor = Starting([TAKE_OVER, "600"])
    deadline = time.monotonic() + GRACE_S
    assert successor.wait(deadline) == "waiting"
    assert host("stop")["before"]["daemon"]["pid"] == old["pid"]
    assert successor.wait(deadline) == "ready"
    assert host("status")["daemon"]["instance"] != old["instance"]


def test_a_status_check_does_not_prevent_a_daemon_from_starting() -> None:
    """The check holds the lock for a moment, and a service manager does not restart a daemon that ended because
    another one seems to run."""

    class BusyForAMoment(FolderLock):
        def __init__(self) -> None:
            self.taken = [False, False, True]

        def take(self) -> bool:
            return self.taken.pop(0)

    assert main._wait_for_turn(BusyForAMoment(), parse_options(["--foreground"]))
    assert main._wait_for_turn(BusyForAMoment(), parse_options([DETACHED]))


def test_continuous_status_checks_do_not_prevent_a_daemon_from_starting() -> None:
    make_runtime_folder()
    started = threading.Event()

    def look() -> None:
        while not started.is_set():
            link.is_running()

    with ThreadPoolExecutor(2) as pool:
        lookers = [pool.submit(look) for _ in range(2)]
        try:
            # The lock file exists from now on, so every check takes the lock.
            with FileLock(make_runtime_folder() / LOCK_NAME):
                successor = Starting()
            assert successor.wait(time.monotonic() + GRACE_S) == "ready"
        finally:
            started.set()
        for looker in lookers:
            looker.result(GRACE_S)
    host("stop")
