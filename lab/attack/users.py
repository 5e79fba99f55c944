"""Attack the files, socket, processes and shared memory of a daemon as another user of the machine. Needs root.

The other user is a fork of this process with another user id, since other users may be unable to start this Python.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

import qnnbridge
from lab.attack.report import Report
from lab.faultlab.shared_daemon import make_models
from qnnbridge._daemon.connector import Unreachable, enter_daemon
from qnnbridge._daemon.discovery import FILE_NAME, Discovery
from qnnbridge.errors import BridgeError

NOBODY = 65534
START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
DIALOGUE_S = 3.0
SOCKET = "daemon.sock"


def attack(scale: float, seed: int) -> Report:
    """Attack a new daemon.

    Args:
        scale: length of the attack; 1 takes ten seconds.
        seed: shown in the report only, since the timing of the two users is random.
    """
    report = Report(f"another user (seed {seed})")
    if os.geteuid() != 0:
        report.count("skipped: not root")
        return report
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        os.chmod(folder, 0o777)  # not sticky: the other user may rename files in the folder
        folders = {f"QNNBRIDGE_{name}_DIR": os.path.join(folder, name.lower()) for name in ("RUNTIME", "STATE")}
        folders["QNNBRIDGE_CACHE_DIR"] = os.path.join(folder, "cache")
        with patch.dict(os.environ, folders), _generous(), qnnbridge.connect(timeout=START_TIMEOUT_S) as host:
            daemon = psutil.Process(host.call({"op": "daemon.status"}).header["status"]["daemon"]["pid"])
            try:
                session = qnnbridge.InferenceSession(
                    make_models(Path(folder))[0], providers=["CPUExecutionProvider"], host=host
                )
                x = session.empty_input("x", (100_000,))
                x[:] = 1
                report.expect(bool((session.run(None, {"x": x})[0] == 3).all()), "a wrong result")
                _look_around(report, Path(folder), _family(daemon))
                _exchange(report, Path(folder), daemon.pid, 3.0 * scale)
                report.expect(bool(np.all(session.run(None, {"x": x})[0] == 3)), "a wrong result afterwards")
            finally:
                host.call({"op": "daemon.stop"})
                for process in psutil.wait_procs([daemon], timeout=END_TIMEOUT_S)[1]:
                    report.finding("the daemon did not end")
                    process.kill()
    return report


@contextmanager
def _generous() -> Iterator[None]:
    """Set the umask to 0 in the block, so that new files are accessible to all users by default."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _family(daemon: psutil.Process) -> list[int]:
    return [os.getpid(), daemon.pid, *(child.pid for child in daemon.children(recursive=True))]


def _as_nobody(work: Callable[[], Any]) -> Any:
    """Run `work` in a process of the other user and return its result."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        told: Any = "died"
        try:
            os.close(read_fd)
            _become_nobody()
            told = work()
        finally:
            os.write(write_fd, json.dumps(told).encode())
            os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        told = json.loads(pipe.read())
    os.waitpid(child, 0)
    return told


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


# --- access by the other user ---


def _look_around(report: Report, folder: Path, pids: list[int]) -> None:
    paths = [path for path in folder.rglob("*") if path.name.split("_")[0] != "times"]
    tried, reached = _as_nobody(lambda: _reach(paths, pids))
    report.count("attempts", tried)
    for what in reached:
        report.finding(f"another user can {what}")


def _reach(paths: list[Path], pids: list[int]) -> tuple[int, list[str]]:
    attempts: list[tuple[str, Callable[[], Any]]] = []
    for path in paths:
        attempts += [
            (f"read {path}", lambda path=path: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1)),
            (f"write to {path}", lambda path=path: os.open(path, os.O_WRONLY | os.O_NONBLOCK)),
            (f"make a file in {path}", lambda path=path: (path / "intruder").write_text("x")),
            (f"list {path}", lambda path=path: os.listdir(path)),
            (f"connect to {path}", lambda path=path: socket.socket(socket.AF_UNIX).connect(str(path))),
        ]
    for pid in pids:
        attempts += [
            (f"end process {pid}", lambda pid=pid: os.kill(pid, 0)),
            (f"list the descriptors of {pid}", lambda pid=pid: os.listdir(f"/proc/{pid}/fd")),
            (f"read the memory of {pid}", lambda pid=pid: os.open(f"/proc/{pid}/mem", os.O_RDONLY)),
            (f"read the environment of {pid}", lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes()),
            *((f"open descriptor {fd} of {pid}", lambda pid=pid, fd=fd: os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR))
              for fd in range(3, 40)),
        ]  # fmt: skip
    reached = []
    for what, attempt in attempts:
        try:
            attempt()
        except OSError:
            continue
        reached.append(what)
    return len(attempts), reached


# --- replacement of the daemon's folder ---


def _exchange(report: Report, folder: Path, daemon: int, seconds: float) -> None:
    """Connect to the daemon while the other user repeatedly replaces the daemon's folder with another folder or a
    link."""
    own = folder / "own"
    with _intruder(folder, own) as heard:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            report.count("attempts to connect")
            try:
                link = enter_daemon(time.monotonic() + DIALOGUE_S)
            except (Unreachable, BridgeError) as error:
                report.count(type(error).__name__)
                continue
            report.count("connections")
            report.expect(link.pid == daemon, f"connected to process {link.pid}, which is not the daemon")
            link.close()
    report.expect(not heard, f"the other user received {len(heard)} of our messages")


@contextmanager
def _intruder(folder: Path, own: Path) -> Iterator[list[bytes]]:
    """Let the other user replace the folders during the block. After the block, the yielded list contains the data
    that the other user received."""
    heard: list[bytes] = []
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_fd)
            _become_nobody()
            _pretend(folder / "runtime", own, write_fd)
        finally:
            os._exit(0)
    os.close(write_fd)
    try:
        yield heard
    finally:
        os.kill(child, 15)
        os.waitpid(child, 0)
        with open(read_fd, "rb") as pipe:
            told = pipe.read()
        heard += [told] if told else []
        hidden = folder / "runtime.hidden"
        if hidden.exists():
            place = folder / "runtime"
            if place.is_symlink():
                place.unlink()
            elif place.exists():
                place.rename(own.with_suffix(".last"))
            hidden.rename(place)


def _pretend(place: Path, own: Path, write_fd: int) -> None:
    """Alternate between the real folder and a folder with another user's socket and discovery file."""
    own.mkdir(mode=0o700)
    endpoint = socket.socket(socket.AF_UNIX)
    endpoint.bind(str(own / SOCKET))
    endpoint.listen(64)
    discovery = Discovery(str(place / SOCKET), os.urandom(16), os.urandom(32), os.getpid(), time.time(), "0", "")
    (own / FILE_NAME).write_text(json.dumps(discovery.to_json()))
    os.chmod(own / FILE_NAME, stat.S_IRUSR | stat.S_IWUSR)

    def answer() -> None:
        while True:
            connection, _ = endpoint.accept()
            connection.settimeout(DIALOGUE_S)
            try:
                connection.sendall(os.urandom(64))
                if said := connection.recv(1000):
                    os.write(write_fd, said)
            except OSError:
                pass
            finally:
                connection.close()

    threading.Thread(target=answer, daemon=True).start()
    hidden = place.with_name("runtime.hidden")
    turn = 0
    while True:
        turn += 1
        try:
            place.rename(hidden)
            if turn % 2:
                own.rename(place)
                time.sleep(0.001)
                place.rename(own)
            else:
                place.symlink_to(own)
                time.sleep(0.001)
                place.unlink()
            hidden.rename(place)
        except OSError:
            time.sleep(0.001)
        time.sleep(0.001)
