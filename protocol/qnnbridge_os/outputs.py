"""Write results to files that a user chooses (`-o`, `--html`, `--snapshot`), with the same rules for every command.

- A regular file is created completely or not at all, by a rename. A failed write keeps an old file.
- The result is written directly to a device, a pipe, a descriptor (`/dev/fd/3`) or `-` (stdout), which are never
  replaced.
- Links are followed: the target of a link is replaced, and the link remains.
- An existing file, or the contents of a block device, is replaced only with `--overwrite`. A pipe does not need the
  option.

Safe from any thread and process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from qnnbridge_os.files import TEMPORARY, sync_folder
from qnnbridge_protocol.errors import OptionError

STDOUT: Final = "-"
_DESCRIPTOR: Final = re.compile(r"/(?:dev|proc/self)/fd/(\d+)")
_STANDARD: Final = {STDOUT: 1, "/dev/stdout": 1, "/dev/stderr": 2}


class OutputFile:
    """Destination of one result.

    Args:
        path: the path that the user gave.
        overwrite: whether to replace an existing file.
        inputs: files that the result must not replace.

    Raises:
        OptionError: the result must not, or cannot, be written there.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool, inputs: Iterable[str | os.PathLike[str]] = ()
    ) -> None:
        self.path = Path(path)
        self._overwrite = overwrite
        self._inputs = tuple(inputs)
        self._descriptor = _descriptor_of(os.fspath(path))
        # Stored because `sys.stdout` may be redirected to another stream while the result is written.
        self._stdout = sys.stdout if self._descriptor == 1 else None
        self.check()
        if not self.written_through:
            check_folder(self.place.parent, self.path)

    @property
    def written_through(self) -> bool:
        """Whether the destination is not a regular file, so that no other files can be written next to it."""
        kind = _kind(self.path)
        return self._descriptor is not None or (kind is not None and not stat.S_ISREG(kind))

    @property
    def place(self) -> Path:
        """The file itself, with all links resolved."""
        return Path(os.path.realpath(self.path))

    def check(self) -> None:
        """Raise `OptionError` if the result must not be written to the destination now."""
        if self._descriptor is not None:
            return
        kind = _kind(self.path)
        if kind is None:
            return
        if stat.S_ISDIR(kind):
            raise OptionError(f"{self.path} is a folder.", fix="Give the name of a file.")
        for source in self._inputs:
            if _same(self.path, source):
                raise OptionError(
                    f"{self.path} is the input itself, {Path(source).name}.",
                    cause="The input is never overwritten.",
                    fix="Give another name for the output.",
                )
        # Writing to a pipe or a terminal replaces nothing.
        if (stat.S_ISREG(kind) or stat.S_ISBLK(kind)) and not self._overwrite:
            raise OptionError(
                f"{self.path} exists already.",
                fix="Give another name, or --overwrite to replace it.",
                details={"path": str(self.path), "exists": True},
            )

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the destination for writing. A regular file appears when the block ends without an exception."""
        self.check()
        if self._stdout is not None:
            # Flush first, so that the result follows all text that was printed before.
            self._stdout.flush()
            yield self._stdout.buffer
            self._stdout.buffer.flush()
        elif self.written_through:
            number = self._descriptor
            # Open without O_CREAT and O_TRUNC: a device is neither created nor truncated.
            opened = os.dup(number) if number is not None else os.open(self.path, os.O_WRONLY)
            with open(opened, "wb") as file:
                yield file
        else:
            with _replacing(self.place) as file:
                yield file

    def write(self, data: bytes) -> None:
        """Write the whole result. Raise `OSError`."""
        with self.opened() as file:
            file.write(data)

    def take(self, made: Path) -> None:
        """Move a finished file to the destination, or write its contents there. Raise `OSError`."""
        if self.written_through:
            with self.opened() as file, made.open("rb") as source:
                shutil.copyfileobj(source, file)
        else:
            _replace(made, self.place)

    def write_text(self, text: str) -> None:
        """Write text as UTF-8 with one line end after the last line. Raise `OSError`."""
        self.write((text if text.endswith("\n") else text + "\n").encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def _replacing(place: Path) -> Iterator[BinaryIO]:
    place.parent.mkdir(parents=True, exist_ok=True)
    # Write to the same folder, because a rename replaces a file only within one file system.
    part = place.with_name(f"{TEMPORARY}{os.getpid()}-{os.urandom(4).hex()}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            # Sync before the rename: after a loss of power the new name must not refer to an empty file.
            os.fsync(file.fileno())
        _replace(part, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    sync_folder(place.parent)


def _replace(made: Path, place: Path) -> None:
    mode = _kind(place)
    if mode is not None:
        # Keep the permissions of the replaced file.
        with contextlib.suppress(OSError):
            os.chmod(made, stat.S_IMODE(mode))
    os.replace(made, place)


def is_stdout(path: str | os.PathLike[str]) -> bool:
    """Return whether a result for `path` is written to stdout."""
    return _descriptor_of(os.fspath(path)) == 1


def check_folder(folder: str | os.PathLike[str], shown: str | os.PathLike[str]) -> None:
    """Raise `OptionError` if no file can be created in the folder, or in its nearest existing parent.

    Called before the work, which can take minutes. shown: the path that the user gave.
    """
    place = os.path.abspath(folder)
    while not os.path.exists(place) and place != os.path.dirname(place):
        if os.path.islink(place):
            raise OptionError(
                f"{shown} cannot be written.",
                cause=f"{place} is a link to {os.readlink(place)}, which does not exist.",
                fix="Remove the link, or give another path.",
            )
        place = os.path.dirname(place)
    if os.path.exists(place) and not os.path.isdir(place):
        raise OptionError(f"{shown} cannot be written.", cause=f"{place} is a file.", fix="Give another path.")
    try:
        # `lstat` fails if a name is too long or invalid.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(shown)
        with tempfile.TemporaryFile(prefix=TEMPORARY, dir=place) as file:
            # Write a byte, because an empty file can be created even on a full disk.
            file.write(b"\0")
            file.flush()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EFBIG)
        raise OptionError(
            f"{shown} cannot be written.",
            cause=f"No file can be created in {place}: {reason}.",
            fix="Free some space, or choose a folder on another disk."
            if full
            else "Choose another folder, or change its permissions.",
        ) from None


def place_of_several(path: str) -> str:
    """Return the path, with links resolved, for a result that consists of several files next to each other.

    Raises:
        OptionError: the path is `-`, a device or a pipe, so no file can be written next to it; or its folder cannot
            be written.
    """
    kind = _kind(Path(path))
    if _descriptor_of(path) is None and (kind is None or stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        real = os.path.realpath(path) if os.path.islink(path) else path
        check_folder(real if os.path.isdir(real) else os.path.dirname(os.path.abspath(real)), path)
        return real
    raise OptionError(
        f"{path} cannot be the destination of this result.",
        cause="The result has several files, which are written next to each other.",
        fix="Give the name of a file: -o model.onnx",
    )


def _descriptor_of(path: str) -> int | None:
    """Return the number of the open descriptor to which a path such as `/dev/fd/3` refers."""
    if path in _STANDARD:
        return _STANDARD[path]
    found = _DESCRIPTOR.fullmatch(path)
    return int(found[1]) if found else None


def _kind(path: Path) -> int | None:
    """Return the file mode and type (`st_mode`) of the path; ``None`` if nothing exists there."""
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        # The file is inaccessible, or the name is invalid: opening the file will report the error.
        return None


def _same(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return os.path.normcase(os.path.abspath(a)) == os.path.normcase(os.path.abspath(b))
