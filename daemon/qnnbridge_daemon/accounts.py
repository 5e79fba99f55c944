"""Statistics and limits of each client, and broker settings. A request beyond a limit is answered with `Busy`.

Thread-safe: each meter and each account has a lock, which is held for a microsecond.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from qnnbridge_protocol.errors import Busy

# Upper bounds of the buckets, from 50 us to 210 s, in steps of the square root of 2: 45 numbers for seven orders of
# magnitude, so that the error of a percentile is at most a fifth.
BOUNDS_S = tuple(50e-6 * 2 ** (step / 2) for step in range(45))

RATE_WINDOW_S = 10


class Histogram:
    """A histogram of durations. Not thread-safe."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BOUNDS_S, seconds)] += 1
        self.count += 1
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)

    def percentile(self, share: float) -> float:
        """Return the number of seconds within which this fraction of all calls ended; 0 without calls."""
        wanted = share * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            if count and seen + count >= wanted:
                # Interpolate between the bucket's bounds. The upper bound is at most the time of the slowest call.
                low = BOUNDS_S[index - 1] if index else 0.0
                high = min(BOUNDS_S[index], self.max_s) if index < len(BOUNDS_S) else self.max_s
                return low + (max(high, low) - low) * (wanted - seen) / count
            seen += count
        return self.max_s

    def buckets(self) -> list[list[float]]:
        """Return ``[upper bound, cumulative count]`` for each bucket as in OpenMetrics, up to the slowest call."""
        found: list[list[float]] = []
        total = 0
        for bound, count in zip(BOUNDS_S, self.counts, strict=False):
            total += count
            found.append([bound, total])
        return found


class Meter:
    """Statistics of the calls of one client, of one model, or of all clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._latency = Histogram()
        # Ring buffer with the number of calls in each second: ten complete seconds and the current one.
        self._seconds = [0] * (RATE_WINDOW_S + 1)
        self._newest = int(clock())
        self._since = clock()
        self.calls = 0
        self.errors = 0
        self.busy = 0
        self.bytes = 0

    def count(self, seconds: float, size: int, *, failed: bool) -> None:
        """Record an answered call."""
        with self._lock:
            self._latency.add(seconds)
            self.calls += 1
            self.errors += failed
            self.bytes += size
            self._forget_old()
            self._seconds[self._newest % len(self._seconds)] += 1

    def refused(self) -> None:
        """Record a call or session creation that was answered with `Busy`."""
        with self._lock:
            self.busy += 1

    @property
    def calls_per_s(self) -> float:
        """Calls per second over the last ten seconds, or since the first call."""
        with self._lock:
            self._forget_old()
            # Divide by at least a second; otherwise the first call of a program would count as thousands per
            # second.
            age_s = min(float(RATE_WINDOW_S), max(1.0, self._clock() - self._since))
            return round(sum(self._seconds) / age_s, 2)

    def latency_ms(self) -> dict[str, float]:
        with self._lock:
            latency = self._latency
            shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
            milliseconds = {name: round(latency.percentile(share) * 1000, 3) for name, share in shares.items()}
            return {**milliseconds, "max": round(latency.max_s * 1000, 3)}

    def latency_s(self) -> dict[str, object]:
        """Return the whole histogram of durations."""
        with self._lock:
            latency = self._latency
            return {"sum": latency.sum_s, "count": latency.count, "buckets": latency.buckets()}

    def _forget_old(self) -> None:
        """Reset the counts of seconds before the last ten complete seconds."""
        now = int(self._clock())
        for second in range(max(self._newest + 1, now - RATE_WINDOW_S), now + 1):
            self._seconds[second % len(self._seconds)] = 0
        self._newest = max(self._newest, now)


@dataclasses.dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one client. A request that exceeds a limit is answered with `Busy`.

    Attributes:
        sessions: open sessions.
        queued: waiting calls.
        bytes: size of the tensors of open calls, and of memory shared with the daemon.
        kv_bytes: size of the KV caches of the client's generators, each with a full context.
    """

    sessions: int = 64
    queued: int = 256
    bytes: int = 2 << 30
    kv_bytes: int = 8 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of the broker.

    Attributes:
        slots: maximum number of concurrent calls in the NPU host.
        idle_unload_s: seconds without a call after which a model is unloaded; its next call reloads it. 0: never.
        keep_unused_s: seconds that a model without clients stays loaded for the next client.
        keep_unused: maximum number of models without clients.
        stall_s: seconds after which a client that reads nothing of its answers is disconnected.
        greeting_s: seconds after which a client without HELLO is disconnected.
        endpoint, log_file, instance, idle_exit_s: for `status` only.
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


# Command that raises a limit, by the limit's name in `ClientLimits`.
HIGHER = {
    "sessions": "`qnnbridge host start --max-sessions N`",
    "queued": "`qnnbridge host start --max-queued N`",
    "bytes": "`qnnbridge host start --max-bytes N`",
    "kv_bytes": "`qnnbridge host start --max-kv-bytes N`",
}


def busy(limit: str, value: int, what: str, instead: str) -> Busy:
    """Return the error for an exceeded limit. limit: its name in `ClientLimits`."""
    return Busy(
        f"The daemon refused a request of this application: {what} (limit {limit}: {value}).",
        cause="The daemon is shared with other applications, so each has limits.",
        fix=f"{instead}, or start the daemon with a higher limit: {HIGHER[limit]}.",
        details={"limit": limit, "value": value},
    )


class Account:
    """Count of the resources that one client uses. Each amount that is taken must be returned exactly once."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self.meter = Meter()
        self._lock = threading.Lock()
        self.sessions = 0
        self.in_flight_bytes = 0
        self.shared_bytes = 0
        self.kv_bytes = 0
        # Number of prompts that reused tokens in a generator's KV cache, and number of the reused tokens.
        self.reused_prefixes = 0
        self.reused_tokens = 0
        # Amounts of freed memory that still have to be subtracted, and whether the memory was shared.
        self._freed: collections.deque[tuple[int, bool]] = collections.deque()

    def open_session(self) -> None:
        """Count a new session. Raise `Busy` if the client has reached its limit."""
        with self._lock:
            # Check and change the count in one step under the lock, but create the error without the lock.
            full = self.sessions >= self.limits.sessions
            self.sessions += not full
        if full:
            self.meter.refused()
            raise busy(
                "sessions",
                self.limits.sessions,
                f"the application has {self.limits.sessions} sessions open",
                "Close sessions that are not needed",
            )

    def close_session(self) -> None:
        with self._lock:
            self.sessions -= 1

    def take(self, size: int, *, shared: bool = False) -> None:
        """Count memory of a call, or shared memory. Raise `Busy` if this exceeds the limit."""
        self.settle()
        with self._lock:
            # Memory of calls and shared memory count towards one limit. A call without tensors is never refused.
            full = size > 0 and self.in_flight_bytes + self.shared_bytes + size > self.limits.bytes
            if not full and shared:
                self.shared_bytes += size
            elif not full:
                self.in_flight_bytes += size
        if full:
            self.meter.refused()
            raise busy(
                "bytes",
                self.limits.bytes,
                f"its open calls and shared memory would need {size} bytes more than the limit allows",
                "Wait for answers before sending more calls, or send smaller tensors",
            )

    def give_back(self, size: int, *, shared: bool = False) -> None:
        with self._lock:
            if shared:
                self.shared_bytes -= size
            else:
                self.in_flight_bytes -= size

    def hold_kv(self, size: int) -> None:
        """Count memory of a generator's KV cache. Raise `Busy` if this exceeds the limit."""
        with self._lock:
            full = size > 0 and self.kv_bytes + size > self.limits.kv_bytes
            self.kv_bytes += 0 if full else size
        if full:
            self.meter.refused()
            raise busy(
                "kv_bytes",
                self.limits.kv_bytes,
                f"the KV caches of its generators would need {size} bytes more than the limit allows",
                "Close generators that are no longer needed",
            )

    @property
    def kv_room(self) -> int:
        """Bytes that the client may still use for KV caches."""
        with self._lock:
            return self.limits.kv_bytes - self.kv_bytes

    def drop_kv(self, size: int) -> None:
        with self._lock:
            self.kv_bytes -= size

    def reuse(self, tokens: int) -> None:
        """Count a prompt that reused this many tokens in its generator's KV cache."""
        if tokens:
            with self._lock:
                self.reused_prefixes += 1
                self.reused_tokens += tokens

    def release_with(self, memory: Any, size: int, *, shared: bool = False) -> None:
        """Stop counting this amount when the memory is freed."""
        # `deque.append` is safe in a finalizer, which may run while the same thread holds the account's lock.
        weakref.finalize(memory, self._freed.append, (size, shared)).atexit = False

    def settle(self) -> None:
        """Stop counting freed memory. Finalizers must not acquire the lock, so they only append to a queue."""
        while self._freed:
            size, shared = self._freed.popleft()
            self.give_back(size, shared=shared)
