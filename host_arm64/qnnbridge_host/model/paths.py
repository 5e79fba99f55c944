"""Paths: which ones a compiled model may name, and by which one QNN opens a context binary.

A path must stay in the model's own folder, by the rules of Windows and of POSIX at once: a model that is refused on
one must not be loaded on the other. QNN itself checks less (a drive-relative or root-relative path passes) and, in
one point, more: it refuses two dots anywhere, also in a plain name. On Windows QNN opens a context binary by a path
in the system's code page; one with other characters ends the process (0xC0000409, seen with 2.7.0). There the
folder's short name replaces it.

Of a folder that cannot be written to: what is seen of the disk, and what ONNX Runtime's words say. Any thread.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import sys
from typing import Final

from qnnbridge_protocol.errors import BridgeError, CompileFailed

# Windows takes the superscript digits 1 to 3 for digits here.
_DEVICES: Final = r"(?i:CON|PRN|AUX|NUL|COM[0-9\u00b9\u00b2\u00b3]|LPT[0-9\u00b9\u00b2\u00b3]|CONIN\$|CONOUT\$)"


def path_problem(path: str) -> str | None:
    """Why a path is refused, as a sentence without full stop ("it is empty"); ``None`` for one that may be used."""
    # Here, because most models name no other file.
    import ntpath
    import re

    if not path.strip():
        return "it is empty"
    if "\0" in path:
        return "it has a NUL character in it"
    if path.startswith(("\\\\", "//")):
        return "it is a network or device path"
    drive, rest = ntpath.splitdrive(path)
    if rest.startswith(("\\", "/")):
        return "it is an absolute path"
    if drive or ":" in path:
        return "it names a drive, or has a colon in it"
    parts = re.split(r"[/\\]", path)
    if ".." in parts:
        return "it leads out of the model's folder with '..'"
    if ".." in path:
        # `context_files` chooses its advice by the name QNN in this reason.
        return "it has two dots in a row, which QNN takes for a way out of the folder"
    for part in parts:
        # Windows 10 opens the device also for NUL.bin, and with blanks behind the name.
        if re.fullmatch(_DEVICES, part.split(".")[0].rstrip()):
            return f"{part!r} is the name of a device on Windows"
    return None


def leaves_folder(folder: str, path: str, model: str | None = None) -> str | None:
    """Where `path` really is, if a link leads it out of `folder`; QNN follows links.

    model: the model's file. Where it is a link itself, as in the caches of model hubs, which keep all files in one
    folder and link to them, the folder of the real file is as good.
    """
    real = os.path.realpath(os.path.join(folder, path))
    # The folder is resolved, too: it may itself be reached by a link, which leads out of nothing.
    homes = {os.path.realpath(folder)} | ({os.path.dirname(os.path.realpath(model))} if model else set())
    for home in homes:
        try:
            if os.path.commonpath((home, real)) == home:
                return None
        except ValueError:  # another drive
            pass
    return real


if sys.platform == "win32":
    from qnnbridge_os.windows_facts import short_path
else:

    def short_path(path: str) -> str:
        return path


BY_CODE_PAGE = os.name == "nt"


def native_path(path: str | os.PathLike[str]) -> str:
    """The short name of an existing folder. Raises `OSError` if it has none."""
    text = os.fspath(path)
    if not BY_CODE_PAGE or text.isascii():
        return text
    short = short_path(text)
    if not short.isascii():
        raise OSError(f"QNN cannot open files in {text} on Windows: the volume keeps no short names for it")
    return short


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a file for reading. What has no end, or never begins (a pipe, a device), raises `OSError`."""
    # Named pipes of Windows have a name space of their own; no folder holds one.
    if sys.platform == "win32":
        return io.FileIO(path)
    # Without O_NONBLOCK a pipe in place of a file would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return io.FileIO(descriptor)
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "It is no regular file", os.fspath(path))


# --- the error of a folder that cannot be written to ---------------------------------------------------

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
