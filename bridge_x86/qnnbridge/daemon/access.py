"""How an application gets to the daemon: what `qnnbridge.connect` was told. Frozen; imports nothing."""

from __future__ import annotations

import dataclasses
from typing import Final

START_TIMEOUT_S: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonAccess:
    """start: whether a daemon may be started. python, arguments: how. start_timeout_s: for all of it."""

    start: bool = True
    python: str | None = None
    arguments: tuple[str, ...] = ()
    start_timeout_s: float = START_TIMEOUT_S
