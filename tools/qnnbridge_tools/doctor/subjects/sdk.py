"""QNN SDKs, search paths and `backend_path`: which QNN is loaded, and does it fit system and chip? Survey and
check.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import BackendFile, Facts, ForeignQnn, SdkRoot
from qnnbridge_tools.doctor.findings import Finding, Severity, SubjectCheck
from qnnbridge_tools.doctor.fixes import is_newer, short_sdk
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of
from qnnbridge_tools.doctor.subjects.environment import removal
from qnnbridge_tools.doctor.subjects.library_files import qnn_names

VARIABLES: Final = ("QNN_SDK_ROOT", "QAIRT_SDK_ROOT", "SNPE_ROOT")
DEFAULT_FOLDER: Final = r"C:\Qualcomm\AIStack\QAIRT"
# sdk.yaml is read by a pattern: the doctor has no library for YAML.
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
        # The variable is the stronger statement: a folder that it names is not listed a second time.
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
        # FastRPC separates the entries of ADSP_LIBRARY_PATH by a semicolon on each system.
        separator = ";" if machine.system == "Windows" or via == "ADSP_LIBRARY_PATH" else ":"
        for folder in dict.fromkeys(value.split(separator)):
            folder = folder.strip('" ')
            if not folder or paths.normcase(paths.normpath(folder)) in known:
                continue
            names = qnn_names(machine.names(folder))
            if names:
                found.append(ForeignQnn(via, folder, names, _library_version(machine, folder, names)))
    return tuple(found)


def survey_backend(machine: Machine, path: str | None) -> BackendFile | None:
    if path is None:
        return None
    if machine.kind(path) != "file":
        return BackendFile(path, exists=False)
    library = machine.library(path, version=True)
    return BackendFile(path, True, library.machine if library else None, library.version if library else None)


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
    # An SDK without its file has the version in the name of its folder.
    match = _FOLDER.search(folder.rstrip("\\/"))
    return match[1] if match else None


def _same(machine: Machine, one: str, other: str) -> bool:
    paths = paths_of(machine.system)
    return bool(paths.normcase(paths.normpath(one)) == paths.normcase(paths.normpath(other)))


def find(facts: Facts) -> Iterator[Finding]:
    yield from _backend_path(facts)
    yield from _chip(facts)
    yield from _system(facts)
    yield from _roots(facts)
    yield from _foreign(facts)


def bundled_sdk(facts: Facts) -> str | None:
    """Of the wheel, if the host takes QNN from it."""
    if facts.engine.wanted in ("windowsml", "folder"):
        return None
    return facts.host_packages.qnn_sdk if facts.host_packages else None


def _backend_path(facts: Facts) -> Iterator[Finding]:
    backend, bundled = facts.backend, bundled_sdk(facts)
    if backend is None:
        return
    if not backend.exists:
        yield finding(
            "sdk.backend-path-missing",
            "backend_path names a file that is not there",
            backend.path,
            fix="Leave out the provider option backend_path: the host then takes the library of its own package. "
            "(QnnCpu is no longer part of onnxruntime-qnn.)",
        )
    elif backend.version and bundled and not _same_build(backend.version, bundled):
        yield finding(
            "sdk.backend-path-mixed",
            "backend_path names a QNN of another build than the provider's",
            f"{backend.path}: {backend.version}",
            f"bundled with onnxruntime-qnn: {bundled}",
            fix="Leave out the provider option backend_path: the host then takes the library of its own package.",
        )


def _chip(facts: Facts) -> Iterator[Finding]:
    packages, arch = facts.host_packages, facts.computer.arch
    loaded = packages.loaded_set if packages else None
    if not facts.is_arm or arch is None or packages is None or loaded is None:
        return
    # A set without any stub is the simulator's: `library_files` judges it.
    known = loaded.archs("stub")
    if not known or arch in known:
        return
    version = packages.version("onnxruntime-qnn")
    yield finding(
        "sdk.too-old-for-chip",
        f"onnxruntime-qnn {version} does not know the chip {facts.computer.chip} (V{arch})",
        f"{loaded.folder}: stubs for {', '.join(f'V{one}' for one in sorted(known))}",
        fix=fixes.install_fitting(facts),
    )


def _system(facts: Facts) -> Iterator[Finding]:
    """Rule: the bundled QNN is not newer than the system's."""
    packages, bundled, system = facts.host_packages, bundled_sdk(facts), fixes.system_sdk(facts)
    if packages is None or bundled is None or system is None or not facts.is_arm:
        return
    version, source = system
    if not is_newer(bundled, version):
        return
    newer = finding(
        "sdk.newer-than-system",
        f"onnxruntime-qnn {packages.version('onnxruntime-qnn')} brings QNN {short_sdk(bundled)}, "
        f"and this system has {short_sdk(version)}",
        f"bundled: {bundled}",
        f"system: {version} ({source})",
        fix=fixes.install_fitting(facts, f"Install the release that fits, or {fixes.UPDATE_DRIVER}."),
    )
    if facts.driver.runtime:
        yield newer
        return
    # The driver does not say what it has, and libraries of an SDK are used only where they are mixed in.
    note = "The NPU driver does not tell its QNN version; this is the version of an installed SDK."
    yield dataclasses.replace(newer, severity=Severity.DEGRADED, notes=(note,))


def _roots(facts: Facts) -> Iterator[Finding]:
    named = [root for root in facts.sdks if root.name != "default folder"]
    for root in named:
        if not root.exists:
            yield finding(
                "sdk.root-missing",
                f"{root.name} names a folder that does not exist",
                f"{root.name}={root.folder}",
                fix=removal(facts, root.name, "Correct the variable, or remove it"),
            )
    versions = {root.version for root in named if root.version}
    # Of several variables that name one version nothing gets mixed.
    if len(versions) > 1:
        yield finding(
            "sdk.roots-disagree",
            "the variables for QNN SDKs name different versions",
            *(f"{root.name}={root.folder}: {root.version}" for root in named),
            fix="Let all of them name one SDK, or remove them: qnnbridge needs none.",
        )


def _foreign(facts: Facts) -> Iterator[Finding]:
    bundled = bundled_sdk(facts)
    if bundled is None:
        return
    for one in facts.foreign:
        # The same build on a search path is the same library: nothing gets mixed.
        if one.version and _same_build(one.version, bundled):
            continue
        code = "files.foreign-on-adsp-path" if one.via == "ADSP_LIBRARY_PATH" else "files.foreign-on-path"
        yield finding(
            code,
            f"other QNN libraries are on {one.via}",
            f"{one.folder}: {', '.join(one.names[:4])} ({one.version or 'version unknown'}); "
            f"the package's: {short_sdk(bundled)}",
            fix=f"Remove {one.folder} from {one.via}.",
        )


def _same_build(one: str, other: str) -> bool:
    # The build without its number behind the underscore. Three numbers (an SDK's) match each build of that release.
    return one.split("_")[0] == other.split("_")[0] or (short_sdk(one) == short_sdk(other) and one.count(".") < 3)


def healthy(facts: Facts) -> str | None:
    bundled, system = bundled_sdk(facts), fixes.system_sdk(facts)
    if bundled is None:
        return None
    text = f"QNN SDK {short_sdk(bundled)} bundled"
    return text + (f", {short_sdk(system[0])} on this system" if system and facts.is_arm else "")


CHECK = SubjectCheck("QNN SDK", find, healthy)
