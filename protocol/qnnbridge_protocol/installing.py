"""The command that installs qnnbridge, for error messages, `qnnbridge doctor` and `qnnbridge setup`.

The import reads no files; `installed_from` reads pip's record of the installation.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any, Final

from qnnbridge_protocol.process_names import is_frozen
from qnnbridge_protocol.shell import command_line, shell_word

PACKAGE: Final = "qnnbridge"
# Whether qnnbridge is on a package index. If not, commands install from a checkout or a wheel.
ON_INDEX: Final = False

_PLAIN: Final = re.compile(r"[\w.:/\\\[\],=~ -]+")
_DRIVE: Final = re.compile(r"/[A-Za-z]:(?:/|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The checkout or wheel from which qnnbridge was installed. `editable`: whether it is an editable
    installation."""

    path: str
    editable: bool = False


def read_origin(record: str | None) -> Origin | None:
    """Return the origin from the contents of a `direct_url.json` (PEP 610), also if a Windows path is read on
    another system.

    Return ``None`` for an installation from an index, from another machine, or with a damaged record.
    """
    from urllib.parse import unquote, urlsplit

    try:
        document: Any = json.loads(record or "{}")
        url = urlsplit(document["url"])
        editable = bool(document.get("dir_info", {}).get("editable"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if url.scheme != "file":
        return None
    path = unquote(url.path)
    if url.netloc not in ("", "localhost"):
        return Origin(f"\\\\{url.netloc}{path}".replace("/", "\\"), editable)
    return Origin(path[1:].replace("/", "\\") if _DRIVE.match(path) else path, editable)


def installed_from() -> Origin | None:
    """Return the origin of the running qnnbridge, if the checkout or wheel still exists."""
    # imported here because the import takes 30 ms, and only messages need it
    import importlib.metadata

    try:
        origin = read_origin(importlib.metadata.distribution(PACKAGE).read_text("direct_url.json"))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return None
    return origin if origin is not None and os.path.exists(origin.path) else None


def requirement(extras: str = "", version: str = "", origin: Origin | None = None) -> str:
    """Return what pip must install: the origin, else the release on an index, else ``.`` (the current folder)."""
    extra = f"[{extras}]" if extras else ""
    if origin is not None:
        return f"{origin.path}{extra}"
    if ON_INDEX:
        return f"{PACKAGE}{extra}=={version}" if version else f"{PACKAGE}{extra}"
    return f".{extra}"


def extra_fix(extra: str) -> str:
    """Return the command that installs the packages of an extra. For a frozen application, return the advice to
    build it again."""
    if is_frozen():
        return f"Build this application again in an environment with the extra [{extra}] of {PACKAGE}."
    return install_command(extra)


def install_command(extras: str = "", *, python: str = "python", options: str = "") -> str:
    """Return the command that installs qnnbridge with these extras, quoted for cmd.exe, PowerShell and sh.

    If the origin is unknown, the command works only in the folder of a checkout; the returned text mentions this.

    Args:
        extras: the extras, such as ``host,genai``.
        python: the interpreter to install into.
        options: options of `pip install`, such as ``--upgrade``.
    """
    origin = None if "--upgrade" in options.split() else installed_from()
    what = requirement(extras, "", origin)
    # Use plain double quotes if all shells read the argument unchanged.
    quoted = f'"{what}"' if _PLAIN.fullmatch(what) else shell_word(what)
    command = f"{command_line((python, '-m', 'pip', 'install', *options.split()))} {quoted}"
    if origin is not None or ON_INDEX:
        return command
    newer = "newer " if "--upgrade" in options.split() else ""
    return f"{command}   (in a {newer}checkout of {PACKAGE})"
