"""The path by which QNN can open a context binary.

On Windows it opens one by a path in the system's code page: one with other characters ends the process (0xC0000409,
seen with 2.7.0). There the folder's short name stands in for it. Any thread.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge_protocol.errors import ContextUnusable

if TYPE_CHECKING:
    from qnnbridge_host.model.source import ModelSource

if sys.platform == "win32":
    from qnnbridge_host._platform._win32_short_path import short_path
else:

    def short_path(path: str) -> str:
        return path


BY_CODE_PAGE = os.name == "nt"


def native_path(path: str | Path) -> str:
    """Of a folder that is there. Raises `OSError` if it has none."""
    text = os.fspath(path)
    if not BY_CODE_PAGE or text.isascii():
        return text
    short = short_path(text)
    if not short.isascii():
        raise OSError(f"QNN cannot open files in {text} on Windows: the volume keeps no short names for it")
    return short


def path_for_qnn(source: ModelSource) -> str | None:
    """The model's path, by which QNN finds the context binary beside it; ``None`` for a model given as bytes.

    Raises `ContextUnusable` if it could not.
    """
    path, scan = source.path, source.scan
    named = [node.cache_path for node in scan.ep_contexts if node.cache_path] if scan is not None else []
    if path is None or not named:
        return path
    folder, name = os.path.split(path)
    try:
        if BY_CODE_PAGE and not all(blob.isascii() for blob in named):
            raise OSError(f"QNN cannot open a file of this name on Windows: {named[0]}")
        return os.path.join(native_path(folder), name)
    except OSError as error:
        raise ContextUnusable(
            f"The compiled model {source.label} cannot be loaded from where it is.",
            cause=f"{error}.",
            fix="Move the model and its context binary to a folder with a plain English name (A to Z), or compile "
            "it again there.",
            details={"path": path},
        ) from None
