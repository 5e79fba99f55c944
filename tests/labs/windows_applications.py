"""Run Windows applications in unusual environments, and print the results as JSON.

- without any standard stream (pythonw, a service, a GUI program): the application's streams are ``None``
- in a foreign job that ends all its processes and allows no breakaway (Windows Terminal, CI runners)

The host is the real host process with the scripted engine.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(CHECKOUT),
    *(str(CHECKOUT / n) for n in ("protocol", "bridge_x86", "host_arm64", "daemon", "tools")),
]

import numpy as np  # noqa: E402
import psutil  # noqa: E402
from tests.fakes.hosts import fake_host, script  # noqa: E402

import qnnbridge  # noqa: E402

X = np.arange(4, dtype=np.float32)
# The ARM64 lab starts a program in 2 s, and in 20 s on a busy machine.
TIMEOUT_S = 150.0
PYTHON = str(Path(sys.executable).with_name("python.exe"))
# The ARM64 lab has no pythonw; without a console and streams python.exe behaves the same.
PYTHON_WITHOUT_CONSOLE = next(
    str(path) for path in (Path(PYTHON).with_name("pythonw.exe"), Path(PYTHON)) if path.exists()
)


def works() -> bool:
    with fake_host(python=PYTHON) as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        return np.array_equal(session.run(None, {"x": X})[0], X * 3)


def survives_a_death(once: Path) -> bool:
    with fake_host(python=PYTHON) as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=["exit:1"], once=str(once)), host=host)
        return np.array_equal(session.run(None, {"x": X})[0], X * 3) and host.stats.generation == 2


# --- applications ----------------------------------------------------------------------------------------


def without_streams(folder: str) -> None:
    answer = Path(folder, "answer")
    stacks = os.open(Path(folder, "stacks"), os.O_CREAT | os.O_WRONLY)
    faulthandler.dump_traceback_later(0.8 * TIMEOUT_S, file=stacks)
    try:
        report: Any = {
            "streams": [sys.stdin is None, sys.stdout is None, sys.stderr is None],
            "works": works(),
            "survives a death": survives_a_death(Path(folder, "once")),
        }
    except BaseException:
        report = traceback.format_exc()
    answer.write_text(json.dumps(report), encoding="utf-8")


def in_a_console() -> None:
    with fake_host(python=PYTHON) as host:
        session = qnnbridge.InferenceSession(script(scale=3, on_run=["sleep:5"], once=sys.argv[2]), host=host)
        print("ready", flush=True)
        try:
            session.run(None, {"x": X})
            said = "no interruption"
        except KeyboardInterrupt:
            said = "KeyboardInterrupt"
        right = np.array_equal(session.run(None, {"x": X})[0], X * 3)
        print(json.dumps([said, bool(right), host.stats.generation]), flush=True)


def in_a_job() -> None:
    sys.stdin.readline()  # the process is in the job by now
    with fake_host(python=PYTHON) as host:
        session = qnnbridge.InferenceSession(script(scale=3), host=host)
        right = np.array_equal(session.run(None, {"x": X})[0], X * 3)
        print(json.dumps([bool(right), host.info.pid]), flush=True)
        sys.stdin.read()


# --- checks ----------------------------------------------------------------------------------------------


def look_without_streams(again: bool = True) -> Any:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            subprocess.run(
                [PYTHON_WITHOUT_CONSOLE, __file__, "without_streams", folder],
                creationflags=subprocess.DETACHED_PROCESS,  # type: ignore[attr-defined, unused-ignore]
                close_fds=True,
                check=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            stacks = Path(folder, "stacks")
            told = stacks.read_text(encoding="utf-8") if stacks.exists() else ""
            # A thread in C writes the stacks, whatever Python does: if even that thread hung, the emulator hung.
            if not told and again:
                return look_without_streams(again=False)
            return f"no end within {TIMEOUT_S:.0f} s, in {told or 'unknown places'}"
        return json.loads(Path(folder, "answer").read_text(encoding="utf-8"))


def look_at_ctrl_c() -> Any:
    """Ctrl+C reaches all programs of a console: the application is interrupted, its host is not."""
    import ctypes

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined, unused-ignore]
    kernel.FreeConsole()
    console = kernel.AllocConsole()
    with tempfile.TemporaryDirectory() as folder:
        command = [PYTHON, __file__, "in_a_console", str(Path(folder, "once"))]
        application = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert application.stdout is not None
        ready = application.stdout.readline().strip()
        time.sleep(2)
        kernel.SetConsoleCtrlHandler(None, True)  # this process ignores Ctrl+C
        sent = kernel.GenerateConsoleCtrlEvent(0, 0)
        out, _ = application.communicate(timeout=TIMEOUT_S)
        kernel.FreeConsole()
        return [bool(console), ready.decode(), bool(sent), *json.loads(out or b"[]"), application.returncode]


def look_in_a_job() -> Any:
    import _winapi

    from qnnbridge_os._win32_api import assign_to_job, create_job

    job = create_job()
    application = subprocess.Popen([PYTHON, __file__, "in_a_job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert application.stdin is not None
    assert application.stdout is not None
    assign_to_job(job, int(application._handle))  # type: ignore[attr-defined, unused-ignore]
    application.stdin.write(b"\n")
    application.stdin.flush()
    right, pid = json.loads(application.stdout.readline())
    host = psutil.Process(pid)
    _winapi.CloseHandle(job)  # type: ignore[attr-defined, unused-ignore]
    application.wait(TIMEOUT_S)
    gone, _ = psutil.wait_procs([host], timeout=TIMEOUT_S)
    application.communicate()
    return {"works": right, "the host ends with the job": len(gone) == 1}


def main() -> None:
    if sys.argv[1:2] == ["without_streams"]:
        without_streams(sys.argv[2])
    elif sys.argv[1:2] == ["in_a_console"]:
        in_a_console()
    elif sys.argv[1:2] == ["in_a_job"]:
        in_a_job()
    else:
        report: dict[str, Any] = {}
        looks = {"without streams": look_without_streams, "in a job": look_in_a_job, "ctrl-c": look_at_ctrl_c}
        for name, look in looks.items():
            try:
                report[name] = look()
            except BaseException:
                report[name] = traceback.format_exc()
        print(json.dumps(report))


main()
