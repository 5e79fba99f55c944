"""Asks an interpreter what it is, by running it. Bounded in time; an interpreter that fails is an answer too."""

from __future__ import annotations

import dataclasses
import json
import subprocess

from qnnbridge._launch.interpreter import host_environment

ASK_TIMEOUT_S = 30.0
SHOWN_CHARACTERS = 160
NOT_FOUND = 127
"""The exit code of a shell, and of a script such as pyenv's, for a program that is not there."""

_QUESTION = """
import importlib.util, json, platform, sys, sysconfig
print("@@" + json.dumps({
    "version": list(sys.version_info[:3]),
    "platform": sysconfig.get_platform(),
    "base": getattr(sys, "_base_executable", None) or sys.executable,
    "implementation": sys.implementation.name,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "has_venv": all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")),
    "libc": platform.libc_ver(),
}))
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """platform: `sysconfig.get_platform`. base: the interpreter itself, where it is one of an environment."""

    version: tuple[int, int, int]
    platform: str
    base: str
    implementation: str
    free_threaded: bool
    has_venv: bool
    glibc: tuple[int, int] | None

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]


def ask(python: str) -> Answer | str:
    """Its answer, or in words why there is none."""
    try:
        done = subprocess.run(
            [python, "-I", "-X", "utf8", "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            env=host_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"does not answer within {ASK_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"cannot be started ({error.strerror or error})"
    line = next((line for line in done.stdout.splitlines() if line.startswith(b"@@")), None)
    if done.returncode != 0 or line is None:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        if done.returncode == NOT_FOUND:
            first = f" ({said[0].strip()[:SHOWN_CHARACTERS]})" if said else ""
            return f"only stands for a Python that is not installed: exit code {NOT_FOUND}{first}"
        last = f" ({said[-1].strip()[:SHOWN_CHARACTERS]})" if said else ""
        return f"does not run as Python does: exit code {done.returncode}{last}"
    told = json.loads(line[2:])
    library, library_version = told["libc"]
    numbers = library_version.split(".") if library == "glibc" else []
    return Answer(
        version=tuple(told["version"]),
        platform=told["platform"],
        base=told["base"],
        implementation=told["implementation"],
        free_threaded=told["free_threaded"],
        has_venv=told["has_venv"],
        glibc=(int(numbers[0]), int(numbers[1])) if len(numbers) > 1 else None,
    )
