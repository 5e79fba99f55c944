"""The actions of the commands of `qnnbridge host`: query the daemon through `link`, and print text, JSON or its
log.

Each action runs within `reporting.work`, which handles the raised errors.
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
from qnnbridge_protocol.shown import listed
from qnnbridge_tools import output
from qnnbridge_tools.host import link
from qnnbridge_tools.host.figures import Figures, read_figures
from qnnbridge_tools.options import DaemonOptions

if TYPE_CHECKING:
    from qnnbridge._daemon.discovery import Outcome, Starting


NAMED_CLIENTS: Final = 5
START_TIMEOUT_S: Final = 60.0
# Seconds to wait for a daemon that holds the lock but does not answer: it may be starting or ending.
PATIENCE_S: Final = 5.0

REPLACE_TRIES: Final = 3
# Seconds between two checks for a daemon that another application started. After writing its discovery file, a
# daemon accepts connections in less than this time.
TURN_LOOK_S: Final = 2.0

# Additional seconds for the NPU host and the daemon to end after running calls have finished.
END_GRACE_S: Final = 20.0


def start(given: DaemonOptions, as_json: bool) -> None:
    # Check the options before querying the daemon, so that wrong options are refused whether or not a daemon runs.
    words = given.checked_words()
    try:
        with link.reach() as daemon:
            document = daemon.status()
    except HostError as error:
        # Continue after a version mismatch: a daemon of an older version without clients ends, so that this
        # version can start.
        if not (link.may_change(error) or isinstance(error, VersionMismatch)):
            raise
    else:
        _show_started(document, False, as_json)
        if words:
            print("The daemon keeps its options; to change them: qnnbridge host restart --daemon", file=sys.stderr)
        return
    document, started = _start(words)
    _show_started(document, started, as_json)


def run(given: DaemonOptions) -> NoReturn:
    """Run the daemon in this process until it ends."""
    from qnnbridge_daemon.main import main

    main(["--foreground", *given.checked_words()])


def stop(drain_s: float, as_json: bool) -> None:
    try:
        document = _stop(drain_s)
    except HostError as error:
        if not link.is_none(error):
            raise
        # Without a daemon there is nothing to stop, so this is not an error.
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
            "Options of the daemon are given, but only the NPU host would be restarted.",
            fix="Restart the daemon, too: qnnbridge host restart --daemon ...",
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
    # If the new daemon has already ended, this starts another daemon with the same options.
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
    # Flush the text layer before writing to the buffer under it.
    sys.stdout.flush()
    # Write bytes, because the format requires UTF-8 with line feeds on every system.
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def logs(count: int, follow: bool, path_only: bool) -> None:
    path = log_path()
    if path_only:
        print(path)
        return
    # Without a file, `--follow` waits for the first line: a daemon that starts later creates the log.
    if not rotated_files(path) and not follow:
        raise BridgeError(
            f"There is no log {path}.",
            cause="No daemon has used this state folder yet.",
            fix="Start one: qnnbridge host start",
        )
    # Create the follower before reading the last lines: a line written in between is printed twice, but never lost.
    follower = Follower(path) if follow else None
    for line in last_lines(path, count):
        print(output.visible(line))
    if follower is not None:
        # The loop ends with Ctrl+C, or when the reader closes the pipe.
        while True:
            time.sleep(FOLLOW_INTERVAL_S)
            output.refuse_without_reader()
            for line in follower.new_lines():
                print(output.visible(line), flush=True)


# --- steps ----------------------------------------------------------------------------------------------


def _start(words: list[str]) -> tuple[dict[str, Any], bool]:
    """Start a daemon; return its status, and whether this process started it."""
    from qnnbridge._daemon.discovery import Starting

    deadline = time.monotonic() + START_TIMEOUT_S
    starting = Starting(words)
    try:
        outcome = starting.wait(deadline)
    finally:
        starting.close()
    # Allow at least a second for connecting, because the start may have used up the time limit.
    with link.reach(max(1.0, deadline - time.monotonic()), start_with=words) as daemon:
        return daemon.status(), outcome == "ready"


def _replace(words: list[str], drain_s: float) -> list[dict[str, Any]]:
    """Replace the daemon; return the status documents of the daemons that ended.

    The new daemon starts before the old one stops, and waits for the lock. Otherwise a running application would
    start a daemon without these options as soon as the old one has ended.
    """
    from qnnbridge._daemon.discovery import TAKE_OVER, Starting

    # Each attempt may take this long; the new daemon waits for the lock during all attempts.
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
            # Without an ended daemon the instance is "", so that `_its_turn` regards no daemon as its
            # replacement.
            instance = read_figures(ended[-1]).daemon.instance if ended else ""
            outcome = _its_turn(successor, instance, time.monotonic() + patience_s)
    finally:
        successor.close()
    if outcome != "ready":
        raise HostError(
            "The new daemon could not replace the old one.",
            cause="At each attempt, another daemon started first."
            if outcome
            else "The new daemon does not respond.",
            fix="Try again, or end the applications that start a daemon; qnnbridge host status lists them.",
        )
    return ended


def _its_turn(successor: Starting, ended: str, deadline: float) -> Outcome | None:
    """Return the outcome of starting the new daemon; "waiting" if an application started another daemon first.

    Args:
        successor: the new daemon.
        ended: instance of the previous daemon.
        deadline: value of `time.monotonic` at which to return None.
    """
    while True:
        # Check for another daemon's discovery file before waiting: the new daemon overwrites it once it has the
        # lock.
        another = link.replaced(ended)
        outcome = successor.wait(min(deadline, time.monotonic() + TURN_LOOK_S))
        if outcome is not None:
            return outcome
        if another:
            return "waiting"
        if time.monotonic() >= deadline:
            return None


def _stop(drain_s: float) -> dict[str, Any]:
    """Stop the daemon, wait for its end and return its last status document.

    Raise `HostError` if it does not end.
    """
    # Read the discovery file while the daemon runs, because the daemon removes the file when it ends.
    found = link.left_behind()
    try:
        with link.reach_soon(PATIENCE_S, any_release=True) as daemon:
            document = daemon.status()
            daemon.stop(drain_s)
    except VersionMismatch as error:
        # This daemon does not support our requests, but its answer to our HELLO reports that it agreed to end.
        if found is None or error.details.get(LEAVING) != LEAVE_FEATURE:
            raise
        document = {"daemon": {"pid": found.pid, "instance": found.instance.hex()}}
    ended = read_figures(document).daemon
    # The daemon answers this request before it drains, so it still runs after the answer.
    if not link.wait_for_end(drain_s + END_GRACE_S, ended.instance):
        raise HostError(
            f"The daemon (pid {ended.pid}) agreed to stop, but still runs after {drain_s + END_GRACE_S:g} s.",
            fix="Read the daemon's log: qnnbridge host logs. If the daemon hangs, end its process.",
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
    """Return a sentence about the daemon that ended."""
    # Omit clients without sessions, which only query the status.
    others = [client for client in figures.clients if client.sessions]
    ended = [f"The daemon, pid {figures.daemon.pid}, has ended"]
    if figures.host.running:
        ended.append(f"and with it the NPU host, pid {figures.host.pid}")
    text = " ".join(ended)
    if others:
        names = listed([f"{output.visible(client.name)} ({client.pid})" for client in others], NAMED_CLIENTS)
        text += f". Clients that were connected: {names}"
    return text + "."


# --- the log --------------------------------------------------------------------------------------------

FOLLOW_INTERVAL_S: Final = 0.25
_BLOCK_BYTES: Final = 64 << 10


def log_path() -> Path:
    """Return the log file of the running or crashed daemon, even if it uses other folders. Without such a daemon,
    return the log file that a new daemon would use.
    """
    from qnnbridge_daemon.main import log_file

    with contextlib.suppress(BridgeError):
        found = link.left_behind()
        # A crashed daemon's discovery file may refer to a log that has been deleted.
        if found is not None and found.log_file and os.path.isfile(found.log_file):
            return Path(found.log_file)
    return log_file()


def rotated_files(path: Path) -> list[Path]:
    """Return the existing log files (``daemon.log``, ``daemon.log.1`` ...), the newest first."""
    numbered: list[tuple[int, Path]] = []
    try:
        names = os.listdir(path.parent)
    except OSError:
        names = []
    for name in names:
        number = name[len(path.name) + 1 :]
        # `isdigit` alone also accepts characters such as a superscript 2, which `int` refuses.
        if name.startswith(path.name + ".") and number.isascii() and number.isdigit():
            numbered.append((int(number), path.parent / name))
    # Sort by number, because `.10` comes before `.2` when sorted by name.
    found = [file for _, file in sorted(numbered)]
    return [path, *found] if path.exists() else found


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of all log files together, the oldest first."""
    found: list[str] = []
    for file in rotated_files(path):
        wanted = count - len(found)
        if wanted <= 0:
            break
        try:
            found = _tail(file, wanted) + found
        except FileNotFoundError:
            continue  # The file was rotated meanwhile.
    return found


def _tail(file: Path, count: int) -> list[str]:
    """Return the last lines of a file, reading backwards from its end, so that the cost does not depend on its
    size.
    """
    with file.open("rb") as stream:
        at = stream.seek(0, os.SEEK_END)
        data = b""
        # Read until there is one more line end than needed, because the first line of a block may be incomplete.
        while at > 0 and data.count(b"\n") <= count:
            size = min(_BLOCK_BYTES, at)
            at -= size
            stream.seek(at)
            data = stream.read(size) + data
    return _lines(data)[-count:]


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    # Do not use `str.splitlines`, which would also split at form feeds and Unicode line separators in a message.
    return text.removesuffix("\n").split("\n") if text else []


class Follower:
    """Reads the lines that are added to a log, and continues with the file that replaces it after a rotation.

    Reading starts at the current end of the file. An incomplete last line is kept until it is complete.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # The daemon rotates its log by renaming it: device and inode (on Windows the file index) stay with the old
        # file.
        self._identity = _identity(path)
        self._at = _size(path)
        self._rest = b""

    def new_lines(self) -> list[str]:
        identity = _identity(self._path)
        data = b""
        # The log was replaced by a new file, or truncated.
        if identity != self._identity or _size(self._path) < self._at:
            data = self._rest_of_rotated_files()
            self._identity, self._at = identity, 0
        data += self._read(self._path)
        # Split the bytes before decoding: a read may end within a UTF-8 character, and the byte of a line feed
        # never occurs within one.
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace").removesuffix("\r") for line in whole]

    def _rest_of_rotated_files(self) -> bytes:
        """Return the unread rest of the rotated file, and the contents of all files that were rotated since."""
        newer: list[Path] = []
        for file in rotated_files(self._path)[1:]:
            if self._identity is not None and _identity(file) == self._identity:
                data = self._read(file)
                # Files that were rotated later are listed newest first; reverse them to read their lines in order.
                for other in reversed(newer):
                    self._at = 0
                    data += self._read(other)
                return data
            newer.append(file)
        # The log was emptied, is new, or was rotated too often between two reads, so the rest cannot be found.
        return b""

    def _read(self, path: Path) -> bytes:
        try:
            # Keep the file closed between reads: on Windows the daemon cannot rename an open file.
            with path.open("rb") as stream:
                stream.seek(self._at)
                data = stream.read()
        except OSError:  # The log is being rotated at this moment; the next read finds the new file.
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
