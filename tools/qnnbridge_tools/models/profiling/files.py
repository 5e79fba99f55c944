"""What both kinds of profile files have in common: size limits, and words for a file that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from qnnbridge_protocol.errors import BridgeError

MAX_PROFILE_BYTES: Final = 256 << 20
"""More is not read: it is thousands of runs, and a tenth of them gives the same medians."""


def check(path: Path, whose: str) -> None:
    """Raises if there is no file to read, or too much of it. ``whose`` is the writer: "QNN"."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise BridgeError(
            f"{whose} wrote no profile.",
            cause=f"The file that it was told to write, {path.name}, is not there.",
            fix="Look whether the disk is full. If it is not, try --level basic.",
        ) from None
    check_size(size, whose)


def check_size(size: int, whose: str) -> None:
    if size > MAX_PROFILE_BYTES:
        raise BridgeError(
            f"The profile of {whose} is too large: {size >> 20} MiB, of which {MAX_PROFILE_BYTES >> 20} are read.",
            cause="It has an entry for each operator and run.",
            fix="Profile fewer runs: --runs 10. --level basic leaves out the operators.",
        )


def unusable(path: Path, whose: str, why: str) -> BridgeError:
    return BridgeError(
        f"The profile of {whose} cannot be read: {why}.",
        cause=f"{path.name} was not written to its end, or this version of {whose} writes it in another way.",
        fix="Run the command again. If the disk is full, make room first.",
        details={"file": path.name},
    )
