"""The folder of a new environment: it is there whole, or it is not there.

An environment cannot be moved once it is made (its scripts name their own folder), so it is made in place. A marker
file says that it is not finished; one that an interrupted set-up left is removed by the next. What is replaced is
put aside first and comes back if anything goes wrong. Folders that were made above it go with it, if it fails.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.setup_host.failures import AlreadyThere
from qnnbridge_tools.setup_host.places import not_made

MARKER = "qnnbridge-setup-unfinished"
OLD_SUFFIX = ".qnnbridge-old"


class NewEnvironment:
    """``with NewEnvironment(folder, replace=...) as made: ...; made.keep()``. One thread, one process at a time."""

    def __init__(self, folder: Path, *, replace: bool) -> None:
        self.folder = folder
        self._replace = replace
        self._old = folder.with_name(folder.name + OLD_SUFFIX)
        self._kept = False
        self._made_above: list[Path] = []

    def __enter__(self) -> NewEnvironment:
        recover(self.folder)
        check_free(self.folder, replace=self._replace)
        if is_taken(self.folder):
            try:
                self.folder.rename(self._old)
            except OSError as error:
                raise BridgeError(
                    f"The environment {self.folder} cannot be replaced: {error.strerror or error}.",
                    cause="A program that runs from it, a host perhaps, is not at its end.",
                    fix="End the applications that use it, or choose another folder with --dir.",
                ) from error
        self._made_above = [one for one in self.folder.parents if not one.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            recover(self.folder)
            self._remove_folders_above()
            raise not_made(self.folder, error.strerror or str(error)) from error
        (self.folder / MARKER).write_text(
            "A set-up of qnnbridge did not finish; the next one removes this.\n", "utf-8"
        )
        return self

    def keep(self) -> None:
        """It is finished."""
        (self.folder / MARKER).unlink()
        self._kept = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept:
            _remove(self._old)
        else:
            recover(self.folder)
            self._remove_folders_above()

    def _remove_folders_above(self) -> None:
        """Those that were made for it, the deepest first; what somebody else has put there meanwhile stays."""
        for folder in self._made_above:
            with contextlib.suppress(OSError):
                folder.rmdir()


def recover(folder: Path) -> None:
    """Remove what an unfinished set-up left in the folder, and put back what it had replaced."""
    old = folder.with_name(folder.name + OLD_SUFFIX)
    if (folder / MARKER).exists():
        for entry in folder.iterdir():
            if entry.name != MARKER:  # last, because this may be interrupted, too
                _remove(entry)
        _remove(folder)
    if old.exists():
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists():
            _remove(old)  # that set-up had finished and was ended before it had cleared up
        else:
            old.rename(folder)


def is_taken(folder: Path) -> bool:
    """Whether something is there that is not left over from an unfinished set-up."""
    return folder.exists() and not (folder / MARKER).exists() and any(folder.iterdir())


def check_free(folder: Path, *, replace: bool) -> None:
    """Raises `AlreadyThere` if a set-up into this folder would touch something that nobody offered."""
    if folder.exists() and not folder.is_dir():
        raise AlreadyThere(f"{folder} is a file.", fix="Choose another folder with --dir.")
    if not is_taken(folder):
        return
    if not (folder / "pyvenv.cfg").is_file():
        raise AlreadyThere(
            f"The folder {folder} is not empty, and it is not an environment.",
            fix="Choose another folder with --dir.",
        )
    if not replace:
        raise AlreadyThere(
            f"There is an environment in {folder} already.",
            fix="Replace it with --replace, or choose another folder with --dir.",
        )


def python_in(folder: Path) -> Path:
    """The environment's interpreter."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.exists():
        return

    def make_writable(function: Callable[..., Any], name: str, _error: object) -> None:
        os.chmod(name, stat.S_IRWXU)
        function(name)

    shutil.rmtree(path, onerror=make_writable)
