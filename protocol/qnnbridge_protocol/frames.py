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

All numbers are little-endian. The prefix never changes, in no version, so that two strangers can at least find out
each other why they cannot talk. If there are buffers, zero bytes pad the header so that the first buffer starts
at a multiple of 64 from the start of the frame; each further one starts at a multiple of 64 from the first.
"""

from __future__ import annotations

import enum
import struct
import zlib

import msgpack

from qnnbridge_protocol.errors import TooLarge, desync
from qnnbridge_protocol.limits import MAX_DEPTH, MAX_HELLO_BYTES, Limits
from qnnbridge_protocol.records import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# As PNG's: 0x89 shows at once where a stream is treated as 7-bit or as text.
MAGIC = b"\x89NPB"
WIRE_VERSION = 1
ALIGNMENT = 64
PREFIX = struct.Struct("<4sBBHQIIQII")
PREFIX_BYTES = PREFIX.size
_CHECKED_BYTES = 32


class Kind(enum.IntEnum):
    """The kinds of frames. `connection.py` has the rules which side may send which, and when."""

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
    """A prefix whose every number has been checked against the limits."""

    wire_version: int
    kind: Kind
    request_id: int
    header_bytes: int
    buffer_count: int
    body_bytes: int
    crc: int


class Frame(NamedTuple):
    """One message. ``buffers`` are C-contiguous and travel outside of the header."""

    kind: Kind
    request_id: int
    header: dict[str, Any]
    buffers: tuple[Any, ...] = ()


def aligned(offset: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return (offset + ALIGNMENT - 1) & -ALIGNMENT


def pack_prefix(kind: Kind, request_id: int, header: bytes, buffer_count: int, body_bytes: int) -> bytes:
    """The 40 bytes that announce a frame."""
    # Packed once with a checksum of 0 to compute the checksum over the first 32 bytes.
    draft = PREFIX.pack(MAGIC, WIRE_VERSION, kind, 0, request_id, len(header), buffer_count, body_bytes, 0, 0)
    crc = zlib.crc32(header, zlib.crc32(draft[:_CHECKED_BYTES]))
    return draft[:_CHECKED_BYTES] + struct.pack("<II", crc, 0)


def parse_prefix(data: bytes | bytearray | memoryview, limits: Limits) -> Prefix:
    """Check the first 40 bytes of `data`. Raises `ProtocolDesync`; nothing has been allocated by then."""
    magic, version, kind_number, flags, request_id, header_bytes, count, body_bytes, crc, zero = PREFIX.unpack_from(
        data
    )
    if magic != MAGIC:
        raise desync("the stream does not continue with a frame", data)
    kind = _KINDS.get(kind_number)
    if kind is None:
        raise desync(f"frame of unknown kind {kind_number}", data)
    # HELLO of any version is read, so that both can say why they do not fit.
    if version != WIRE_VERSION and kind not in HELLO_KINDS:
        raise desync(f"frame of wire version {version}, agreed was {WIRE_VERSION}", data)
    if flags or zero:
        raise desync(f"flags {flags:#x} and reserved bytes {zero:#x} must be zero", data)
    max_header = MAX_HELLO_BYTES if kind in HELLO_KINDS else limits.max_header
    if header_bytes > max_header:
        raise desync(f"header of {header_bytes} bytes, allowed are {max_header}", data)
    if kind in HELLO_KINDS and (count or request_id):
        raise desync("a HELLO has no buffers and no request id", data)
    if count > limits.max_buffers:
        raise desync(f"{count} buffers, allowed are {limits.max_buffers}", data)
    if body_bytes > limits.max_body:
        raise desync(f"body of {body_bytes} bytes, allowed are {limits.max_body}", data)
    # Bytes that belong to no buffer would have nowhere to go.
    if body_bytes and not count:
        raise desync(f"body of {body_bytes} bytes without a buffer", data)
    return Prefix(version, kind, request_id, header_bytes, count, body_bytes, crc)


def check_crc(prefix: bytes | bytearray | memoryview, header: bytes | bytearray | memoryview, crc: int) -> None:
    """Raises `ProtocolDesync` if prefix and header are not what was written."""
    if zlib.crc32(header, zlib.crc32(bytes(prefix[:_CHECKED_BYTES]))) != crc:
        raise desync("checksum of prefix and header is wrong", prefix)


# --- the header ------------------------------------------------------------------------------------------
# One msgpack map, strictly: no extension types, no timestamps, no duplicate keys, text keys only, bounded depth.
# Never pickle.

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def encode_header(header: dict[str, Any]) -> bytes:
    """The header as bytes. Raises `TypeError` for what msgpack cannot carry: a bug on this side."""
    packed: bytes = msgpack.packb(header, use_bin_type=True, strict_types=False)
    return packed


def decode_header(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The header that `data` holds. Raises `ProtocolDesync` for anything that `encode_header` does not make."""
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
        # UnicodeDecodeError and msgpack's own errors are ValueErrors.
        raise desync(f"the header is not valid ({type(error).__name__}: {error})", bytes(data[:256])) from None
    if type(header) is not dict:
        raise desync(f"the header is a {type(header).__name__}, not a map", bytes(data[:256]))
    _check_depth(header)
    return header


def too_large(what: str, size: int, limit: int) -> TooLarge:
    """The error for a message of our own that the peer would refuse."""
    return TooLarge(
        f"{what} of {size} bytes is over the limit of {limit}; nothing was sent.",
        fix="Split the batch, or raise the limit on both sides (`Host(limits=...)`).",
        details={"size": size, "limit": limit},
    )


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("duplicate key")
    "".join(out)  # TypeError for a key of bytes, which msgpack's strict_map_key lets through
    return out


def _refuse_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _check_depth(header: dict[str, Any]) -> None:
    level: list[Any] = [header]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            for child in node.values() if type(node) is dict else node:
                kind = type(child)
                if kind is list or kind is dict:
                    below.append(child)
                elif kind not in _PLAIN:
                    raise desync(f"the header holds a {kind.__name__}")
        if not below:
            return
        level = below
    raise desync(f"the header is nested deeper than {MAX_DEPTH}")
