"""Create environments with other packages than the installed ones, from symbolic links, which need no time and no
space."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SITE = Path(sysconfig.get_paths()["purelib"])
DOCTOR_TIMEOUT_S = 110.0


def environment(folder: Path, replaced: Mapping[str, Path | None]) -> Path:
    """Create an environment like this one; return its site-packages.

    Args:
        replaced: module -> the folder to use instead, or ``None`` to remove the module.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for entry in SITE.iterdir():
        if not any(_is_of(entry.name, module) for module in replaced):
            (site / entry.name).symlink_to(entry)
    for module, source in replaced.items():
        for entry in source.iterdir() if source is not None else ():
            if _is_of(entry.name, module):
                (site / entry.name).symlink_to(entry)
    return site


def python_of(site: Path) -> str:
    return str(site.parents[2] / "bin" / "python")


def own_copy(site: Path, package: str) -> Path:
    """Replace the link to a package by a folder of links, so that single files can be replaced."""
    folder = site / package
    source = folder.resolve()
    folder.unlink()
    folder.mkdir()
    for entry in source.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def cut_off(library: Path, size: int) -> None:
    """Replace the link to a library by a truncated copy."""
    with open(library, "rb") as file:
        beginning = file.read(size)
    library.unlink()
    library.write_bytes(beginning)


def doctor(*arguments: str | Path, python: str | None = None) -> dict[str, Any]:
    """Return the output of ``qnnbridge doctor --json``."""
    command = [python or sys.executable, "-m", "qnnbridge_tools", "doctor", "--json", *map(str, arguments)]
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOCTOR_TIMEOUT_S, check=False, env=env
    )
    assert done.stdout, done.stderr.decode("utf-8", "replace")
    report: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == report["exit_code"]
    return report


def _is_of(name: str, module: str) -> bool:
    return name == module or name.startswith((f"{module}-", f"{module}."))
