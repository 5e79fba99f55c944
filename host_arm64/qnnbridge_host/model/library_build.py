"""The QNN SDK build that a QNN library was made from, read from the file without loading it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import mmap

_BUILD: Final = re.compile(rb"v(\d\.\d{1,3}\.\d{1,3}\.\d{12}(?:_\d+)?)")
_RESOURCE_NAME: Final = "ProductVersion".encode("utf-16-le")
_RESOURCE_TEXT: Final = re.compile(r"\d+\.\d+\.\d+\.\d{6,}(?:_\d+)?")
_RESOURCE_CHARACTERS: Final = 64
_BACKENDS: Final = ("QnnHtp.dll", "libQnnHtp.so", "QnnSystem.dll", "libQnnSystem.so")


def build_of(path: str | os.PathLike[str]) -> str | None:
    """The build, from the version resource of a PE file, else from the text in the file. Raises `OSError`."""
    import mmap  # which a session does not need

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _resource_version(data) or _text_version(data)


def build_in(folder: str | os.PathLike[str]) -> str | None:
    """The build of the libraries in a folder; ``None`` if no file says it."""
    for name in _BACKENDS:
        try:
            found = build_of(os.path.join(folder, name))
        except (OSError, ValueError):  # absent, or empty
            continue
        if found:
            return found
    return None


def _resource_version(data: mmap.mmap) -> str | None:
    start = data.rfind(_RESOURCE_NAME)
    if start < 0:
        return None
    start += len(_RESOURCE_NAME)
    text = data[start : start + 2 * _RESOURCE_CHARACTERS].decode("utf-16-le", "replace")
    found = _RESOURCE_TEXT.search(text)
    return found[0] if found else None


def _text_version(data: mmap.mmap) -> str | None:
    found = {match[1] for match in _BUILD.finditer(data)}
    return found.pop().decode("ascii") if len(found) == 1 else None
