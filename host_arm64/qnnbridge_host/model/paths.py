"""Check the paths in a compiled model, and find the path by which QNN can open a context binary.

A path must stay in the model's own folder by the rules of both Windows and POSIX: a model that one system refuses
must not load on the other. QNN's own check is weaker, because a drive-relative or root-relative path passes. It is
stricter about two dots, which QNN refuses even inside of a file name. On Windows QNN opens a context binary by a
path in the system's code page; QNN crashes if the path contains other characters (0xC0000409, seen with 2.7.0). In
this case the folder's short name is used.

The module also explains why a folder cannot be written to, from the state of the disk and from ONNX Runtime's error
message. All functions are thread-safe.
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

# In the names of devices Windows also accepts the superscript digits 1 to 3.
_DEVICES: Final = r"(?i:CON|PRN|AUX|NUL|COM[0-9\u00b9\u00b2\u00b3]|LPT[0-9\u00b9\u00b2\u00b3]|CONIN\$|CONOUT\$)"


def path_problem(path: str) -> str | None:
    """Return why a path is refused, as a sentence without full stop ("it is empty"); ``None`` if it is allowed."""
    # Imported here because most models do not refer to other files.
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
        return "it contains a drive or a colon"
    parts = re.split(r"[/\\]", path)
    if ".." in parts:
        return "it leads out of the model's folder with '..'"
    if ".." in path:
        # `context_files` chooses its advice by the word QNN in this message.
        return "it has two dots in a row, which QNN treats as leaving the folder"
    for part in parts:
        # Windows 10 also opens the device for NUL.bin, and for a name followed by blanks.
        if re.fullmatch(_DEVICES, part.split(".")[0].rstrip()):
            return f"{part!r} is the name of a device on Windows"
    return None


def leaves_folder(folder: str, path: str, model: str | None = None) -> str | None:
    """Return the real location of `path` if a link leads out of `folder`, else ``None``. QNN follows links.

    Args:
        folder: the folder that contains the model.
        path: path relative to `folder`.
        model: the model's file. If it is a link, the folder of the real file is also allowed: caches of model hubs
            store all files in one folder and link to them.
    """
    real = os.path.realpath(os.path.join(folder, path))
    # Also resolve links in the folder's own path: otherwise all files of a linked folder would count as outside.
    homes = {os.path.realpath(folder)} | ({os.path.dirname(os.path.realpath(model))} if model else set())
    for home in homes:
        try:
            if os.path.commonpath((home, real)) == home:
                return None
        except ValueError:  # the path is on another drive
            pass
    return real


if sys.platform == "win32":
    from qnnbridge_os.windows_facts import short_path
else:

    def short_path(path: str) -> str:
        return path


BY_CODE_PAGE = os.name == "nt"


def native_path(path: str | os.PathLike[str]) -> str:
    """Return a path that QNN can open on Windows: the short name if the path is not ASCII.

    Raises:
        OSError: the folder has no short name.
    """
    text = os.fspath(path)
    if not BY_CODE_PAGE or text.isascii():
        return text
    short = short_path(text)
    if not short.isascii():
        raise OSError(f"QNN cannot open files in {text} on Windows: the volume has no short names")
    return short


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """Open a regular file for reading. Raise `OSError` for a pipe, a device or a folder."""
    # A folder on Windows cannot contain a named pipe, because named pipes have a separate namespace.
    if sys.platform == "win32":
        return io.FileIO(path)
    # Without O_NONBLOCK, opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return io.FileIO(descriptor)
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "It is not a regular file", os.fspath(path))


# --- errors of a folder that cannot be written to --------------------------------------------------------

# Free bytes below which a failed write is reported as a full disk: ONNX Runtime does not report why a write failed.
LITTLE_BYTES: Final = 16 * 1024 * 1024

# The numbers are ENOSPC, EFBIG, EROFS, EACCES and EDQUOT of Linux.
_NOT_WRITTEN: Final = re.compile(
    r"Failed to (?:write|open) context cache file|Protobuf serialization failed"
    r"|SystemError : (?:28|27|30|13|122)\b|No space left on device|File too large|Read-only file system"
)


def cannot_write(folder: str, reason: str, evidence: str = "") -> CompileFailed:
    """Return the error for compiled files that cannot be written. reason: a sentence."""
    return CompileFailed(
        f"The compiled model cannot be written to {folder}.",
        cause=reason,
        fix="Free disk space, or choose another writable folder (-o, output=).",
        evidence=[evidence] if evidence else (),
        details={"folder": folder, "free_bytes": _free(folder)},
    )


def seen_from(error: CompileFailed, folder: str, target: str) -> CompileFailed:
    """Replace the temporary `folder` in the error by `target`, the folder that the caller gave."""
    error.message = error.message.replace(folder, target)
    error.evidence = tuple(line.replace(folder, target) for line in error.evidence)
    error.args = (error.message,)
    if error.details.get("folder") == folder:
        error.details["folder"] = target
    return error


def from_os(error: OSError, folder: str) -> CompileFailed:
    """Return the error for an `OSError` that this process raised while writing to the folder."""
    return cannot_write(folder, reason_of(error, folder))


def reason_of(error: OSError, folder: str) -> str:
    """Return why a file could not be written, as a sentence."""
    return _full(folder) if error.errno == errno.ENOSPC else f"{error.strerror or error}."


def from_host(error: BridgeError, folder: str) -> BridgeError:
    """Return a clearer error if ONNX Runtime could not write its files to `folder`, else `error` itself."""
    if not is_about_writing(error):
        return error
    return cannot_write(folder, why_not_written(folder), error.message)


def is_about_writing(error: BridgeError) -> bool:
    """Return whether ONNX Runtime's error message reports that a file could not be written."""
    text = "\n".join((error.message, error.cause or "", *error.evidence))
    # A message with "2GB" reports a model that is too large for protobuf, not a problem of the disk.
    return _NOT_WRITTEN.search(text) is not None and "2GB" not in text


def why_not_written(folder: str) -> str:
    """Return why the folder cannot be written to, as a sentence, from the state of the disk."""
    free = _free(folder)
    if free is not None and free < LITTLE_BYTES:
        return _full(folder)
    if not os.path.isdir(folder):
        return "The folder is gone."
    return (
        "ONNX Runtime could not write its files. Possible reasons are a full disk, a quota, a file size limit and "
        "missing permissions."
    )


def _full(folder: str) -> str:
    free = _free(folder)
    left = "" if free is None else f" ({free / 1024:.0f} kB are free)"
    return f"The disk is full{left}."


def _free(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None
