"""The folder in which qnnbridge remembers things between runs, and how a file gets into it whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

STATE_DIR_VARIABLE: Final = "QNNBRIDGE_STATE_DIR"


def state_dir() -> Path:
    """The folder; it may not exist yet. ``QNNBRIDGE_STATE_DIR`` overrides the place the system has for it."""
    override = os.environ.get(STATE_DIR_VARIABLE)
    if override:
        return Path(os.path.abspath(os.path.expanduser(override)))
    import platformdirs  # needed after a crash only

    return Path(platformdirs.user_state_dir("qnnbridge", appauthor=False))


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        # A model's name may be no UTF-8; JSON, too, writes such bytes as `\udc80`.
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
