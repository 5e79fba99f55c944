"""Run programs by `qnnbridge exec`, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

MODELS = Path(__file__).parents[1] / "models"
TIMEOUT_S = 110


def exec_program(
    *arguments: str, cwd: Path, python: str = sys.executable, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run `qnnbridge exec ARGUMENTS` in a folder."""
    return subprocess.run(
        [python, "-m", "qnnbridge_tools", "exec", *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
    )


def program(folder: Path, source: str) -> str:
    """Write a program with this text; return its file name."""
    path = folder / "program.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path.name
