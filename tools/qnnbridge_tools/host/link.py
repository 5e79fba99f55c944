"""The way of the commands to a daemon that runs: find it, ask it, and report why it cannot be reached.

What went wrong also stands in ``details["daemon_state"]``, on which the exit code of
a command rests (`reporting`). One thread.
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
        """The daemon's status document."""
        document = self._ask({"op": "daemon.status"}, ASK_TIMEOUT_S).get("status")
        return document if isinstance(document, dict) else {}

    def stop(self, drain_s: float) -> None:
        """Ask it to end, after calls under way had so long to end. Returns when it has agreed."""
        self._ask({"op": "daemon.stop", "drain_s": drain_s}, ASK_TIMEOUT_S + drain_s)

    def restart_host(self, timeout_s: float) -> None:
        """Replace the NPU host by a new one. Returns when that is done."""
        self._ask({"op": "daemon.restart_host"}, timeout_s)

    def _ask(self, header: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            # The host of this connection is the daemon: its own operations go out as a host's do.
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
    """The daemon of this user.

    Args:
        any_release: Also a daemon of a release that can only be ended.
        start_with: Start one with these options where there is none, and wait for one that is just starting or
            leaving.

    Raises `HostStartFailed` or `VersionMismatch` with a state in its details.
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
        # No `Link` owns the connection yet.
        host.close()
        if isinstance(error, (HostStartFailed, HostCrashed, VersionMismatch)):  # crashed: left while it greeted
            raise explained(error) from None
        raise
    return Link(host)


def reach_soon(patience_s: float, *, any_release: bool = False) -> Link:
    """`reach`, where a daemon that is just starting is waited for, and one that is leaving until there is none."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return reach(any_release=any_release)
        except HostError as error:
            # In this order: `may_change` also holds where there is none, and here that ends the wait.
            if is_none(error) or not may_change(error) or time.monotonic() >= end:
                raise
        time.sleep(_LOOK_INTERVAL_S)


def _be_quiet() -> None:
    """A lost connection is an error that the command prints, not a warning of the log on top of that."""
    logger = logging.getLogger("qnnbridge")
    # Python prints the warnings of a logger without any handler on stderr (`logging.lastResort`).
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def explained(error: BridgeError) -> BridgeError:
    """The error with the daemon's state: what can be said of a daemon that cannot be entered."""
    if isinstance(error, VersionMismatch):
        error.details[STATE] = OTHER_VERSION
        return error
    if "path" in error.details:  # the folder is not to be trusted: whether there is one is unknown
        error.details[STATE] = UNREACHABLE
        return error
    if is_running():
        error.details[STATE] = UNREACHABLE
        error.message = "There is a qnnbridge daemon, and it cannot be reached."
        error.fix = "See what it does: qnnbridge host logs. It may just be starting or leaving: try again."
        return error
    return no_daemon(error.cause)


def without_us(document: dict[str, Any]) -> dict[str, Any]:
    """The daemon's document without the client that only asks for it."""
    clients = [
        client for client in document.get("clients") or () if client.get("pid") != os.getpid() or client["sessions"]
    ]
    return {**document, "clients": clients}


def no_daemon(cause: str | None = None) -> HostStartFailed:
    return HostStartFailed(
        "No qnnbridge daemon runs.", cause=cause, fix="Start one: qnnbridge host start", details={STATE: NONE}
    )


def is_none(error: BridgeError) -> bool:
    """Whether it says that there is no daemon."""
    return error.details.get(STATE) == NONE


def may_change(error: BridgeError) -> bool:
    """Whether there is no daemon, or one that may be just starting or leaving."""
    return is_none(error) or (error.details.get(STATE) == UNREACHABLE and "path" not in error.details)


# --- the daemon from outside ---


def is_running() -> bool:
    """Whether a daemon lives: it holds the lock of the folder for as long. Starts and connects to nothing."""
    from filelock import FileLock, Timeout

    from qnnbridge._daemon.discovery import LOCK_NAME, runtime_folder

    path = runtime_folder() / LOCK_NAME
    # `FileLock` makes its file, and a look must leave nothing behind.
    if not path.exists():
        return False
    # The operating system frees the lock of a process that ends, however it ends.
    lock = FileLock(path, mode=0o600)
    try:
        # Held for some microseconds. A daemon that starts meanwhile tries again (`_LOOK_PATIENCE_S`).
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # not ours to lock, or on a disk that cannot be written: no daemon of ours has it either
        return False
    lock.release()
    return False


def wait_for_end(timeout_s: float, instance: str = "") -> bool:
    """Waits until no daemon lives; False if one still does at the end.

    Args:
        instance: The daemon to wait for: an application that goes on working may start another one at once.
    """
    end = time.monotonic() + timeout_s
    # The lock may be a successor's already: its discovery file tells it from the daemon that is to end.
    while is_running() and not replaced(instance):
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_INTERVAL_S)
    return True


def replaced(instance: str) -> bool:
    """Whether a later daemon has said where it is: only the holder of the lock does, so that one has ended."""
    try:
        found = left_behind()
    except BridgeError:
        return False
    return bool(instance) and found is not None and found.instance.hex() != instance


def left_behind() -> Discovery | None:
    """The discovery file of a running or killed daemon."""
    from qnnbridge._daemon.discovery import existing_runtime_folder, read_discovery

    folder = existing_runtime_folder()
    return None if folder is None else read_discovery(folder)
