"""A command line as text to copy into a shell. Pure functions."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence

_PLAIN_CMD = re.compile(r"[A-Za-z0-9_\-.:\\/+=,@\[\]]+")
_PLAIN_POWERSHELL = re.compile(r"[A-Za-z0-9_\-.:\\/+=]+")


def posix_text(command: Sequence[str]) -> str:
    return shlex.join(command)


def cmd_text(command: Sequence[str]) -> str:
    """For the Command Prompt, where ``<`` and ``>`` are only text within double quotes."""
    return " ".join(word if _PLAIN_CMD.fullmatch(word) else _quoted_for_windows(word) for word in command)


def powershell_text(command: Sequence[str]) -> str:
    """For PowerShell, which runs a quoted program only after ``&``."""
    words = [word if _PLAIN_POWERSHELL.fullmatch(word) else "'" + word.replace("'", "''") + "'" for word in command]
    return " ".join(["&", *words] if words[0].startswith("'") else words)


def _quoted_for_windows(word: str) -> str:
    quoted = subprocess.list2cmdline([word])
    return quoted if quoted.startswith('"') else f'"{word}"'
