"""Do the packages of the host belong together: one onnxruntime, a QNN that fits it, wheels for this interpreter?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.checks.host import lacking
from qnnbridge_tools.doctor.commands import word
from qnnbridge_tools.doctor.facts import Distribution, Facts, Packages
from qnnbridge_tools.doctor.findings import Finding, Remedy

QNN: Final = "onnxruntime-qnn"
_MANY_FILES: Final = 5
"""So many missing ones are no single library that a virus scanner took."""


def find(facts: Facts) -> Iterator[Finding]:
    packages, answer = facts.host_packages, facts.host.answer
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
            # Not the extra [host]: beside onnxruntime-qnn 1.x it would bring a second onnxruntime.
            fix=advice.by_pip(facts, f"install qnnbridge=={facts.qnnbridge}"),
        )


def _wheels(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """The tags of the installed wheels against the interpreter that they are installed in."""
    answer = facts.host.answer
    assert answer is not None
    platform = answer.platform.replace("-", "_").replace(".", "_")
    for one in packages.distributions:
        if not one.tags or not _is_runtime(one):
            continue
        platforms = {tag.split("-")[-1] for tag in one.tags}
        if not any(_fits_platform(tag, platform) for tag in platforms):
            yield finding(
                "packages.wheel-machine",
                f"{one.name} {one.version} is installed for another machine type",
                f"wheel {', '.join(one.tags)} in a {answer.platform} interpreter ({one.folder})",
                fix=advice.install_again(facts, one.name, one.version, "--only-binary :all:"),
            )
        elif not any(_fits_python(tag.split("-")[0], answer.tag) for tag in one.tags):
            yield finding(
                "packages.wheel-python",
                f"{one.name} {one.version} is installed for another version of Python",
                f"wheel {', '.join(one.tags)} in Python {answer.version} ({one.folder})",
                fix=advice.install_again(facts, one.name, one.version, "--only-binary :all:"),
            )


def _for_arm_only(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """Several win_amd64 wheels are for emulated Pythons: ARM64EC code, which no x64 processor can run."""
    loaded, version = packages.loaded_set, packages.version(QNN)
    if not facts.is_windows or facts.is_arm or loaded is None or version is None:
        return
    arm = [file for file in loaded.files if file.machine in ("ARM64EC", "ARM64X", "ARM64")]
    if arm and not any(file.machine == "x64" for file in loaded.files):
        yield finding(
            "packages.arm-only",
            f"onnxruntime-qnn {version} holds code for Arm computers only, not for {facts.computer.machine}",
            *(f"{file.name}: {file.machine}" for file in arm[:3]),
            f"folder: {loaded.folder}",
            fix=advice.install_fitting(facts),
        )


def _fits_platform(tag: str, platform: str) -> bool:
    if tag == "any" or platform.startswith(("win", "macosx")):
        return tag in ("any", platform)
    return tag.endswith("_" + platform.split("_", 1)[-1])


def _fits_python(tag: str, wanted: str) -> bool:
    return any(part in (wanted, "py3", "abi3") or not part.startswith("cp3") for part in tag.split("."))


def _half_installed(facts: Facts, packages: Packages) -> Iterator[Finding]:
    for one in packages.distributions:
        if one.name == "onnx":
            continue
        missing = [wrong.path for wrong in one.wrong if wrong.what == "missing"]
        gone = one.name == QNN and not (packages.plugin or packages.runtime)
        lost_code = [path for path in missing if path.endswith(".py")]
        if one.has_record and not gone and len(missing) < _MANY_FILES and not lost_code:
            continue
        seen = [f"{one.folder}: {one.name} {one.version} is listed as installed"]
        seen += [] if one.has_record else ["it has no RECORD of its files"]
        seen += [f"missing: {path}" for path in missing[:3]]
        yield finding(
            "packages.half-installed",
            f"{one.name} {one.version} is only half installed",
            *seen,
            fix=advice.install_again(facts, one.name, one.version),
        )


def _namespace(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """Who owns the folder onnxruntime?"""
    qnn = packages.version(QNN)
    runtimes = {one.name: one for one in packages.distributions if _is_runtime(one) and one.name != QNN}
    copies = [one for one in packages.distributions if one.name == QNN]
    if len({one.version for one in copies}) > 1 or len(copies) > 1:
        yield finding(
            "packages.twice",
            "onnxruntime-qnn is installed more than once",
            *(f"{one.version} in {one.folder}" for one in copies),
            fix=_once(facts, copies),
        )
        if any(_is_old(one.version) for one in copies) and not all(_is_old(one.version) for one in copies):
            yield _leftover(facts, packages, f"both {' and '.join(one.version for one in copies)} are listed")
            return
    if qnn is None:
        if packages.runtime_package == QNN or packages.runtime_folder_has_qnn:
            yield _leftover(facts, packages, "no onnxruntime-qnn is listed as installed")
        return
    if _is_old(qnn) and runtimes:
        other = next(iter(runtimes.values()))
        mine = packages.runtime_package in (None, QNN) and packages.runtime_folder_has_qnn
        yield finding(
            "packages.shadowed",
            f"{other.name} {other.version} and onnxruntime-qnn {qnn} are installed in one folder",
            f"import onnxruntime loads {packages.runtime_package or (QNN if mine else other.name)} "
            f"{packages.runtime_version or ''} ({packages.runtime})".replace("  ", " "),
            fix=advice.install_fitting(facts),
        )
    elif not _is_old(qnn) and packages.runtime_package == QNN:
        yield _leftover(
            facts, packages, f"import onnxruntime loads onnxruntime-qnn {packages.runtime_version or '1.x'}"
        )
    elif not _is_old(qnn) and packages.runtime_folder_has_qnn:
        yield _leftover(facts, packages, "the folder onnxruntime holds QNN libraries of a 1.x release")
    elif not _is_old(qnn) and len(runtimes) > 1:
        names = " and ".join(f"{one.name} {one.version}" for one in runtimes.values())
        others = " ".join(name for name in runtimes if name != "onnxruntime")
        yield finding(
            "packages.other-runtime",
            f"{names} are installed in one folder",
            f"import onnxruntime loads {packages.runtime_package or 'one of them'} "
            f"{packages.runtime_version or ''}",
            fix=advice.install_version(facts, _kept(facts, qnn), remove=others),
        )


def _leftover(facts: Facts, packages: Packages, seen: str) -> Finding:
    return finding(
        "packages.leftover-1x",
        "an old onnxruntime-qnn 1.x has left its files in the folder onnxruntime",
        seen,
        f"folder: {packages.runtime}",
        fix=advice.after_removal(facts, packages.runtime, _kept(facts, packages.version(QNN))),
    )


def _presence(facts: Facts, packages: Packages) -> Iterator[Finding]:
    qnn = packages.version(QNN)
    if qnn is None and (packages.runtime or packages.version("onnxruntime")):
        yield finding(
            "packages.no-qnn",
            "the host has onnxruntime without QNN",
            f"onnxruntime {packages.version('onnxruntime') or packages.runtime_version or ''} in "
            f"{packages.runtime}",
            fix=advice.install_fitting(facts),
        )
    elif qnn is None and not lacking(packages):
        yield finding(
            "host.packages-missing",
            "the host's interpreter has neither onnxruntime nor onnxruntime-qnn",
            facts.host.path,
            fix=advice.host_packages(facts),
        )
    elif qnn is not None and not _is_old(qnn) and packages.runtime is None:
        yield finding(
            "packages.no-onnxruntime",
            f"onnxruntime-qnn {qnn} is installed without onnxruntime",
            f"{packages.plugin}",
            fix=_with_runtime(facts, qnn, "install"),
        )


def _pair(facts: Facts, packages: Packages) -> Iterator[Finding]:
    qnn, ort = packages.version(QNN), packages.version("onnxruntime")
    reasons = advice.known_reasons(facts)
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
            fix=advice.install_fitting(facts),
            notes=(f"onnxruntime-qnn {qnn} {reasons['ort-too-new'].text}",),
        )
    if "error-1002" in reasons:
        yield finding(
            "packages.known-fault",
            f"onnxruntime-qnn {qnn} is known to fail with error 1002",
            f"onnxruntime-qnn {qnn}: {reasons['error-1002'].text}",
            fix=advice.install_fitting(facts),
        )


def _once(facts: Facts, copies: list[Distribution]) -> Remedy:
    """pip takes away one copy at a time, the one that it finds first."""
    remedy = advice.install_version(facts, _kept(facts, _newest(copies)))
    if advice.is_managed(facts):
        return remedy
    further = advice.pip(facts, *[f"uninstall -y {QNN}"] * (len(copies) - 1))
    return dataclasses.replace(remedy, commands=(*further, *remedy.commands))


def _kept(facts: Facts, version: str | None) -> str | None:
    """This version, unless it does not fit this host."""
    return version if version and advice.fits(facts, version) else advice.fitting_version(facts)


def _with_runtime(facts: Facts, qnn: str, how: str) -> Remedy:
    """An onnxruntime for this plugin."""
    if not advice.fits(facts, qnn):
        return advice.install_fitting(
            facts, f"{QNN} {qnn} does not fit this computer anyway; install the one that does."
        )
    return advice.by_pip(facts, f"{how} {word(advice.ort_requirement(facts, qnn))}")


def _newest(copies: list[Distribution]) -> str:
    return max(
        copies, key=lambda one: tuple(int(part) for part in one.version.split(".") if part.isdigit())
    ).version


def _is_runtime(one: Distribution) -> bool:
    return one.name.startswith(("onnxruntime", "ort-nightly"))


def _is_old(version: str) -> bool:
    return version.startswith(("0.", "1."))


def healthy(facts: Facts) -> str | None:
    packages = facts.host_packages
    qnn = packages.version(QNN) if packages is not None else None
    if packages is None or qnn is None:
        return None
    ort = packages.version("onnxruntime")
    names = [*([f"onnxruntime {ort}"] if ort else []), f"onnxruntime-qnn {qnn}"]
    unknown = advice.unknown_packages(facts)
    return ", ".join(f"{name} (nothing known of it)" if name in unknown else name for name in names)


CHECK = Check("packages", find, healthy)
