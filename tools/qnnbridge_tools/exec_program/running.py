"""Runs a program in a Python of its own whose ``onnxruntime`` is qnnbridge.

A process of its own, started by the same interpreter, because then everything is as if Python had run the program
itself: ``__main__``, ``sys.argv``, exit code, signals, what multiprocessing sees. The drop-in comes by PYTHONPATH
(`qnnbridge.ort.stand_in.children`). Ctrl+C reaches the program, which shares the terminal; this process waits for
it.
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
        return [sys.executable, *start, *self.arguments]


def run_program(program: Program, provider: str, report: bool) -> int:
    """The program's exit code; 128 plus the number of the signal that ended it."""
    from qnnbridge.ort.journal import REPORT_VARIABLE
    from qnnbridge.ort.provider_choice import POLICY_VARIABLE
    from qnnbridge.ort.stand_in import children

    environ = dict(os.environ)
    environ[POLICY_VARIABLE] = provider
    children.offer_to_children(environ)
    with contextlib.ExitStack() as stack:
        if report:
            environ[REPORT_VARIABLE] = stack.enter_context(tempfile.TemporaryDirectory(prefix="qnnbridge-report-"))
        code = _wait(subprocess.Popen(program.command(), env=environ))
        if report:
            from qnnbridge_tools.exec_program.report import print_report

            print_report(environ[REPORT_VARIABLE])
    return code if code >= 0 else 128 - code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Ctrl+C is the program's to handle; nobody else's."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
