"""Fast channels: pairs of one-way streams for repeated calls, in addition to the connection.

A channel transfers one call at a time. A message is a head of 32 bytes and an optional tail::

    offset size  field
    0      4     magic 89 4E 50 4C
    4      1     kind
    5      1     phase (in PHASE only, else 0)
    6      2     zero
    8      4     number of the call on this channel: 1, 2, 3 ... (after 2**32 - 1 comes 1 again)
    12     4     plan (in CALL, else 0)
    16     8     bytes of the tail
    24     8     zero

All numbers are little-endian. A plan describes the inputs and outputs of a repeated call and their places in shared
memory. The tail of ASK, ANSWER, ERROR and VALUES is one frame as on the connection (REQUEST, REPLY, ERROR, REPLY),
so that these rare messages follow the strict rules of frames. The other messages have no tail.

Pure functions and constants; thread-safe.
"""

from __future__ import annotations

import enum
import struct

from qnnbridge_protocol.errors import desync
from qnnbridge_protocol.frames import ALIGNMENT, Frame, FrameReader, aligned, write_frame
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.records import NamedTuple

CHANNEL_MAGIC = b"\x89NPL"
HEAD = struct.Struct("<4sBBHIIQQ")
HEAD_BYTES = HEAD.size
# Indices of the call's number and of the plan in the head, counted in units of four bytes.
NUMBER_AT, PLAN_AT = 2, 3
LAST_NUMBER = 2**32 - 1

# Maximum number of channels of one connection, including the channels of abandoned calls.
MAX_CHANNELS = 64

# Maximum number of plans of one channel: twice as many as the client keeps (`qnnbridge._fastpath.channel`), because
# it may create new plans before it has dropped the old plans.
MAX_PLANS = 256

# Maximum number of blocks of shared memory of one connection.
MAX_SLABS = 4096

# A call's request id is ``channel << 32 | number``. The connection's own ids never get that large. So a CANCEL,
# which is sent over the connection, can refer to a call on any channel.
CALL_SHIFT = 32


class ChannelKind(enum.IntEnum):
    """Kinds of messages on a channel. The client sends CALL, ASK and PING, the host sends all others."""

    CALL = 1
    ASK = 2
    PING = 3
    RESULT = 16
    VALUES = 17
    ANSWER = 18
    ERROR = 19
    PHASE = 20
    PONG = 21


# Phases by their number in a PHASE message and in the phase record.
PHASES = ("", "running", "creating", "compiling")

FROM_CLIENT = frozenset((ChannelKind.CALL, ChannelKind.ASK, ChannelKind.PING))
_KINDS = {int(kind): kind for kind in ChannelKind}


class Head(NamedTuple):
    """A head with all fields checked."""

    kind: ChannelKind
    phase: int
    number: int
    plan: int
    tail_bytes: int


def pack_head(kind: ChannelKind, number: int, plan: int = 0, tail_bytes: int = 0, phase: int = 0) -> bytes:
    return HEAD.pack(CHANNEL_MAGIC, kind, phase, 0, number, plan, tail_bytes, 0)


def parse_head(data: bytes | bytearray | memoryview, limits: Limits, *, from_client: bool) -> Head:
    """Parse and check a head. Raise `ProtocolDesync`."""
    magic, kind_number, phase, zero, number, plan, tail_bytes, zeros = HEAD.unpack_from(data)
    if magic != CHANNEL_MAGIC:
        raise desync("the next bytes on a channel are not the head of a message", data)
    kind = _KINDS.get(kind_number)
    if kind is None or (kind in FROM_CLIENT) is not from_client:
        raise desync(f"kind {kind_number} is not allowed on a channel in this direction", data)
    if zero or zeros or not number or (phase and kind is not ChannelKind.PHASE) or phase >= len(PHASES):
        raise desync("reserved bytes of a channel's head are not zero, or the number of the call is zero", data)
    # A tail contains one frame. The frame's prefix and the padding after its header are less than two alignments.
    most = limits.max_body + limits.max_header + 2 * ALIGNMENT
    if tail_bytes > most:
        raise desync(f"the tail has {tail_bytes} bytes; the limit is {most}", data)
    if tail_bytes and kind in (ChannelKind.PING, ChannelKind.PONG, ChannelKind.PHASE):
        raise desync(f"a {kind.name} must not have a tail, but has {tail_bytes} bytes", data)
    return Head(kind, phase, number, plan, tail_bytes)


def tail_of(frame: Frame, limits: Limits) -> tuple[list[memoryview], int]:
    """Return a frame as the chunks of a tail, and the size of the tail. Raise `TooLarge`."""
    chunks = write_frame(frame, limits)
    return chunks, sum(chunk.nbytes for chunk in chunks)


class TailReader:
    """Reads a tail that contains a frame: fill `buffer`, pass the count to `received`, and repeat until `frame`
    is set."""

    def __init__(self, tail_bytes: int, limits: Limits) -> None:
        self._left = tail_bytes
        self._reader = FrameReader(limits)
        self.frame: Frame | None = None

    def buffer(self) -> memoryview:
        """Return memory for the next bytes, never beyond the tail."""
        # Limit the buffer to the tail's end: bytes of the next message must not become part of this message.
        return self._reader.get_buffer()[: self._left]

    def received(self, count: int) -> None:
        """Process `count` bytes. Raise `ProtocolDesync` if the tail is not exactly one frame."""
        self._left -= count
        frames = self._reader.advance(count)
        if frames:
            self.frame = frames[0]
        if (self.frame is not None) is not (self._left == 0) or len(frames) > 1:
            raise desync("the tail on a channel is not one frame")


def layout(sizes: list[int]) -> tuple[list[int], int]:
    """Return the offsets of tensors of these sizes in a block of shared memory (multiples of 64), and the total
    size."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = aligned(end + size)
    return offsets, end


def next_number(number: int) -> int:
    """Return the number of the next call on a channel."""
    return 1 if number >= LAST_NUMBER else number + 1


def comes_after(number: int, other: int) -> bool:
    """Return whether call `number` comes after call `other` on a channel. The numbers wrap around."""
    # Like TCP's sequence numbers: a call comes after another if the distance forwards is shorter than backwards.
    return 0 < (number - other) % LAST_NUMBER <= LAST_NUMBER // 2


def call_id(channel: int, number: int) -> int:
    """Return the request id that a CANCEL uses for a call on a channel."""
    return channel << CALL_SHIFT | number


# Record in the block of shared memory for phases: number of the call, and the phase that the host has entered. A
# channel's record has the offset 64 * slot.
PHASE_RECORD = struct.Struct("<IB")
PHASE_WORD = 1

# One cache line per channel, so that two channels that write their phase do not slow each other down.
PHASE_RECORD_BYTES = 64
# Size of the block of shared memory for phases: enough for the records of `MAX_CHANNELS` channels, with a reserve.
PHASE_SLAB_BYTES = 8192
