"""Describe the running interpreter, for the doctor and for `setup`.

The examined interpreter runs this file as a script. So the file does not import other modules of this project,
works with Python 3.6 and newer, and prints one line of JSON in ASCII.
"""

import importlib.util
import json
import os
import platform
import site
import sys
import sysconfig


def describe() -> "dict[str, object]":  # quoted, because older Pythons cannot evaluate it
    """Return the facts of the running interpreter."""
    try:
        user_site = site.getusersitepackages()
    except Exception:  # noqa: BLE001 - a missing home folder or a broken site module does not matter here
        user_site = ""
    return {
        "executable": sys.executable or "",
        "version": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "machine": platform.machine(),
        "env_machine": os.environ.get("PROCESSOR_ARCHITECTURE", ""),
        "prefix": sys.prefix,
        # In a virtual environment on Windows `sys.executable` is a launcher, which starts this program.
        "base_executable": getattr(sys, "_base_executable", None) or sys.executable or "",
        # `sys.path` may contain `Path` objects.
        "path": [str(folder) for folder in sys.path if folder],
        "user_site": user_site or "",
        "externally_managed": _is_externally_managed(),
        # Use numbers, because the version's text may end in "rc1" or "+".
        "version_info": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        # Free-threaded Pythons cannot load wheels that were built for Pythons with the GIL.
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        # Debian has venv without ensurepip until python3-venv is installed.
        "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "libc": platform.libc_ver(),
    }


def _is_externally_managed() -> bool:
    """Return whether pip refuses to install (PEP 668). As in pip, virtual environments are never refused."""
    if sys.prefix != getattr(sys, "base_prefix", sys.prefix):
        return False
    return os.path.isfile(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))


if __name__ == "__main__":
    print(json.dumps(describe()))
