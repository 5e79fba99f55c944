"""How an application gets to the daemon: what `qnnbridge.connect` was told. Frozen; imports nothing."""

from __future__ import annotations

import dataclasses
from typing import Final

START_TIMEOUT_S: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonAccess:
    """start: whether a daemon may be started. python, arguments: how. start_timeout_s: for all of it. any_release:
    one of a distant release will do; whoever only wants it to end need not understand it."""

    start: bool = True
    python: str | None = None
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = START_TIMEOUT_S
    any_release: bool = False
