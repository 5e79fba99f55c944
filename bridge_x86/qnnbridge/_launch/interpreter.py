"""Finds the interpreter that runs the host.

What was set explicitly is used or refused with a reason, never passed over: the argument, then the environment
variable, then the configuration file. Only if nothing was set does the search go on to what is installed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Final, Literal

from qnnbridge._launch.configuration import configuration_file, configured_host
from qnnbridge._launch.installed import Surroundings, registered_host, running_host
from qnnbridge._launch.machine import interpreter_machine
from qnnbridge_protocol.errors import HostNotFound

VARIABLE: Final = "QNNBRIDGE_HOST_PYTHON"

Source = Literal["argument", "QNNBRIDGE_HOST_PYTHON", "configuration file", "registry", "running interpreter"]

_APP_ALIAS_TAG = 0x8000001B  # IO_REPARSE_TAG_APPEXECLINK


@dataclasses.dataclass(frozen=True, slots=True)
class HostInterpreter:
    """machine: what the interpreter was built for ("ARM64", "x86_64" ...), ``None`` if `path` is a script."""

    path: str
    source: Source
    machine: str | None


def find_host(explicit: str | os.PathLike[str] | None = None) -> HostInterpreter:
    """The interpreter to run the host with.

    `explicit`, else the environment variable QNNBRIDGE_HOST_PYTHON, else ``[host] python`` in the configuration
    file, else (Windows on ARM) the newest ARM64 Python in the registry that has the host's packages, else the
    running interpreter if it has them. Raises `HostNotFound`, which says what to set or to install.
    """
    return find_host_in(Surroundings.current(), explicit)


def find_host_in(surroundings: Surroundings, explicit: str | os.PathLike[str] | None = None) -> HostInterpreter:
    """`find_host` with everything that it looks at handed in."""
    if explicit is not None:
        return _checked(os.fspath(explicit), "argument", "", surroundings)
    # An empty variable is how many shells and CI systems say "not set".
    named = surroundings.environ.get(VARIABLE)
    if named:
        return _checked(named, VARIABLE, f"The environment variable {VARIABLE}", surroundings)
    file = configuration_file(surroundings.environ)
    configured = configured_host(file, must_exist=bool(surroundings.environ.get("QNNBRIDGE_CONFIG")))
    if configured is not None:
        return _checked(configured, "configuration file", f"The configuration file {file}", surroundings)

    looked_at = [f"environment variable {VARIABLE}: not set", _why_not_configured(file)]
    if surroundings.is_windows_on_arm:
        found = registered_host(surroundings, looked_at)
        if found is not None:
            return HostInterpreter(found, "registry", interpreter_machine(found))
    running = running_host(surroundings, looked_at)
    if running is not None:
        return HostInterpreter(running, "running interpreter", surroundings.process)
    raise HostNotFound(
        "No Python interpreter was found that could run the host.",
        cause="Nothing is configured, and no Python that was looked at has the packages of the host.",
        fix=f"Run: qnnbridge setup-host   (it makes an environment for the host). By hand: "
        f"{_how_to_install(surroundings)}",
        evidence=looked_at,
    )


def _why_not_configured(file: Path) -> str:
    return f"configuration file {file}: {'has no [host] python' if file.exists() else 'does not exist'}"


def _how_to_install(surroundings: Surroundings) -> str:
    if surroundings.is_windows_on_arm:
        tag = surroundings.install_tag or "3.13-arm64"
        python = (
            ""
            if surroundings.install_tag
            else 'Install Python 3.13 with the "Windows installer (ARM64)" from https://www.python.org/downloads/'
            "windows/ . Then run: "
        )
        return (
            f'{python}py -V:{tag} -m pip install "qnnbridge[host]"   (as that Python\'s own package, not with '
            f"--user). It is then found by itself; to choose it by hand, set {VARIABLE} to its python.exe."
        )
    return (
        f'pip install "qnnbridge[host]" with Python 3.11 or newer, in this interpreter or in another one, '
        f"and name that one in {VARIABLE}."
    )


# --- what was set explicitly -----------------------------------------------------------------------------


def _checked(text: str, source: Source, place: str, surroundings: Surroundings) -> HostInterpreter:
    path = _full_path(text)
    what = f"{place} names {text!r}" if place else f"{text!r} was given"

    def refuse(problem: str, fix: str | None = None) -> HostNotFound:
        return HostNotFound(
            f"{what} as the host's interpreter, but {problem}.",
            fix=fix or "Name the full path of a Python interpreter that has qnnbridge[host] installed.",
            details={"path": path or text, "source": source},
        )

    if path is None:
        raise refuse("there is no program of that name on the PATH" if text else "that is empty")
    if _is_store_alias(path):
        raise refuse(
            "that is an alias of the Microsoft Store, not an interpreter",
            "Install Python from https://www.python.org/downloads/windows/ and name its python.exe.",
        )
    if os.path.isdir(path):
        raise refuse("that is a folder")
    if not os.path.exists(path):
        raise refuse("that file does not exist")
    try:
        machine = interpreter_machine(path)
    except OSError as error:
        raise refuse(f"that file cannot be read ({error.strerror})") from error
    problem = surroundings.why_not_machine(machine)
    if problem is not None:
        raise refuse(problem, _how_to_install(surroundings) if surroundings.is_windows else None)
    if not os.access(path, os.X_OK):
        raise refuse("that file is not executable")
    return HostInterpreter(path, source, machine)


def _full_path(text: str) -> str | None:
    """A bare name is looked up as a shell would. Links are kept: a virtual environment's interpreter is one."""
    if not text:
        return None
    if os.path.dirname(text):
        return os.path.abspath(os.path.expanduser(text))
    found = shutil.which(text)
    if found is None and os.path.exists(text):
        found = text
    return found and os.path.abspath(found)


def _is_store_alias(path: str) -> bool:
    """Windows puts files of no length on the PATH that start a program of the Store, or the Store itself."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if getattr(status, "st_reparse_tag", 0) == _APP_ALIAS_TAG:
        return True
    return status.st_size == 0 and "windowsapps" in (part.lower() for part in Path(path).parts)


__all__ = ["VARIABLE", "HostInterpreter", "Source", "configuration_file", "find_host", "find_host_in"]
