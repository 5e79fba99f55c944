"""Answers the client's HELLO before heavier modules are imported.

Runs in the main thread, before there is any other.
"""

from __future__ import annotations

import os
import sys

from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES, Connection, Hello, State
from qnnbridge_protocol.errors import HandshakeFailed, ProtocolDesync, VersionMismatch
from qnnbridge_protocol.process_names import this_system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def introduction() -> Hello:
    """The host's HELLO; it needs no heavy import."""
    from qnnbridge_host.machine.distributions import installed_versions

    return Hello(
        # As `sharing.AVAILABLE`, which is not imported for this.
        features=FEATURES if sys.platform in ("linux", "win32") else FEATURES - SHARING_FEATURES,
        pid=os.getpid(),
        machine=_machine(),
        python="{}.{}.{}".format(*sys.version_info[:3]),
        executable=sys.executable,
        platform=sys.platform,
        system=this_system(),
        versions=installed_versions(),
    )


def _machine() -> str:
    """The process' own architecture: the interpreter's build target, which no emulation hides."""
    if sys.platform == "win32":
        # As `sysconfig.get_platform` finds it out.
        built = sys.version.lower()
        return "x64" if "amd64" in built else "ARM64" if "(arm64)" in built else "x86"
    machine = os.uname().machine
    return {"amd64": "x64", "arm64": "ARM64"}.get(machine, machine)


def greet(in_fd: int, out_fd: int, connection: Connection, before_waiting: Callable[[], None]) -> None:
    """Exchange HELLOs. Ends the process if the client is gone or its version does not match.

    Args:
        in_fd, out_fd: the pipes of the client.
        connection: the new connection.
        before_waiting: called if no HELLO has arrived yet, since the wait may be long.
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
        except (HandshakeFailed, VersionMismatch) as error:
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
    """Always true on Windows, where a job object ends the host with its application."""
    if sys.platform == "win32":
        return True
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _leave(defect: object) -> NoReturn:
    from qnnbridge_host.serve.transport import EXIT_OK, EXIT_PROTOCOL, leave

    leave(EXIT_OK if defect is None else EXIT_PROTOCOL)


__all__ = ["greet", "introduction"]
