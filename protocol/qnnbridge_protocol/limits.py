"""The numbers that bound what a peer may send. Both sides announce theirs in HELLO; the smaller one holds.

Every number is checked before anything is allocated for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from qnnbridge_protocol.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1024 * 1024

# A HELLO names versions and features; 64 KiB is a hundred times what it needs.
MAX_HELLO_BYTES = 64 * 1024

# Text that site hooks and banners may print before the host's HELLO.
MAX_PREAMBLE_BYTES = 64 * 1024

# The least that a peer may set as `max_header`: an error with its cause and its fix, a phase with a model's name,
# and all that is said of a connection itself fit into it.
MIN_HEADER_BYTES = 4096

# Of the texts that a model has about itself, in UTF-8: a quarter of what a header may have.
MAX_METADATA_BYTES = 256 * 1024

# Nesting of a header: a sequence of maps of optionals needs 6.
MAX_DEPTH = 16

# How much of a broken stream is kept to show what it was.
EVIDENCE_BYTES = 256


class Limits(NamedTuple):
    """What one side accepts.

    max_header: bytes of a msgpack header. Ten thousand tensors are described in less than 1 MiB, and 1 MiB of the
        worst a hostile peer can think of takes under a second and 100 MB to unpack.
    max_buffers: out-of-band buffers of one message.
    max_body: bytes of all buffers of one message, padding included.
    max_in_flight: requests that wait for their reply on one connection.
    """

    max_header: int = 1 * MIB
    max_buffers: int = 16_384
    max_body: int = 2048 * MIB
    max_in_flight: int = 64

    def common(self, other: Limits) -> Limits:
        """The limits that both sides keep."""
        # Field by field: each side keeps what both can bear.
        return Limits(*map(min, self, other))

    def to_wire(self) -> dict[str, int]:
        return self._asdict()

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Limits:
        """Limits of a peer. A limit that this version does not know is ignored, a missing one is ours."""
        given = {k: v for k, v in data.items() if k in cls._fields}
        if any(type(v) is not int or v < 1 for v in given.values()):
            raise ValueError(f"limits must be positive integers, got {given!r}")
        return cls(**given)


def fitting(texts: Mapping[str, str], most: int = MAX_METADATA_BYTES) -> dict[str, str]:
    """Those of a model's texts that travel together, in their order: all, or the shortest as far as they fit."""
    sizes = {
        name: len(name.encode("utf-8", "replace")) + len(text.encode("utf-8", "replace"))
        for name, text in texts.items()
    }
    kept = set()
    for name in sorted(sizes, key=lambda name: sizes[name]):
        most -= sizes[name]
        if most < 0:
            break
        kept.add(name)
    return {name: text for name, text in texts.items() if name in kept}
