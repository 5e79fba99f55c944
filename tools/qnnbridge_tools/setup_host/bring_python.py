"""Choose how `setup` downloads a Python if no installed interpreter can be the base of the host.

Windows' Python install manager (`pymanager`) or uv puts a CPython into a folder next to the environment. Nothing is
registered and no PATH is changed, so deleting the folder removes Python completely. This module runs no commands.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from qnnbridge._launch import Surroundings
from qnnbridge_tools.setup_host.environment import RECORD, AlreadyThere, is_marked
from qnnbridge_tools.setup_host.this_machine import BaseCandidate, PythonTraits, program_on_path
from qnnbridge_tools.versions.packages import Source

# Every release of onnxruntime-qnn that the table recommends for Windows on Arm has a wheel for this version.
BROUGHT_VERSION: Final = (3, 13)
# Disk space in bytes for the unpacked Python and uv.
BROUGHT_BYTES: Final = 300_000_000
FOLDER_SUFFIX: Final = "-python"
MIRROR_VARIABLE: Final = "UV_PYTHON_INSTALL_MIRROR"


@dataclasses.dataclass(frozen=True, slots=True)
class _Target:
    """Names of a platform: in uv's requests, in the install manager's tags ("" if not supported), and in
    sysconfig.
    """

    uv: str
    tag: str
    platform: str


_WINDOWS: Final[Mapping[str, _Target]] = {
    "ARM64": _Target("windows-aarch64-none", "-arm64", "win-arm64"),
    "x64": _Target("windows-x86_64-none", "-64", "win-amd64"),
}
_LINUX: Final[Mapping[str, _Target]] = {
    "x86_64": _Target("linux-x86_64-gnu", "", "linux-x86_64"),
    "aarch64": _Target("linux-aarch64-gnu", "", "linux-aarch64"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class BroughtPython:
    """A Python to download, or a Python that an earlier set-up downloaded (`commands` is then empty).

    Args:
        by: Name of the program that downloads it, as messages show it.
        folder: Folder that contains only this Python.
        candidate: The interpreter. Before the download it has the requested traits.
        commands: The commands in order. The last one creates the interpreter.
        scratch: Folder that only the commands need.
    """

    by: str
    folder: Path
    candidate: BaseCandidate
    commands: tuple[tuple[str, ...], ...]
    scratch: Path

    @property
    def text(self) -> str:
        version = "Python {}.{}".format(*BROUGHT_VERSION)
        if not self.commands:
            return f"{version} in {self.folder}, which an earlier set-up downloaded"
        return f"{version}, about 25 MB, by {self.by} into {self.folder}"


def python_folder(environment: Path) -> Path:
    """Return the folder for the Python of this environment."""
    return environment.with_name(environment.name + FOLDER_SUFFIX)


def python_to_bring(
    surroundings: Surroundings,
    environment: Path,
    source: Source,
    asker: Callable[[str], PythonTraits | str],
    find_program: Callable[[str], str | None] = program_on_path,
) -> BroughtPython | None:
    """Return the Python to download; ``None`` if there is none for this platform.

    Raises:
        AlreadyThere: the folder contains files that no set-up created.
    """
    target = (_WINDOWS if surroundings.is_windows else _LINUX).get(surroundings.computer)
    if target is None:
        return None
    folder = python_folder(environment)
    scratch = folder / "uv"
    is_half_removed = is_marked(folder)
    for path in (_by_uv(folder, target, surroundings), _by_manager(folder)):
        answer = asker(str(path)) if path.is_file() and not is_half_removed else ""
        if not isinstance(answer, str):
            return BroughtPython("", folder, BaseCandidate(str(path), answer), (), scratch)
    is_foreign = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if is_foreign and not is_half_removed and not (folder / RECORD).is_file():
        raise AlreadyThere(
            f"The folder {folder}, in which Python would be stored, was not created by `qnnbridge setup`.",
            fix="Rename this folder, or choose another folder for the host with --dir.",
        )
    manager = _manager_source(surroundings, source, find_program)
    if manager is not None:
        by, path = "the Python install manager", _by_manager(folder)
        tag = "{}.{}".format(*BROUGHT_VERSION) + target.tag
        commands: tuple[tuple[str, ...], ...] = (
            (manager[0], "install", "--yes", *manager[1:], "--target", str(path.parent), tag),
        )
    else:
        by, path = "uv", _by_uv(folder, target, surroundings)
        commands = _uv_commands(folder, scratch, target, surroundings, source, find_program)
    return BroughtPython(by, folder, BaseCandidate(str(path), _expected(target, path)), commands, scratch)


def _by_uv(folder: Path, target: _Target, surroundings: Surroundings) -> Path:
    """Return the interpreter's path without the patch version, which uv creates as a link to the full path."""
    made = folder / _request(target)
    return made / "python.exe" if surroundings.is_windows else made / "bin" / "python{}.{}".format(*BROUGHT_VERSION)


def _by_manager(folder: Path) -> Path:
    """Return the interpreter's path. It is in a subfolder, because the install manager empties its target first."""
    return folder / "python" / "python.exe"


def _request(target: _Target) -> str:
    return "cpython-{}.{}-{}".format(*BROUGHT_VERSION, target.uv)


def _manager_source(
    surroundings: Surroundings, source: Source, find_program: Callable[[str], str | None]
) -> tuple[str, ...] | None:
    """Return the install manager and its options for the source; ``None`` if uv is to be used."""
    # Do not use `py`: the launcher of older installers has the same name, and would run a script called "install".
    manager = find_program("pymanager") if surroundings.is_windows else None
    # A mirror in this variable works for uv only.
    if manager is None or surroundings.environ.get(MIRROR_VARIABLE):
        return None
    if source.links is None:
        return (manager,)
    # Index of downloaded Pythons, which `pymanager install --download=FOLDER` writes.
    index = source.links / "index.json"
    return (manager, "--source", str(index)) if index.is_file() else None


def _uv_commands(
    folder: Path,
    scratch: Path,
    target: _Target,
    surroundings: Surroundings,
    source: Source,
    find_program: Callable[[str], str | None],
) -> tuple[tuple[str, ...], ...]:
    uv = find_program("uv")
    first: tuple[tuple[str, ...], ...] = ()
    if uv is None:
        uv = str(scratch / "bin" / ("uv.exe" if surroundings.is_windows else "uv"))
        first = (
            (
                *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
                *("--progress-bar", "off", "--only-binary", ":all:"),
                *(*source.index_words, "--target", str(scratch), "uv"),
            ),
        )
    mirror = ("--mirror", source.links.as_uri()) if source.links is not None else ()
    install = (uv, "python", "install", "--install-dir", str(folder), "--no-bin", "--no-registry", *mirror)
    return (*first, (*install, _request(target)))


def _expected(target: _Target, path: Path) -> PythonTraits:
    return PythonTraits(
        version=(*BROUGHT_VERSION, 0),
        platform=target.platform,
        base=os.fspath(path),
        implementation="cpython",
        free_threaded=False,
        has_venv=True,
        glibc=None,
    )
