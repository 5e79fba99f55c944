"""Table of provider options: the first release of onnxruntime-qnn that supports each option, on Windows and on
Linux.

The data is `option_names.json` next to this file; ``python -m scripts.makers.option_names`` creates it from the
wheels. The provider library of a release contains each supported option as a string. All data is immutable, and all
functions are thread-safe.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import mmap

Release = tuple[int, int]

# Compilers for Linux store the first 16 bytes of a string as one constant and the rest in the code. Shorter strings
# may be only in the code, so a library may support an option without containing its name.
WHOLE_BYTES: Final = 16

_PART_OF_A_NAME: Final = re.compile(rb"[\w.]")

# Value in the data for an option that all examined releases support.
ALL: Final = "all"

SYSTEMS: Final = ("windows", "linux")
_LIBRARIES: Final = ("onnxruntime_providers_qnn.dll", "libonnxruntime_providers_qnn.so")


def contains(library: bytes | mmap.mmap, name: str) -> bool:
    """Return whether a provider library contains the name of an option as a whole word."""
    text = name.encode()
    return _has_word(library, text) or (len(text) > WHOLE_BYTES and _has_word(library, text[:WHOLE_BYTES]))


def _has_word(library: bytes | mmap.mmap, word: bytes) -> bool:
    at = library.find(word)
    while at >= 0:
        around = library[max(at - 1, 0) : at] + library[at + len(word) : at + len(word) + 1]
        if not _PART_OF_A_NAME.search(around):
            return True
        at = library.find(word, at + 1)
    return False


def library_contains(folder: str | None, name: str) -> bool:
    """Return whether the provider library in ``folder`` contains a name. False if no library can be read."""
    import mmap  # import it here, because it is needed only for an option that is not in the tables

    for path in (os.path.join(folder, file) for file in _LIBRARIES) if folder else ():
        try:
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return contains(data, name)
        except (OSError, ValueError):
            continue
    return False


def first_releases(name: str) -> Mapping[str, Release]:
    """Return the first release that supports an option, for each of `SYSTEMS` whose newest release supports it.

    (0, 0) means every release.
    """
    return _table().get(name, {})


def newest_release() -> str:
    """Return the newest release of onnxruntime-qnn whose options were examined."""
    return str(_document()["newest"])


@functools.cache
def _document() -> dict[str, object]:
    loaded: dict[str, object] = json.loads(
        resources.files(__package__).joinpath("option_names.json").read_text("utf-8")
    )
    return loaded


@functools.cache
def _table() -> dict[str, dict[str, Release]]:
    options = _document()["options"]
    assert isinstance(options, dict)
    return {name: {system: _release(text) for system, text in systems.items()} for name, systems in options.items()}


def _release(text: str) -> Release:
    if text == ALL:
        return 0, 0
    major, minor = text.split(".")
    return int(major), int(minor)
