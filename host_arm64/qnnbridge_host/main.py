"""Puts the parts of the host together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from qnnbridge_host import parent_watch, sharing
from qnnbridge_host.handlers import HostHandlers
from qnnbridge_host.server import EXIT_OK, OwnProcess, Server, leave
from qnnbridge_protocol.hello import FEATURES, SHARING_FEATURES, Hello

if TYPE_CHECKING:
    from qnnbridge_host.engine import Engine


def main(
    in_fd: int,
    out_fd: int,
    argv: Sequence[str] | None = None,
    load_engine: Callable[[Callable[[str], None]], Engine] | None = None,
) -> NoReturn:
    """Serve one application over the two descriptors. Never returns."""
    parser = argparse.ArgumentParser(prog="qnnbridge_host", description=__doc__)
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process to end with")
    options = parser.parse_args(argv)
    parent_watch.error_dialogs_off()
    parent_watch.arm(options.parent, lambda: leave(EXIT_OK))
    Server(OwnProcess(in_fd, out_fd), introduction(), HostHandlers(load_engine or _load_engine)).run()


def introduction() -> Hello:
    """What the host says of itself; nothing heavy is imported for it."""
    import sysconfig

    from qnnbridge_host.engine.distributions import installed_versions

    return Hello(
        features=FEATURES if sharing.AVAILABLE else FEATURES - SHARING_FEATURES,
        pid=os.getpid(),
        machine=_machine(sysconfig.get_platform()),
        python="{}.{}.{}".format(*sys.version_info[:3]),
        executable=sys.executable,
        platform=sys.platform,
        versions=installed_versions(),
    )


def _machine(platform: str) -> str:
    """The process' own architecture: what the interpreter was built for, which no emulation hides."""
    if platform == "win32":
        return "x86"
    machine = platform.rpartition("-")[2]
    return {"amd64": "x64", "arm64": "ARM64"}.get(machine, machine)


def _load_engine(on_phase: Callable[[str], None]) -> Engine:
    from qnnbridge_host.engine import load_engine

    return load_engine(on_phase)
