"""What tells, without reading it, that a file is the one that was read before.

A stamp is what the file system says of a file: size, times, identity. Two equal stamps prove equal contents only if
the file had rested for a moment when the first one was taken: a file that is written twice within one tick of the
file system's clock has the same times both times. Such a stamp is not `settled`, and nobody may rely on it. Pure
functions; any thread.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

if sys.platform == "win32":
    from qnnbridge_host._platform._win32_file_times import change_time_ns
else:

    def change_time_ns(path: str, status: os.stat_result) -> int:
        return status.st_ctime_ns


RESTED_NS: Final = 2_500_000_000
"""The coarsest clock in use is that of FAT, which counts in steps of two seconds; memory cards have it."""


@dataclasses.dataclass(frozen=True, slots=True)
class FileStamp:
    """changed_ns: when anything of the file was changed last; no program can set it back as it can `modified_ns`.

    taken_ns: when the stamp was taken, on this machine's wall clock, before the file was read.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int
    taken_ns: int

    @property
    def settled(self) -> bool:
        """Whether the file had rested, so that a later change shows. One from the future never has."""
        return max(self.modified_ns, self.changed_ns) + RESTED_NS < self.taken_ns

    def proves(self, now: FileStamp) -> bool:
        """Whether the file has the contents it had when this stamp was taken, if `now` is its stamp now."""
        return self.settled and self.same(now)

    def same(self, other: FileStamp) -> bool:
        """Whether nothing shows that the file is another one. For what was read between the two stamps."""
        return self.to_plain()[:-1] == other.to_plain()[:-1]

    def to_plain(self) -> tuple[int, ...]:
        return (self.size, self.modified_ns, self.changed_ns, self.inode, self.device, self.taken_ns)

    @classmethod
    def from_plain(cls, numbers: Sequence[Any]) -> FileStamp:
        """Raises `ValueError` for what `to_plain` did not make."""
        if len(numbers) != 6 or not all(type(number) is int for number in numbers):
            raise ValueError("not a file's stamp")
        return cls(*numbers)


def take_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Of a regular file; ``None`` if there is none: whatever else has that name (a pipe, a device) might never end.

    Raises `OSError` for a file that is there and may not be looked at.
    """
    text = os.fspath(path)
    taken_ns = time.time_ns()
    try:
        status = os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    changed_ns = change_time_ns(text, status)
    return FileStamp(status.st_size, status.st_mtime_ns, changed_ns, status.st_ino, status.st_dev, taken_ns)
