"""The work of the commands of `qnnbridge host`: asks the daemon through `link`, shows text, JSON or its log.

Each runs within `reporting.work`, so errors are just raised.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qnnbridge_protocol.connection import LEAVE_FEATURE, LEAVING
from qnnbridge_protocol.errors import BridgeError, HostError, OptionError, VersionMismatch
from qnnbridge_tools import output
from qnnbridge_tools.host import link
from qnnbridge_tools.host.figures import Figures, read_figures
from qnnbridge_tools.options import DaemonOptions

if TYPE_CHECKING:
    from qnnbridge._daemon.discovery import Outcome, Starting


NAMED_CLIENTS: Final = 5
START_TIMEOUT_S: Final = 60.0
# With a daemon that holds the lock and does not answer: it may be just starting or leaving.
PATIENCE_S: Final = 5.0

REPLACE_TRIES: Final = 3
# More than a daemon takes from writing where it is to saying that it is ready.
TURN_LOOK_S: Final = 2.0

# Beyond the time for calls under way: what the NPU host may take to end, and the daemon itself.
END_GRACE_S: Final = 20.0


def start(given: DaemonOptions, as_json: bool) -> None:
    # Before a daemon is asked: wrong options are refused whether one runs or not.
    words = given.checked_words()
    try:
        with link.reach() as daemon:
            document = daemon.status()
    except HostError as error:
        # One of an older version makes way for the one that is started now, if it serves nobody.
        if not (link.may_change(error) or isinstance(error, VersionMismatch)):
            raise
    else:
        _show_started(document, False, as_json)
        if words:
            print("It keeps its own options; to change them: qnnbridge host restart --daemon", file=sys.stderr)
        return
    document, started = _start(words)
    _show_started(document, started, as_json)


def run(given: DaemonOptions) -> NoReturn:
    """Be the daemon; this process ends with it."""
    from qnnbridge_daemon.main import main

    main(["--foreground", *given.checked_words()])


def stop(drain_s: float, as_json: bool) -> None:
    try:
        document = _stop(drain_s)
    except HostError as error:
        if not link.is_none(error):
            raise
        # No failure: what was asked for is so already.
        document = None
    if as_json:
        output.print_json({"stopped": document is not None, "before": document and link.without_us(document)})
    elif document is None:
        print("No daemon runs.")
    else:
        print(_stopped_text(read_figures(document)))


def restart_host(given: DaemonOptions, timeout_s: float, as_json: bool) -> None:
    if given.words():
        raise OptionError(
            "These options are of the daemon, and only the NPU host would be restarted.",
            fix="To start the daemon anew with them: qnnbridge host restart --daemon ...",
        )
    with link.reach() as daemon:
        before = read_figures(daemon.status()).host
        begin = time.monotonic()
        if before.running:
            daemon.restart_host(timeout_s)
        took_s = time.monotonic() - begin
        document = daemon.status()
    after = read_figures(document).host
    if as_json:
        output.print_json({"restarted": before.running, "seconds": took_s, "host": document.get("host")})
    elif not before.running:
        print("No NPU host runs; the first session starts one.")
    elif after.running:
        print(f"The NPU host was replaced: pid {after.pid}, before {before.pid}. {output.seconds(took_s)}.")
    else:
        print(
            f"The NPU host, pid {before.pid}, has ended; the next call starts a new one. {output.seconds(took_s)}."
        )


def restart_daemon(given: DaemonOptions, drain_s: float, as_json: bool) -> None:
    words = given.checked_words()
    before = _replace(words, drain_s)
    # Should the new daemon have ended meanwhile, the one that is started here has the same options.
    with link.reach(START_TIMEOUT_S, start_with=words) as daemon:
        document = daemon.status()
    if not as_json:
        for ended in before:
            print(_stopped_text(read_figures(ended)))
    _show_started(document, True, as_json)


def status(as_json: bool) -> None:
    from qnnbridge_tools.host.figures import print_status

    with link.reach() as daemon:
        document = daemon.status()
    if as_json:
        output.print_json(link.without_us(document))
    else:
        print_status(read_figures(document).without_client(os.getpid()))


def metrics() -> None:
    from qnnbridge_tools.host.metrics import metrics_text

    with link.reach() as daemon:
        text = metrics_text(daemon.status(), os.getpid())
    # What was printed as text goes out before the bytes below.
    sys.stdout.flush()
    # Bytes: the format is UTF-8 with line feeds, whatever the system's own are.
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def logs(count: int, follow: bool, path_only: bool) -> None:
    path = log_path()
    if path_only:
        print(path)
        return
    # Without a file `--follow` waits for the first line: a daemon that starts later makes the log.
    if not rotated_files(path) and not follow:
        raise BridgeError(
            f"There is no log {path}.",
            cause="No daemon has run yet with this state folder.",
            fix="Start one: qnnbridge host start",
        )
    # Made before the last lines are read: a line that comes in between is shown twice, and never lost.
    follower = Follower(path) if follow else None
    for line in last_lines(path, count):
        print(output.visible(line))
    if follower is not None:
        # Until Ctrl+C, or until the reader is gone.
        while True:
            time.sleep(FOLLOW_INTERVAL_S)
            output.refuse_without_reader()
            for line in follower.new_lines():
                print(output.visible(line), flush=True)


# --- steps ----------------------------------------------------------------------------------------------


def _start(words: list[str]) -> tuple[dict[str, Any], bool]:
    """The status of the daemon, and whether this process started it."""
    from qnnbridge._daemon.discovery import Starting

    deadline = time.monotonic() + START_TIMEOUT_S
    starting = Starting(words)
    try:
        outcome = starting.wait(deadline)
    finally:
        starting.close()
    # The wait for the start may have used up all of the time, and to connect takes a moment of its own.
    with link.reach(max(1.0, deadline - time.monotonic()), start_with=words) as daemon:
        return daemon.status(), outcome == "ready"


def _replace(words: list[str], drain_s: float) -> list[dict[str, Any]]:
    """The status documents of the daemons that ended.

    The new daemon starts before the old one stops, and waits at the lock: applications that go on working start a
    daemon without these options as soon as theirs is gone.
    """
    from qnnbridge._daemon.discovery import TAKE_OVER, Starting

    # Each try may take all of that: the new daemon waits at the lock for as long.
    patience_s = drain_s + END_GRACE_S + START_TIMEOUT_S
    successor = Starting([*words, TAKE_OVER, f"{REPLACE_TRIES * patience_s:g}"])
    ended: list[dict[str, Any]] = []
    try:
        outcome = successor.wait(time.monotonic() + START_TIMEOUT_S)
        while outcome == "waiting" and len(ended) < REPLACE_TRIES:
            try:
                ended.append(_stop(drain_s))
            except HostError as error:
                if not link.is_none(error):
                    raise
            # Empty if there was none to end: then `replaced` has nothing to compare with.
            instance = read_figures(ended[-1]).daemon.instance if ended else ""
            outcome = _its_turn(successor, instance, time.monotonic() + patience_s)
    finally:
        successor.close()
    if outcome != "ready":
        raise HostError(
            "The new daemon did not come to its turn.",
            cause="Another one was started before it, each time." if outcome else "It does not move.",
            fix="Try again, or end the applications that start one: qnnbridge host status",
        )
    return ended


def _its_turn(successor: Starting, ended: str, deadline: float) -> Outcome | None:
    """The outcome of the new daemon; "waiting" if an application started another one first.

    Args:
        ended: The instance that was before.
    """
    while True:
        # Looked at before the wait: a new daemon that comes to its turn writes the same file.
        another = link.replaced(ended)
        outcome = successor.wait(min(deadline, time.monotonic() + TURN_LOOK_S))
        if outcome is not None:
            return outcome
        if another:
            return "waiting"
        if time.monotonic() >= deadline:
            return None


def _stop(drain_s: float) -> dict[str, Any]:
    """The last status document. Returns when the daemon has ended; raises `HostError` if it does not."""
    # Read while it runs: the file goes with the daemon.
    found = link.left_behind()
    try:
        with link.reach_soon(PATIENCE_S, any_release=True) as daemon:
            document = daemon.status()
            daemon.stop(drain_s)
    except VersionMismatch as error:
        # It understands no request of ours, and has agreed in its answer to our HELLO.
        if found is None or error.details.get(LEAVING) != LEAVE_FEATURE:
            raise
        document = {"daemon": {"pid": found.pid, "instance": found.instance.hex()}}
    ended = read_figures(document).daemon
    # The daemon answers this request before it drains: its agreement is not yet its end.
    if not link.wait_for_end(drain_s + END_GRACE_S, ended.instance):
        raise HostError(
            f"The daemon (pid {ended.pid}) agreed to stop, and still runs after {drain_s + END_GRACE_S:g} s.",
            fix="See what it does: qnnbridge host logs. If it hangs, end the process.",
        )
    return document


def _show_started(document: dict[str, Any], started: bool, as_json: bool) -> None:
    figures = read_figures(document)
    if as_json:
        output.print_json({"started": started, "daemon": document.get("daemon")})
        return
    words = "The daemon runs" if started else "A daemon runs already"
    print(f"{words}: pid {figures.daemon.pid}, {output.visible(figures.daemon.endpoint)}")


def _stopped_text(figures: Figures) -> str:
    """One sentence about the daemon that ended."""
    others = [client for client in figures.clients if client.sessions]  # not those that only ask
    ended = [f"The daemon, pid {figures.daemon.pid}, has ended"]
    if figures.host.running:
        ended.append(f"and with it the NPU host, pid {figures.host.pid}")
    text = " ".join(ended)
    if others:
        names = ", ".join(f"{output.visible(client.name)} ({client.pid})" for client in others[:NAMED_CLIENTS])
        more = f" and {len(others) - NAMED_CLIENTS} more" if len(others) > NAMED_CLIENTS else ""
        text += f". Clients that were connected: {names}{more}"
    return text + "."


# --- the log --------------------------------------------------------------------------------------------

FOLLOW_INTERVAL_S: Final = 0.25
_BLOCK_BYTES: Final = 64 << 10


def log_path() -> Path:
    """The log that the running or killed daemon names: it may use other folders. Else the log of a daemon that
    starts now."""
    from qnnbridge_daemon.main import log_file

    with contextlib.suppress(BridgeError):
        found = link.left_behind()
        # The file of a killed daemon may name a log that was deleted since.
        if found is not None and found.log_file and os.path.isfile(found.log_file):
            return Path(found.log_file)
    return log_file()


def rotated_files(path: Path) -> list[Path]:
    """The log and its predecessors (``daemon.log.1`` ...), the newest first, as far as they are there."""
    numbered: list[tuple[int, Path]] = []
    try:
        names = os.listdir(path.parent)
    except OSError:
        names = []
    for name in names:
        number = name[len(path.name) + 1 :]
        # `isdigit` alone also takes characters such as a superscript 2, which `int` refuses.
        if name.startswith(path.name + ".") and number.isascii() and number.isdigit():
            numbered.append((int(number), path.parent / name))
    # By number and not by name: as text `.10` comes before `.2`.
    found = [file for _, file in sorted(numbered)]
    return [path, *found] if path.exists() else found


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines of all the files together, the oldest first."""
    found: list[str] = []
    for file in rotated_files(path):
        wanted = count - len(found)
        if wanted <= 0:
            break
        try:
            found = _tail(file, wanted) + found
        except FileNotFoundError:
            continue  # rotated away meanwhile
    return found


def _tail(file: Path, count: int) -> list[str]:
    """Read from the end, so that a large file costs no more than its last lines."""
    with file.open("rb") as stream:
        at = stream.seek(0, os.SEEK_END)
        data = b""
        # One line end more than lines: the first line of a block may be cut.
        while at > 0 and data.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, at)
            at -= size
            stream.seek(at)
            data = stream.read(size) + data
    return _lines(data)[-count:]


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    # `str.splitlines` would also cut at form feeds and at Unicode's line separators, which a message may hold.
    return text.removesuffix("\n").split("\n") if text else []


class Follower:
    """The lines that are added to a log from now on, also in the file that replaces it.

    Begins at the end of the file as it is when this is made. A last line without its end is kept back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The daemon's log rotates by renaming: device and inode (on Windows the file index) go with the old file.
        self._identity = _identity(path)
        self._at = _size(path)
        self._rest = b""

    def new_lines(self) -> list[str]:
        identity = _identity(self._path)
        data = b""
        # Another file stands there, or the same one was emptied.
        if identity != self._identity or _size(self._path) < self._at:
            data = self._rest_of_the_old_ones()
            self._identity, self._at = identity, 0
        data += self._read(self._path)
        # Bytes: a read may end within a character of UTF-8, and no such character holds the byte of a line feed.
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]

    def _rest_of_the_old_ones(self) -> bytes:
        """The rest of the rotated file, and all of the files that were rotated since."""
        newer: list[Path] = []
        for file in rotated_files(self._path)[1:]:
            if self._identity is not None and _identity(file) == self._identity:
                data = self._read(file)
                # Those that were rotated later, the newest first: read backwards, their lines are in order.
                for other in reversed(newer):
                    self._at = 0
                    data += self._read(other)
                return data
            newer.append(file)
        # The log was emptied or is new, or was rotated away too often between two looks: there is no rest to read.
        return b""

    def _read(self, path: Path) -> bytes:
        try:
            # Opened for each read only: on Windows the daemon cannot rename a file that is open here.
            with path.open("rb") as stream:
                stream.seek(self._at)
                data = stream.read()
        except OSError:  # being rotated at this moment; the next look finds it
            return b""
        self._at += len(data)
        return data


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
