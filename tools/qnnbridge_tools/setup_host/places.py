"""Whether something can be written at a place, asked before the work is begun. Writes nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from qnnbridge_tools.setup_host.failures import SetupFailed, failed

NEEDED_BYTES: Final = 700_000_000
"""An environment of today has 570 MB, with onnxruntime-qnn 2.7.0, ONNX Runtime 1.31.1 and onnx for Linux."""

FULL_BYTES: Final = 20_000_000
"""With less than this left after a failure, the disk is what failed: pip and venv do not always say so."""

FREE_SPACE: Final = (
    f"Free disk space (about {NEEDED_BYTES // 1_000_000} MB are needed), or choose another folder with --dir. pip "
    "unpacks in the folder that TMPDIR names (on Windows: TEMP), which may be on another disk."
)


def check_folder(folder: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raises `SetupFailed` where an environment has no room, or where this user may not make one."""
    problem = _problem_of(folder)
    if problem is not None:
        raise not_made(folder, problem)
    free = free_bytes(folder)
    if free is not None and free < needed_bytes:
        raise failed(
            "environment",
            f"The disk of {folder} has {free // 1_000_000} MB left, which is not enough.",
            cause=None,
            fix=FREE_SPACE,
            evidence=(),
        )


def check_file(file: Path) -> None:
    """Raises `SetupFailed` where this user may not write the configuration file."""
    problem = _problem_of(Path(os.path.realpath(file)).parent)
    if problem is not None:
        raise not_written(file, problem)


def not_made(folder: Path, reason: str) -> SetupFailed:
    return failed(
        "environment",
        f"The folder {folder} cannot be made: {reason}.",
        cause=None,
        fix="Choose another folder with --dir.",
        evidence=(),
    )


def not_written(file: Path, reason: str) -> SetupFailed:
    return failed(
        "configuration",
        f"The configuration file {file} cannot be written: {reason}.",
        cause=None,
        fix="Name another file in QNNBRIDGE_CONFIG, or leave it alone with --no-config.",
        evidence=(),
    )


def free_bytes(folder: Path) -> int | None:
    """On the disk that the folder is on, or will be. ``None`` if the system does not tell."""
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def _problem_of(folder: Path) -> str | None:
    there = _existing(folder)
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written to"
    return None


def _existing(path: Path) -> Path:
    """The path or the nearest folder above it that is there."""
    return next((one for one in (path, *path.parents) if os.path.lexists(one)), Path(path.anchor))
