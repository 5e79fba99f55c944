"""Survey and checks of the QNN that is loaded, and whether it fits the system and the chip.

The host loads QNN from the wheel, from the Windows catalogue or from a folder. SDKs, search paths and
`backend_path` may cause a different QNN to be loaded.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import (
    BackendFile,
    CatalogueProvider,
    EngineFacts,
    Facts,
    ForeignQnn,
    HostFacts,
    SdkRoot,
)
from qnnbridge_tools.doctor.findings import Finding, Remedy, Severity, SubjectCheck, finding
from qnnbridge_tools.doctor.fixes import DEFAULT_FOLDER, is_newer
from qnnbridge_tools.doctor.machine import Machine, parsed_toml, paths_of, text_of, variable_of
from qnnbridge_tools.doctor.subjects.environment import removal
from qnnbridge_tools.doctor.subjects.host import configuration_path
from qnnbridge_tools.doctor.subjects.library_files import qnn_names
from qnnbridge_tools.versions.fitness import short_sdk

# --- the source of the host's QNN: the wheel, the Windows catalogue or a folder. Survey and check ----------

WINDOWSML: Final = "windowsml"
NOT_PRESENT: Final = "NotPresent"
_QNN_PROVIDER: Final = "QNNExecutionProvider"
_BACKENDS: Final = ("QnnHtp.dll", "libQnnHtp.so")
_DOWNLOAD: Final = "-m qnnbridge_host.windows_ml download"


def survey_engine(machine: Machine, hosted: HostFacts) -> EngineFacts:
    """Read the setting for the source of QNN, and the Windows catalogue."""
    wanted, path = _setting(machine)
    catalogue = None
    # Use only the host's own `windowsml`: without this package the host could not use the catalogue either.
    if hosted.packages is not None and hosted.packages.version(WINDOWSML) and hosted.answer is not None:
        catalogue = machine.catalogue(hosted.path)
    if catalogue is not None:
        # The library in the catalogue is the provider; the backend in its folder contains the version of QNN.
        folder_of = paths_of(machine.system).dirname
        with_sdk = tuple(
            dataclasses.replace(
                one, sdk=_first_version(machine, folder_of(one.library), _BACKENDS) if one.library else None
            )
            for one in catalogue.providers
        )
        catalogue = dataclasses.replace(catalogue, providers=with_sdk)
    return EngineFacts(wanted, path, catalogue)


def _setting(machine: Machine) -> tuple[str, str]:
    """Return the setting as the host reads it: from the environment, or else from the configuration file."""
    engine, path = machine.environ.get(ENGINE_VARIABLE, ""), machine.environ.get(EP_PATH_VARIABLE, "")
    if not engine and not path:
        try:
            host = parsed_toml(text_of(machine, configuration_path(machine)) or "").get("host", {})
        except ValueError:  # the finding `host.config-broken` reports this error
            host = {}
        if isinstance(host, dict):
            engine, path = str(host.get("engine") or ""), str(host.get("ep_path") or "")
    # If only a path is set, the engine is "folder", as in the host.
    return ("folder" if path else engine.strip().lower() or "auto"), path


def in_use(facts: Facts) -> str:
    """Return the source that the host would use: "wheel", "windowsml" or "folder"."""
    wanted = facts.engine.wanted
    if wanted in ("wheel", "windowsml", "folder"):
        return wanted
    packages = facts.host.packages
    has_wheel = packages is not None and packages.version(fixes.QNN) is not None
    has_catalogue = packages is not None and packages.version(WINDOWSML) is not None
    return "windowsml" if has_catalogue and not has_wheel else "wheel"


def qnn_provider(facts: Facts) -> CatalogueProvider | None:
    """Return the catalogue's provider for QNN, preferably one that is on this computer."""
    catalogue = facts.engine.catalogue
    found = [one for one in catalogue.providers if one.name == _QNN_PROVIDER] if catalogue is not None else []
    # False sorts before True, so providers on this computer come first.
    return min(found, key=lambda one: one.state == NOT_PRESENT, default=None)


def find_source(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the origin of QNN."""
    if facts.host.answer is None or facts.host.packages is None:
        return
    used, provider = in_use(facts), qnn_provider(facts)
    if used == "windowsml":
        yield from _catalogue(facts, provider)
    elif used == "wheel" and provider is not None and _fits_better(facts, provider):
        system = fixes.system_sdk(facts)
        yield finding(
            "engine.catalogue-fits-better",
            "onnxruntime-qnn is too new for the NPU driver, and the catalogue of Windows has a QNN that fits",
            f"wheel: QNN {short_sdk(facts.host.packages.qnn_sdk)}",
            f"catalogue: {provider.version}, QNN {short_sdk(provider.sdk)}, {provider.state}",
            f"driver: QNN {short_sdk(system[0] if system else None)}",
            fix=_take(facts, WINDOWSML),
        )


def _catalogue(facts: Facts, provider: CatalogueProvider | None) -> Iterator[Finding]:
    catalogue = facts.engine.catalogue
    if catalogue is None or catalogue.problem:
        said = catalogue.problem if catalogue is not None else "the package windowsml is not installed"
        yield finding(
            "engine.catalogue-unreadable",
            "the host takes QNN from the catalogue of Windows, which cannot be read",
            said,
            fix=_take(facts, "wheel", catalogue.fix if catalogue is not None else "Install windowsml, or:"),
        )
    elif provider is None:
        others = ", ".join(one.name for one in catalogue.providers) or "nothing"
        yield finding(
            "engine.catalogue-no-qnn",
            "the catalogue of Windows has no provider for QNN",
            f"it has {others}",
            fix=_take(facts, "wheel", "Update Windows and the NPU driver, or take QNN from the wheel."),
        )
    elif provider.state == NOT_PRESENT:
        yield finding(
            "engine.not-downloaded",
            f"the provider for QNN {provider.version} is in the catalogue of Windows, but not on this computer",
            f"state: {provider.state}",
            fix=Remedy("Download the provider once.", fixes.python_lines(facts, facts.host.path, _DOWNLOAD)),
        )


def _take(facts: Facts, engine: str, words: str = "") -> Remedy:
    return Remedy(words or f"Set engine={engine}.", fixes.set_variable(facts, ENGINE_VARIABLE, engine))


def _fits_better(facts: Facts, provider: CatalogueProvider) -> bool:
    """Return whether the wheel's QNN is newer than the driver's, and the catalogue's QNN is not."""
    if not facts.driver.runtime:  # only the version of an SDK is known, which may differ from the driver's
        return False
    wheel = facts.host.packages.qnn_sdk if facts.host.packages is not None else None
    system = fixes.system_sdk(facts)
    if wheel is None or system is None or provider.sdk is None or provider.state == NOT_PRESENT:
        return False
    return is_newer(wheel, system[0]) and not is_newer(provider.sdk, system[0])


def healthy_source(facts: Facts) -> str | None:
    """Describe in one line the source of QNN, and other available sources."""
    packages, provider = facts.host.packages, qnn_provider(facts)
    if packages is None or (in_use(facts) == "wheel" and provider is None):
        return None
    release = packages.version(fixes.QNN)
    wheel = f"the wheel of onnxruntime-qnn {release}, QNN {short_sdk(packages.qnn_sdk)}" if release else ""
    listed = f"the catalogue's {provider.version}, QNN {short_sdk(provider.sdk)}" if provider is not None else ""
    used = {"wheel": wheel, "windowsml": listed, "folder": f"the folder {facts.engine.path}"}[in_use(facts)]
    others = [text for text in (wheel, listed) if text and text != used]
    return f"QNN from {used}" + (f" (also there: {'; '.join(others)})" if others else "")


SOURCE_CHECK = SubjectCheck("source of QNN", find_source, healthy_source)


# --- QNN SDKs, search paths and `backend_path` ---

VARIABLES: Final = ("QNN_SDK_ROOT", "QAIRT_SDK_ROOT", "SNPE_ROOT")
_SDKS: Final = r"C:\Qualcomm\AIStack\QAIRT"
# Read sdk.yaml with a pattern, because the doctor does not have a library for YAML.
_VERSION: Final = re.compile(r"^\s*version\s*:\s*[\"']?v?(\d+\.\d+[\d.]*)", re.MULTILINE)
_FOLDER: Final = re.compile(r"(\d+\.\d+\.\d+(?:\.\d+)?)\D*$")
_SEARCHED: Final = {"Windows": ("PATH", "ADSP_LIBRARY_PATH"), "": ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH")}


def survey_sdks(machine: Machine) -> tuple[SdkRoot, ...]:
    """Find QNN SDKs by environment variables and in the default folder."""
    paths = paths_of(machine.system)
    roots = [(name, machine.environ[name]) for name in VARIABLES if machine.environ.get(name)]
    if machine.system == "Windows":
        names = (n for n in machine.names(_SDKS) if re.match(r"^\d+\.\d+", n))
        roots += [(DEFAULT_FOLDER, paths.join(_SDKS, name)) for name in names]
    found: dict[str, SdkRoot] = {}
    for name, folder in roots:
        place = paths.normcase(paths.normpath(folder))
        key = f"{name} {folder}" if name != DEFAULT_FOLDER else place
        # Do not list the folder of a variable a second time as the default folder.
        named = {paths.normcase(paths.normpath(root.folder)) for root in found.values()}
        if name == DEFAULT_FOLDER and place in named:
            continue
        exists = machine.kind(folder) == "folder"
        found[key] = SdkRoot(name, folder, exists, _version(machine, folder) if exists else None)
    return tuple(found.values())


def survey_foreign(machine: Machine, own: tuple[str, ...]) -> tuple[ForeignQnn, ...]:
    """Return folders with QNN libraries on search paths, except for the packages' own folders."""
    paths = paths_of(machine.system)
    known = {paths.normcase(paths.normpath(folder)) for folder in own}
    found = []
    for via in _SEARCHED.get(machine.system) or _SEARCHED[""]:
        # On every system, FastRPC uses a semicolon as separator in ADSP_LIBRARY_PATH.
        separator = ";" if machine.system == "Windows" or via == "ADSP_LIBRARY_PATH" else ":"
        for folder in dict.fromkeys(variable_of(machine, via).split(separator)):
            folder = folder.strip('" ')
            if not folder or paths.normcase(paths.normpath(folder)) in known:
                continue
            names = qnn_names(machine.names(folder))
            if names:
                found.append(ForeignQnn(via, folder, names, _first_version(machine, folder, names)))
    return tuple(found)


def survey_backend(machine: Machine, path: str | None) -> BackendFile | None:
    """Describe the file of the application's backend_path; ``None`` without one."""
    if path is None:
        return None
    if machine.kind(path) != "file":
        return BackendFile(path, exists=False)
    library = machine.library(path, version=True)
    return BackendFile(path, True, library.machine if library else None, library.version if library else None)


def _first_version(machine: Machine, folder: str, names: tuple[str, ...]) -> str | None:
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
    # Without a version in sdk.yaml, use the one in the folder's name.
    match = _FOLDER.search(folder.rstrip("\\/"))
    return match[1] if match else None


def find_sdk(facts: Facts) -> Iterator[Finding]:
    """Yield findings about QNN versions that differ from the host's."""
    yield from _backend_path(facts)
    yield from _chip(facts)
    yield from _system(facts)
    yield from _roots(facts)
    yield from _foreign(facts)


def bundled_sdk(facts: Facts) -> str | None:
    """Return the QNN version in the wheel; ``None`` if the host uses another source."""
    if facts.engine.wanted in ("windowsml", "folder"):
        return None
    return facts.host.packages.qnn_sdk if facts.host.packages else None


def _backend_path(facts: Facts) -> Iterator[Finding]:
    backend, bundled = facts.backend, bundled_sdk(facts)
    if backend is None:
        return
    if not backend.exists:
        yield finding(
            "sdk.backend-path-missing",
            "backend_path refers to a file that does not exist",
            backend.path,
            fix="Remove the provider option backend_path: the host then uses the library in its package. "
            "(QnnCpu is no longer part of onnxruntime-qnn.)",
        )
    elif backend.version and bundled and not _same_build(backend.version, bundled):
        yield finding(
            "sdk.backend-path-mixed",
            "backend_path has a different build of QNN than the provider",
            f"{backend.path}: {backend.version}",
            f"bundled with onnxruntime-qnn: {bundled}",
            fix="Remove the provider option backend_path: the host then uses the library in its package.",
        )


def _chip(facts: Facts) -> Iterator[Finding]:
    packages, arch = facts.host.packages, facts.computer.arch
    loaded = packages.loaded_set if packages else None
    if not facts.is_arm or arch is None or packages is None or loaded is None:
        return
    # A set without stubs belongs to the simulator; `library_files` reports this case.
    known = loaded.archs("stub")
    if not known or arch in known:
        return
    version = packages.version(fixes.QNN)
    yield finding(
        "sdk.too-old-for-chip",
        f"onnxruntime-qnn {version} does not support the chip {facts.computer.chip} (V{arch})",
        f"{loaded.folder}: stubs for {', '.join(f'V{one}' for one in sorted(known))}",
        fix=fixes.install_fitting(facts),
    )


def _system(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the bundled QNN is newer than the system's."""
    packages, bundled, system = facts.host.packages, bundled_sdk(facts), fixes.system_sdk(facts)
    if packages is None or bundled is None or system is None or not facts.is_arm:
        return
    version, source = system
    if not is_newer(bundled, version):
        return
    newer = finding(
        "sdk.newer-than-system",
        f"onnxruntime-qnn {packages.version('onnxruntime-qnn')} contains QNN {short_sdk(bundled)}, "
        f"and this system has {short_sdk(version)}",
        f"bundled: {bundled}",
        f"system: {version} ({source})",
        fix=fixes.install_fitting(facts, f"Install the release that fits, or {fixes.UPDATE_DRIVER}."),
    )
    if facts.driver.runtime:
        yield newer
        return
    # The driver's version is unknown and an SDK's libraries are rarely used, so this finding does not block.
    note = "The QNN version of the NPU driver is unknown; this is the version of an installed SDK."
    yield dataclasses.replace(newer, severity=Severity.DEGRADED, notes=(note,))


def _roots(facts: Facts) -> Iterator[Finding]:
    named = [root for root in facts.sdks if root.name != DEFAULT_FOLDER]
    for root in named:
        if not root.exists:
            yield finding(
                "sdk.root-missing",
                f"{root.name} is set to a folder that does not exist",
                f"{root.name}={root.folder}",
                fix=removal(facts, root.name, "Correct the variable, or remove it"),
            )
    versions = {root.version for root in named if root.version}
    # Variables with the same version do not conflict.
    if len(versions) > 1:
        yield finding(
            "sdk.roots-disagree",
            "the variables for QNN SDKs are set to different versions",
            *(f"{root.name}={root.folder}: {root.version}" for root in named),
            fix="Set all of them to one SDK, or remove the variables, which are not needed.",
        )


def _foreign(facts: Facts) -> Iterator[Finding]:
    bundled = bundled_sdk(facts)
    if bundled is None:
        return
    for one in facts.foreign:
        # Ignore libraries of the same build: they do not conflict with the host's QNN.
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
    # Compare builds without the number after the underscore. A version of three numbers (an SDK's) matches every
    # build of its release.
    return one.split("_")[0] == other.split("_")[0] or (short_sdk(one) == short_sdk(other) and one.count(".") < 3)


def healthy_sdk(facts: Facts) -> str | None:
    """Describe the versions of QNN in one line."""
    bundled, system = bundled_sdk(facts), fixes.system_sdk(facts)
    if bundled is None:
        return None
    text = f"QNN SDK {short_sdk(bundled)} bundled"
    return text + (f", {short_sdk(system[0])} on this system" if system and facts.is_arm else "")


SDK_CHECK = SubjectCheck("QNN SDK", find_sdk, healthy_sdk)
