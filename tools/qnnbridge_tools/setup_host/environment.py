"""Create the folder of a new environment, and remove it if the set-up fails.

An environment cannot be moved, because its scripts contain its path, so it is created at its final path. A marker
file shows that an environment is incomplete; the next set-up removes such an environment. A replaced environment is
renamed first, and renamed back if a step fails. If a set-up fails, the parent folders that it created are removed,
too.
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
    """A step failed, and its files were removed. ``details["step"]`` is the step."""

    code = "setup.Failed"


class NothingFits(BridgeError):
    """No release of onnxruntime-qnn, or not the requested one, works on this machine."""

    code = "setup.NothingFits"


class AlreadyThere(OptionError):
    """An environment or a setting exists, and --replace is not given."""

    code = "setup.AlreadyThere"


def failed(
    step: str, message: str, *, cause: str | None = None, fix: str | None = None, evidence: Sequence[str] = ()
) -> SetupFailed:
    return SetupFailed(message, cause=cause, fix=fix, evidence=evidence, details={"step": step})


# Disk space for an environment. Measured: 570 MB with onnxruntime-qnn 2.7.0, ONNX Runtime 1.31.1 and onnx for
# Linux.
NEEDED_BYTES: Final = 700_000_000

# Below this number of free bytes, a failure is attributed to a full disk, which pip and venv do not always report.
FULL_BYTES: Final = 20_000_000

FREE_SPACE: Final = (
    f"Free disk space (about {NEEDED_BYTES // 1_000_000} MB are needed), or choose another folder with --dir. pip "
    "unpacks in the folder of the variable TMPDIR (on Windows: TEMP), which may be on another disk."
)


def check_folder(folder: Path, needed_bytes: int = NEEDED_BYTES) -> None:
    """Raise `SetupFailed` if the disk is too full for an environment or this user may not create the folder."""
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
    """Raise `SetupFailed` if this user may not write the configuration file."""
    # Check the folder of a link's target, because `write_text` writes there.
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
        fix="Set QNNBRIDGE_CONFIG to another file, or do not write the configuration: --no-config.",
    )


def free_bytes(folder: Path) -> int | None:
    """Return the free bytes on the disk of a folder, which need not exist; ``None`` if they are not known."""
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
    """Return the path, or the nearest parent that exists."""
    # A broken link counts as existing, because no folder can be created under its name.
    return next((one for one in (path, *path.parents) if os.path.lexists(one)), Path(path.anchor))


MARKER = "qnnbridge-setup-unfinished"
# File in each complete environment. `setup` only replaces and removes environments with this file, and the
# configured environment.
RECORD = "qnnbridge-setup.json"
OLD_SUFFIX = ".qnnbridge-old"


class NewEnvironment:
    """Context manager that creates an environment's folder, and removes it at the end unless `keep` was called. Not
    thread-safe.
    """

    def __init__(self, folder: Path, *, replace: bool) -> None:
        self.folder = folder
        self._replace = replace
        self._old = old_folder(folder)
        self._kept = False
        self._made_above: list[Path] = []

    def __enter__(self) -> NewEnvironment:
        recover(self.folder)
        check_free(self.folder, replace=self._replace)
        if is_taken(self.folder):
            put_aside(self.folder)
        # Record which parent folders are missing before creating them.
        self._made_above = [one for one in self.folder.parents if not one.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            recover(self.folder)
            self._remove_folders_above()
            raise not_made(self.folder, error.strerror or str(error)) from error
        # Write this file first, so that the next set-up recognises an interruption at any later step.
        mark(self.folder)
        return self

    def keep(self) -> None:
        """Mark the environment as complete, so that it is kept when the block ends."""
        (self.folder / MARKER).unlink()
        self._kept = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept:
            # Remove the old environment last, because it is restored if an earlier step fails.
            remove(self._old)
        else:
            recover(self.folder)
            self._remove_folders_above()

    def _remove_folders_above(self) -> None:
        """Remove the parent folders that were created, the deepest first, unless they contain other files."""
        for folder in self._made_above:
            with contextlib.suppress(OSError):
                folder.rmdir()


def old_folder(folder: Path) -> Path:
    """Return the temporary path of an environment that is being replaced."""
    return folder.with_name(folder.name + OLD_SUFFIX)


def mark(folder: Path) -> None:
    """Mark an environment as incomplete, so that the next set-up removes it regardless of its contents."""
    (folder / MARKER).write_text(
        "A command of qnnbridge did not finish; the next `qnnbridge setup` removes this folder.\n", "utf-8"
    )


def is_marked(folder: Path) -> bool:
    return (folder / MARKER).exists()


def remove_marked(folder: Path) -> None:
    """Remove an incomplete environment. If the removal is interrupted, the environment stays marked."""
    for entry in folder.iterdir():
        if entry.name != MARKER:
            remove(entry)
    remove(folder)


def put_aside(folder: Path) -> Path:
    """Rename the environment, so that `recover` can restore it. Return its new path."""
    old = old_folder(folder)
    # Explain the error: Windows refuses to rename a folder from which a running program was started.
    try:
        folder.rename(old)
    except OSError as error:
        raise BridgeError(
            f"The environment {folder} cannot be replaced or removed: {error.strerror or error}.",
            cause="A program of this environment may still be running, such as a host.",
            fix="End the applications that use the environment (a daemon: `qnnbridge host stop`), or choose "
            "another folder with --dir.",
        ) from error
    return old


def recover(folder: Path) -> None:
    """Remove remains of an interrupted set-up or removal, and restore the environment that was being replaced."""
    old = old_folder(folder)
    for one in (folder, old):
        if is_marked(one):
            remove_marked(one)
    # A killed set-up had renamed the old environment: restore it, unless the new one is complete.
    if old.exists():
        # On Windows a folder cannot be renamed to an existing name, not even to the name of an empty folder.
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists():
            remove(old)  # the set-up was complete and was killed before it removed the old environment
        else:
            old.rename(folder)


def is_taken(folder: Path) -> bool:
    """Return whether the folder contains files other than the remains of an interrupted set-up."""
    return folder.exists() and not is_marked(folder) and any(folder.iterdir())


def check_free(folder: Path, *, replace: bool) -> None:
    """Raise `AlreadyThere` if a set-up in this folder would change files that --replace does not cover."""
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
    """Return the path of the environment's interpreter."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def remove(path: Path) -> None:
    """Remove a file, link or folder, if it exists."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    if not path.exists():
        return

    # Windows does not delete read-only files. On other systems a file's permissions do not matter for deletion, and
    # `chmod` would follow a link out of the environment.
    def make_writable(function: Callable[..., Any], name: str, error: Any) -> None:
        if os.name != "nt" or function not in (os.unlink, os.rmdir):
            raise error[1]
        os.chmod(name, stat.S_IRWXU)
        function(name)

    # Use `onerror`, because `onexc` is new in Python 3.12.
    shutil.rmtree(path, onerror=make_writable)
