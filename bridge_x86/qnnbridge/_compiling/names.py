"""Names of the files of a compiled model. Pure functions.

QNN refuses to load a context binary whose name has ``..`` in it, though it writes one without a word; a file name
has at most 255 bytes; and both files of a model and its manifest are to be recognised as one.
"""

from __future__ import annotations

import os
import re
from typing import Final

CONTEXT: Final = "_ctx"
MODEL_SUFFIX: Final = ".onnx"
BLOB_SUFFIX: Final = "_qnn.bin"
"""What QNN appends to the stem of the .onnx file."""

MAX_STEM_BYTES: Final = 215
"""Of 255 that file systems take: leaves room for suffixes, and for what is added while a file is being written."""

WITHOUT_A_NAME: Final = "model"


def context_stem(stem: str | None) -> str:
    """The stem of the compiled model of a model with this stem: ``pnet`` -> ``pnet_ctx``, safe for QNN."""
    return safe_stem((stem or WITHOUT_A_NAME) + CONTEXT)


def safe_stem(stem: str) -> str:
    """A stem under which QNN finds its context binary again, short enough for every file that has it."""
    safe = re.sub(r"\.{2,}", "_", stem)
    if len(os.fsencode(safe)) > MAX_STEM_BYTES:
        import hashlib

        # By its hash it stays another one than its neighbours that begin alike.
        tail = f"-{hashlib.sha256(os.fsencode(safe)).hexdigest()[:8]}"
        safe = _first_bytes(safe, MAX_STEM_BYTES - len(tail)) + tail
    return safe


def blob_of(stem: str) -> str:
    """The file name of the context binary beside ``<stem>.onnx``."""
    return stem + BLOB_SUFFIX


def stem_of(path: str) -> str:
    """``dir/a..b.onnx`` -> ``a..b``."""
    return os.path.splitext(os.path.basename(path))[0]


def _first_bytes(text: str, limit: int) -> str:
    while len(os.fsencode(text)) > limit:
        text = text[:-1]
    return text
