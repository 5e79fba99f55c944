"""The `qnnbridge` command for tests: in their own process, or in one of its own where that matters, as it does for signals,
encodings, imports, and whatever native code prints. Both give the same, so that a test can take either."""

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
        """All that was written: stdout, then stderr."""
        return f"{self.stdout}{self.stderr}"


def qnnbridge(*words: str | Path, **environment: str) -> Done:
    """In this process, which saves a start of Python and its imports. An exception that nobody turned into words is raised."""
    arguments = list(map(str, words))
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", **environment}, catch_exceptions=False)
    return Done(arguments, done.exit_code, done.stdout, done.stderr)


def in_a_process(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """As a user starts it."""
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
