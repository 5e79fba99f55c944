"""Print machine types and registry views of Windows on ARM64 as a JSON object; run by its Python.

usage: ``windows_arm64_machines.py LIBS LAUNCHERS``; LIBS: the folder `libs` of the x64 package of onnxruntime-qnn, with
x64, ARM64EC and ARM64X libraries; LAUNCHERS: the folder of pip's launchers, programs for x86, x64 and ARM64.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import platform
import subprocess
import sys
import sysconfig
import winreg
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from windows_facts import FACTS, TIMEOUT_S, fact, report

from qnnbridge._launch import interpreter_machine, process_machine
from qnnbridge_os import windows_facts
from qnnbridge_os.processes import native_machine
from qnnbridge_os.programs import registered_pythons
from qnnbridge_tools.doctor.machine import read_library

LIBS, LAUNCHERS = map(Path, sys.argv[1:3])
WINE_LOST_A_PROCESS = 1359


@fact
def this_process() -> Any:
    return [process_machine(), native_machine(), platform.machine(), sysconfig.get_platform()]


@fact
def libraries() -> Any:
    """Return, for each library, its header's machine and the result of loading it in this process."""
    found = {}
    for path in sorted(LIBS.glob("*/*.dll")):
        library = read_library(str(path), version=False)
        try:
            ctypes.WinDLL(str(path))
            said: int | str = "ok"
        except OSError as error:
            said = error.winerror or "a dependency is missing"
        found[f"{path.parent.name}/{path.name}"] = [library.machine if library else None, said]
    return found


@fact
def programs() -> Any:
    """Return, for each program, its header's machine and whether Windows starts it."""
    found = {}
    for path in sorted(LAUNCHERS.glob("t*.exe")):
        try:
            done = subprocess.run([str(path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S)
            said: Any = "starts" if done.returncode < 0x80000000 else hex(done.returncode)
        except OSError as error:
            if error.winerror == WINE_LOST_A_PROCESS:
                raise  # the lab runs this program again
            said = error.winerror
        except subprocess.TimeoutExpired:
            said = "does not end"
        found[path.name] = [interpreter_machine(str(path)), said]
    return found


@fact
def registry_views() -> Any:
    """Return the Python in the registry view of ARM64 programs, and the one in the view of x86 programs."""
    with _registered("QnnbridgeArm64", winreg.KEY_WOW64_64KEY), _registered("QnnbridgeX86", winreg.KEY_WOW64_32KEY):
        tags = [
            python.launcher_tag for python in registered_pythons() if python.launcher_tag.startswith("Qnnbridge")
        ]
        seen = [
            windows_facts.value("HKLM", rf"SOFTWARE\Python\{company}\3.13\InstallPath", "ExecutablePath")
            for company in ("QnnbridgeArm64", "QnnbridgeX86")
        ]
    return [sorted(tags), seen]


@contextlib.contextmanager
def _registered(company: str, view: int) -> Iterator[None]:
    keys = [rf"SOFTWARE\Python\{company}", rf"SOFTWARE\Python\{company}\3.13"]
    keys.append(rf"{keys[1]}\InstallPath")
    with winreg.CreateKeyEx(winreg.HKEY_LOCAL_MACHINE, keys[2], 0, winreg.KEY_WRITE | view) as key:
        winreg.SetValueEx(key, "ExecutablePath", 0, winreg.REG_SZ, rf"C:\{company}\python.exe")
    try:
        yield
    finally:
        for path in reversed(keys):
            winreg.DeleteKeyEx(winreg.HKEY_LOCAL_MACHINE, path, view)


@fact
def build_of_windows() -> Any:
    """Return the build of Windows from Python, whose manifest lists no Windows, and from the doctor."""
    return [sys.getwindowsversion().build, windows_facts.build()]


if __name__ == "__main__":
    print(json.dumps({name: report(name) for name in FACTS}))
