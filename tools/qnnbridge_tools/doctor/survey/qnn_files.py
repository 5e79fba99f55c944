"""The QNN libraries of one folder: which ones, of which machine type and build."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from qnnbridge_tools.doctor.facts import QnnFile, QnnSet
from qnnbridge_tools.doctor.machine import Machine, paths_of

_ROLES: Final = (
    ("provider", re.compile(r"^(?:lib)?onnxruntime_providers_qnn\.(?:dll|so)$")),
    ("backend", re.compile(r"^(?:lib)?QnnHtp\.(?:dll|so)$")),
    ("prepare", re.compile(r"^(?:lib)?(?:Qnn)?HtpPrepare\.(?:dll|so)$")),
    ("system", re.compile(r"^(?:lib)?QnnSystem\.(?:dll|so)$")),
    ("stub", re.compile(r"^(?:lib)?QnnHtpV(?P<arch>\d+)Stub\.(?:dll|so)$")),
    ("skel", re.compile(r"^libQnnHtpV(?P<arch>\d+)Skel\.so$")),
    ("catalog", re.compile(r"^libqnnhtpv(?P<arch>\d+)\.cat$", re.IGNORECASE)),
    ("other", re.compile(r"^(?:lib)?(?:Qnn\w+|Genie)\.(?:dll|so)$")),
)
_SDK_FROM: Final = ("backend", "system", "stub", "prepare", "other")
_BIG_BYTES: Final = 16 << 20
_MAX_CATALOG_BYTES: Final = 1 << 20


def role_of(name: str) -> tuple[str, int | None] | None:
    for role, pattern in _ROLES:
        match = pattern.match(name)
        if match:
            arch = match.groupdict().get("arch")
            return role, int(arch) if arch else None
    return None


def qnn_names(names: Sequence[str]) -> tuple[str, ...]:
    """Those that belong to QNN itself, without the execution provider."""
    return tuple(name for name in names if (role := role_of(name)) is not None and role[0] != "provider")


def survey_set(machine: Machine, folder: str, *, complete: bool) -> QnnSet | None:
    """``None`` for a folder without any. complete: also read what takes long (versions inside of large files of
    Linux, hashes of the skels)."""
    names = [name for name in machine.names(folder) if role_of(name) is not None]
    if not names:
        return None
    files = tuple(_file(machine, folder, name, complete) for name in names)
    return QnnSet(folder, files, _sdk(files))


def _file(machine: Machine, folder: str, name: str, complete: bool) -> QnnFile:
    path = paths_of(machine.system).join(folder, name)
    role, arch = role_of(name) or ("other", None)
    size = machine.size(path) or 0
    if role == "catalog":
        return QnnFile(name, role, size, arch)
    quick = machine.system == "Windows" or size < _BIG_BYTES or role == "backend"
    # A skel is a program of the NPU; its build says nothing that the stub beside it does not.
    library = machine.library(path, version=role != "skel" and (complete or quick))
    return QnnFile(
        name,
        role,
        size,
        arch,
        library.machine if library else None,
        library.version if library else None,
        _in_catalog(machine, folder, path, arch) if role == "skel" and complete else None,
    )


def _in_catalog(machine: Machine, folder: str, skel: str, arch: int | None) -> bool | None:
    """Whether the signed catalog beside a skel lists it; ``None`` if there is no catalog for it."""
    catalog = machine.data(paths_of(machine.system).join(folder, f"libqnnhtpv{arch}.cat"), _MAX_CATALOG_BYTES)
    digest = machine.sha256(skel) if catalog is not None else None
    return bytes.fromhex(digest) in catalog if catalog is not None and digest else None


def _sdk(files: Sequence[QnnFile]) -> str | None:
    for role in _SDK_FROM:
        for file in files:
            if file.role == role and file.version:
                return file.version
    return None
