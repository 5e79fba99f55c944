"""Starts a daemon with a life of its own: with no terminal, no parent, no descriptor of this process but one pipe.

Over that pipe, its stderr, it says what became of it: a marker line when it can be connected to, another one when
there is a daemon already (the lock decides, so ten that are started at once leave one), and plain text if it
fails.

No thread; a `Starting` belongs to one caller at a time.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from qnnbridge._daemon import command
from qnnbridge._daemon.discovery import make_runtime_folder
from qnnbridge_os.processes import Detached, native_machine, start_detached, wait_readable
from qnnbridge_os.programs import start_failed
from qnnbridge_protocol.errors import HostNotFound, HostStartFailed
from qnnbridge_protocol.process_names import is_frozen

READY: Final = "@qnnbridge-daemon ready"
# Another daemon holds the lock.
RUNNING: Final = "@qnnbridge-daemon running"
# Another daemon holds the lock, and this one takes its place when it ends. Said again and again.
WAITING: Final = "@qnnbridge-daemon waiting"

MODULE: Final = "qnnbridge_daemon"
DETACHED: Final = "--detached"
TAKE_OVER: Final = "--take-over"

_PACKAGES: Final = ("qnnbridge_protocol", "qnnbridge_os", "qnnbridge_host", "qnnbridge", MODULE)
# The daemon is the one that has a host of its own.
_DROPPED: Final = ("QNNBRIDGE_HOST",)
_PATHS: Final = tuple(
    f"QNNBRIDGE_{name}" for name in ("STATE_DIR", "CACHE_DIR", "RUNTIME_DIR", "CONFIG", "EP_PATH")
)
_INTERPRETER: Final = "QNNBRIDGE_HOST_PYTHON"
_TEXT_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 4096

Outcome = Literal["ready", "running", "waiting"]


class Starting:
    """A daemon that has been started and has not said yet what became of it."""

    def __init__(self, arguments: Sequence[str] = (), python: str | None = None) -> None:
        """arguments: options of the daemon. python: its interpreter, default the running one.

        Raises `HostStartFailed`.
        """
        # Its working folder, too: the application's may be removed while the daemon lives on.
        folder = make_runtime_folder()
        argv = [*daemon_command(python), DETACHED, *arguments]
        try:
            self._process: Detached = start_detached(argv, _environment(), str(folder))
        except OSError as error:
            raise start_failed(argv[0], str(folder), error, native_machine()) from error
        self._text = b""
        self._waiting = False

    def wait(self, deadline: float) -> Outcome | None:
        """What became of it, ``None`` if it has not said so in time. "waiting", once, is no end: ask again. Raises
        `HostStartFailed` with its own words."""
        while True:
            whole, _, rest = self._text.decode("utf-8", "replace").rpartition("\n")
            # Only whole lines: a marker may arrive in pieces.
            lines = whole.splitlines()
            if READY in lines or RUNNING in lines:
                self.close()
                return "ready" if READY in lines else "running"
            # The daemon says it again and again; it is reported once.
            if WAITING in lines and not self._waiting:
                self._waiting = True
                return "waiting"
            if not wait_readable(self._process.stderr_fd, max(0.0, deadline - time.monotonic())):
                return None
            try:
                data = os.read(self._process.stderr_fd, _READ_BYTES)
            except OSError:
                data = b""  # how a pipe ends on Windows
            if not data:
                self.close()
                raise _did_not_start([*lines, rest])
            # Bounded: a library may log without end at its start.
            self._text = (self._text + data)[-_TEXT_BYTES:]

    def close(self) -> None:
        """Stop waiting for it; it goes on."""
        self._process.close()


def daemon_command(python: str | None = None) -> list[str]:
    """How a daemon is started: with the qnnbridge that runs here, unless another interpreter is named.

    A frozen application starts it with the host's interpreter, which has all packages. Raises `HostNotFound`.
    """
    if is_frozen():
        from qnnbridge._launch.interpreter import find_host

        return [python or find_host().path, "-I", "-X", "utf8", "-m", MODULE]
    if python is not None:
        return [python, "-X", "utf8", "-m", MODULE]
    if not sys.executable:
        raise HostNotFound(
            "The daemon cannot be started: this program does not know its Python interpreter.",
            cause="sys.executable is empty.",
            fix="Start it from a terminal: qnnbridge host start",
        )
    roots = _roots()
    # Installed in the interpreter: it finds the packages without help.
    if len(roots) == 1 and roots[0] in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return [sys.executable, "-X", "utf8", "-m", MODULE]
    # A path that this program made for itself, or a checkout: the daemon is to be the same qnnbridge.
    program = f"import sys; sys.path[:0] = {roots!r}; from {MODULE}.main import main; main()"
    return [sys.executable, "-X", "utf8", "-c", program]


def _roots() -> list[str]:
    found: list[str] = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.origin:
            raise HostNotFound(
                f"The daemon cannot be started: the package {package} is not installed beside qnnbridge.",
                fix="Install qnnbridge again: python -m pip install --force-reinstall qnnbridge",
            )
        root = str(Path(spec.origin).absolute().parents[1])
        # An editable install has a folder for each package.
        if root not in found:
            found.append(root)
    return found


def _environment() -> dict[str, str]:
    from qnnbridge._launch.interpreter import without_bundle

    whole = without_bundle(os.environ)
    return variables_from_anywhere({name: value for name, value in whole.items() if name.upper() not in _DROPPED})


def variables_from_anywhere(environment: Mapping[str, str]) -> dict[str, str]:
    """Those variables for a daemon, whose working folder is another one."""
    kept = dict(environment)
    for name in _PATHS:
        if kept.get(name):
            kept[name] = os.path.abspath(os.path.expanduser(kept[name]))
    if kept.get(_INTERPRETER):
        kept[_INTERPRETER] = from_anywhere(kept[_INTERPRETER])
    return kept


def from_anywhere(program: str) -> str:
    """The path of a program for the daemon, whose working folder is another one; a bare name is looked up there."""
    return os.path.abspath(os.path.expanduser(program)) if os.path.dirname(program) else program


def _did_not_start(lines: list[str]) -> HostStartFailed:
    said = [line for line in lines if line.strip() and line != WAITING]
    error = HostStartFailed(
        "The qnnbridge daemon did not start.",
        cause=said[-1].strip() if said else "It ended without output.",
        fix=f"Look at what it says in a terminal: {command('host run')}",
        evidence=said[-10:-1],
    )
    # In silence: mostly another process has killed it, and the next one lives.
    error.retry = "pointless" if said else "safe"
    return error
