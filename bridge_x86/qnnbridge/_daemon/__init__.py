"""The application's connection to a daemon: find or start the daemon, authenticate, and provide the connection.

Overview. The supervisor treats a daemon like a host: `DaemonConnector` is a spawner that connects to a
process instead of starting one, and returns the connection as a `ChildProcess`. So sessions, deadlines and retries
work as with a host. There are three differences:

- `reach` is called before `spawn` with the caller's deadline: it searches for the daemon, starts a daemon if that
is allowed, and authenticates. After a missed deadline, the next caller continues where the first caller stopped.
- A lost connection blames no model (`LostDaemon`). The daemon has investigated the death of the NPU host and keeps
  the quarantine; the application only reconnects (`ReconnectPolicy` never waits long).
- An older daemon ends when a newer application connects, if no other client uses the daemon. The application then
  starts a daemon of its own version.

Invariants: the folder with the daemon's files must belong to this user alone, or it is refused. `daemon.json` is
not trusted: no process is ended because of its contents, and a stale file only causes one failed connection. If
several daemons are started, only the daemon that gets the lock continues.

`_host` and the tools use this package, which imports the protocol, `qnnbridge_os`, `_supervision` and `_launch`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from qnnbridge_protocol.process_names import is_frozen

START_TIMEOUT_S: Final = 60.0


def command(words: str) -> str:
    """Return the command line that the user must type for ``qnnbridge WORDS``. A frozen application does not
    contain the command `qnnbridge`, so its users need the host's Python."""
    return f"python -m qnnbridge_tools {words}  (with the host's Python)" if is_frozen() else f"qnnbridge {words}"


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonAccess:
    """Arguments of `qnnbridge.connect`.

    Attributes:
        start: whether a daemon may be started.
        python, arguments: interpreter and options of a started daemon.
        start_timeout_s: seconds for finding the daemon, starting it and connecting, in total.
        any_release: whether to accept a daemon of any release; for a caller that only ends the daemon.
    """

    start: bool = True
    python: str | None = None
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = START_TIMEOUT_S
    any_release: bool = False
