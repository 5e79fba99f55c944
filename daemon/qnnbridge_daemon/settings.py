"""What a broker is told: limits and times. Frozen; imports nothing heavy."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Of one client. Whoever wants more is answered with `Busy`.

    sessions: open at a time. queued: calls that wait for their turn. bytes: tensors of calls under way, and memory
    that is shared with the daemon.
    """

    sessions: int = 64
    queued: int = 256
    bytes: int = 2 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    """slots: calls of all clients that are in the NPU host at a time.

    idle_unload_s: a model that nobody has called for this long is unloaded, and loaded again by its next call; 0
    never unloads. keep_unused_s: how long a model that no client has open any more stays loaded for the next one;
    keep_unused: how many of those. stall_s: a client that takes nothing of what it has asked for in this time is
    dropped. greeting_s: so is one that was let in and does not greet in that time. endpoint, log_file, instance,
    idle_exit_s: to be shown by `status`, the broker has no use for them.
    """

    slots: int = 4
    limits: Limits = dataclasses.field(default_factory=Limits)
    idle_unload_s: float = 600.0
    keep_unused_s: float = 60.0
    keep_unused: int = 4
    stall_s: float = 60.0
    greeting_s: float = 15.0
    endpoint: str = ""
    log_file: str = ""
    instance: str = ""
    idle_exit_s: float | None = None
