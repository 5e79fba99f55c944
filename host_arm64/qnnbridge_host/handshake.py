"""Answers the client's HELLO, before anything is imported that this does not need.

The main thread, before there is any other.
"""

from __future__ import annotations

import sys

from qnnbridge_protocol.connection import Connection, State
from qnnbridge_protocol.drivers.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.errors import ProtocolDesync, VersionMismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def greet(in_fd: int, out_fd: int, connection: Connection, before_waiting: Callable[[], None]) -> None:
    """Returns when the connection is open; a client that is gone, or no match, ends the process.

    before_waiting: called if no HELLO is there yet, which may be so for long.
    """
    reader, writer = ByteReader(in_fd), ByteWriter(blocking_write(out_fd))
    arrived: list[object] = []
    if not _something_to_read(in_fd):
        before_waiting()
    try:
        while not arrived:
            reader.read_into(connection.get_buffer(), lambda count: arrived.extend(_frames(connection, count)))
        try:
            answer = connection.accept_hello()
        except VersionMismatch as error:
            answer = connection.refuse_hello(error.to_wire())
        writer.write_all(answer)
    except OSError:
        _leave(None)
    except ProtocolDesync as error:
        print(f"qnnbridge host: {error}", file=sys.stderr, flush=True)
        _leave(error)
    if connection.state is not State.READY:
        _leave(connection)


def _frames(connection: Connection, count: int) -> list[object]:
    if not count:
        _leave(None)
    return list(connection.received(count))


def _something_to_read(fd: int) -> bool:
    """On Windows always true: there a job object ends the host with its application, whatever it does."""
    if sys.platform == "win32":
        return True
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _leave(defect: object) -> NoReturn:
    from qnnbridge_host.server import EXIT_OK, EXIT_PROTOCOL, leave

    leave(EXIT_OK if defect is None else EXIT_PROTOCOL)


__all__ = ["greet"]
