"""The application's way to a daemon: finds it, starts it, authenticates, and holds the connection.

Theory of operation. To the supervisor a daemon is a host: `DaemonConnector` is a spawner that connects to a
process instead of starting one, and the connection is its `ChildProcess`. So sessions, deadlines and repetition
need no second way. Three things differ:

- `reach` comes before `spawn` and takes the caller's deadline: it looks the daemon up, starts one if that is
  allowed, and authenticates. A caller that runs out of time leaves it where it is, and the next one goes on from
  there.
- A lost connection blames no model (`LostDaemon`). The daemon has investigated the death of the NPU host and keeps
  the quarantine; the application only connects again (`ReconnectPolicy` never gives up for long).
- An older daemon makes way for a newer application if no other client uses it. The application then starts its
  own.

Invariants: the folder in which both sides meet belongs to this user alone, or it is refused. `daemon.json` is a
hint: no process is ended by a number in it, and a stale file costs one failed connection. The daemon's lock
decides which of several started ones stays.

`_host` and the tools call it. It imports the protocol, `qnnbridge_os`, `_supervision` and `_launch`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from qnnbridge_protocol.process_names import is_frozen

START_TIMEOUT_S: Final = 60.0


def command(words: str) -> str:
    """A command of ours, as the reader of an error can run it: a frozen application brings no commands."""
    return f"python -m qnnbridge_tools {words}  (with the host's Python)" if is_frozen() else f"qnnbridge {words}"


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonAccess:
    """The arguments of `qnnbridge.connect`.

    start: whether a daemon may be started. python, arguments: how. start_timeout_s: for all of it. any_release: one
    of a distant release will do: a caller that only ends it need not understand it.
    """

    start: bool = True
    python: str | None = None
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = START_TIMEOUT_S
    any_release: bool = False
