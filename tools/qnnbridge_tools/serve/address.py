"""The address of `--http`: read, judged, and listened on."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import os
import re
import socket
from typing import Final

from qnnbridge_protocol.errors import BridgeError, OptionError

DEFAULT_ADDRESS: Final = "127.0.0.1:8000"
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """loopback: whether it can be reached from this machine only."""

    family: socket.AddressFamily
    host: str
    port: int
    loopback: bool


def read_address(text: str) -> Address:
    """`HOST:PORT`, `[IPv6]:PORT`, or a port alone for the loopback. Raises `OptionError`."""
    host, colon, port_text = text.rpartition(":")
    if not _PORT.fullmatch(port_text) or int(port_text) > 65535 or (colon and not host):
        raise OptionError(
            f'--http "{text}" is no address.',
            fix=f"Give HOST:PORT, for example {DEFAULT_ADDRESS}, or 0.0.0.0:8000 for all addresses.",
        )
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host or "127.0.0.1"
    try:
        found = socket.getaddrinfo(name, int(port_text), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError(f'--http "{text}": {name} is no address of this machine.', cause=str(error)) from None
    family, _, _, _, place = found[0]
    return Address(
        family, str(place[0]), int(port_text), ipaddress.ip_address(str(place[0]).split("%")[0]).is_loopback
    )


def listen(address: Address) -> socket.socket:
    """A bound socket. Raises `BridgeError` if that cannot be."""
    # With the protocol named: only then asyncio switches off Nagle's algorithm, which costs 40 ms for each answer.
    listener = socket.socket(address.family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:  # there it would let others take the port over
            listener.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", -5), 1)
        if address.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address.host, address.port))
    except OSError as error:
        listener.close()
        taken = error.errno in (errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", None))
        raise BridgeError(
            f"{shown(address.host, address.port)} cannot be listened on.",
            cause="Another program listens there." if taken else error.strerror or str(error),
            fix="Give another address with --http, or end that program."
            if taken
            else "Give another --http address.",
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{shown(host, port)}"


def shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
