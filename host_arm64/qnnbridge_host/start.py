"""Start of a host process: answer HELLO, watch the parent process, create the server.

The imports at the top run before HELLO, so they are few. Functions import the other modules, which takes longer
than everything before HELLO (``python -X importtime`` shows the times). Everything here runs in the main thread.
"""

from __future__ import annotations

import gc
import os
import sys

from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES, Connection, Hello, Role, State
from qnnbridge_protocol.errors import HandshakeFailed, ProtocolDesync, VersionMismatch
from qnnbridge_protocol.process_names import number_here, this_system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from qnnbridge_host.engine import Engine

    Loader = Callable[[Callable[..., None]], Engine]

# Option for the process whose end also ends this host: its id, or its name (`process_names`). Default: the parent
# process.
PARENT = "--parent"
# Option for the command line that starts a worker, a JSON list; default: this host's own command line. It is needed
# under emulation, where `sys.executable` does not start the interpreter.
WORKER = "--worker"


def main(
    in_fd: int,
    out_fd: int,
    argv: Sequence[str] | None = None,
    load_engine: Loader | None = None,
) -> NoReturn:
    """Serve one application over the two descriptors. Never returns."""
    parent, worker = _options(sys.argv[1:] if argv is None else argv)
    # Disable error dialogs before anything that may crash.
    if sys.platform == "win32":
        from qnnbridge_os.parent import error_dialogs_off

        error_dialogs_off()
    watch = _Watch(parent)
    connection = Connection(Role.HOST, introduction())
    # If HELLO has arrived already, answer it first, because watching needs an import and a thread (ADR 0012).
    greet(in_fd, out_fd, connection, watch.begin)
    watch.begin()

    from qnnbridge_host.serve.handlers import HostHandlers
    from qnnbridge_host.serve.server import ProcessTransport, Server

    handlers = HostHandlers(_then_collect(load_engine or _load_engine), connection.hello, worker)
    Server(ProcessTransport(in_fd, out_fd), connection.hello, handlers, connection).run()


class _Watch:
    """Watches the process to which the host belongs, from the first call of `begin` on."""

    def __init__(self, parent: int | None) -> None:
        self._parent = parent
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            from qnnbridge_host.serve.server import EXIT_OK, leave

            watch_parent(self._parent, lambda: leave(EXIT_OK))


def _options(argv: Sequence[str]) -> tuple[int | None, str | None]:
    """Return parent and worker from the command line, which only our own client writes.

    The options are parsed without argparse, whose import takes longer than HELLO. If the application runs on
    another system, it cannot be watched, and its programs cannot be started here.
    """
    words = list(argv)
    given: dict[str, str] = {}
    while words:
        name, separator, value = words.pop(0).partition("=")
        if not separator:
            value = words.pop(0) if words else ""
        given[name] = value
    parent: int | None = os.getppid()
    try:
        if PARENT in given:
            parent = number_here(given[PARENT])
        valid = given.keys() <= {PARENT, WORKER} and given.get(WORKER) != ""
    except ValueError:
        valid = False
    if not valid:
        print(f"usage: python -m qnnbridge_host [{PARENT} PID] [{WORKER} JSON]", file=sys.stderr)
        sys.exit(2)
    return parent, None if parent is None else given.get(WORKER)


# --- HELLO -----------------------------------------------------------------------------------------------


def introduction() -> Hello:
    """Return the host's HELLO, without heavy imports."""
    from qnnbridge_host.machine import installed_versions

    return Hello(
        # Repeat the condition of `sharing.AVAILABLE`, because importing its module would delay HELLO.
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
    """Return the process's own architecture. It is the build target of the interpreter, which emulation does not
    change."""
    if sys.platform == "win32":
        # Search `sys.version` for the architecture, as `sysconfig.get_platform` does.
        built = sys.version.lower()
        return "x64" if "amd64" in built else "ARM64" if "(arm64)" in built else "x86"
    machine = os.uname().machine
    return {"amd64": "x64", "arm64": "ARM64"}.get(machine, machine)


def greet(in_fd: int, out_fd: int, connection: Connection, before_waiting: Callable[[], None]) -> None:
    """Exchange HELLOs. End the process if the client is gone or its version does not match.

    Args:
        in_fd, out_fd: the client's pipes.
        connection: the new connection.
        before_waiting: called if no HELLO has arrived yet, because the wait may be long.
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
    """Return whether input is available, or True on Windows, where a job object ends the host with its parent."""
    if sys.platform == "win32":
        return True
    import select

    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _leave(defect: object) -> NoReturn:
    from qnnbridge_host.serve.server import EXIT_OK, EXIT_PROTOCOL, leave

    leave(EXIT_OK if defect is None else EXIT_PROTOCOL)


# --- the application's end -------------------------------------------------------------------------------


def watch_parent(parent_pid: int | None, on_parent_gone: Callable[[], object]) -> tuple[str, ...]:
    """Watch the process that the host belongs to. Call `on_parent_gone` from a thread when it ends, or now if it
    has ended already.

    This ends the host when its application is gone, however it ended. The end of input is not sufficient, because a
    fork of the application may hold the other end of the pipe. So a thread waits for the application's process, and
    on Linux the kernel is asked to kill the host as well, which works even while native code holds the GIL. On
    Windows the application's job object does the same.

    Returns:
        The methods in use: "pdeathsig" (the kernel kills), "pidfd", "handle", "polling" (the thread waits). Empty
        if only the end of input ends the host, as for a parent on another system (``None``).
    """
    if parent_pid is None:
        return ()
    import threading

    from qnnbridge_os.parent import ParentHandle

    try:
        parent = ParentHandle(parent_pid)
    except ProcessLookupError as error:
        print(f"qnnbridge host: its application has ended ({error})", file=sys.stderr, flush=True)
        on_parent_gone()
        return ()
    except OSError as error:
        text = f"process {parent_pid} cannot be watched ({error}); the host ends only when its input is closed"
        print(f"qnnbridge host: {text}", file=sys.stderr, flush=True)
        return ()

    def watch() -> None:
        parent.wait()
        on_parent_gone()

    threading.Thread(target=watch, name="qnnbridge-parent-watch", daemon=True).start()
    return parent.means


# --- the engine ------------------------------------------------------------------------------------------


def _then_collect(load_engine: Loader) -> Loader:
    """Enable the garbage collector once the engine is loaded, or has failed to load.

    Objects created until then live as long as the process, so the collector skips them (measured: 500 of 40,000
    objects are garbage). Without `gc.freeze` it would scan them at once, for 20 ms in the middle of session
    creation.
    """

    def load(on_phase: Callable[..., None]) -> Engine:
        try:
            return load_engine(on_phase)
        finally:
            gc.freeze()
            gc.enable()

    return load


def _load_engine(on_phase: Callable[..., None]) -> Engine:
    from qnnbridge_host.engine import load_engine

    return load_engine(on_phase)
