"""`qnnbridge.connect()`: a `Host` that is the daemon, and which host a session gets. Any thread."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._daemon import START_TIMEOUT_S, DaemonAccess
from qnnbridge._host import Host
from qnnbridge._threads import refuse_at_the_end
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.process_names import is_frozen

if TYPE_CHECKING:
    from qnnbridge_protocol.limits import Limits

VARIABLE: Final = "QNNBRIDGE_HOST"
DAEMON: Final = "daemon"
PRIVATE: Final = "private"

_default: Host | None = None
_shared: Host | None = None
_lock = Lock()


def connect(
    *,
    start: bool = True,
    python: str | os.PathLike[str] | None = None,
    timeout: float | None = START_TIMEOUT_S,
    limits: Limits | None = None,
    shared_memory: bool | None = None,
    spin: bool = False,
) -> Host:
    """The daemon of this user, as a host for sessions: ``InferenceSession(model, host=qnnbridge.connect())``.

    Applications share the daemon, and its sessions of identical models. It keeps running when this one ends.

    Args:
        start: start a daemon if none runs, also after this one is lost. ``False``: raise `HostStartFailed`.
        python: the ARM64 interpreter of the daemon that is started; see `Host`. One that runs keeps its own.
            Raises `HostNotFound` for one that cannot run the host.
        timeout: seconds to find or start it, now and after it is lost; ``None`` waits without limit.
        limits, shared_memory, spin: as for `Host`.
    """
    patience_s = math.inf if timeout is None else timeout
    own_python: str | None = None
    arguments: tuple[str, ...] = ()
    if python is not None:
        from qnnbridge._daemon.discovery import from_anywhere
        from qnnbridge._launch import find_host

        found = find_host(python)
        # The interpreter of the daemon itself, where it cannot be the one that runs here.
        own_python = found.path if is_frozen() else None
        arguments = "--python", from_anywhere(os.fspath(python))
    host = daemon_host(
        DaemonAccess(start, own_python, arguments, patience_s),
        limits=limits,
        shared_memory=shared_memory,
        spin=spin,
    )
    try:
        host.start(timeout)
    except BaseException:
        host.close()
        raise
    return host


def default_host() -> Host:
    """The host of sessions without ``host=``; one per process."""
    global _default
    with _lock:
        # One from before a fork is the parent's: two processes cannot share a pair of pipes.
        if _default is None or _default.supervisor.closed or _default.supervisor.foreign:
            _default = daemon_host(DaemonAccess()) if daemon_by_default() else Host()
        return _default


def daemon_host(access: DaemonAccess, **options: Any) -> Host:
    """A host that is the daemon; the daemon is looked for at the first use."""
    return Host(start_timeout=access.start_timeout_s, _daemon=access, **options)


def shared_daemon_host() -> Host:
    """The one of sessions with ``host="daemon"``; one per process."""
    global _shared
    with _lock:
        if _shared is None or _shared.supervisor.closed or _shared.supervisor.foreign:
            _shared = daemon_host(DaemonAccess())
        return _shared


def chosen_host(host: Host | str | None) -> Host:
    """The host that a session is to use. Raises `OptionError`, and `Closed` at the end of the interpreter."""
    refuse_at_the_end()
    if host is None:
        return default_host()
    if isinstance(host, Host):
        return host
    if host == DAEMON:
        return shared_daemon_host()
    raise OptionError(
        f"host={host!r} is no qnnbridge.Host.",
        fix='Give qnnbridge.Host(python=...), qnnbridge.connect() or "daemon".',
    )


def daemon_by_default() -> bool:
    """Whether sessions that name no host use the daemon. Raises `OptionError` for an unknown word."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word in ("", PRIVATE):
        return False
    if word == DAEMON:
        return True
    raise OptionError(
        f"The environment variable {VARIABLE} is {word!r}.", fix=f"Set it to {DAEMON} or {PRIVATE}, or unset it."
    )


def _forget_locks() -> None:
    # A thread that the child does not have may hold it, and nobody would give it up.
    global _lock
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
