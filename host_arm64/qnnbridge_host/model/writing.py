"""The error of a folder that cannot be written to: what is seen of the disk, and what ONNX Runtime's words say."""

from __future__ import annotations

import errno
import os
import re
import shutil
from typing import Final

from qnnbridge_protocol.errors import BridgeError, CompileFailed

# With less than this free the disk counts as full. ONNX Runtime does not say.
LITTLE_BYTES: Final = 16 * 1024 * 1024

# The numbers are ENOSPC, EFBIG, EROFS, EACCES and EDQUOT of Linux.
_NOT_WRITTEN: Final = re.compile(
    r"Failed to (?:write|open) context cache file|Protobuf serialization failed"
    r"|SystemError : (?:28|27|30|13|122)\b|No space left on device|File too large|Read-only file system"
)


def cannot_write(folder: str, reason: str, evidence: str = "") -> CompileFailed:
    """The common error of these cases. reason: a sentence, if known."""
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
    """The error for an error of the operating system on this side."""
    return cannot_write(folder, reason_of(error, folder))


def reason_of(error: OSError, folder: str) -> str:
    """Why a file could not be written, as a sentence."""
    return _full(folder) if error.errno == errno.ENOSPC else f"{error.strerror or error}."


def from_host(error: BridgeError, folder: str) -> BridgeError:
    """`error`, or its cause if ONNX Runtime could not write its files to `folder`."""
    if not is_about_writing(error):
        return error
    return cannot_write(folder, why_not_written(folder), error.message)


def is_about_writing(error: BridgeError) -> bool:
    """Whether ONNX Runtime could not write a file, by its words."""
    text = "\n".join((error.message, error.cause or "", *error.evidence))
    # A model too large for one message cannot be serialised either, and has its own error text.
    return _NOT_WRITTEN.search(text) is not None and "2GB" not in text


def why_not_written(folder: str) -> str:
    """A sentence about a visible fault of the folder."""
    free = _free(folder)
    if free is not None and free < LITTLE_BYTES:
        return _full(folder)
    if not os.path.isdir(folder):
        return "The folder is gone."
    return "ONNX Runtime could not write its files: a full disk, a quota, a limit on their size, or no right."


def _full(folder: str) -> str:
    free = _free(folder)
    left = "" if free is None else f" ({free / 1024:.0f} kB are free)"
    return f"The disk is full{left}."


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
