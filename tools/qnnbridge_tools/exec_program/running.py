"""Runs a program in a Python of its own whose ``onnxruntime`` is qnnbridge.

A fresh interpreter, because then everything is as if Python had run the program itself: ``__main__``, ``sys.argv``,
exit code, signals, what multiprocessing sees. The drop-in comes by PYTHONPATH
(`qnnbridge.ort._import_hook.children`; `start`, there, where that is ignored).
Where nothing is left to do afterwards, and the system can, this process becomes the program. Else it waits for it:
Ctrl+C reaches the program by itself, which shares the terminal; what would end this process alone is passed on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from types import FrameType
from typing import Any

from qnnbridge_protocol.errors import NoSuchFile


@dataclasses.dataclass(frozen=True)
class Program:
    """A script or a module, and its arguments."""

    module: str | None
    arguments: list[str]
    script: str | None = None

    def check(self) -> None:
        """Raises `NoSuchFile` for what is not there."""
        if self.script is not None and self.script != "-" and not os.path.exists(self.script):
            raise NoSuchFile(f"There is no program {self.script}.", fix="Give the path of a Python file.")
        if self.module is not None and importlib.util.find_spec(self.module.partition(".")[0]) is None:
            sys.path.insert(0, os.getcwd())
            found = importlib.util.find_spec(self.module.partition(".")[0])
            del sys.path[0]
            if found is None:
                raise NoSuchFile(f"There is no module {self.module}.", fix="Install it, or check its name.")

    def command(self) -> list[str]:
        start = ["-m", self.module] if self.module is not None else [str(self.script)]
        by_hand = ["-m", "qnnbridge.ort._import_hook.start"] if sys.flags.ignore_environment else []
        return [sys.executable, *by_hand, *start, *self.arguments]


def environment_for(provider: str) -> dict[str, str]:
    """In which the program finds the drop-in. Raises `HostError` where there is no host to ask for its version."""
    from qnnbridge.ort._import_hook import children
    from qnnbridge.ort._provider_choice import POLICY_VARIABLE

    environ = dict(os.environ)
    environ[POLICY_VARIABLE] = provider
    children.offer_to_children(environ)
    return environ


def run_program(program: Program, environ: dict[str, str], report: bool) -> int:
    """The program's exit code; 128 plus the number of the signal that ended it."""
    from qnnbridge.ort._journal import REPORT_VARIABLE

    if not report:
        if sys.platform != "win32":  # where exec starts another process and leaves this one's parent alone with it
            os.execve(sys.executable, program.command(), environ)  # noqa: S606 - no shell is wanted
        return _wait(subprocess.Popen(program.command(), env=environ))
    from qnnbridge_tools.exec_program.report import print_report

    with tempfile.TemporaryDirectory(prefix="qnnbridge-report-", ignore_cleanup_errors=True) as folder:
        code = _wait(subprocess.Popen(program.command(), env={**environ, REPORT_VARIABLE: folder}))
        print_report(folder)
    return code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. Ctrl+C is the program's to handle; what is sent to this process alone is meant for it too."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            process.send_signal(number)

    handlers: dict[int, Any] = {signal.SIGINT: signal.SIG_IGN}
    handlers |= {getattr(signal, name): pass_on for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code
