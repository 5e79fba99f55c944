"""The frame: a prefix of 40 bytes, a msgpack header, raw buffers.

::

    offset size  field
    0      4     magic 89 4E 50 42; the first byte is not ASCII, so printed text can never look like a frame
    4      1     wire version
    5      1     kind
    6      2     flags (none are defined in version 1)
    8      8     request id; 0 = the connection itself
    16     4     header bytes
    20     4     buffer count
    24     8     body bytes, with the padding between buffers
    32     4     CRC-32 of prefix[0:32] and header
    36     4     zero

All numbers are little-endian. The prefix is the same in every version, so that two incompatible sides can at least
exchange an error that explains why. If there are buffers, zero bytes pad the header so that the first buffer starts
at a multiple of 64 bytes from the start of the frame. Each further buffer starts at a multiple of 64 bytes from the
first buffer.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterator

import msgpack

from qnnbridge_protocol.errors import TooLarge, desync
from qnnbridge_protocol.limits import MAX_DEPTH, MAX_HELLO_BYTES, MAX_PREAMBLE_BYTES, Limits
from qnnbridge_protocol.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.uint8]


# Like the magic number of PNG: the byte 0x89 reveals a stream that is treated as 7-bit data or as text.
MAGIC = b"\x89NPB"
WIRE_VERSION = 1
ALIGNMENT = 64
PREFIX = struct.Struct("<4sBBHQIIQII")
PREFIX_BYTES = PREFIX.size
_CHECKED_BYTES = 32


class Kind(enum.IntEnum):
    """Kinds of frames. `connection.py` contains the rules about which side may send which kind, and when."""

    HELLO = 1
    HELLO_OK = 2
    HELLO_ERR = 3
    REQUEST = 4
    REPLY = 5
    ERROR = 6
    CANCEL = 7
    PHASE = 8
    EVENT = 9
    PING = 10
    PONG = 11
    GOODBYE = 12
    CALL_BACK = 13
    RETURN = 14


HELLO_KINDS = frozenset((Kind.HELLO, Kind.HELLO_OK, Kind.HELLO_ERR))
_KINDS = {int(kind): kind for kind in Kind}


class Prefix(NamedTuple):
    """A prefix whose numbers have all been checked against the limits of this side."""

    wire_version: int
    kind: Kind
    request_id: int
    header_bytes: int
    buffer_count: int
    body_bytes: int
    crc: int


class Frame(NamedTuple):
    """One message. ``buffers`` are C-contiguous and are sent outside the header."""

    kind: Kind
    request_id: int
    header: dict[str, Any]
    buffers: tuple[Any, ...] = ()


def aligned(offset: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT


def pack_prefix(kind: Kind, request_id: int, header: bytes, buffer_count: int, body_bytes: int) -> bytes:
    """Return the 40 bytes at the start of a frame."""
    # First pack the prefix with a checksum of 0, to compute the checksum from its first 32 bytes.
    draft = PREFIX.pack(MAGIC, WIRE_VERSION, kind, 0, request_id, len(header), buffer_count, body_bytes, 0, 0)
    crc = zlib.crc32(header, zlib.crc32(draft[:_CHECKED_BYTES]))
    return draft[:_CHECKED_BYTES] + struct.pack("<II", crc, 0)


def parse_prefix(data: bytes | bytearray | memoryview, limits: Limits) -> Prefix:
    """Parse and check the first 40 bytes of `data`. Raise `ProtocolDesync` before any memory is allocated for
    the frame."""
    magic, version, kind_number, flags, request_id, header_bytes, count, body_bytes, crc, zero = PREFIX.unpack_from(
        data
    )
    if magic != MAGIC:
        raise desync("the next bytes are not a frame", data)
    kind = _KINDS.get(kind_number)
    if kind is None:
        raise desync(f"the frame has the unknown kind {kind_number}", data)
    # Accept a HELLO of any version, so that both sides can report why they are incompatible.
    if version != WIRE_VERSION and kind not in HELLO_KINDS:
        raise desync(f"the frame has wire version {version}, not the agreed version {WIRE_VERSION}", data)
    if flags or zero:
        raise desync(f"flags {flags:#x} and reserved bytes {zero:#x} must be zero", data)
    max_header = MAX_HELLO_BYTES if kind in HELLO_KINDS else limits.max_header
    if header_bytes > max_header:
        raise desync(f"the header has {header_bytes} bytes; the limit is {max_header}", data)
    if kind in HELLO_KINDS and (count or request_id):
        raise desync("a HELLO has no buffers and no request id", data)
    if count > limits.max_buffers:
        raise desync(f"the frame has {count} buffers; the limit is {limits.max_buffers}", data)
    if body_bytes > limits.max_body:
        raise desync(f"the body has {body_bytes} bytes; the limit is {limits.max_body}", data)
    # The bytes would not belong to any buffer.
    if body_bytes and not count:
        raise desync(f"the body has {body_bytes} bytes, but the frame has no buffers", data)
    return Prefix(version, kind, request_id, header_bytes, count, body_bytes, crc)


def check_crc(prefix: bytes | bytearray | memoryview, header: bytes | bytearray | memoryview, crc: int) -> None:
    """Raise `ProtocolDesync` if prefix or header were changed on the way."""
    if zlib.crc32(header, zlib.crc32(bytes(prefix[:_CHECKED_BYTES]))) != crc:
        raise desync("the checksum of prefix and header is wrong", prefix)


# --- the header ------------------------------------------------------------------------------------------
# A header is one msgpack map with strict rules: no extension types, no timestamps, no duplicate keys, only string
# keys, limited depth. Pickle is never used.

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def encode_header(header: dict[str, Any]) -> bytes:
    """Return the header as bytes. Raise `TypeError` for a value that msgpack cannot represent, which is a bug of
    this side."""
    packed: bytes = msgpack.packb(header, use_bin_type=True, strict_types=False)
    return packed


def decode_header(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the header in `data`. Raise `ProtocolDesync` for data that `encode_header` cannot have produced."""
    try:
        header = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            use_list=True,
            object_pairs_hook=_unique,
            ext_hook=_refuse_ext,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException, msgpack.StackError) as error:
        # UnicodeDecodeError and msgpack's own errors are subclasses of ValueError.
        raise desync(f"the header is not valid ({type(error).__name__}: {error})", bytes(data[:256])) from None
    if type(header) is not dict:
        raise desync(f"the header is a {type(header).__name__}, not a map", bytes(data[:256]))
    _check_depth(header)
    return header


def too_large(what: str, size: int, limit: int) -> TooLarge:
    """Return the error for a message of this side that exceeds a limit of the peer."""
    return TooLarge(
        f"{what} of {size} bytes is over the limit of {limit}; nothing was sent.",
        fix="Split the batch, or raise the limit on both sides (`Host(limits=...)`).",
        details={"size": size, "limit": limit},
    )


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("duplicate key")
    "".join(out)  # TypeError is raised for a key of type bytes, which msgpack's strict_map_key accepts
    return out


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _check_depth(header: dict[str, Any]) -> None:
    level: list[Any] = [header]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            children = node.values() if type(node) is dict else node
            # One C operation checks most nodes, because they contain neither lists nor maps.
            if _PLAIN.issuperset(map(type, children)):
                continue
            for child in children:
                kind = type(child)
                if kind is list or kind is dict:
                    below.append(child)
                elif kind not in _PLAIN:
                    raise desync(f"the header contains a {kind.__name__}")
        if not below:
            return
        level = below
    raise desync(f"the header is nested deeper than {MAX_DEPTH}")


# --- frames to bytes and back ----------------------------------------------------------------------------
# Writing copies no buffer. The reader provides memory for the next bytes (`get_buffer`); `advance` is called with
# the number of received bytes. A small frame is read completely into a staging buffer. A large tensor is received
# directly into a separate array, so only the kernel copies it. For every frame the reader first checks the prefix,
# then the header and its sizes, and only then allocates memory for the body.

_ZEROS = bytes(64)


def write_frame(frame: Frame, limits: Limits) -> list[memoryview]:
    """Return the chunks of bytes of the frame, in order, for a gathering write.

    Add ``bufs``, the sizes of the buffers in bytes, to the header of a frame with buffers. Raise `TooLarge` if the
    peer would refuse the frame.
    """
    fields: dict[str, Any] = frame.header
    # Use an empty view for an empty buffer: `cast` raises an error if the shape contains a zero.
    views = [memoryview(b).cast("B") if _bytes(b) else memoryview(b"") for b in frame.buffers]
    if views:
        fields = {**fields, "bufs": [v.nbytes for v in views]}
        if len(views) > limits.max_buffers:
            raise TooLarge(
                f"The message has {len(views)} buffers; the other side accepts {limits.max_buffers}.",
                fix="Send fewer tensors in one call.",
            )
    header = encode_header(fields)
    max_header = MAX_HELLO_BYTES if frame.kind in HELLO_KINDS else limits.max_header
    if len(header) > max_header:
        raise too_large("A message header", len(header), max_header)
    body = 0
    for view in views:
        # Each buffer begins at a multiple of 64, so that a received tensor can be used without a copy.
        body = aligned(body) + view.nbytes
    if body > limits.max_body:
        raise too_large("A message body", body, limits.max_body)
    head = pack_prefix(frame.kind, frame.request_id, header, len(views), body) + header
    # Join the chunks: most frames are a few hundred bytes, which one write can send.
    if not views:
        return [memoryview(head)]
    chunks = [memoryview(head + _ZEROS[: aligned(len(head)) - len(head)])]
    offset = 0
    for view in views:
        if gap := aligned(offset) - offset:
            chunks.append(memoryview(_ZEROS)[:gap])
        if view.nbytes:
            chunks.append(view)
        offset = aligned(offset) + view.nbytes
    return chunks


def _bytes(buffer: Any) -> int:
    return memoryview(buffer).nbytes


# Size of a read: large enough for a complete frame with a few small tensors.
STAGING_BYTES = 16 * 1024

# Buffers of at least this size get separate memory; consecutive smaller buffers share a block.
OWN_ARRAY_BYTES = 64 * 1024


def _empty(size: int) -> Array:
    # Import numpy with the first tensor: the import takes 40 ms, which must not delay HELLO.
    import numpy as np

    return np.empty(size, np.uint8)


class FrameReader:
    """Read the frames of a connection. Not thread-safe."""

    def __init__(self, limits: Limits, *, allow_preamble: bool = False) -> None:
        self.limits = limits
        # Text that was printed before the first frame.
        self.preamble = b""
        # Wire version of the last HELLO.
        self.hello_version = WIRE_VERSION
        self._preamble_allowed = allow_preamble
        self._staging = bytearray(STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = 0
        self._end = 0
        self._prefix: Prefix | None = None
        # The prefix's bytes, kept until the checksum over prefix and header has been checked.
        self._prefix_raw = b""
        self._header: bytearray | None = None
        self._header_filled = 0
        self._fields: dict[str, Any] = {}
        self._skip = 0
        self._body: _Body | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether a frame is incomplete, so that the stream must not end here."""
        return self._prefix is not None or self._end > self._start

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes of the stream. It is never empty."""
        # All staged bytes are consumed: the kernel writes the rest of the body directly to its memory.
        if self._body is not None and self._start == self._end and not self._skip:
            return self._body.target()
        if self._start == self._end:
            self._start = self._end = 0
        # If the buffer is full and contains unprocessed bytes, move them to the front. Convert to `bytes` first,
        # since source and target may overlap.
        elif self._end == STAGING_BYTES:
            rest = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, len(rest)
            self._view[: self._end] = rest
        return self._view[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """Process `count` bytes in the buffer of the last `get_buffer` call. Return the frames that are complete
        now.

        Raise `ProtocolDesync` for invalid data; the reader cannot be used afterwards.
        """
        if self._body is not None and self._start == self._end and not self._skip:
            self._body.filled(count)
            if not self._body.complete:
                return []
        else:
            self._end += count
        return list(self._frames())

    def _frames(self) -> Iterator[Frame]:
        while True:
            if self._prefix is None and not self._take_prefix():
                return
            if self._body is None and not self._take_header():
                return
            if not self._take_body():
                return
            assert self._prefix is not None
            assert self._body is not None
            frame = Frame(self._prefix.kind, self._prefix.request_id, self._fields, self._body.buffers)
            self._prefix = self._body = self._header = None
            yield frame

    def _take_prefix(self) -> bool:
        if self._preamble_allowed:
            self._drop_preamble()
        available = self._end - self._start
        if available < PREFIX_BYTES:
            if available and not self._preamble_allowed:
                self._check_magic(available)
            return False
        self._preamble_allowed = False
        # Copy the bytes: the staging buffer is filled again before the header is complete.
        self._prefix_raw = bytes(self._view[self._start : self._start + PREFIX_BYTES])
        self._prefix = prefix = parse_prefix(self._view[self._start : self._end], self.limits)
        if prefix.kind in HELLO_KINDS:
            self.hello_version = prefix.wire_version
        self._start += PREFIX_BYTES
        self._header = None
        return True

    def _check_magic(self, available: int) -> None:
        # Check an incomplete prefix, too: if another program prints a text shorter than a prefix, the reader would
        # otherwise wait forever.
        head = bytes(self._view[self._start : self._start + min(available, len(MAGIC))])
        if not MAGIC.startswith(head):
            raise desync("the next bytes are not a frame", self._view[self._start : self._end])

    def _drop_preamble(self) -> None:
        data = bytes(self._view[self._start : self._end])
        # The host's interpreter may print text before HELLO (site hooks, banners). The first byte of the magic is
        # not ASCII, so the end of the text can be found.
        found = data.find(MAGIC)
        if found < 0:
            # The data received so far may end within the magic.
            found = max(0, len(data) - len(MAGIC) + 1)
            while found < len(data) and not MAGIC.startswith(data[found:]):
                found += 1
        self.preamble += data[:found]
        self._start += found
        if len(self.preamble) > MAX_PREAMBLE_BYTES:
            raise desync(f"more than {MAX_PREAMBLE_BYTES} bytes of text before the first frame", self.preamble)

    def _take_header(self) -> bool:
        prefix = self._prefix
        assert prefix is not None
        if self._header is None:
            self._header = bytearray(prefix.header_bytes)
            self._header_filled = 0
        # A header may be larger than the staging buffer and arrive in several reads.
        wanted = prefix.header_bytes - self._header_filled
        taken = min(wanted, self._end - self._start)
        if taken:
            at = self._header_filled
            self._header[at : at + taken] = self._view[self._start : self._start + taken]
            self._start += taken
            self._header_filled += taken
        if taken < wanted:
            return False
        # Check the checksum before msgpack parses the header, so that damaged data is never interpreted.
        check_crc(self._prefix_raw, self._header, prefix.crc)
        self._fields = decode_header(self._header)
        sizes = _sizes(self._fields, prefix)
        self._body = _Body(sizes) if sizes else _NO_BODY
        if sizes:
            head = PREFIX_BYTES + prefix.header_bytes
            self._skip = aligned(head) - head
        return True

    def _take_body(self) -> bool:
        body = self._body
        assert body is not None
        if self._skip:
            taken = min(self._skip, self._end - self._start)
            self._skip -= taken
            self._start += taken
            if self._skip:
                return False
        while not body.complete and self._start < self._end:
            target = body.target()
            taken = min(len(target), self._end - self._start)
            target[:taken] = self._view[self._start : self._start + taken]
            self._start += taken
            body.filled(taken)
        return body.complete


class _Body:
    """Memory for the buffers of one frame, and the number of bytes received so far."""

    def __init__(self, sizes: list[int]) -> None:
        blocks: list[Array] = []
        buffers: list[Array] = []
        run: list[tuple[int, int]] = []  # (offset in the block, size) of consecutive small buffers
        run_bytes = 0
        for size in sizes:
            # A large tensor gets separate memory, so that it can be freed independently; small buffers in a block
            # are freed together.
            if size >= OWN_ARRAY_BYTES:
                self._close_run(run, run_bytes, blocks, buffers)
                run, run_bytes = [], 0
                block = _empty(size)
                blocks.append(block)
                buffers.append(block)
                continue
            offset = aligned(run_bytes)
            run.append((offset, size))
            run_bytes = offset + size
        self._close_run(run, run_bytes, blocks, buffers)
        self.buffers = tuple(buffers)
        self._targets = self._with_gaps(blocks)
        self._filled = 0

    @staticmethod
    def _close_run(run: list[tuple[int, int]], run_bytes: int, blocks: list[Array], buffers: list[Array]) -> None:
        if run:
            block = _empty(run_bytes)
            blocks.append(block)
            buffers.extend(block[at : at + size] for at, size in run)

    @staticmethod
    def _with_gaps(blocks: list[Array]) -> list[memoryview]:
        """Return the blocks in reverse order, with scratch memory for the padding between them."""
        targets: list[memoryview] = []
        for index, block in enumerate(blocks):
            if block.nbytes:
                targets.append(block.data)
            gap = aligned(block.nbytes) - block.nbytes
            if gap and index + 1 < len(blocks):
                # Padding must be read as well, and is discarded.
                targets.append(memoryview(bytearray(gap)))
        return targets[::-1]

    @property
    def complete(self) -> bool:
        return not self._targets

    def target(self) -> memoryview:
        return self._targets[-1][self._filled :]

    def filled(self, count: int) -> None:
        self._filled += count
        if self._filled == len(self._targets[-1]):
            self._targets.pop()
            self._filled = 0


# The body of all frames without buffers. They can share it, because it is never filled.
_NO_BODY = _Body([])


def _sizes(fields: dict[str, Any], prefix: Prefix) -> list[int]:
    """Return the buffer sizes from the header, checked against the prefix. Remove the entry ``bufs`` from
    `fields`."""
    sizes = fields.pop("bufs", [])
    if type(sizes) is not list or len(sizes) != prefix.buffer_count:
        raise desync(
            f"the prefix announces {prefix.buffer_count} buffers, but the header does not contain their sizes"
        )
    body = 0
    for size in sizes:
        # Compare `type` and do not use isinstance: msgpack's true would be a size of 1.
        if type(size) is not int or size < 0 or size > prefix.body_bytes:
            raise desync(f"a buffer of {size!r} bytes does not fit into the body of {prefix.body_bytes} bytes")
        body = aligned(body) + size
    if body != prefix.body_bytes:
        raise desync(f"the buffers have {body} bytes with padding, but the body has {prefix.body_bytes}")
    return sizes
