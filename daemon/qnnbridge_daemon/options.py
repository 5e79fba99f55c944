"""The command line of the daemon. The token is never an option: other users can read command lines."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

from qnnbridge._daemon.discovery import TAKE_OVER, Discovery
from qnnbridge._supervision.restart_policy import RecycleAfter


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """python: of the NPU host. idle_exit_s: ``None`` never. detached, foreground: the way it runs. take_over_s:
    the time to wait for the end of a running daemon."""

    python: str | None
    idle_exit_s: float | None
    recycle: RecycleAfter
    settings: BrokerSettings
    detached: bool = False
    foreground: bool = False
    take_over_s: float = 0.0

    def settings_of(self, discovery: Discovery) -> BrokerSettings:
        """The options with the daemon's data for the broker's status."""
        return dataclasses.replace(
            self.settings,
            endpoint=discovery.endpoint,
            log_file=discovery.log_file,
            instance=discovery.instance.hex(),
            idle_exit_s=self.idle_exit_s,
        )


def parse_options(argv: Sequence[str] | None) -> Options:
    """Ends the program with a message for unknown options."""
    defaults, limits = BrokerSettings(), ClientLimits()
    parser = argparse.ArgumentParser(
        prog="qnnbridge_daemon", description="One NPU host that several applications share."
    )
    parser.add_argument("--python", help="the interpreter of the NPU host; default as for every application")
    parser.add_argument(
        "--idle-exit", type=_seconds, metavar="SECONDS", help="end when unused so long; default never"
    )
    parser.add_argument("--idle-unload", type=_seconds, metavar="SECONDS", default=defaults.idle_unload_s,
                        help="unload models that nobody has called for so long; 0 never")  # fmt: skip
    parser.add_argument("--slots", type=_count, default=defaults.slots, help="calls in the NPU host at a time")
    parser.add_argument("--max-sessions", type=_count, default=limits.sessions, help="of one client")
    parser.add_argument("--max-queued", type=_count, default=limits.queued, help="waiting calls of one client")
    parser.add_argument(
        "--max-bytes", type=_count, default=limits.bytes, help="of one client's calls and shared memory"
    )
    parser.add_argument(
        "--max-kv-bytes", type=_count, default=limits.kv_bytes, help="of the KV caches of one client's generators"
    )
    parser.add_argument("--recycle-bytes", type=_count, help="replace an NPU host that has grown to this size")
    parser.add_argument("--recycle-sessions", type=_count, help="replace an NPU host after this many new sessions")
    parser.add_argument("--foreground", action="store_true", help="stay in the terminal; the log goes there, too")
    parser.add_argument("--detached", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(TAKE_OVER, type=_seconds, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    return Options(
        given.python,
        given.idle_exit,
        RecycleAfter(given.recycle_bytes, given.recycle_sessions),
        dataclasses.replace(
            defaults,
            slots=given.slots,
            idle_unload_s=given.idle_unload,
            limits=ClientLimits(given.max_sessions, given.max_queued, given.max_bytes, given.max_kv_bytes),
        ),
        detached=given.detached,
        foreground=given.foreground,
        take_over_s=given.take_over,
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLimits:
    """Of one client. A request for more is answered with `Busy`.

    sessions: open at a time. queued: calls that wait for their turn. bytes: tensors of calls under way, and memory
    that is shared with the daemon. kv_bytes: KV caches of its generators, each with a full context.
    """

    sessions: int = 64
    queued: int = 256
    bytes: int = 2 << 30
    kv_bytes: int = 8 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    """slots: calls of all clients that are in the NPU host at a time.

    idle_unload_s: a model without a call for this long is unloaded, and loaded again by its next call; 0
    never unloads. keep_unused_s: how long a model that no client has open any more stays loaded for the next one;
    keep_unused: the number of those. stall_s: a client that reads nothing of its answers in this time is
    disconnected. greeting_s: so is a client without HELLO after this time. endpoint, log_file, instance,
    idle_exit_s: for `status` only.
    """

    slots: int = 4
    limits: ClientLimits = dataclasses.field(default_factory=ClientLimits)
    idle_unload_s: float = 600.0
    keep_unused_s: float = 60.0
    keep_unused: int = 4
    stall_s: float = 60.0
    greeting_s: float = 15.0
    endpoint: str = ""
    log_file: str = ""
    instance: str = ""
    idle_exit_s: float | None = None
