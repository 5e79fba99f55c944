"""Puts the parts of the host together.

The imports at the top run before HELLO, so they are few. ``python -X importtime`` shows it.
"""

from __future__ import annotations

import gc
import os
import sys

from qnnbridge_host.start.handshake import greet, introduction
from qnnbridge_protocol.connection import Connection, Role
from qnnbridge_protocol.process_names import number_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from qnnbridge_host.engine import Engine

    Loader = Callable[[Callable[..., None]], Engine]

# Option: the process to end with, if that is not the one that started this one; its name or its number.
PARENT = "--parent"
# Option: the command line that starts a worker, a JSON list; default this host's own. An emulated interpreter
# cannot be started by `sys.executable`.
WORKER = "--worker"


def main(
    in_fd: int,
    out_fd: int,
    argv: Sequence[str] | None = None,
    load_engine: Loader | None = None,
) -> NoReturn:
    """Serve one application over the two descriptors. Never returns."""
    parent, worker = _options(sys.argv[1:] if argv is None else argv)
    # Before anything that may crash.
    if sys.platform == "win32":
        from qnnbridge_host.start.parent_watch import error_dialogs_off

        error_dialogs_off()
    watch = _Watch(parent)
    connection = Connection(Role.HOST, introduction())
    # A HELLO that has come already is answered first: the watch costs an import and a thread (ADR 0012).
    greet(in_fd, out_fd, connection, watch.begin)
    watch.begin()

    from qnnbridge_host.serve.handlers import HostHandlers
    from qnnbridge_host.serve.server import Server
    from qnnbridge_host.serve.transport import ProcessTransport

    handlers = HostHandlers(_then_collect(load_engine or _load_engine), connection.hello, worker)
    Server(ProcessTransport(in_fd, out_fd), connection.hello, handlers, connection).run()


class _Watch:
    """Watches the process that the host belongs to, from the first `begin` on."""

    def __init__(self, parent: int | None) -> None:
        self._parent = parent
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            from qnnbridge_host.serve.transport import EXIT_OK, leave
            from qnnbridge_host.start import parent_watch

            parent_watch.arm(self._parent, lambda: leave(EXIT_OK))


def _options(argv: Sequence[str]) -> tuple[int | None, str | None]:
    """Parent and worker, from the command line, which only our own client writes: argparse takes longer than
    HELLO. An application of another system is no parent to watch, and its programs are none to start here."""
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


def _then_collect(load_engine: Loader) -> Loader:
    """Enable the garbage collector once the engine is loaded, or has failed to load.

    Objects of that time live as long as the process, so the collector skips them (measured: 500 of 40,000 objects
    are garbage); without `gc.freeze` it would do so at once, for 20 ms, in the middle of the making of a session.
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
