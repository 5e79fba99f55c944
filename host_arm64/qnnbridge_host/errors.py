"""Any exception as a map that can travel.

An error must always arrive, whatever is inside of it: text that is no Unicode, objects, endless lists, an exception
whose message cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qnnbridge_protocol.errors import BridgeError, RemoteError

MAX_TEXT = 16 * 1024
MAX_ITEMS = 200
MAX_LEVELS = 4
_INT64 = 2**63


def describe(error: BaseException) -> dict[str, Any]:
    """The error as the wire has it. Never raises."""
    if isinstance(error, BridgeError):
        told = error.to_wire()
    else:
        kind = type(error).__name__
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 - an exception whose own text fails must not end the host
            text = "(its message cannot be shown)"
        told = RemoteError(f"{kind} in the host: {text}", details={"type": kind}).to_wire()
    return {key: _plain(value, MAX_LEVELS) for key, value in told.items()}


def _plain(value: Any, levels: int) -> Any:
    """The value in msgpack's types, shortened."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return int(value) if -_INT64 <= value < 2 * _INT64 else str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)[:MAX_TEXT]
    if isinstance(value, Mapping) and levels:
        items = list(value.items())[:MAX_ITEMS]
        return {_text(key): _plain(item, levels - 1) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)) and levels:
        return [_plain(item, levels - 1) for item in list(value)[:MAX_ITEMS]]
    return _text(value)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - see `describe`
        text = f"<{type(value).__name__}>"
    # Lone surrogates come from file names that are no UTF-8.
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()
