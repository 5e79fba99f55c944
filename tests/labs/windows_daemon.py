"""Check the daemon's endpoint, its access lists, start and stop in the Windows lab, and print a JSON object.

Each function checks one fact and returns it; `test_windows_daemon.py` contains the expected values.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from windows_facts import FACTS, ROOTS, TIMEOUT_S, ended, fact, read_all, report, start

import qnnbridge  # isort: skip
from qnnbridge._daemon.discovery import read_discovery, runtime_folder
from qnnbridge_os import private as security
from qnnbridge_os._win32_api import in_job_that_kills
from qnnbridge_os._win32_daemon_endpoint import (
    DaemonEndpoint,
    DaemonStream,
    connect_to_daemon,
    make_endpoint,
)
from qnnbridge_os.private import make_private_folder, read_private_file, why_not_private, write_private_file

MODEL = Path(__file__).resolve().parents[1] / "models" / "mul_1.onnx"


def users(sddl: str) -> list[str]:
    """Return the access list, with this user's id replaced by a word."""
    return sorted("me" if who == security.user_sid() else who for who in security.allowed_in(sddl) or ["everybody"])


# --- the endpoint --------------------------------------------------------------------------------------------


@fact
def access_list_of_the_pipe() -> Any:
    gate = DaemonEndpoint(Path(), make_endpoint(Path()))
    sddl = security.access_list(gate.handle)
    gate.close()
    gate.release()
    return users(sddl)


@fact
def name_of_the_pipe() -> Any:
    first, second = make_endpoint(Path()), make_endpoint(Path())
    return [bool(re.fullmatch(r"\\\\\.\\pipe\\qnnbridge-[0-9a-f]{32}", first)), first != second]


@fact
def both_ends_report_each_other() -> Any:
    """Transfer bytes in both directions; check a silent peer, one that disconnects, and the process id of the peer."""
    endpoint = make_endpoint(Path())
    gate = DaemonEndpoint(Path(), endpoint)
    came: list[DaemonStream] = []
    thread = threading.Thread(target=lambda: came.append(gate.accept()))  # type: ignore[arg-type]
    thread.start()
    ours = connect_to_daemon(endpoint, Path(), time.monotonic() + TIMEOUT_S)
    thread.join(TIMEOUT_S)
    (theirs,) = came
    deadline = time.monotonic() + TIMEOUT_S
    ours.check_peer()
    theirs.check_peer()
    pids = [ours.peer_pid == os.getpid(), theirs.peer_pid == os.getpid()]
    ours.send(b"abc" * 100, deadline)
    got = theirs.receive(300, deadline) == b"abc" * 100
    silent = gone = ""
    try:
        ours.receive(1, time.monotonic() + 0.1)
    except TimeoutError as error:
        silent = type(error).__name__
    theirs.close()
    try:
        ours.receive(1, deadline)
    except OSError as error:
        gone = type(error).__name__
    ours.close()
    gate.close()
    return [pids, got, silent, gone]


@fact
def client_that_disconnected_early_does_not_block_others() -> Any:
    """Connect a client that disconnects before the endpoint waits for one."""
    endpoint = make_endpoint(Path())
    gate = DaemonEndpoint(Path(), endpoint)
    connect_to_daemon(endpoint, Path(), time.monotonic() + TIMEOUT_S).close()
    came: list[DaemonStream | None] = []

    def accept() -> None:
        while not came or came[-1] is not None:
            came.append(gate.accept())

    thread = threading.Thread(target=accept)
    thread.start()
    client = connect_to_daemon(endpoint, Path(), time.monotonic() + TIMEOUT_S)
    client.send(b"abc", time.monotonic() + TIMEOUT_S)
    said = b""
    while not said and thread.is_alive():
        for stream in [stream for stream in came if stream is not None]:
            with contextlib.suppress(OSError):
                said += stream.receive(3, time.monotonic() + 0.1)
    client.close()
    gate.close()
    thread.join(TIMEOUT_S)
    gate.release()
    return said.decode()


@fact
def waiting_for_a_client_can_be_cancelled() -> Any:
    endpoint = make_endpoint(Path())
    gate = DaemonEndpoint(Path(), endpoint)
    said: list[str] = []

    def attend() -> None:
        stream = gate.accept()
        assert stream is not None
        streams.append(stream)
        waiting.set()
        try:
            stream.receive(1, time.monotonic() + TIMEOUT_S)
        except OSError as error:
            said.append(type(error).__name__)
        stream.close()

    streams: list[DaemonStream] = []
    waiting = threading.Event()
    thread = threading.Thread(target=attend)
    thread.start()
    client = connect_to_daemon(endpoint, Path(), time.monotonic() + TIMEOUT_S)
    waiting.wait(TIMEOUT_S)
    while not said and thread.is_alive():
        streams[0].drop()  # repeat if the cancellation was earlier than the read
        thread.join(0.05)
    client.close()
    gate.close()
    return said


# --- the folder ----------------------------------------------------------------------------------------------


@fact
def folder_is_private() -> Any:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "run")
        make_private_folder(folder)
        return [why_not_private(folder), users(security.access_list(str(folder)))]


@fact
def folder_that_other_users_may_use() -> Any:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "open")
        folder.mkdir()
        subprocess.run(["icacls", str(folder), "/grant", "Everyone:F"], capture_output=True, check=False)
        return why_not_private(folder) is None


@fact
def users_with_sddl_aliases() -> Any:
    """Check the built-in administrator and services: their daemon has to accept its own folder."""
    administrator = security.fault_of("O:LAD:P(A;OICI;FA;;;LA)(A;OICI;FA;;;SY)", "S-1-5-21-1-2-3-500")
    service = security.fault_of("O:LSD:P(A;OICI;FA;;;LS)(A;OICI;FA;;;SY)", "S-1-5-19")
    other = security.fault_of("O:LSD:P(A;OICI;FA;;;LS)(A;OICI;FA;;;NS)", "S-1-5-19")
    return [administrator, service, other]


@fact
def command_for_any_shell() -> Any:
    command = security.how_to_make_private(Path(tempfile.gettempdir())) or ""
    return ["%" in command, f"*{security.user_sid()}:(OI)(CI)F" in command]


@fact
def permissions_are_checked_on_the_open_file() -> Any:
    """The handle's name is not queried: the handle may already belong to another file."""
    with tempfile.TemporaryDirectory() as parent:
        ours, open_to_all = Path(parent, "ours"), Path(parent, "open")
        write_private_file(ours, b"private")
        open_to_all.write_bytes(b"public")
        subprocess.run(["icacls", str(open_to_all), "/grant", "Everyone:F"], capture_output=True, check=False)
        try:
            public = repr(read_private_file(open_to_all, 9))
        except PermissionError as error:
            public = type(error).__name__
        return [read_private_file(ours, 4).decode(), public]


# --- a daemon process ----------------------------------------------------------------------------------------

CLIENT = f"""
import sys, json
sys.path[:0] = {ROOTS!r}
import numpy as np, qnnbridge
host = qnnbridge.connect(start=False)
session = qnnbridge.InferenceSession(sys.argv[1], host=host, providers=["CPUExecutionProvider"])
shape = session.get_inputs()[0].shape
total = sum(float(session.run(None, {{"X": np.full(shape, n, np.float32)}})[0].sum()) for n in range(8))
print(json.dumps([host.ping() < 5, total, host.info.pid]))
"""


def stop(host: qnnbridge.Host) -> None:
    host.call({"op": "daemon.stop"}, timeout=TIMEOUT_S)


@fact
def start_use_and_stop() -> Any:
    """Use one daemon from two client processes and this one at the same time; the daemon then leaves nothing
    behind.
    """
    host = qnnbridge.connect()
    daemon = host.info.pid
    found = read_discovery(runtime_folder())
    assert found is not None
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(MODEL)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        told = [json.loads(client.communicate(timeout=60)[0].strip().splitlines()[-1]) for client in clients]
    finally:
        stop(host)
    gone = ended(found.pid)
    host.close()
    return {
        "same daemon": {daemon, found.pid, *(one[2] for one in told)} == {daemon},
        "not this process": daemon != os.getpid(),
        "pings": [one[0] for one in told],
        "results": len({one[1] for one in told}),
        "gone": gone,
        "left": sorted(entry.name for entry in runtime_folder().iterdir()),
    }


@fact
def daemon_replaces_another() -> Any:
    """Replace a daemon as `qnnbridge host restart --daemon --slots 7` does."""
    from qnnbridge_tools.host import actions
    from qnnbridge_tools.options import DaemonOptions

    with qnnbridge.connect() as before:
        daemon = before.info.pid
        ended_pids = [
            document["daemon"]["pid"] for document in actions._replace(DaemonOptions(slots=7).words(), 5.0)
        ]
    host = qnnbridge.connect(start=False)
    try:
        status = host.call({"op": "daemon.status"}, timeout=TIMEOUT_S).header["status"]
    finally:
        stop(host)
    gone = ended(status["daemon"]["pid"])
    host.close()
    return [ended_pids == [daemon], status["daemon"]["pid"] != daemon, status["queue"]["slots"], gone]


@fact
def start_from_a_job_without_breakaway() -> Any:
    """Start a daemon from a job that qnnbridge's spawner created. Wine refuses a breakaway, as Windows does, but
    does not report a job's limits.
    """
    child = start(
        "from qnnbridge_os import _win32_api\n"
        "from qnnbridge_os.processes import start_detached\n"
        "for kills in (True, False):\n"
        "    _win32_api.in_job_that_kills = lambda: kills\n"
        "    try:\n"
        "        start_detached([sys.executable, '-c', ''], dict(os.environ), os.getcwd()).close()\n"
        "        print('started')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, error.message)\n"
    )
    said = read_all(child.stdout_fd).decode().splitlines()
    child.wait(TIMEOUT_S)
    child.close()
    return [in_job_that_kills(), *said]


@fact
def without_permission_to_start() -> Any:
    try:
        qnnbridge.connect(start=False)
    except qnnbridge.BridgeError as error:
        return [type(error).__name__, error.message]
    return "connected"


if __name__ == "__main__":
    print(json.dumps({name: report(name) for name in sys.argv[1:] or FACTS}))
