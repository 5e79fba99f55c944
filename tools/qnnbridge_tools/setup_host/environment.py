"""The folder of a new environment: room for it, its making, its removal if the set-up fails.

An environment cannot be moved (its scripts name their own folder), so it is made in place. A marker file says
that it is not finished; the next set-up removes one that an interrupted set-up left. A replaced environment is
put aside first and comes back if anything fails. Folders made above the environment go with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from qnnbridge_protocol.errors import BridgeError, OptionError


class SetupFailed(BridgeError):
    """A step failed; what it had made is removed again. ``details["step"]`` says which."""

    code = "setup.Failed"


class NothingFits(BridgeError):
    """No release of onnxruntime-qnn works on this machine, or not the one that was asked for."""

    code = "setup.NothingFits"


class AlreadyThere(OptionError):
    """An environment or a setting that would have to be replaced, without --replace."""

    code = "setup.AlreadyThere"


def failed(
    step: str, message: str, *, cause: str | None = None, fix: str | None = None, evidence: Sequence[str] = ()
) -> SetupFailed:
    return SetupFailed(message, cause=cause, fix=fix, evidence=evidence, details={"step": step})


# An environment of today has 570 MB, with onnxruntime-qnn 2.7.0, ONNX Runtime 1.31.1 and onnx for Linux.
NEEDED_BYTES: Final = 700_000_000

# With less than this left after a failure, the disk is what failed: pip and venv do not always say so.
FULL_BYTES: Final = 20_000_000

FREE_SPACE: Final = (
    f"Free disk space (about {NEEDED_BYTES // 1_000_000} MB are needed), or choose another folder with --dir. pip "
    "unpacks in the folder that TMPDIR names (on Windows: TEMP), which may be on another disk."
)


def check_folder(folder: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raises `SetupFailed` where an environment has no room, or where this user may not make one."""
    problem = _problem_of(folder)
    if problem is not None:
        raise not_made(folder, problem)
    free = free_bytes(folder)
    if free is not None and free < needed_bytes:
        raise failed(
            "environment",
            f"The disk of {folder} has {free // 1_000_000} MB left, which is not enough.",
            fix=FREE_SPACE,
        )


def check_file(file: Path) -> None:
    """Raises `SetupFailed` where this user may not write the configuration file."""
    # `write_text` follows a link, so the folder behind it counts.
    problem = _problem_of(Path(os.path.realpath(file)).parent)
    if problem is not None:
        raise not_written(file, problem)


def not_made(folder: Path, reason: str) -> SetupFailed:
    return failed(
        "environment",
        f"The folder {folder} cannot be made: {reason}.",
        fix="Choose another folder with --dir.",
    )


def not_written(file: Path, reason: str) -> SetupFailed:
    return failed(
        "configuration",
        f"The configuration file {file} cannot be written: {reason}.",
        fix="Name another file in QNNBRIDGE_CONFIG, or leave it alone with --no-config.",
    )


def free_bytes(folder: Path) -> int | None:
    """On the disk that the folder is on, or will be. ``None`` if the system does not report it."""
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def _problem_of(folder: Path) -> str | None:
    there = _existing(folder)
    if not there.is_dir():
        return f"{there} is a file"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} may not be written to"
    return None


def _existing(path: Path) -> Path:
    """The path or the nearest folder above it that is there."""
    # A link that leads nowhere counts as there: no folder can be made in its place.
    return next((one for one in (path, *path.parents) if os.path.lexists(one)), Path(path.anchor))


MARKER = "qnnbridge-setup-unfinished"
# In a finished environment: only one with it, or one that the configuration names, is removed or made again.
RECORD = "qnnbridge-setup.json"
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
            put_aside(self.folder)
        # Noted before they are made: afterwards they look like any other folder.
        self._made_above = [one for one in self.folder.parents if not one.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            recover(self.folder)
            self._remove_folders_above()
            raise not_made(self.folder, error.strerror or str(error)) from error
        # The first file in the folder, so that an interruption at any later moment is recognised.
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
            # The old environment goes last: until here it could come back.
            remove(self._old)
        else:
            recover(self.folder)
            self._remove_folders_above()

    def _remove_folders_above(self) -> None:
        """Removes the folders made above it, the deepest first; folders with other files stay."""
        for folder in self._made_above:
            with contextlib.suppress(OSError):
                folder.rmdir()


def put_aside(folder: Path) -> Path:
    """Rename the environment, so that `recover` can bring it back. Return its new path."""
    old = folder.with_name(folder.name + OLD_SUFFIX)
    # Windows refuses to rename a folder that a running program was started from.
    try:
        folder.rename(old)
    except OSError as error:
        raise BridgeError(
            f"The environment {folder} cannot be replaced or removed: {error.strerror or error}.",
            cause="A program that was started from it is still running, perhaps a host.",
            fix="End the applications that use it (a daemon: `qnnbridge host stop`), or choose another folder with "
            "--dir.",
        ) from error
    return old


def recover(folder: Path) -> None:
    """Remove what an unfinished set-up left in the folder, and put back what it had replaced."""
    old = folder.with_name(folder.name + OLD_SUFFIX)
    if (folder / MARKER).exists():
        for entry in folder.iterdir():
            if entry.name != MARKER:  # last, because this may be interrupted, too
                remove(entry)
        remove(folder)
    # Left by a set-up that was killed.
    if old.exists():
        # On Windows nothing can be renamed to a name that exists, not even of an empty folder.
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists():
            remove(old)  # that set-up had finished and was ended before it had cleared up
        else:
            old.rename(folder)


def is_taken(folder: Path) -> bool:
    """Whether something is there that is not left over from an unfinished set-up."""
    return folder.exists() and not (folder / MARKER).exists() and any(folder.iterdir())


def check_free(folder: Path, *, replace: bool) -> None:
    """Raises `AlreadyThere` if a set-up into this folder would touch something that --replace does not cover."""
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


def remove(path: Path) -> None:
    """Remove the file, link or folder; nothing happens if it does not exist."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.exists():
        return

    # Windows deletes no file that is marked read-only.
    def make_writable(function: Callable[..., Any], name: str, _error: object) -> None:
        os.chmod(name, stat.S_IRWXU)
        function(name)

    # `onexc` is new in Python 3.12.
    shutil.rmtree(path, onerror=make_writable)
