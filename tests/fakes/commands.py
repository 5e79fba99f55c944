"""Run the `qnnbridge` command in tests: in the test's process, or in a separate one.

A separate process is needed for signals, encodings, imports and output of native code. Both functions return the
same type, so that a test can use either.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from qnnbridge_tools.cli import app

COMMAND = [sys.executable, "-m", "qnnbridge_tools"]


class Done(subprocess.CompletedProcess[str]):
    @property
    def output(self) -> str:
        """The whole output: stdout, then stderr."""
        return f"{self.stdout}{self.stderr}"


def qnnbridge(*words: str | Path, **environment: str) -> Done:
    """Run the command in this process, which saves the start of Python. Unhandled exceptions are raised."""
    arguments = list(map(str, words))
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", **environment}, catch_exceptions=False)
    return Done(arguments, done.exit_code, done.stdout, done.stderr)


def in_a_process(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process, as a user does."""
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
        env={**os.environ, "COLUMNS": "80", **environment},
    )
