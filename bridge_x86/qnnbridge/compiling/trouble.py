"""Recognises that a compilation failed at its folder, not at its model: full disk, limit, no right to write."""

from __future__ import annotations

import errno
import os
import re
import shutil
from typing import Final

from qnnbridge_protocol.errors import BridgeError, CompileFailed

LITTLE_BYTES: Final = 16 * 1024 * 1024
"""With less than this free the disk counts as full. ONNX Runtime does not say."""

_NOT_WRITTEN: Final = re.compile(
    r"Failed to (?:write|open) context cache file|Protobuf serialization failed when saving model"
    r"|SystemError : (?:28|27|30|13|122)\b|No space left on device|File too large|Read-only file system"
)


def cannot_write(folder: str, reason: str, evidence: str = "") -> CompileFailed:
    """The one error for all of these. reason: a sentence, as far as known."""
    return CompileFailed(
        f"The compiled model cannot be written to {folder}.",
        cause=reason,
        fix="Make room there or choose another folder (-o, output=) that can be written to.",
        evidence=[evidence] if evidence else (),
        details={"folder": folder, "free_bytes": _free(folder)},
    )


def seen_from(error: CompileFailed, folder: str, target: str) -> CompileFailed:
    """The error with `target`, which its reader has named, in place of the hidden `folder` inside of it."""
    error.message = error.message.replace(folder, target)
    error.evidence = tuple(line.replace(folder, target) for line in error.evidence)
    error.args = (error.message,)
    if error.details.get("folder") == folder:
        error.details["folder"] = target
    return error


def from_os(error: OSError, folder: str) -> CompileFailed:
    """For what the operating system said to this side."""
    if error.errno == errno.ENOSPC:
        return cannot_write(folder, _full(folder))
    return cannot_write(folder, f"{error.strerror or error}.")


def from_host(error: BridgeError, folder: str) -> BridgeError:
    """`error`, or what is behind it if ONNX Runtime could not write its files to `folder`."""
    text = "\n".join((error.message, error.cause or "", *error.evidence))
    if not _NOT_WRITTEN.search(text):
        return error
    free = _free(folder)
    if free is not None and free < LITTLE_BYTES:
        reason = _full(folder)
    elif not os.path.isdir(folder):
        reason = "The folder is gone."
    else:
        reason = "ONNX Runtime could not write its files: a full disk, a quota, a limit on their size, or no right."
    return cannot_write(folder, reason, error.message)


def _full(folder: str) -> str:
    free = _free(folder)
    left = "" if free is None else f" ({free / 1024:.0f} kB are free)"
    return f"The disk is full{left}."


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
