"""Command lines to copy, for the shells of the computer that they are meant for. Pure functions of facts.

Each line is one command. On Windows it means the same in the Command Prompt and in PowerShell 5.1 and later, which
have little in common: no ``&&``, no program's name in quotes (PowerShell then prints it), no empty argument
(PowerShell drops it), double quotes around what one of the two would take for its own. Elsewhere it is for `sh`.
"""

from __future__ import annotations

import re
from typing import Final

from qnnbridge_tools.doctor.facts import Facts

Lines = tuple[str, ...]

_PLAIN: Final = re.compile(r"[\w.:=/\\~+-]+")


def word(text: str) -> str:
    """An argument. Inside of double quotes ``<``, ``>`` and ``,`` are text for each of the shells."""
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def python_lines(facts: Facts, path: str, *arguments: str) -> Lines:
    """Runs the interpreter once with each of the arguments; they are written as they are."""
    tag = next((one.tag for one in facts.interpreters if one.path == path and one.tag), None)
    if tag:
        return tuple(f"py -V:{tag} {text}" for text in arguments)
    if _PLAIN.fullmatch(path):
        return tuple(f"{path} {text}" for text in arguments)
    if not facts.is_windows:
        import shlex

        return tuple(f"{shlex.quote(path)} {text}" for text in arguments)
    # A path with spaces cannot be written as a command that both shells run; its folder can be gone to in both.
    folder, _, name = path.rpartition("\\")
    return (f'pushd "{folder}"', *(rf".\{name} {text}" for text in arguments), "popd")


def set_variable(facts: Facts, name: str, value: str) -> Lines:
    return (f"setx {name} {word(value)}",) if facts.is_windows else (f"export {name}={word(value)}",)


def unset_variable(facts: Facts, name: str) -> Lines:
    """``setx NAME ""`` would not do: PowerShell drops the empty text."""
    if facts.is_windows:
        return (f"powershell -Command \"[Environment]::SetEnvironmentVariable('{name}', '', 'User')\"",)
    return (f"unset {name}",)
