"""Common parts of the scripts that check facts about Windows; see `windows_processes.py`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOTS = [
    str(Path(__file__).resolve().parents[2] / name)
    for name in ("protocol", "bridge_x86", "host_arm64", "daemon", "tools")
]
sys.path[:0] = ROOTS

import psutil  # noqa: E402

from qnnbridge_os.processes import ChildProcess, default_spawner, wait_readable, write_some  # noqa: E402
from qnnbridge_protocol.errors import BridgeError  # noqa: E402

# The ARM64 lab starts a program in 2 s, and in 20 s on a busy machine.
TIMEOUT_S = 60.0
FACTS: dict[str, Callable[[], Any]] = {}


def fact(function: Callable[[], Any]) -> Callable[[], Any]:
    FACTS[function.__name__] = function
    return function


def start(code: str, *arguments: str) -> ChildProcess:
    prologue = f"import sys, os\nsys.path[:0] = {ROOTS!r}\n"
    argv = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", "-c", prologue + code, *arguments]
    return default_spawner().spawn(argv, dict(os.environ), None)


def read_all(fd: int) -> bytes:
    parts = []
    while wait_readable(fd, TIMEOUT_S):
        try:
            data = os.read(fd, 65536)
        except OSError:
            break
        if not data:
            break
        parts.append(data)
    return b"".join(parts)


def say(child: ChildProcess, text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[write_some(child.stdin_fd, [rest], TIMEOUT_S) :]


def ended(pid: int) -> bool:
    try:
        psutil.Process(pid).wait(TIMEOUT_S)
    except psutil.NoSuchProcess:
        pass
    except psutil.TimeoutExpired:
        return False
    return True


def refusal(call: Callable[[], Any]) -> BridgeError:
    try:
        call()
    except BridgeError as error:
        return error
    raise AssertionError("it was not refused")


def report(name: str) -> Any:
    """Return the value of a fact, or the traceback, so that one failing fact does not hide the others."""
    try:
        return FACTS[name]()
    except BaseException:
        return traceback.format_exc()
