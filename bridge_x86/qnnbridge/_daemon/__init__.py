"""The application's connection to a daemon: find it, start it, authenticate, and hold the connection.

Theory of operation. To the supervisor a daemon is a host: `DaemonConnector` is a spawner that connects to a process
instead of starting one, and the connection is its `ChildProcess`. So sessions, deadlines and retries work as with a
host. Three things differ:

- `reach` is called before `spawn` with the caller's deadline: it looks for the daemon, starts one if that is
  allowed,
  and authenticates. If the caller's time runs out, the next caller continues where the first one stopped.
- A lost connection blames no model (`LostDaemon`). The daemon has investigated the death of the NPU host and keeps
  the quarantine; the application only reconnects (`ReconnectPolicy` never gives up for long).
- An older daemon makes way for a newer application if no other client uses it. The application then starts its own
  daemon.

Invariants: the folder in which both sides meet must belong to this user alone, or it is refused. `daemon.json` is a
hint: no process is ended because of its contents, and a stale file costs one failed connection. The daemon's lock
decides which of several started daemons stays.

`_host` and the tools call the package. It imports the protocol, `qnnbridge_os`, `_supervision` and `_launch`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from qnnbridge_protocol.process_names import is_frozen

START_TIMEOUT_S: Final = 60.0


def command(words: str) -> str:
    """Return a qnnbridge command as the reader of an error can run it: a frozen application contains no
    commands."""
    return f"python -m qnnbridge_tools {words}  (with the host's Python)" if is_frozen() else f"qnnbridge {words}"


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonAccess:
    """Arguments of `qnnbridge.connect`.

    Attributes:
        start: a daemon may be started.
        python, arguments: interpreter and options of a started daemon.
        start_timeout_s: seconds for finding, starting and connecting together.
        any_release: accept a daemon of a distant release, for a caller that only ends it.
    """

    start: bool = True
    python: str | None = None
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = START_TIMEOUT_S
    any_release: bool = False
