"""Limits for messages. Each side announces its limits in HELLO; the smaller limit applies.

Every number in a message is checked before memory is allocated.
"""

from __future__ import annotations

from collections.abc import Mapping

from qnnbridge_protocol.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1024 * 1024

# A HELLO contains versions and features; 64 KiB is a hundred times the size it needs.
MAX_HELLO_BYTES = 64 * 1024

# Maximum length of text that site hooks and banners may print before the host's HELLO.
MAX_PREAMBLE_BYTES = 64 * 1024

# Smallest `max_header` that a peer may set. It is sufficient for an error with cause and fix, a phase with a
# model's name, and every message about the connection itself.
MIN_HEADER_BYTES = 4096

# Maximum total size of a model's metadata strings in UTF-8: a quarter of the limit of a header.
MAX_METADATA_BYTES = 256 * 1024

# Maximum nesting of a header. A sequence of maps of optionals needs 6 levels.
MAX_DEPTH = 16

# Number of bytes of a broken stream that are kept as evidence.
EVIDENCE_BYTES = 256


class Limits(NamedTuple):
    """Limits of one side.

    Attributes:
        max_header: bytes of a msgpack header. Ten thousand tensors are described in less than 1 MiB, and unpacking
            1 MiB of the worst possible header takes under a second and 100 MB.
        max_buffers: number of buffers of one message.
        max_body: bytes of all buffers of one message, including padding.
        max_in_flight: number of requests on one connection that wait for their replies.
    """

    max_header: int = 1 * MIB
    max_buffers: int = 16_384
    max_body: int = 2048 * MIB
    max_in_flight: int = 64

    def common(self, other: Limits) -> Limits:
        """Return limits that satisfy both sides."""
        # For each field, take the smaller limit.
        return Limits(*map(min, self, other))

    def to_wire(self) -> dict[str, int]:
        return self._asdict()

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Limits:
        """Convert the limits of a peer. Ignore unknown limits; for a missing limit use this side's limit."""
        given = {k: v for k, v in data.items() if k in cls._fields}
        if any(type(v) is not int or v < 1 for v in given.values()):
            raise ValueError(f"limits must be positive integers, got {given!r}")
        return cls(**given)


def fitting(texts: Mapping[str, str], most: int = MAX_METADATA_BYTES) -> dict[str, str]:
    """Return the strings of a model that fit into one message, in their order. The longest strings are omitted."""
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
