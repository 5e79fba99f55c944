"""Unpack a ZIP archive from an untrusted source, only into a given folder and without filling the disk."""

from __future__ import annotations

import re
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from qnnbridge_host.model.paths import path_problem
from qnnbridge_protocol.errors import OptionError, PullFailed

# Exceptions of `zipfile` for a damaged archive.
DAMAGE: Final = (
    *(zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error),
    *(struct.error, UnicodeDecodeError),  # damage in the archive's directory
)
_MOST_MEMBERS: Final = 10_000
# Limit of unpacked bytes per packed byte: weights hardly compress; a ZIP bomb compresses a thousandfold.
_MOST_GROWTH: Final = 200
_FREE_BYTES: Final = 16 * 1024 * 1024
_ENCRYPTED: Final = 1
_FORBIDDEN: Final = re.compile(r'[<>"|?*\x00-\x1f]')


def name_problem(name: str) -> str | None:
    """Return why a file of this name cannot be created in a folder on Windows or POSIX; ``None`` if it can."""
    problem = path_problem(name)
    if problem is not None:
        return problem
    for part in name.split("/"):
        if _FORBIDDEN.search(part):
            return f"{part!r} contains a character that Windows forbids"
        if part != part.rstrip(". "):
            return f"{part!r} ends in a dot or a blank, which Windows drops"
    return "it contains a backslash" if "\\" in name else None


def check_names(names: Iterable[str], label: str) -> None:
    """Raise `OptionError` if Windows, where models run on the NPU, cannot store all these files in one folder."""
    seen: dict[str, str] = {}
    for name in names:
        problem, other = name_problem(name), seen.get(name.casefold())
        seen[name.casefold()] = name
        if problem is None and other is not None:
            problem = f"on Windows this name denotes the same file as {other!r}"
        if problem is not None:
            raise OptionError(
                f"{label} has a file named {name!r}, which cannot be written: {problem}.",
                fix="Choose other files with --file NAME, or ask the owner of the repository to rename it.",
            )


def members(archive: zipfile.ZipFile, label: str) -> list[zipfile.ZipInfo]:
    """Return the files of an archive. Raise `OptionError` if it must not be unpacked."""
    found = [one for one in archive.infolist() if not one.is_dir()]
    unpacked, packed = sum(one.file_size for one in found), sum(one.compress_size for one in found)
    why = None
    if len(found) > _MOST_MEMBERS:
        why = f"it has {len(found)} files"
    elif unpacked > _MOST_GROWTH * packed + _FREE_BYTES:
        why = f"{packed} bytes in it would become {unpacked}"
    for one in found:
        kind = stat.S_IFMT(one.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            why = why or f"its member {one.filename!r} is a link or a device"
        elif one.flag_bits & _ENCRYPTED:
            why = why or f"its member {one.filename!r} is encrypted"
        elif one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            why = why or f"its member {one.filename!r} is compressed by method {one.compress_type}"
        elif one.orig_filename != one.filename:  # zipfile replaces backslashes, and cuts the name at a NUL
            why = why or f"its member {one.orig_filename!r} does not have a plain name"
    if why:
        raise OptionError(
            f"{label} is not unpacked: {why}.",
            cause="The archive of a model does not need such a member, which may be an attack.",
            fix="Choose another file of the repository with --file NAME.",
        )
    check_names((one.filename for one in found), label)
    return found


def unpack(path: Path, folder: Path, label: str) -> list[str]:
    """Unpack an archive into an empty folder and return the files' names. Compare the checksums of all files.

    Raises:
        OptionError: the archive must not be unpacked.
        PullFailed: it is damaged.
        OSError: a file cannot be written.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = members(archive, label)
            if sum(one.compress_size for one in found) > path.stat().st_size:
                raise zipfile.BadZipFile("files in it overlap")
            for one in found:
                target = folder.joinpath(*one.filename.split("/"))
                target.parent.mkdir(parents=True, exist_ok=True)
                # `zipfile` reads at most the size that `members` has checked, and compares the checksum.
                with archive.open(one) as source, open(target, "xb") as out:
                    shutil.copyfileobj(source, out, 1024 * 1024)
    except DAMAGE as error:
        raise PullFailed(
            f"{label} cannot be unpacked: {error}.",
            cause="The hub's copy is damaged, or Python cannot read this kind of archive.",
            fix="Choose another file of the repository with --file NAME.",
            details={"reason": "damaged"},
        ) from None
    return [one.filename for one in found]
