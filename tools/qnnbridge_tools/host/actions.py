"""The work of the commands of `qnnbridge host`: asks the daemon through `link`, shows text or JSON.

Each runs within `reporting.work`, so errors are just raised.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn

from qnnbridge_protocol.connection import LEAVE_FEATURE, LEAVING
from qnnbridge_protocol.errors import BridgeError, HostError, OptionError, VersionMismatch
from qnnbridge_tools import output
from qnnbridge_tools.host import link
from qnnbridge_tools.host.figures import Figures, read_figures
from qnnbridge_tools.host.options import DaemonOptions

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
    with link.reach(START_TIMEOUT_S, start_with=words) as daemon:
        document = daemon.status()
    if not as_json:
        for ended in before:
            print(_stopped_text(read_figures(ended)))
    _show_started(document, True, as_json)


def status(as_json: bool) -> None:
    from qnnbridge_tools.host.figures_text import print_status

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
    from qnnbridge_tools.host import logs as log

    path = log.log_path()
    if path_only:
        print(path)
        return
    if not log.rotated_files(path) and not follow:
        raise BridgeError(
            f"There is no log {path}.",
            cause="No daemon has run yet with this state folder.",
            fix="Start one: qnnbridge host start",
        )
    # Made before the last lines are read: a line that comes in between is shown twice, and never lost.
    follower = log.Follower(path) if follow else None
    for line in log.last_lines(path, count):
        print(output.visible(line))
    if follower is not None:
        log.follow(follower, lambda line: print(output.visible(line), flush=True), threading.Event())


# --- steps ---


def _start(words: list[str]) -> tuple[dict[str, Any], bool]:
    """The status of the daemon, and whether this process started it."""
    from qnnbridge._daemon.discovery import Starting

    deadline = time.monotonic() + START_TIMEOUT_S
    starting = Starting(words)
    try:
        outcome = starting.wait(deadline)
    finally:
        starting.close()
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
