"""The profile of a session that outlives hosts: in which of them it began, and whether it has been ended.

Belongs to one `RemoteSession`. A profile lives in the host that records it; if that is gone, the loss is told once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from qnnbridge_protocol.errors import StateLost
from qnnbridge_protocol.specs import SessionSpec

PROFILING = "enable_profiling"


class SessionProfile:
    """See the module. Any thread."""

    def __init__(self) -> None:
        self._begun_in: int | None = None
        """The generation in which the profile began that `end` is to end."""
        self._ended = False

    def to_make(self, spec: SessionSpec) -> SessionSpec:
        """What the session is made from this time: a profile that has been ended is not begun again."""
        if not self._ended:
            return spec
        return dataclasses.replace(spec, options={k: v for k, v in spec.options.items() if k != PROFILING})

    def made(self, spec: SessionSpec, generation: int) -> None:
        """The session was made from it there."""
        if self._begun_in is None and spec.options.get(PROFILING):
            self._begun_in = generation

    def end(self, ask: Callable[[int | None], str], running: int | None, made_in: Callable[[], int]) -> str:
        """The profile's file, empty if there is none. Raises `StateLost`, once, if a host took it along.

        ask: the host of the generation that has it, or any. running: the generation that there is. made_in: the one
        in which the session was made last.
        """
        begun_in = self._begun_in
        if begun_in is None:
            return "" if self._ended else ask(None)
        try:
            if running != begun_in:
                raise profile_lost()
            file = ask(begun_in)
        except StateLost:
            # What has been recorded since, if anything, is for the next call.
            self._begun_in = made_in() if made_in() > begun_in else None
            raise
        self._begun_in, self._ended = None, True
        return file


def profile_lost() -> StateLost:
    return StateLost(
        "The profile is lost: the host in which it was recorded has been replaced.",
        cause="The host died, or was restarted, between the creation of the session and end_profiling().",
        fix="Run the session again; the next end_profiling() gives what was recorded since the restart.",
    )
