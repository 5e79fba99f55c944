"""Unpack a ZIP archive that strangers made: nothing gets out of the folder, and nothing fills the disk."""

from __future__ import annotations

import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from qnnbridge_host.model.paths import path_problem
from qnnbridge_protocol.errors import OptionError, PullFailed

_MOST_MEMBERS: Final = 10_000
# Weights hardly shrink; a bomb shrinks a thousandfold.
_MOST_GROWTH: Final = 200
_FREE_BYTES: Final = 16 * 1024 * 1024
_ENCRYPTED: Final = 1
_FORBIDDEN: Final = re.compile(r'[<>"|?*\x00-\x1f]')


def name_problem(name: str) -> str | None:
    """Return why Windows or POSIX cannot have a file of this name below a folder; ``None`` if both can."""
    problem = path_problem(name)
    if problem is not None:
        return problem
    for part in name.split("/"):
        if _FORBIDDEN.search(part):
            return f"{part!r} has a character that Windows forbids"
        if part != part.rstrip(". "):
            return f"{part!r} ends in a dot or a blank, which Windows drops"
    return "it has a backslash in it" if "\\" in name else None


def check_names(names: Iterable[str], label: str) -> None:
    """Raise `OptionError` if the files cannot be beside each other on Windows, where models of the NPU run."""
    seen: dict[str, str] = {}
    for name in names:
        problem, other = name_problem(name), seen.get(name.casefold())
        seen[name.casefold()] = name
        if problem is None and other is not None:
            problem = f"on Windows it is the same as {other!r}"
        if problem is not None:
            raise OptionError(
                f"{label} has a file named {name!r}, which cannot be written: {problem}.",
                fix="Choose other files with --file NAME, or ask the owner of the repository to rename it.",
            )


def members(archive: zipfile.ZipFile, label: str) -> list[zipfile.ZipInfo]:
    """Return the files of an archive. Raise `OptionError` for one that must not be unpacked."""
    found = [one for one in archive.infolist() if not one.is_dir()]
    unpacked, packed = sum(one.file_size for one in found), sum(one.compress_size for one in found)
    why = None
    if len(found) > _MOST_MEMBERS:
        why = f"it has {len(found)} files"
    elif unpacked > _MOST_GROWTH * packed + _FREE_BYTES:
        why = f"{packed} bytes in it would become {unpacked}"
    for one in found:
        kind = stat.S_IFMT(one.external_attr >> 16)
        # The name as the archive has it: zipfile turns backslashes, and cuts at a NUL.
        if kind not in (0, stat.S_IFREG):
            why = why or f"{one.filename!r} in it is a link or a device"
        elif one.flag_bits & _ENCRYPTED:
            why = why or f"{one.filename!r} in it is encrypted"
        elif one.orig_filename != one.filename:
            why = why or f"{one.orig_filename!r} in it is no plain name"
    if why:
        raise OptionError(
            f"{label} is not unpacked: {why}.",
            cause="An archive of a model has no use for that.",
            fix="Choose another file of the repository with --file NAME.",
        )
    check_names((one.filename for one in found), label)
    return found


def unpack(path: Path, folder: Path, label: str) -> list[str]:
    """Unpack an archive into an empty folder and return the files' names. Checksums of all files are compared.

    Raises:
        OptionError: the archive must not be unpacked.
        PullFailed: it is damaged.
        OSError: the disk refuses.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = members(archive, label)
            if sum(one.compress_size for one in found) > path.stat().st_size:
                raise zipfile.BadZipFile("files in it overlap")
            for one in found:
                target = folder.joinpath(*one.filename.split("/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                # `zipfile` reads no more than the size that `members` has counted, and compares the checksum.
                with archive.open(one) as source, open(target, "xb") as out:
                    shutil.copyfileobj(source, out, 1024 * 1024)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error) as error:
        raise PullFailed(
            f"{label} cannot be unpacked: {error}.",
            cause="The hub's copy is damaged, or packed in a way that Python does not know.",
            fix="Choose another file of the repository with --file NAME.",
            details={"reason": "damaged"},
        ) from None
    return [one.filename for one in found]
