"""Damage streams of golden frames: change their bytes, or the tree of their header.

After most changes sizes and checksum are corrected, because otherwise every frame would be refused at once.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import msgpack

from qnnbridge_protocol.frames import PREFIX, PREFIX_BYTES, aligned

MAX_SEED_FRAMES = 3
NUMBERS = [
    0,
    1,
    2,
    7,
    8,
    16,
    63,
    64,
    65,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
]
LEAVES: list[Any] = [
    *NUMBERS,
    *(-number for number in NUMBERS if number <= 2**63),
    *(None, True, False, 0.5, float("nan"), float("inf"), "", "t", "q", "d", "m", "r", "v", "x", "n", "coo", "csr"),
    *("\0", "ü", "x" * 300, b"", b"\xff", [], {}, [0], [[]], {"a": {}}, ["t", 1, [0], 0], ["n"]),
]


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Return a stream of a few frames, some of them damaged."""
    frames = [rng.choice(seeds) for _ in range(rng.randint(1, MAX_SEED_FRAMES))]
    at = rng.randrange(len(frames))
    frames[at] = damaged(frames[at], rng)
    stream = b"".join(frames)
    if rng.random() < 0.1:
        stream = _changed_bytes(stream, rng)
    return stream[: rng.randrange(len(stream) + 1)] if rng.random() < 0.1 else stream


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """Return a frame with a changed header or changed bytes, in most cases with corrected sizes and checksum."""
    frame = _changed_header(frame, rng) if rng.random() < 0.6 else _changed_bytes(frame, rng)
    return _repaired(frame) if rng.random() < 0.8 else frame


def _changed_bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(out) + 1)
        size = rng.choice([1, 1, 2, 4, 8, 64])
        action = rng.randrange(5)
        if action == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif action == 1:
            out[at : at + size] = rng.randbytes(size)
        elif action == 2:
            del out[at : at + size]
        elif action == 3:
            out[at:at] = out[rng.randrange(len(out) + 1) :][:size]
        else:
            raw = struct.pack("<Q", rng.choice(NUMBERS))[: min(size, 8)]
            out[at : at + len(raw)] = raw
    return bytes(out)


def _changed_header(frame: bytes, rng: random.Random) -> bytes:
    header_bytes = PREFIX.unpack_from(frame)[5]
    end = PREFIX_BYTES + header_bytes
    header = msgpack.unpackb(frame[PREFIX_BYTES:end], strict_map_key=False)
    places: list[tuple[Any, Any]] = []
    _collect(header, places)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if places:
            container, key = rng.choice(places)
            _change(container, key, places, rng)
    packed: bytes = msgpack.packb(header)
    # Keep the distance of the buffers from the start of the frame.
    body = frame[aligned(end) :] if PREFIX.unpack_from(frame)[6] else b""
    padding = bytes(aligned(PREFIX_BYTES + len(packed)) - PREFIX_BYTES - len(packed)) if body else b""
    return _with_header_size(frame[:PREFIX_BYTES], len(packed)) + packed + padding + body


def _collect(node: Any, places: list[tuple[Any, Any]]) -> None:
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        places.append((node, key))
        if isinstance(node[key], (dict, list)):
            _collect(node[key], places)


def _change(container: Any, key: Any, places: list[tuple[Any, Any]], rng: random.Random) -> None:
    try:
        old = container[key]
        action = rng.randrange(6)
        if action == 0:
            del container[key]
        elif action == 1 and isinstance(container, list):
            container.insert(key, rng.choice(LEAVES))
        elif action == 2:
            other, place = rng.choice(places)
            container[key], other[place] = other[place], old
        elif action == 3 and type(old) is int:
            container[key] = max(-(2**63), min(2**64 - 1, old + rng.choice([-1, 1, 64])))
        elif action == 4:
            container[key] = [old]
        else:
            container[key] = rng.choice(LEAVES)
        msgpack.packb(container)  # an exchange may have created a cycle
    except (IndexError, KeyError, ValueError, RecursionError):
        container.clear()


def _with_header_size(prefix: bytes, size: int) -> bytes:
    return prefix[:16] + struct.pack("<I", size) + prefix[20:]


def _repaired(frame: bytes) -> bytes:
    """Return the checksum for the current prefix and header."""
    if len(frame) < PREFIX_BYTES:
        return frame
    header = frame[PREFIX_BYTES : PREFIX_BYTES + PREFIX.unpack_from(frame)[5]]
    crc = zlib.crc32(header, zlib.crc32(frame[:32]))
    return frame[:32] + struct.pack("<I", crc) + frame[36:]
