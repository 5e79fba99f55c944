"""What pip says when it does not reach the package index."""

from __future__ import annotations

from collections.abc import Sequence

from qnnbridge_protocol.errors import BridgeError

SHOWN_LINES = 8

_NETWORK_WORDS = (
    "retrying (",
    "could not fetch url",
    "connectionerror",
    "timed out",
    "name resolution",
    "proxyerror",
)


class IndexUnreachable(BridgeError):
    """pip could not ask its index; says nothing about what is on it."""


def is_network_trouble(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _NETWORK_WORDS)


def unreachable(text: str) -> IndexUnreachable:
    return IndexUnreachable(
        "The package index cannot be reached.",
        cause="pip got no answer from the index that it is configured for.",
        fix="Check the network, and what `pip config list` names as index and proxy.",
        evidence=[line for line in text.splitlines() if is_network_trouble(line)][-SHOWN_LINES:]
        or last_lines(text),
    )


def last_lines(text: str) -> Sequence[str]:
    return [line for line in text.splitlines() if line.strip()][-SHOWN_LINES:]
