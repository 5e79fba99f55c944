"""Frames to bytes (`write_frame`) and bytes to frames (`FrameReader`).

Writing copies no buffer. The reader says where the next bytes belong (`get_buffer`); `advance` says how many came.
It reads a small frame whole into a staging buffer. It receives a large tensor straight into an array of its own, so
the kernel makes the only copy.

Order of work on every frame: prefix, check of all its numbers, header, check of its sizes against the prefix, and
only then memory for the body.
"""

from __future__ import annotations

from collections.abc import Iterator

from qnnbridge_protocol.errors import TooLarge, desync
from qnnbridge_protocol.frames import (
    HELLO_KINDS,
    MAGIC,
    PREFIX_BYTES,
    WIRE_VERSION,
    Frame,
    Prefix,
    aligned,
    check_crc,
    decode_header,
    encode_header,
    pack_prefix,
    parse_prefix,
    too_large,
)
from qnnbridge_protocol.limits import MAX_HELLO_BYTES, MAX_PREAMBLE_BYTES, Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.uint8]


_ZEROS = bytes(64)


def write_frame(frame: Frame, limits: Limits) -> list[memoryview]:
    """The chunks of bytes that make the frame, in order, for a gathering write.

    A frame with buffers gets ``bufs``, the sizes of its buffers in bytes, into its header.
    Raises `TooLarge` if the peer would refuse it.
    """
    fields: dict[str, Any] = frame.header
    # `cast` refuses views with a zero in their shape.
    views = [memoryview(b).cast("B") if _bytes(b) else memoryview(b"") for b in frame.buffers]
    if views:
        fields = {**fields, "bufs": [v.nbytes for v in views]}
        if len(views) > limits.max_buffers:
            raise TooLarge(
                f"The message has {len(views)} buffers, the other side takes {limits.max_buffers}.",
                fix="Send fewer tensors in one call.",
            )
    header = encode_header(fields)
    max_header = MAX_HELLO_BYTES if frame.kind in HELLO_KINDS else limits.max_header
    if len(header) > max_header:
        raise too_large("A message header", len(header), max_header)
    body = 0
    for view in views:
        # Each buffer begins at a multiple of 64, so that a received tensor can be used where it lies.
        body = aligned(body) + view.nbytes
    if body > limits.max_body:
        raise too_large("A message body", body, limits.max_body)
    head = pack_prefix(frame.kind, frame.request_id, header, len(views), body) + header
    # Most frames: one write of a few hundred bytes.
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


# One read of this size takes a frame with a few small tensors whole.
STAGING_BYTES = 16 * 1024

# A buffer from this size on gets memory of its own; smaller neighbours share a block.
OWN_ARRAY_BYTES = 64 * 1024


def _empty(size: int) -> Array:
    # Imported with the first tensor: HELLO is answered before numpy's 40 ms.
    import numpy as np

    return np.empty(size, np.uint8)


class FrameReader:
    """Not thread-safe: one thread at a time reads a connection."""

    def __init__(self, limits: Limits, *, allow_preamble: bool = False) -> None:
        self.limits = limits
        # Stray text that came before the first frame.
        self.preamble = b""
        # Wire version of the last HELLO.
        self.hello_version = WIRE_VERSION
        self._preamble_allowed = allow_preamble
        self._staging = bytearray(STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = 0
        self._end = 0
        self._prefix: Prefix | None = None
        # Kept for the checksum, which covers prefix and header.
        self._prefix_raw = b""
        self._header: bytearray | None = None
        self._header_filled = 0
        self._fields: dict[str, Any] = {}
        self._skip = 0
        self._body: _Body | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether the stream may not end here."""
        return self._prefix is not None or self._end > self._start

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the stream belong. Never empty."""
        # Everything staged is used up: the kernel writes the rest of the body where it belongs.
        if self._body is not None and self._start == self._end and not self._skip:
            return self._body.target()
        if self._start == self._end:
            self._start = self._end = 0
        # Full, with an unread rest: it is moved to the front. `bytes` first, since the two areas may overlap.
        elif self._end == STAGING_BYTES:
            rest = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, len(rest)
            self._view[: self._end] = rest
        return self._view[self._end :]

    def advance(self, count: int) -> list[Frame]:
        """`count` bytes were put into the last buffer: the frames that are complete now.

        Raises `ProtocolDesync`; the reader cannot be used afterwards.
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
        # A copy: the staging buffer is filled again while the header is still to come.
        self._prefix_raw = bytes(self._view[self._start : self._start + PREFIX_BYTES])
        self._prefix = prefix = parse_prefix(self._view[self._start : self._end], self.limits)
        if prefix.kind in HELLO_KINDS:
            self.hello_version = prefix.wire_version
        self._start += PREFIX_BYTES
        self._header = None
        return True

    def _check_magic(self, available: int) -> None:
        # Text shorter than a prefix would otherwise be waited upon for ever.
        head = bytes(self._view[self._start : self._start + min(available, len(MAGIC))])
        if not MAGIC.startswith(head):
            raise desync("the stream does not continue with a frame", self._view[self._start : self._end])

    def _drop_preamble(self) -> None:
        data = bytes(self._view[self._start : self._end])
        # A host's interpreter may print before HELLO (site hooks, banners). The first byte of the magic is
        # not ASCII.
        found = data.find(MAGIC)
        if found < 0:
            # The magic may be cut at the end of what came so far.
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
        # A header may be larger than the staging buffer and arrive in pieces.
        wanted = prefix.header_bytes - self._header_filled
        taken = min(wanted, self._end - self._start)
        if taken:
            at = self._header_filled
            self._header[at : at + taken] = self._view[self._start : self._start + taken]
            self._start += taken
            self._header_filled += taken
        if taken < wanted:
            return False
        # Before msgpack sees the header: what was damaged on the way is never interpreted.
        check_crc(self._prefix_raw, self._header, prefix.crc)
        self._fields = decode_header(self._header)
        self._body = _Body(_sizes(self._fields, prefix))
        if prefix.buffer_count:
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
    """The memory of one frame's buffers, and how far it is filled."""

    def __init__(self, sizes: list[int]) -> None:
        blocks: list[Array] = []
        buffers: list[Array] = []
        run: list[tuple[int, int]] = []  # (offset in block, size) of small neighbours
        run_bytes = 0
        for size in sizes:
            # A large tensor gets memory of its own, so that it is freed alone; small neighbours live and die
            # together.
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
        """The blocks, last first, with scratch for the padding between them."""
        targets: list[memoryview] = []
        for index, block in enumerate(blocks):
            if block.nbytes:
                targets.append(block.data)
            gap = aligned(block.nbytes) - block.nbytes
            if gap and index + 1 < len(blocks):
                # Padding has to be read as well; it is thrown away.
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


def _sizes(fields: dict[str, Any], prefix: Prefix) -> list[int]:
    """Buffer sizes from the header, held against the prefix. Takes ``bufs`` out of `fields`."""
    sizes = fields.pop("bufs", [])
    if type(sizes) is not list or len(sizes) != prefix.buffer_count:
        raise desync(f"the header describes other than the {prefix.buffer_count} buffers of the prefix")
    body = 0
    for size in sizes:
        # `type`, not isinstance: msgpack's true would be a size of 1.
        if type(size) is not int or size < 0 or size > prefix.body_bytes:
            raise desync(f"buffer of {size!r} bytes in a body of {prefix.body_bytes}")
        body = aligned(body) + size
    if body != prefix.body_bytes:
        raise desync(f"buffers of {body} bytes in a body of {prefix.body_bytes}")
    return sizes


__all__ = ["PREFIX_BYTES", "write_frame"]
