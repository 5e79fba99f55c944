"""gzip and deflate of bodies, never to more bytes than allowed. Pure; called in worker threads."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Final

from qnnbridge_tools.serve.refusals import Refused, bad_request

_STEP_BYTES: Final = 1024**2
_FEED_BYTES: Final = 64 * 1024
"""Of the packed body at a time: what lies behind the end of a member is copied."""
_FEW_MEMBERS: Final = 16
_MEMBER_BYTES: Final = 1024
"""On average a gzip member is to have so much: to begin one takes longer than to unpack that."""
_EITHER: Final = 32 + zlib.MAX_WBITS  # a gzip or a zlib header; HTTP's "deflate" is zlib's format
_LEVEL: Final = 1  # tensors hardly get smaller with more work


def check_encoding(encoding: str | None) -> str | None:
    """``Content-Encoding``, or ``None`` for a body as it is. Raises `Refused`."""
    found = (encoding or "identity").strip().lower()
    if found == "identity":
        return None
    if found not in ("gzip", "deflate"):
        raise Refused(415, f"Content-Encoding {found[:40]!r} is not known; gzip and deflate are.")
    return found


def unpack(data: memoryview, most: int, take: Callable[[int], None]) -> bytes:
    """The body of which `data` is the compressed form. take: called with the size of each part as it is made."""
    parts: list[bytes] = []
    total = at = members = 0
    unpacker = None
    rest: bytes | memoryview = b""
    while rest or at < len(data) or unpacker is not None:
        if not rest:
            rest = data[at : at + _FEED_BYTES]
            at += len(rest)
        if unpacker is None:  # gzip may have several members
            unpacker = zlib.decompressobj(_EITHER)
            members += 1
            if members > _FEW_MEMBERS + len(data) // _MEMBER_BYTES:
                raise bad_request("The body cannot be unpacked: it is in too many pieces.")
        try:
            part = unpacker.decompress(rest, _STEP_BYTES)
        except zlib.error as error:
            raise bad_request(f"The body cannot be unpacked: {error}.") from None
        if not part and not rest and not unpacker.eof:
            raise bad_request("The body cannot be unpacked: its end is missing.")
        rest = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        total += len(part)
        if total > most:
            raise Refused(413, f"The body, unpacked, has more than {most} bytes.")
        take(len(part))
        parts.append(part)
        if unpacker.eof:
            unpacker = None
    return b"".join(parts)


def wanted_encoding(accept: str | None) -> str | None:
    """How to send the answer: packed only for a client that asks for one way and for nothing else.

    Libraries accept gzip in every request, and packing floats takes more time than sending them.
    """
    found = (accept or "").strip().lower()
    return found if found in ("gzip", "deflate") else None


def pack(data: bytes, encoding: str) -> bytes:
    return gzip.compress(data, _LEVEL, mtime=0) if encoding == "gzip" else zlib.compress(data, _LEVEL)
