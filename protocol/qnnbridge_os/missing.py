"""Explain why a file or folder that a user named is missing, with the most similar name that exists."""

from __future__ import annotations

import os
from typing import Final, TypedDict

# The `cutoff` of `difflib.get_close_matches`.
_SIMILAR: Final = 0.6
CURRENT_FOLDER_GONE: Final = "The current folder was removed."
CHANGE_FOLDER: Final = "Change to a folder that exists."
# Maximum number of names to compare, because a folder may have millions of entries.
_MOST_ENTRIES: Final = 10_000


class Explained(TypedDict):
    """Cause and fix, as arguments of an error."""

    cause: str
    fix: str


def has_current_folder() -> bool:
    """Return whether the current folder of this process exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def why_missing(path: str | os.PathLike[str], fix: str = "Check the path.") -> Explained:
    """Return why a path does not exist, with the advice `fix` if no similar name exists."""
    text = os.fspath(path)
    if not os.path.isabs(text) and not has_current_folder():
        return {"cause": CURRENT_FOLDER_GONE, "fix": CHANGE_FOLDER}
    if "\0" in text:
        return {"cause": "No file name can contain a NUL character.", "fix": fix}
    folder = os.path.dirname(os.path.abspath(text))
    if os.path.islink(text) and not os.path.exists(text):
        return {"cause": f"It is a link to {os.readlink(text)}, which does not exist.", "fix": fix}
    if os.path.exists(text):
        return {"cause": "It is a folder." if os.path.isdir(text) else "It is not a folder.", "fix": fix}
    while not os.path.isdir(folder):
        parent = os.path.dirname(folder)
        if os.path.isdir(parent) or parent == folder:
            what = "is not a folder" if os.path.exists(folder) else "does not exist"
            return {"cause": f"The folder {folder} {what}.", "fix": _similar(folder, parent) or fix}
        folder = parent
    beside = _similar(text, folder)
    return {"cause": f"The folder {folder} does not contain it.", "fix": beside or fix}


def _similar(path: str, folder: str) -> str | None:
    """Return a question with the name in `folder` that is most similar to the path's name, or ``None``."""
    import difflib
    import itertools

    name = os.path.basename(os.path.normpath(path))
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES)]
    except OSError:
        return None
    # Compare names without suffixes: an equal suffix would make different names similar.
    by_stem = {os.path.splitext(one)[0].lower(): one for one in sorted(names, reverse=True)}
    near = difflib.get_close_matches(os.path.splitext(name)[0].lower(), by_stem, n=1, cutoff=_SIMILAR)
    return f'Did you mean "{os.path.join(os.path.dirname(path), by_stem[near[0]])}"?' if near else None
