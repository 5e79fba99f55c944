"""Streams of frames for the tests of the wire: bytes of a frame, and a reader that gets pieces as a kernel delivers
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from qnnbridge_protocol.connection import Connection
from qnnbridge_protocol.errors import ProtocolDesync
from qnnbridge_protocol.frames import Frame, FrameReader, write_frame
from qnnbridge_protocol.limits import Limits

MIB = 1024 * 1024


def wire(frame: Frame, limits: Limits | None = None) -> bytes:
    """Return the bytes of a frame."""
    return b"".join(write_frame(frame, limits or Limits()))


def put(
    data: bytes, buffer: Callable[[], memoryview], took: Callable[[int], list[Frame]], sizes: Iterable[int]
) -> Iterator[Frame]:
    """Receive `data` in reads of at most `sizes` bytes; a read is never larger than the buffer that was offered."""
    rest = memoryview(data)
    wanted = iter(sizes)
    while rest.nbytes:
        room = buffer()
        assert room.nbytes, "a reader must always offer room"
        count = min(room.nbytes, rest.nbytes, next(wanted))
        room[:count] = rest[:count]
        rest = rest[count:]
        yield from took(count)


def feed(reader: FrameReader, data: bytes, sizes: Iterable[int] = itertools.repeat(MIB)) -> list[Frame]:
    """Return the frames that `data` completes."""
    return list(put(data, reader.get_buffer, reader.advance, sizes))


def hear(connection: Connection, data: bytes, sizes: Iterable[int] = itertools.repeat(MIB)) -> list[Frame]:
    """Return the frames of `data` that the connection passes on."""
    return list(put(data, connection.get_buffer, connection.received, sizes))


def feed_until_refused(
    reader: FrameReader, data: bytes, sizes: Iterable[int]
) -> tuple[list[Frame], ProtocolDesync | None]:
    """Return the received frames, and the error with which the rest was refused, if any."""
    frames: list[Frame] = []
    try:
        for frame in put(data, reader.get_buffer, reader.advance, sizes):
            frames.append(frame)  # noqa: PERF402 - what came before the error counts
    except ProtocolDesync as error:
        return frames, error
    return frames, None


def plain(frame: Frame) -> tuple[Any, ...]:
    """Return a frame in a form that can be compared."""
    return frame.kind, frame.request_id, frame.header, [bytes(buffer) for buffer in frame.buffers]
