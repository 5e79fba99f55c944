"""QNN SDKs that are installed beside the packages, and QNN libraries on search paths that are not the packages'
own."""

from __future__ import annotations

import re
from typing import Final

from qnnbridge_tools.doctor.facts import Backend, ForeignQnn, SdkRoot
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of
from qnnbridge_tools.doctor.survey.qnn_files import qnn_names

VARIABLES: Final = ("QNN_SDK_ROOT", "QAIRT_SDK_ROOT", "SNPE_ROOT")
DEFAULT_FOLDER: Final = r"C:\Qualcomm\AIStack\QAIRT"
_VERSION: Final = re.compile(r"^\s*version\s*:\s*[\"']?v?(\d+\.\d+[\d.]*)", re.MULTILINE)
_FOLDER: Final = re.compile(r"(\d+\.\d+\.\d+(?:\.\d+)?)\D*$")
_SEARCHED: Final = {"Windows": ("PATH", "ADSP_LIBRARY_PATH"), "": ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH")}


def survey_sdks(machine: Machine) -> tuple[SdkRoot, ...]:
    paths = paths_of(machine.system)
    roots = [(name, machine.environ[name]) for name in VARIABLES if machine.environ.get(name)]
    if machine.system == "Windows":
        names = (n for n in machine.names(DEFAULT_FOLDER) if re.match(r"^\d+\.\d+", n))
        roots += [("default folder", paths.join(DEFAULT_FOLDER, name)) for name in names]
    found: dict[str, SdkRoot] = {}
    for name, folder in roots:
        key = f"{name} {folder}" if name != "default folder" else paths.normcase(paths.normpath(folder))
        if name == "default folder" and any(_same(machine, folder, root.folder) for root in found.values()):
            continue
        exists = machine.kind(folder) == "folder"
        found[key] = SdkRoot(name, folder, exists, _version(machine, folder) if exists else None)
    return tuple(found.values())


def survey_foreign(machine: Machine, own: tuple[str, ...]) -> tuple[ForeignQnn, ...]:
    """Folders on search paths with QNN libraries, apart from the packages' own folders."""
    paths = paths_of(machine.system)
    known = {paths.normcase(paths.normpath(folder)) for folder in own}
    found = []
    for via in _SEARCHED.get(machine.system) or _SEARCHED[""]:
        value = next((value for name, value in machine.environ.items() if name.upper() == via), "")
        separator = ";" if machine.system == "Windows" or via == "ADSP_LIBRARY_PATH" else ":"
        for folder in dict.fromkeys(value.split(separator)):
            folder = folder.strip('" ')
            if not folder or paths.normcase(paths.normpath(folder)) in known:
                continue
            names = qnn_names(machine.names(folder))
            if names:
                found.append(ForeignQnn(via, folder, names, _library_version(machine, folder, names)))
    return tuple(found)


def survey_backend(machine: Machine, path: str | None) -> Backend | None:
    if path is None:
        return None
    if machine.kind(path) != "file":
        return Backend(path, exists=False)
    library = machine.library(path, version=True)
    return Backend(path, True, library.machine if library else None, library.version if library else None)


def _library_version(machine: Machine, folder: str, names: tuple[str, ...]) -> str | None:
    paths = paths_of(machine.system)
    for name in names:
        library = machine.library(paths.join(folder, name), version=True)
        if library is not None and library.version:
            return library.version
    return None


def _version(machine: Machine, folder: str) -> str | None:
    paths = paths_of(machine.system)
    for name in ("sdk.yaml", paths.join("share", "sdk.yaml")):
        match = _VERSION.search(text_of(machine, paths.join(folder, name), 1 << 16) or "")
        if match:
            return match[1].rstrip(".")
    match = _FOLDER.search(folder.rstrip("\\/"))
    return match[1] if match else None


def _same(machine: Machine, one: str, other: str) -> bool:
    paths = paths_of(machine.system)
    return bool(paths.normcase(paths.normpath(one)) == paths.normcase(paths.normpath(other)))
