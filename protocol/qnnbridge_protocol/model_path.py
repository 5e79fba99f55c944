"""The path of a model as an application gives it, made absolute and checked before anything is started for it."""

from __future__ import annotations

import os

from qnnbridge_protocol.errors import InvalidArgument, InvalidProtobuf, NoSuchFile


def absolute_model_path(given: str | os.PathLike[str]) -> str:
    """The absolute path of a model file that is there.

    Raises:
        InvalidArgument: the path is no valid Unicode, so it cannot travel.
        InvalidProtobuf: it is a folder.
        NoSuchFile: it cannot be looked at.
    """
    shown = os.fsdecode(given)
    path = os.path.abspath(shown)
    check_travels(path)
    try:
        os.stat(path)  # says why, if there is none
    except (OSError, ValueError) as error:
        raise unreadable(shown, path, error) from None
    if os.path.isdir(path):
        raise InvalidProtobuf(
            f"{shown} is a folder, not a model.",
            fix="Give the path of the .onnx file in it.",
            details={"path": path},
        )
    return path


def check_travels(path: str) -> None:
    """Raises `InvalidArgument` for a path that is no valid Unicode."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        shown = path.encode("utf-8", "backslashreplace").decode()
        raise InvalidArgument(
            f"The path {shown} is not valid Unicode.",
            cause="It has bytes that are no UTF-8 (or half of a UTF-16 pair), so it cannot be told to the host.",
            fix="Rename the file or the folder, or give the model as bytes.",
            details={"path": shown},
        ) from None


def unreadable(shown: str, path: str, error: OSError | ValueError) -> NoSuchFile:
    """The error for a model that cannot be read. shown: the path as the application gave it."""
    return NoSuchFile(
        f"The model {shown} cannot be read.",
        cause=f"{getattr(error, 'strerror', None) or error} (looked for {path}).",
        fix="Check the path; a relative one counts from the application's current folder.",
        details={"path": path},
    )
