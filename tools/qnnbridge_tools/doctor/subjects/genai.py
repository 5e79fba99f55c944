"""onnxruntime-genai, for text generation: in the host, and in an application that should not use its own. Check."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_host.model.genai_folder import OLDEST, is_too_old, version_of
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.facts import Distribution, Facts, Packages
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck
from qnnbridge_tools.doctor.fixes import word
from qnnbridge_tools.doctor.subjects.packages import GENAI, fits_platform, fits_python

_LEAST: Final = re.compile(r">=\s*([\d.]+)")


def find(facts: Facts) -> Iterator[Finding]:
    packages = facts.host_packages
    installed = packages.distribution(GENAI) if packages is not None else None
    if packages is not None and installed is not None:
        yield from _wheel(facts, installed)
        yield from _versions(facts, packages, installed)
    yield from _emulated(facts, has_host=installed is not None)


def _wheel(facts: Facts, installed: Distribution) -> Iterator[Finding]:
    answer = facts.host.answer
    if answer is None or not installed.tags:
        return
    # As wheels write it: win_arm64 for win-arm64.
    platform = answer.platform.replace("-", "_").replace(".", "_")
    tags = [tag.split("-") for tag in installed.tags]
    fits = any(fits_platform(tag[-1], platform) and fits_python(tag[0], answer.tag) for tag in tags)
    if not fits:
        yield finding(
            "genai.wheel",
            f"the host's {GENAI} {installed.version} is made for another interpreter",
            f"wheel {', '.join(installed.tags)} in Python {answer.version}, {answer.platform} ({installed.folder})",
            fix=fixes.install_again(facts, GENAI, installed.version, "--only-binary :all:"),
        )


def _versions(facts: Facts, packages: Packages, installed: Distribution) -> Iterator[Finding]:
    if is_too_old(installed.version):
        yield finding(
            "genai.too-old",
            f"the host's {GENAI} {installed.version} is too old",
            f"{GENAI} {installed.version} ({installed.folder})",
            fix=fixes.by_pip(facts, f"install -U {word(f'{GENAI}>=' + '.'.join(map(str, OLDEST)))}"),
        )
        # A release that goes anyway needs no onnxruntime to be found for it.
        return
    if "ort-too-old" in fixes.known_reasons(facts):
        return  # `packages.onnxruntime-too-old` has the cause and the fix
    runtime, least = packages.version("onnxruntime"), _LEAST.search(installed.needs)
    if runtime is not None and least is not None and version_of(runtime) < version_of(least[1]):
        wanted = "onnxruntime" + installed.needs
        yield finding(
            "genai.onnxruntime-too-old",
            f"onnxruntime {runtime} is too old for {GENAI} {installed.version}",
            f"{GENAI} {installed.version} needs {wanted}",
            # With 1.x, onnxruntime-genai gives way: another onnxruntime would overwrite files of the provider.
            fix=_older_genai(facts) if _qnn_is_whole(packages) else fixes.by_pip(facts, f"install {word(wanted)}"),
        )


def _qnn_is_whole(packages: Packages) -> bool:
    """A 1.x release is an onnxruntime itself: another one would replace its files."""
    version = packages.version(fixes.QNN)
    return version is not None and version.startswith(("0.", "1."))


def _older_genai(facts: Facts) -> Remedy:
    from qnnbridge_host.model.genai_folder import TRIED

    return fixes.by_pip(
        facts, f"install {GENAI}=={TRIED[0]}", "Install a release for the onnxruntime that is there."
    )


def _emulated(facts: Facts, *, has_host: bool) -> Iterator[Finding]:
    """An x64 Python on an Arm PC: its wheel is plain x64 code, and its QNN no way to the NPU."""
    installed = facts.application_packages.distribution(GENAI)
    if installed is None or not (facts.is_windows and facts.is_arm and facts.application_machine == "x64"):
        return
    commands = () if has_host or facts.host.answer is None else fixes.pip(facts, f"install {GENAI}")
    yield finding(
        "genai.emulated",
        f"this Python's own {GENAI} {installed.version} runs emulated",
        f"{GENAI} {installed.version} for x64 ({installed.folder})",
        fix=Remedy(
            "Use qnnbridge.genai, which has the same interface and generates in the ARM64 host; a program that "
            "imports onnxruntime_genai gets it by qnnbridge exec."
            + (" The host lacks the package:" if commands else ""),
            commands,
        ),
    )


def healthy(facts: Facts) -> str | None:
    packages = facts.host_packages
    version = packages.version(GENAI) if packages is not None else None
    return f"{GENAI} {version}" if version else None


CHECK = SubjectCheck("text generation", find, healthy)
