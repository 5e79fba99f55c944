"""Which command a service manager runs, for whom, and with which of our variables. Pure but for `this_computer`."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from qnnbridge._daemon.start import variables_from_anywhere

SERVICE_NAME: Final = "qnnbridge"
CARRIED: Final = (
    "QNNBRIDGE_CACHE",
    "QNNBRIDGE_CACHE_DIR",
    "QNNBRIDGE_CACHE_MAX_BYTES",
    "QNNBRIDGE_CACHE_MIN_MODEL_BYTES",
    "QNNBRIDGE_CONFIG",
    "QNNBRIDGE_HOST_PYTHON",
    "QNNBRIDGE_RUNTIME_DIR",
    "QNNBRIDGE_STATE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)
"""What decides where the daemon is found, what it runs and where it keeps things: a service starts without the
environment of a shell, and has to agree with the applications about these. XDG_RUNTIME_DIR is set by systemd."""

ON_WINDOWS: Final = os.name == "nt"


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """program: the interpreter that runs the daemon. arguments: of it. user: as Windows writes it, DOMAIN\\name."""

    program: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    user: str


def this_computer(options: Sequence[str], windows: bool) -> Service:
    """windows: for Task Scheduler. Made on another system, program and user are words to be replaced."""
    if windows and not ON_WINDOWS:
        program = r"C:\path\to\pythonw.exe"
    elif not windows and ON_WINDOWS:
        program = "/path/to/python3"
    else:
        program = without_console(sys.executable) if windows else sys.executable
    domain = os.environ.get("USERDOMAIN", "")
    name = os.environ.get("USERNAME", "")
    user = (f"{domain}\\{name}" if domain else name) if windows and ON_WINDOWS and name else r"COMPUTER\user"
    environment = variables_from_anywhere({name: os.environ[name] for name in CARRIED if os.environ.get(name)})
    return Service(program, ("-m", "qnnbridge_tools", "host", "run", *options), environment, user)


def without_console(python: str) -> str:
    """The interpreter beside it that opens no window: as it is, if that is missing."""
    silent = Path(python).with_name("pythonw.exe")
    return str(silent) if silent.is_file() else python
