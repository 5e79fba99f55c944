"""The header of a frame: one msgpack map, strictly.

No extension types, no timestamps, no duplicate keys, text keys only, bounded depth. Never pickle.
"""

from __future__ import annotations

import msgpack

from qnnbridge_protocol.errors import TooLarge
from qnnbridge_protocol.frames import desync
from qnnbridge_protocol.limits import MAX_DEPTH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLAIN = frozenset((type(None), bool, int, float, str, bytes))


def encode(header: dict[str, Any]) -> bytes:
    """The header as bytes. Raises `TypeError` for what msgpack cannot carry: a bug on this side."""
    packed: bytes = msgpack.packb(header, use_bin_type=True, strict_types=False)
    return packed


def decode(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The header that `data` holds. Raises `ProtocolDesync` for anything that `encode` does not make."""
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
