"""onnxruntime, onnxruntime-qnn and their versions in one interpreter: survey and check."""

from __future__ import annotations

import base64
import csv
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Final

from qnnbridge_protocol.installing import PACKAGE, read_origin
from qnnbridge_protocol.version_numbers import numbers_of
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import DamagedFile, Distribution, Facts, Packages, PythonReport, QnnSet
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding
from qnnbridge_tools.doctor.fixes import QNN, is_1x, word
from qnnbridge_tools.doctor.machine import Machine, paths_of, text_of
from qnnbridge_tools.doctor.subjects.library_files import survey_set

GENAI: Final = "onnxruntime-genai"
# Distributions that contain the module onnxruntime, including onnxruntime-qnn. onnxruntime-genai and
# onnxruntime-extensions contain other modules.
RUNTIMES: Final = re.compile(r"^(?:onnxruntime(?:-(?!genai|extensions)[a-z]+)?|ort-nightly(?:-[a-z]+)?)$")

_OTHERS: Final = ("numpy", "msgpack", "qnnbridge", "onnx", "windowsml", GENAI)
_CHECKED: Final = ("numpy", "msgpack", "qnnbridge")
_MODULES: Final = ("qnnbridge_host", "qnnbridge_protocol", "msgpack", "numpy", "onnxruntime", "onnxruntime_qnn")
# Metadata folder of a wheel, such as onnxruntime_qnn-2.7.0.dist-info.
_DIST_INFO: Final = re.compile(r"^(?P<name>[A-Za-z0-9]+(?:[._-][A-Za-z]+)*)-(?P<version>\d[^-]*)\.dist-info$")
_ASSIGNMENT: Final = re.compile(r"""^(\w+)\s*=\s*['"]([^'"]*)['"]""", re.MULTILINE)
_NATIVE: Final = re.compile(r"\.(?:dll|pyd|cat|so(?:\.[\d.]+)?)$", re.IGNORECASE)
# Limit for each distribution, so that a snapshot stays small even if all files of a folder are missing.
_MAX_WRONG: Final = 20
# Modules that the host imports before QNN. `qnnbridge_os` is omitted: every installation contains it together with
# `qnnbridge_protocol` (a missing file is `packages.half-installed`), and snapshots of qnnbridge 0.1 do not list it,
# so a healthy host would be refused.
NEEDED: Final = ("qnnbridge_host", "qnnbridge_protocol", "msgpack", "numpy")


def survey_packages(machine: Machine, answer: PythonReport, *, complete: bool) -> Packages:
    """Describe the packages of an interpreter.

    Args:
        machine: the computer.
        answer: the interpreter's description of itself.
        complete: whether to compare hashes of libraries.
    """
    folders = tuple(dict.fromkeys(answer.path))
    paths = paths_of(machine.system)
    distributions = tuple(_distributions(machine, folders, complete))
    runtime = _module(machine, folders, "onnxruntime")
    plugin = _module(machine, folders, "onnxruntime_qnn")
    capi = paths.join(runtime, "capi") if runtime else None
    built = _constants(machine, capi) if capi else {}
    plugin_built = _constants(machine, plugin) if plugin else {}
    libraries = paths.join(plugin, "libs") if plugin else ""
    plugins = [plugin, *(paths.join(libraries, name) for name in machine.names(libraries))] if plugin else []
    places = [place for place in (capi, *plugins) if place]
    found = (survey_set(machine, place, complete=complete) for place in places)
    # A folder without a backend or provider is not a QNN set that could be loaded.
    sets = tuple(one for one in found if one is not None and (one.of("backend") or one.of("provider")))
    # The whole wheel has the machine type of this extension module.
    state = next((n for n in machine.names(capi or "") if n.startswith("onnxruntime_pybind11_state")), None)
    library = machine.library(paths.join(capi, state), version=False) if capi and state else None
    return Packages(
        distributions=distributions,
        runtime=runtime,
        runtime_package=built.get("package_name"),
        runtime_version=built.get("__version__"),
        runtime_machine=library.machine if library else None,
        plugin=plugin,
        plugin_sdk=plugin_built.get("qnn_version"),
        loaded=loaded_folder(machine.system, answer, capi, plugin, sets),
        sets=sets,
        runtime_folder_has_qnn=any(one.folder == capi for one in sets),
        modules=tuple(name for name in _MODULES if _module(machine, folders, name)),
    )


def loaded_folder(
    system: str, answer: PythonReport, capi: str | None, plugin: str | None, sets: Sequence[QnnSet]
) -> str | None:
    """Return the folder from which libraries would be loaded, according to onnxruntime_qnn's platform_loader."""
    if plugin is None:
        return next((one.folder for one in sets if one.folder == capi), None)
    # Without a `libs` folder, the package has a single set in the folder of its module.
    if not any("libs" in one.folder[len(plugin) :] for one in sets if one.folder.startswith(plugin)):
        return plugin
    on_arm = answer.machine.lower() in ("arm64", "aarch64")
    # An emulated Python 3.12 reports ARM64 but has AMD64 in its environment; the loader then uses the ARM64EC set.
    name = ("arm64ec" if answer.env_machine.upper() == "AMD64" else "arm64") if on_arm else "amd64"
    return str(paths_of(system).join(plugin, "libs", name))


def _module(machine: Machine, folders: Sequence[str], name: str) -> str | None:
    paths = paths_of(machine.system)
    for folder in folders:
        if machine.kind(paths.join(folder, name, "__init__.py")) == "file":
            return str(paths.join(folder, name))
    return None


def _constants(machine: Machine, folder: str) -> dict[str, str]:
    text = text_of(machine, paths_of(machine.system).join(folder, "build_and_package_info.py"), 1 << 16)
    return dict(_ASSIGNMENT.findall(text.replace("\r", ""))) if text else {}


# --- distributions ---------------------------------------------------------------------------------------


def _distributions(machine: Machine, folders: Sequence[str], complete: bool) -> Iterator[Distribution]:
    for folder in folders:
        for entry in machine.names(folder):
            match = _DIST_INFO.match(entry)
            if match is None:
                continue
            name = re.sub(r"[._-]+", "-", match["name"]).lower()
            if RUNTIMES.match(name) or name in _OTHERS:
                yield _distribution(machine, folder, entry, name, match["version"], complete)


def _distribution(
    machine: Machine, folder: str, entry: str, name: str, version: str, complete: bool
) -> Distribution:
    paths = paths_of(machine.system)
    wheel = text_of(machine, paths.join(folder, entry, "WHEEL"), 1 << 16) or ""
    record = text_of(machine, paths.join(folder, entry, "RECORD"), 1 << 22)
    checked = bool(RUNTIMES.match(name)) or name in _CHECKED
    wrong = _wrong_files(machine, folder, record, complete and bool(RUNTIMES.match(name))) if checked else ()
    return Distribution(
        name,
        version,
        folder,
        tags=tuple(re.findall(r"^Tag:\s*(\S+)", wheel, re.MULTILINE)),
        needs=_needed_runtime(machine, paths.join(folder, entry, "METADATA")) if name == GENAI else "",
        origin=_origin(machine, paths.join(folder, entry, "direct_url.json")) if name == PACKAGE else "",
        has_record=record is not None,
        wrong=tuple(wrong)[:_MAX_WRONG],
    )


def _origin(machine: Machine, record: str) -> str:
    found = read_origin(text_of(machine, record, 1 << 16))
    return found.path if found is not None else ""


def _needed_runtime(machine: Machine, metadata: str) -> str:
    found = re.search(
        r"^Requires-Dist:\s*onnxruntime\b[ (]*([^;)\s]*)", text_of(machine, metadata, 1 << 16) or "", re.M
    )
    return found[1] if found else ""


def _wrong_files(machine: Machine, folder: str, record: str | None, hashes: bool) -> Iterator[DamagedFile]:
    """Yield missing files, and libraries whose size or (with `hashes`) content differs from the RECORD."""
    paths = paths_of(machine.system)
    for row in csv.reader((record or "").splitlines()):
        # Skip the RECORD itself (a row without a size), scripts ("..") and .pyc files, which Python regenerates.
        if len(row) < 3 or not row[2].isdigit() or row[0].startswith("..") or row[0].endswith(".pyc"):
            continue
        name, expected = row[0], int(row[2])
        path = paths.normpath(paths.join(folder, name))
        native = _NATIVE.search(name) is not None
        if not native and not name.endswith(".py"):
            continue
        size = machine.size(path)
        if size is None:
            yield DamagedFile(name, "missing", expected)
        elif native and size != expected:
            # Compare the sizes of libraries only; a .py file is reported only if it is missing.
            yield DamagedFile(name, "size", expected, size)
        elif native and hashes and row[1].startswith("sha256=") and machine.sha256(path) != _hex(row[1][7:]):
            yield DamagedFile(name, "hash", expected, size)


def _hex(text: str) -> str:
    """Convert a RECORD's hash, which is base64 without padding, to hexadecimal."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()


# With this many missing files, the cause is probably not a virus scanner, which would remove single libraries.
_MANY_FILES: Final = 5


def find(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the host's packages and their versions."""
    packages, answer = facts.host.packages, facts.host.answer
    if packages is None or answer is None:
        return
    yield from _wheels(facts, packages)
    yield from _for_arm_only(facts, packages)
    yield from _half_installed(facts, packages)
    yield from _namespace(facts, packages)
    yield from _presence(facts, packages)
    yield from _pair(facts, packages)
    if facts.missing_vc_runtime and packages.runtime:
        machine = "arm64" if answer.platform == "win-arm64" else "x64"
        yield finding(
            "packages.vc-runtime",
            "the Visual C++ runtime is missing",
            "not found: " + ", ".join(facts.missing_vc_runtime),
            fix=Remedy(
                f"Install it (or by hand, from https://aka.ms/vs/17/release/vc_redist.{machine}.exe).",
                (f"winget install Microsoft.VCRedist.2015+.{machine}",),
            ),
        )
    theirs = packages.version("qnnbridge")
    if theirs is not None and theirs != facts.qnnbridge:
        yield finding(
            "packages.other-qnnbridge",
            "both sides have different versions of qnnbridge",
            f"here: {facts.qnnbridge}; host: {theirs} ({facts.host.path})",
            # Do not use the extra [host], which would install a second onnxruntime next to onnxruntime-qnn 1.x.
            fix=fixes.install_qnnbridge(facts),
        )


def _wheels(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """Yield findings about installed wheels whose tags do not fit their interpreter."""
    answer = facts.host.answer
    assert answer is not None
    platform = answer.platform.replace("-", "_").replace(".", "_")
    for one in packages.distributions:
        if not one.tags or not _is_runtime(one):
            continue
        platforms = {tag.split("-")[-1] for tag in one.tags}
        if not any(fits_platform(tag, platform) for tag in platforms):
            code, what, where = "wheel-machine", "machine type", f"a {answer.platform} interpreter"
        elif not any(fits_python(tag.split("-")[0], answer.tag) for tag in one.tags):
            code, what, where = "wheel-python", "version of Python", f"Python {answer.version}"
        else:
            continue
        yield finding(
            f"packages.{code}",
            f"{one.name} {one.version} is installed for another {what}",
            f"wheel {', '.join(one.tags)} in {where} ({one.folder})",
            fix=fixes.install_again(facts, one.name, one.version, "--only-binary :all:"),
        )


def _for_arm_only(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """Yield a finding for a win_amd64 wheel with ARM64EC code for emulated Pythons, which no x64 processor can
    run.
    """
    loaded, version = packages.loaded_set, packages.version(QNN)
    if not facts.is_windows or facts.is_arm or loaded is None or version is None:
        return
    arm = [file for file in loaded.files if file.machine in ("ARM64EC", "ARM64X", "ARM64")]
    if arm and not any(file.machine == "x64" for file in loaded.files):
        yield finding(
            "packages.arm-only",
            f"onnxruntime-qnn {version} contains code for Arm computers only, not for {facts.computer.machine}",
            *(f"{file.name}: {file.machine}" for file in arm[:3]),
            f"folder: {loaded.folder}",
            fix=fixes.install_fitting(facts),
        )


def fits_platform(tag: str, platform: str) -> bool:
    """Return whether the platform tag of a wheel fits a platform such as win_arm64."""
    if tag == "any" or platform.startswith(("win", "macosx")):
        return tag in ("any", platform)
    # Compare only the processor type, with which a manylinux tag ends; the tag also contains a glibc version.
    return tag.endswith("_" + platform.split("_", 1)[-1])


def fits_python(tag: str, wanted: str) -> bool:
    """Return whether the Python tag of a wheel fits an interpreter's tag such as cp313."""
    return any(part in (wanted, "py3", "abi3") or not part.startswith("cp3") for part in tag.split("."))


def _half_installed(facts: Facts, packages: Packages) -> Iterator[Finding]:
    for one in packages.distributions:
        # Skip these packages, because the host starts without them.
        if one.name in ("onnx", GENAI):
            continue
        missing = [wrong.path for wrong in one.wrong if wrong.what == "missing"]
        # If the distribution is listed but its modules are missing, somebody deleted its files.
        gone = one.name == QNN and not (packages.plugin or packages.runtime)
        lost_code = [path for path in missing if path.endswith(".py")]
        if one.has_record and not gone and len(missing) < _MANY_FILES and not lost_code:
            continue
        seen = [f"{one.folder}: {one.name} {one.version} is listed as installed"]
        # pip writes the RECORD last, so a missing RECORD means an interrupted installation.
        seen += [] if one.has_record else ["the RECORD of its files is missing"]
        seen += [f"missing: {path}" for path in missing[:3]]
        yield finding(
            "packages.half-installed",
            f"{one.name} {one.version} is only half installed",
            *seen,
            fix=fixes.install_again(facts, one.name, one.version),
        )


def _namespace(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """Yield findings about several distributions with files in the folder onnxruntime."""
    qnn = packages.version(QNN)
    runtimes = {one.name: one for one in packages.distributions if _is_runtime(one) and one.name != QNN}
    copies = [one for one in packages.distributions if one.name == QNN]
    if len(copies) > 1:
        yield finding(
            "packages.twice",
            "onnxruntime-qnn is installed more than once",
            *(f"{one.version} in {one.folder}" for one in copies),
            fix=_once(facts, copies),
        )
        # 1.x and onnxruntime, which 2.x needs, are installed in one folder, which contains files of both.
        if any(is_1x(one.version) for one in copies) and not all(is_1x(one.version) for one in copies):
            yield _leftover(facts, packages, f"pip lists both {' and '.join(one.version for one in copies)}")
            return
    # Without a recorded onnxruntime-qnn look for files of 1.x, which pip cannot remove.
    if qnn is None:
        if packages.runtime_package == QNN or packages.runtime_folder_has_qnn:
            yield _leftover(facts, packages, "no onnxruntime-qnn is listed as installed")
        return
    if is_1x(qnn) and runtimes:
        other = next(iter(runtimes.values()))
        mine = packages.runtime_package in (None, QNN) and packages.runtime_folder_has_qnn
        yield finding(
            "packages.shadowed",
            f"{other.name} {other.version} and onnxruntime-qnn {qnn} are installed in one folder",
            f"import onnxruntime loads {packages.runtime_package or (QNN if mine else other.name)} "
            f"{packages.runtime_version or ''} ({packages.runtime})".replace("  ", " "),
            fix=fixes.install_fitting(facts),
        )
    elif not is_1x(qnn) and packages.runtime_package == QNN:
        yield _leftover(
            facts, packages, f"import onnxruntime loads onnxruntime-qnn {packages.runtime_version or '1.x'}"
        )
    elif not is_1x(qnn) and packages.runtime_folder_has_qnn:
        yield _leftover(facts, packages, "the folder onnxruntime contains QNN libraries of a 1.x release")
    elif not is_1x(qnn) and len(runtimes) > 1:
        names = " and ".join(f"{one.name} {one.version}" for one in runtimes.values())
        others = " ".join(name for name in runtimes if name != "onnxruntime")
        yield finding(
            "packages.other-runtime",
            f"{names} are installed in one folder",
            f"import onnxruntime loads {packages.runtime_package or 'one of them'} "
            f"{packages.runtime_version or ''}",
            fix=fixes.install_version(facts, _kept(facts, qnn), remove=others),
        )


def _leftover(facts: Facts, packages: Packages, seen: str) -> Finding:
    return finding(
        "packages.leftover-1x",
        "an old onnxruntime-qnn 1.x has left its files in the folder onnxruntime",
        seen,
        f"folder: {packages.runtime}",
        fix=fixes.after_removal(facts, packages.runtime, _kept(facts, packages.version(QNN))),
    )


def _presence(facts: Facts, packages: Packages) -> Iterator[Finding]:
    qnn = packages.version(QNN)
    if qnn is None and (facts.engine.wanted in ("windowsml", "folder") or packages.version("windowsml")):
        return  # the checks in `subjects.qnn` cover QNN from a folder or from Windows
    if qnn is None and (packages.runtime or packages.version("onnxruntime")):
        yield finding(
            "packages.no-qnn",
            "the host has onnxruntime without QNN",
            f"onnxruntime {packages.version('onnxruntime') or packages.runtime_version or ''} in "
            f"{packages.runtime}",
            fix=fixes.install_fitting(facts),
        )
    elif qnn is None and not lacking(packages):
        yield finding(
            "host.packages-missing",
            "the host's interpreter has neither onnxruntime nor onnxruntime-qnn",
            facts.host.path,
            fix=fixes.host_packages(facts),
        )
    elif qnn is not None and not is_1x(qnn) and packages.runtime is None:
        yield finding(
            "packages.no-onnxruntime",
            f"onnxruntime-qnn {qnn} is installed without onnxruntime",
            f"{packages.plugin}",
            fix=_with_runtime(facts, qnn, "install"),
        )


def _pair(facts: Facts, packages: Packages) -> Iterator[Finding]:
    qnn, ort = packages.version(QNN), packages.version("onnxruntime")
    reasons = fixes.known_reasons(facts)
    pair = f"onnxruntime {ort} with onnxruntime-qnn {qnn}"
    if "ort-too-old" in reasons:
        yield finding(
            "packages.onnxruntime-too-old",
            f"onnxruntime {ort} is too old for onnxruntime-qnn {qnn}",
            pair,
            fix=_with_runtime(facts, qnn or "", "install -U"),
            notes=(f"onnxruntime-qnn {qnn} {reasons['ort-too-old'].text}",),
        )
    if "ort-too-new" in reasons:
        yield finding(
            "packages.qnn-too-old",
            f"onnxruntime-qnn {qnn} is too old for onnxruntime {ort}",
            pair,
            fix=fixes.install_fitting(facts),
            notes=(f"onnxruntime-qnn {qnn} {reasons['ort-too-new'].text}",),
        )
    if "error-1002" in reasons:
        yield finding(
            "packages.known-fault",
            f"onnxruntime-qnn {qnn} is known to fail with error 1002",
            f"onnxruntime-qnn {qnn}: {reasons['error-1002'].text}",
            fix=fixes.install_fitting(facts),
        )


def _once(facts: Facts, copies: list[Distribution]) -> Remedy:
    """Return the fix that leaves a single copy of onnxruntime-qnn."""
    newest = max(copies, key=lambda one: numbers_of(one.version))
    remedy = fixes.install_version(facts, _kept(facts, newest.version))
    if fixes.is_managed(facts):
        return remedy
    # pip removes only the first copy that it finds, so call it once for each copy.
    further = fixes.pip(facts, *[f"uninstall -y {QNN}"] * (len(copies) - 1))
    return dataclasses.replace(remedy, commands=(*further, *remedy.commands))


def _kept(facts: Facts, version: str | None) -> str | None:
    """Return the version if it fits, so that the repair changes as little as possible; else a fitting version."""
    return version if version and fixes.fits(facts, version) else fixes.fitting_version(facts)


def _with_runtime(facts: Facts, qnn: str, how: str) -> Remedy:
    """Return the fix that installs an onnxruntime for this plugin. how: pip's subcommand and options."""
    instead = fixes.fitting_instead(facts, qnn)
    return instead or fixes.by_pip(facts, f"{how} {word(fixes.ort_requirement(facts, qnn))}")


def lacking(packages: Packages) -> list[str]:
    """Return the missing modules that the host needs."""
    return [name for name in NEEDED if name not in packages.modules]


def _is_runtime(one: Distribution) -> bool:
    return one.name != GENAI and one.name.startswith(("onnxruntime", "ort-nightly"))


def healthy(facts: Facts) -> str | None:
    """Describe the versions of the host's packages in one line."""
    packages = facts.host.packages
    qnn = packages.version(QNN) if packages is not None else None
    if packages is None or qnn is None:
        return None
    ort = packages.version("onnxruntime")
    names = [*([f"onnxruntime {ort}"] if ort else []), f"onnxruntime-qnn {qnn}"]
    unknown = fixes.unknown_packages(facts)
    return ", ".join(f"{name} ({unknown[name]})" if name in unknown else name for name in names)


CHECK = SubjectCheck("packages", find, healthy)
