"""The dialogue at the door, from the application's side: from a `Discovery` to a `DaemonLink`, within five
seconds."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final

from qnnbridge._daemon.discovery import Discovery, read_discovery
from qnnbridge._daemon.folder import existing_runtime_folder, runtime_folder
from qnnbridge._daemon.link import DaemonLink
from qnnbridge._platform import DaemonStream, OwnedFds, connect_to_daemon
from qnnbridge_protocol.auth import (
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    Answer,
    ClientSide,
    NotProven,
    Verdict,
    Visitor,
)

DIALOGUE_TIMEOUT_S: Final = 5.0
_MORE_ROOM: Final = (
    "End applications that it serves (qnnbridge host status), or start it where the system allows more open files "
    "(ulimit -Hn): qnnbridge host restart --daemon"
)


class Unreachable(Exception):
    """No daemon could be entered this time; the text says why, as the end of a sentence. fix: where it is known."""

    def __init__(self, text: str, fix: str | None = None) -> None:
        super().__init__(text)
        self.fix = fix


def enter_daemon(deadline: float) -> DaemonLink:
    """A connection to the daemon of this user. Raises `Unreachable`, `HostStartFailed` for a folder of bad rights,
    `VersionMismatch`."""
    folder = existing_runtime_folder()
    discovery = None if folder is None else read_discovery(folder)
    if folder is None or discovery is None:
        raise Unreachable(f"there is no daemon.json in {runtime_folder()}")
    try:
        return enter(discovery, folder, deadline)
    except PermissionError as error:
        raise Unreachable(f"its door cannot be used ({error})") from error
    except (FileNotFoundError, ConnectionRefusedError):
        raise Unreachable("nobody is behind the door that daemon.json names") from None
    except TimeoutError:
        raise Unreachable(f"the daemon (process {discovery.pid}) did not answer at its door in time") from None
    except NotProven as problem:
        raise Unreachable(f"the door that daemon.json names is not this daemon's: {problem}") from None
    except OSError as error:
        raise Unreachable(f"the dialogue at its door broke off ({error.strerror or error})") from error


def enter(discovery: Discovery, folder: Path, deadline: float) -> DaemonLink:
    """Raises `OSError`, `NotProven`, `Unreachable`, `VersionMismatch`."""
    deadline = min(deadline, time.monotonic() + DIALOGUE_TIMEOUT_S)
    stream = connect_to_daemon(discovery.endpoint, folder, deadline)
    fds = OwnedFds()
    try:
        stream.check_peer()
        answer = _talk(stream, discovery, fds, deadline)
        if answer.verdict is not Verdict.WELCOME:
            if answer.verdict is Verdict.LEAVING:
                raise Unreachable("it is leaving")
            raise Unreachable("it may open no more files, and has no room for one more application", _MORE_ROOM)
        read_fd, write_fd = stream.ends(answer.handles, fds)
        return DaemonLink(stream.peer_pid or discovery.pid, read_fd, write_fd, fds)
    except BaseException:
        fds.close_all()
        raise
    finally:
        stream.close()


def _talk(stream: DaemonStream, discovery: Discovery, fds: OwnedFds, deadline: float) -> Answer:
    side = ClientSide(discovery.token, discovery.instance, Visitor(os.getpid(), program_name()))
    stream.send(side.prove(stream.receive(CHALLENGE_BYTES, deadline)), deadline)
    return side.check(stream.receive_with_ends(ANSWER_BYTES, fds, deadline))


def program_name() -> str:
    """What a person would call this program: the script, else the module, else the interpreter."""
    program = sys.argv[0] if getattr(sys, "argv", None) else ""
    if program in ("", "-c", "-m"):
        program = sys.executable or "python"
    name = os.path.basename(program)
    return os.path.basename(os.path.dirname(program)) if name == "__main__.py" else name
