"""The application's way to a daemon: finds it, starts it, authenticates, and holds the connection.

`_host`, `_connect` and the tools call it. It imports the protocol, `_platform`, `_supervision` and `_launch`.
"""

from __future__ import annotations

import dataclasses
from typing import Final

START_TIMEOUT_S: Final = 60.0


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
