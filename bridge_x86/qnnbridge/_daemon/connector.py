"""The spawner of a `Host` whose process is a daemon: instead of starting one it enters the one that is there.

`reach` does what takes time, within the caller's deadline: find the daemon, start one if that is allowed and there
is none, prove ourselves. It may be called again after `DeadlineExceeded` and goes on where it was. `spawn` hands
out what `reach` found.

Threads: one at a time (the supervisor's start lock).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from qnnbridge._daemon.access import DaemonAccess
from qnnbridge._daemon.enter import Unreachable, enter_daemon
from qnnbridge._daemon.folder import runtime_folder
from qnnbridge._daemon.link import DaemonLink
from qnnbridge._daemon.loss import LostDaemon
from qnnbridge._daemon.start import Starting
from qnnbridge._platform import ChildProcess
from qnnbridge._supervision.restart_policy import RestartPolicy
from qnnbridge_protocol.errors import BridgeError, Closed, DeadlineExceeded, HostStartFailed
from qnnbridge_protocol.hello import DAEMON_FEATURE

if TYPE_CHECKING:
    from qnnbridge._diagnosis.exit_status import ExitStatus

# A daemon that was there is waited for so long where we may not start one: its service manager may.
RECONNECT_TIMEOUT_S: Final = 5.0

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25
# A daemon that said "ready", or that there is another one, and still cannot be entered: the one with the lock was
# leaving. Grows with each try.
_START_AGAIN_S: Final = 0.5

# A caller whose own limit is the one for finding the daemon has set it a moment before we set ours.
_SAME_TIME_S: Final = 0.5


class DaemonConnector:
    """See the module. policy, inquest: what the supervisor needs besides."""

    def __init__(self, access: DaemonAccess) -> None:
        self.policy = ReconnectPolicy()
        self.inquest = LostDaemon()
        self._access = access
        self._ready: DaemonLink | None = None
        self._starting: Starting | None = None
        self._was_there = False
        self._closed = False

    @property
    def features(self) -> frozenset[str]:
        """For our HELLO. Both sides compare their releases if both name this one."""
        return frozenset() if self._access.any_release else frozenset({DAEMON_FEATURE})

    def reach(self, deadline: float | None) -> None:
        """Have a connection for `spawn`. Raises `HostStartFailed`, `VersionMismatch`, `DeadlineExceeded`."""
        if self._ready is not None and self._ready.poll() is None:
            return
        self._drop_ready()
        begin = time.monotonic()
        give_up_at = begin + self._patience_s()
        until = give_up_at if deadline is None else min(deadline, give_up_at)
        pause_s, start_at = _FIRST_PAUSE_S, begin
        start_again_s = _START_AGAIN_S
        while True:
            try:
                # A dialogue has its own limit; one that has begun is not cut short because patience ran out.
                self._ready = enter_daemon(math.inf if deadline is None else deadline)
                self._was_there = True
                self._forget_start()
                return
            except Unreachable as problem:
                why, fix = str(problem), problem.fix
            if self._closed:
                self._forget_start()
                raise Closed("The host was closed.", fix="Call qnnbridge.connect() again.")
            if time.monotonic() >= until:
                raise self._too_late(why, fix, deadline, give_up_at)
            if self._access.start and self._starting is None and time.monotonic() >= start_at:
                self._starting = Starting(self._access.arguments, self._access.python)
            if self._await_start(min(until, time.monotonic() + pause_s)):
                start_at, start_again_s = time.monotonic() + start_again_s, start_again_s * 2
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ChildProcess:
        """See `Spawner`. What is to be run was decided by whoever started the daemon."""
        if self._ready is None:
            self.reach(None)
        assert self._ready is not None
        link, self._ready = self._ready, None
        return link

    def close(self) -> None:
        """The host is being closed, by any thread: who waits in `reach` gives up."""
        self._closed = True

    def _await_start(self, until: float) -> bool:
        """Wait a moment, less if the daemon that was started says something. True if that settles what became of
        it."""
        if self._starting is None:
            time.sleep(max(0.0, until - time.monotonic()))
            return False
        try:
            outcome = self._starting.wait(until)
        except BaseException:
            self._forget_start()
            raise
        if outcome is not None:
            self._starting = None
        return outcome is not None

    def _patience_s(self) -> float:
        if self._access.start:
            return self._access.start_timeout_s
        return min(RECONNECT_TIMEOUT_S, self._access.start_timeout_s) if self._was_there else 0.0

    def _too_late(self, why: str, fix: str | None, deadline: float | None, give_up_at: float) -> BridgeError:
        if deadline is not None and deadline < give_up_at - _SAME_TIME_S:
            return DeadlineExceeded(
                "The time of the call was over before the daemon was reached.",
                cause=f"{why[:1].upper()}{why[1:]}.",
                fix="Give it more time, or connect ahead with qnnbridge.connect().",
                details={"state": "not-started"},
            )
        if self._access.start:
            return HostStartFailed(
                f"The qnnbridge daemon could not be reached within {self._access.start_timeout_s:g} s.",
                cause=f"{why[:1].upper()}{why[1:]}.",
                fix=fix or "See its log: qnnbridge host logs",
                details={"folder": str(runtime_folder())},
            )
        return HostStartFailed(
            "No qnnbridge daemon could be reached.",
            cause=f"{why[:1].upper()}{why[1:]}.",
            fix=fix or "Start one: qnnbridge host start   (qnnbridge.connect(start=True) does it, too).",
            details={"folder": str(runtime_folder())},
        )

    def _drop_ready(self) -> None:
        link, self._ready = self._ready, None
        if link is not None:
            link.close()

    def _forget_start(self) -> None:
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.close()


class ReconnectPolicy(RestartPolicy):
    """When a lost daemon is looked for again: soon, and always. A failure costs a daemon nothing, and what is wrong
    with one (its version, its folder) may be put right while the application runs."""

    def __init__(self) -> None:
        super().__init__(first_delay_s=0.05, max_delay_s=1.0, breaker_deaths=1_000_000)

    def on_death(
        self, status: ExitStatus | None = None, curable: bool = True, error: BridgeError | None = None
    ) -> None:
        super().on_death(status, curable=True, error=error)
