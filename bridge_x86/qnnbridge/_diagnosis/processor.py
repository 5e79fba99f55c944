"""What is known of the processor that a host runs on, in a few words for people.

Asked for when a host has died: it is gone, and this side is on the same computer. Any thread.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from qnnbridge._platform import native_machine

_CPUINFO: Final = "/proc/cpuinfo"
_MODEL_NAME: Final = re.compile(r"^model name\s*:\s*(\S.*?)\s*$", re.MULTILINE)
# The first processor of the list is in there.
_HEAD_CHARS: Final = 8192


def processor_of(host_machine: str = "") -> str:
    """``AMD EPYC 9R14 (x64), under Wine 8.0``; empty if nothing is known. Never raises.

    host_machine: of the host's process; if the computer is another, the host runs emulated.
    """
    try:
        name, machine, emulator = _name(), native_machine(), _emulator()
    except Exception:  # noqa: BLE001 - it is for an explanation of something worse
        return ""
    text = f"{name} ({machine})" if name else machine
    if emulator:
        text += f", under {emulator}"
    if host_machine and machine and host_machine != machine:
        text += f", on which {host_machine} is emulated"
    return text


def _name() -> str:
    if sys.platform == "win32":
        from qnnbridge_host._platform._win32_processor import processor_name

        return " ".join((processor_name() or "").split())
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            found = _MODEL_NAME.search(file.read(_HEAD_CHARS))
    except OSError:
        return ""
    return found[1] if found is not None else ""


def _emulator() -> str:
    if sys.platform == "win32":
        from qnnbridge_host._platform._win32_processor import wine_version

        version = wine_version()
        return f"Wine {version}" if version else ""
    return ""
