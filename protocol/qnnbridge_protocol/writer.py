"""Frames to bytes: the mirror of `reader.py`. No copy of a buffer is made."""

from __future__ import annotations

from qnnbridge_protocol import header as headers
from qnnbridge_protocol.errors import TooLarge
from qnnbridge_protocol.frames import HELLO_KINDS, PREFIX_BYTES, Frame, aligned, pack_prefix
from qnnbridge_protocol.limits import MAX_HELLO_BYTES, Limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ZEROS = bytes(64)


def write_frame(frame: Frame, limits: Limits) -> list[memoryview]:
    """The chunks of bytes that make the frame, in order, for a gathering write.

    A frame with buffers gets ``bufs``, the sizes of its buffers in bytes, into its header.
    Raises `TooLarge` if the peer would refuse it.
    """
    fields: dict[str, Any] = frame.header
    views = [memoryview(b).cast("B") if _bytes(b) else memoryview(b"") for b in frame.buffers]
    if views:
        fields = {**fields, "bufs": [v.nbytes for v in views]}
        if len(views) > limits.max_buffers:
            raise TooLarge(
                f"The message has {len(views)} buffers, the other side takes {limits.max_buffers}.",
                fix="Send fewer tensors in one call.",
            )
    header = headers.encode(fields)
    max_header = MAX_HELLO_BYTES if frame.kind in HELLO_KINDS else limits.max_header
    if len(header) > max_header:
        raise headers.too_large("A message header", len(header), max_header)
    body = 0
    for view in views:
        body = aligned(body) + view.nbytes
    if body > limits.max_body:
        raise headers.too_large("A message body", body, limits.max_body)
    head = pack_prefix(frame.kind, frame.request_id, header, len(views), body) + header
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


__all__ = ["PREFIX_BYTES", "write_frame"]
