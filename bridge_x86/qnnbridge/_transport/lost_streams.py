"""Why a connection whose process may be well is of no use any more, in words. Pure functions."""

from __future__ import annotations

from qnnbridge_protocol.errors import HostHung, ProtocolDesync


def stalled(verb: str, seconds: float) -> HostHung:
    return HostHung(
        f"The host stopped in the middle of a message: it did not {verb} a byte for {seconds:g} s.",
        cause="The host process is stopped (debugger, SIGSTOP, suspended) or the machine is out of memory.",
        fix="Nothing to do: the host is ended and started again with the next call.",
    )


def interrupted() -> ProtocolDesync:
    return ProtocolDesync(
        "The place in the stream was lost because Ctrl+C struck while a message was taken apart.",
        fix="Nothing to do: the host is started again with the next call.",
    )
