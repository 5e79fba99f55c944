"""Describes the running interpreter, for the doctor and for `setup`.

Run as a script by the interpreter that is asked, so it imports nothing of ours and works on every Python that
could be found (3.6 and newer). Prints one line of JSON in ASCII."""

import importlib.util
import json
import os
import platform
import site
import sys
import sysconfig


def describe() -> "dict[str, object]":  # as a text: a Python that is older must not read it
    try:
        user_site = site.getusersitepackages()
    except Exception:  # noqa: BLE001 - no home folder, a broken site module: not what is asked
        user_site = ""
    return {
        "executable": sys.executable or "",
        "version": platform.python_version(),
        "platform": sysconfig.get_platform(),
        "machine": platform.machine(),
        "env_machine": os.environ.get("PROCESSOR_ARCHITECTURE", ""),
        "prefix": sys.prefix,
        # In an environment on Windows `sys.executable` is a launcher; this is the program that it starts.
        "base_executable": getattr(sys, "_base_executable", None) or sys.executable or "",
        # A program may have put a `Path` there.
        "path": [str(folder) for folder in sys.path if folder],
        "user_site": user_site or "",
        "externally_managed": _is_externally_managed(),
        # The text of the version may end in "rc1" or "+".
        "version_info": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        # Free-threaded Pythons load no common wheel.
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        # Debian has venv without ensurepip until python3-venv is installed.
        "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
        "libc": platform.libc_ver(),
    }


def _is_externally_managed() -> bool:
    """The test that pip makes. A virtual environment is never managed externally."""
    if sys.prefix != getattr(sys, "base_prefix", sys.prefix):
        return False
    return os.path.isfile(os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED"))


if __name__ == "__main__":
    print(json.dumps(describe()))
