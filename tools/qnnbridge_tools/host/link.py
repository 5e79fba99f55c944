"""Connect the commands to a running daemon: find it, query it, and explain why it cannot be reached.

``details["daemon_state"]`` of an error contains the state of the daemon, which determines the exit code of a
command (`reporting`). Not thread-safe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_protocol.errors import BridgeError, HostCrashed, HostError, HostStartFailed, VersionMismatch

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge._daemon.discovery import Discovery

CONNECT_TIMEOUT_S: Final = 15.0
ASK_TIMEOUT_S: Final = 15.0
STATE: Final = "daemon_state"
NONE, UNREACHABLE, OTHER_VERSION = "none", "unreachable", "other version"
_LOOK_INTERVAL_S: Final = 0.05


class Link:
    """A connection to the daemon. Every method raises `BridgeError`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def status(self) -> dict[str, Any]:
        """Return the daemon's status document."""
        document = self._ask({"op": "daemon.status"}, ASK_TIMEOUT_S).get("status")
        return document if isinstance(document, dict) else {}

    def stop(self, drain_s: float) -> None:
        """Ask the daemon to end after giving running calls `drain_s` seconds to finish; return when it has
        agreed.
        """
        self._ask({"op": "daemon.stop", "drain_s": drain_s}, ASK_TIMEOUT_S + drain_s)

    def restart_host(self, timeout_s: float) -> None:
        """Replace the NPU host by a new host; return when it is replaced."""
        self._ask({"op": "daemon.restart_host"}, timeout_s)

    def _ask(self, header: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            # From the client's view the daemon is a host, so its operations are sent like a host's operations.
            return dict(self._host.call(header, timeout=timeout_s).header)
        except (HostStartFailed, HostCrashed) as error:
            raise explained(error) from None

    def close(self) -> None:
        with contextlib.suppress(BridgeError, OSError):
            self._host.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reach(
    timeout_s: float = CONNECT_TIMEOUT_S, *, any_release: bool = False, start_with: Sequence[str] | None = None
) -> Link:
    """Connect to the daemon of this user.

    Args:
        timeout_s: time limit in seconds.
        any_release: also accept a daemon of another release, which can only be asked to end.
        start_with: if no daemon runs, start one with these options; wait for a daemon that is starting or ending.

    Raises:
        HostStartFailed, VersionMismatch: the daemon cannot be reached; the details contain its state.
    """
    from qnnbridge._daemon import DaemonAccess
    from qnnbridge._host import daemon_host

    _be_quiet()
    access = DaemonAccess(
        start=start_with is not None,
        arguments=tuple(start_with or ()),
        start_timeout_s=timeout_s,
        any_release=any_release,
    )
    host = daemon_host(access)
    try:
        host.start(timeout_s)
    except BaseException as error:
        # Close the connection here, because no `Link` owns it yet.
        host.close()
        # HostCrashed is raised if the daemon ended during the handshake.
        if isinstance(error, (HostStartFailed, HostCrashed, VersionMismatch)):
            raise explained(error) from None
        raise
    return Link(host)


def reach_soon(patience_s: float, *, any_release: bool = False) -> Link:
    """Connect like `reach`, but wait while a daemon is starting or ending."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return reach(any_release=any_release)
        except HostError as error:
            # Check `is_none` first: `may_change` is also true without a daemon, but then waiting makes no sense.
            if is_none(error) or not may_change(error) or time.monotonic() >= end:
                raise
        time.sleep(_LOOK_INTERVAL_S)


def _be_quiet() -> None:
    """Suppress log warnings about a lost connection, because the command reports the error itself."""
    logger = logging.getLogger("qnnbridge")
    # Without a handler, Python would print the logger's warnings on stderr (`logging.lastResort`).
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def explained(error: BridgeError) -> BridgeError:
    """Return the error with the daemon's state added, as far as the state is known without a connection."""
    if isinstance(error, VersionMismatch):
        error.details[STATE] = OTHER_VERSION
        return error
    if "path" in error.details:  # The folder cannot be trusted, so it is unknown whether a daemon runs.
        error.details[STATE] = UNREACHABLE
        return error
    if is_running():
        error.details[STATE] = UNREACHABLE
        error.message = "There is a qnnbridge daemon, but it cannot be reached."
        error.fix = "Try again: the daemon may be starting or ending. Its log: qnnbridge host logs."
        return error
    return no_daemon(error.cause)


def without_us(document: dict[str, Any]) -> dict[str, Any]:
    """Return the daemon's document without clients of this process that have no sessions."""
    clients = [
        client for client in document.get("clients") or () if client.get("pid") != os.getpid() or client["sessions"]
    ]
    return {**document, "clients": clients}


def no_daemon(cause: str | None = None) -> HostStartFailed:
    return HostStartFailed(
        "No qnnbridge daemon runs.", cause=cause, fix="Start one: qnnbridge host start", details={STATE: NONE}
    )


def is_none(error: BridgeError) -> bool:
    """Return whether the error reports that there is no daemon."""
    return error.details.get(STATE) == NONE


def may_change(error: BridgeError) -> bool:
    """Return whether there is no daemon, or a daemon that may be starting or ending."""
    return is_none(error) or (error.details.get(STATE) == UNREACHABLE and "path" not in error.details)


# --- state of the daemon, found without a connection ---


def is_running() -> bool:
    """Return whether a daemon runs, using the lock in its folder. No process is started and no connection made."""
    from filelock import FileLock, Timeout

    from qnnbridge._daemon.discovery import LOCK_NAME, runtime_folder

    path = runtime_folder() / LOCK_NAME
    # `FileLock` creates its file, but this check must not create files.
    if not path.exists():
        return False
    # The operating system releases the lock when its process ends for any reason.
    lock = FileLock(path, mode=0o600)
    try:
        # This check holds the lock for some microseconds only; a daemon that starts meanwhile tries again.
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # The lock is not accessible, or the disk is read-only: no daemon of this user holds it either.
        return False
    lock.release()
    return False


def wait_for_end(timeout_s: float, instance: str = "") -> bool:
    """Wait until no daemon runs; return False at the timeout.

    Args:
        timeout_s: time limit in seconds.
        instance: the daemon to wait for; a running application may start another daemon at once.
    """
    end = time.monotonic() + timeout_s
    # A later daemon may already hold the lock; its discovery file shows that it is a different daemon.
    while is_running() and not replaced(instance):
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_INTERVAL_S)
    return True


def replaced(instance: str) -> bool:
    """Return whether a later daemon has written its discovery file. Only the lock's holder writes this file."""
    try:
        found = left_behind()
    except BridgeError:
        return False
    return bool(instance) and found is not None and found.instance.hex() != instance


def left_behind() -> Discovery | None:
    """Return the discovery file of a running or crashed daemon."""
    from qnnbridge._daemon.discovery import existing_runtime_folder, read_discovery

    folder = existing_runtime_folder()
    return None if folder is None else read_discovery(folder)
