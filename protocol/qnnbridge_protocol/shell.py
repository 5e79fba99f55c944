"""Words of commands that messages suggest, so that a command works when it is pasted. Pure functions."""

from __future__ import annotations

import os


def shell_word(text: str | os.PathLike[str]) -> str:
    """Return a word of a command line, quoted for the shell of this system where it needs that."""
    word = os.fspath(text)
    if os.name == "nt":
        import subprocess

        return subprocess.list2cmdline([word])
    import shlex

    return shlex.quote(word)
