"""Puts the parts of the host together.

What is imported here, at the top, is imported before HELLO: next to nothing. ``python -X importtime`` shows it.
"""

from __future__ import annotations

import gc
import os
import sys

from qnnbridge_host.handshake import greet
from qnnbridge_protocol.connection import Connection, Role
from qnnbridge_protocol.hello import FEATURES, SHARING_FEATURES, Hello

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from qnnbridge_host.engine import Engine

    Loader = Callable[[Callable[[str], None]], Engine]

PARENT = "--parent"
"""Option: the process to end with, if that is not the one that started this one."""


def main(
    in_fd: int,
    out_fd: int,
    argv: Sequence[str] | None = None,
    load_engine: Loader | None = None,
) -> NoReturn:
    """Serve one application over the two descriptors. Never returns."""
    parent = _parent(sys.argv[1:] if argv is None else argv)
    if sys.platform == "win32":
        from qnnbridge_host.parent_watch import error_dialogs_off

        error_dialogs_off()
    watch = _Watch(parent)
    connection = Connection(Role.HOST, introduction())
    greet(in_fd, out_fd, connection, watch.begin)
    watch.begin()

    from qnnbridge_host.handlers import HostHandlers
    from qnnbridge_host.server import ProcessTransport, Server

    handlers = HostHandlers(_then_collect(load_engine or _load_engine))
    Server(ProcessTransport(in_fd, out_fd), connection.hello, handlers, connection).run()


def introduction() -> Hello:
    """What the host says of itself; nothing heavy is imported for it."""
    from qnnbridge_host.distributions import installed_versions

    return Hello(
        # As `sharing.AVAILABLE`, which is not imported for this.
        features=FEATURES if sys.platform in ("linux", "win32") else FEATURES - SHARING_FEATURES,
        pid=os.getpid(),
        machine=_machine(),
        python="{}.{}.{}".format(*sys.version_info[:3]),
        executable=sys.executable,
        platform=sys.platform,
        versions=installed_versions(),
    )


class _Watch:
    """Watches the process that the host belongs to, from the first `begin` on."""

    def __init__(self, parent: int) -> None:
        self._parent = parent
        self._begun = False

    def begin(self) -> None:
        if not self._begun:
            self._begun = True
            from qnnbridge_host import parent_watch
            from qnnbridge_host.server import EXIT_OK, leave

            parent_watch.arm(self._parent, lambda: leave(EXIT_OK))


def _parent(argv: Sequence[str]) -> int:
    """From the command line, which only our own client writes: no argparse, which takes longer than HELLO."""
    if not argv:
        return os.getppid()
    name, _, value = argv[0].partition("=")
    rest = list(argv[1:]) if value else list(argv[2:])
    value = value or "".join(argv[1:2])
    if name != PARENT or not value.isdecimal() or rest:
        print(f"usage: python -m qnnbridge_host [{PARENT} PID]", file=sys.stderr)
        sys.exit(2)
    return int(value)


def _machine() -> str:
    """The process' own architecture: what the interpreter was built for, which no emulation hides."""
    if sys.platform == "win32":
        # As `sysconfig.get_platform` finds it out.
        built = sys.version.lower()
        return "x64" if "amd64" in built else "ARM64" if "(arm64)" in built else "x86"
    machine = os.uname().machine
    return {"amd64": "x64", "arm64": "ARM64"}.get(machine, machine)


def _then_collect(load_engine: Loader) -> Loader:
    """Garbage is collected again from when the engine is there, or is known not to come.

    What is there by then stays for ever, so the collector need never look at it (measured: 500 of 40,000 objects
    are garbage); without `gc.freeze` it would do so at once, for 20 ms, in the middle of the making of a session.
    """

    def load(on_phase: Callable[[str], None]) -> Engine:
        try:
            return load_engine(on_phase)
        finally:
            gc.freeze()
            gc.enable()

    return load


def _load_engine(on_phase: Callable[[str], None]) -> Engine:
    from qnnbridge_host.engine import load_engine

    return load_engine(on_phase)
