"""QNN libraries of a package: survey, and check that they are complete, signed, of one build and of this machine
type.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterator, Sequence
from typing import Final

from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import DamagedFile, Facts, Packages, PythonReport, QnnFile, QnnSet
from qnnbridge_tools.doctor.findings import Finding, SubjectCheck, finding
from qnnbridge_tools.doctor.machine import Machine, paths_of

_ROLES: Final = (
    ("provider", re.compile(r"^(?:lib)?onnxruntime_providers_qnn\.(?:dll|so)$")),
    ("backend", re.compile(r"^(?:lib)?QnnHtp\.(?:dll|so)$")),
    # QnnHtpPrepare.dll on Windows, libHtpPrepare.so on Linux.
    ("prepare", re.compile(r"^(?:lib)?(?:Qnn)?HtpPrepare\.(?:dll|so)$")),
    ("system", re.compile(r"^(?:lib)?QnnSystem\.(?:dll|so)$")),
    ("stub", re.compile(r"^(?:lib)?QnnHtpV(?P<arch>\d+)Stub\.(?:dll|so)$")),
    # A skel runs on the NPU, so it is an ELF file on Windows, too.
    ("skel", re.compile(r"^libQnnHtpV(?P<arch>\d+)Skel\.so$")),
    ("catalog", re.compile(r"^libqnnhtpv(?P<arch>\d+)\.cat$", re.IGNORECASE)),
    ("other", re.compile(r"^(?:lib)?(?:Qnn\w+|Genie)\.(?:dll|so)$")),
)
# Order in which the libraries determine the version of a set: the backend first, because the provider calls it.
_SDK_FROM: Final = ("backend", "system", "stub", "prepare", "other")
# Only a complete survey searches larger files for their version, which on Linux is a string anywhere in the file.
_BIG_BYTES: Final = 16 << 20
_MAX_CATALOG_BYTES: Final = 1 << 20


def role_of(name: str) -> tuple[str, int | None] | None:
    """Return role and Hexagon version of a file of QNN by its name; ``None`` for other files."""
    for role, pattern in _ROLES:
        match = pattern.match(name)
        if match:
            arch = match.groupdict().get("arch")
            return role, int(arch) if arch else None
    return None


def qnn_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the files of QNN itself, without the execution provider, from a list of file names."""
    return tuple(name for name in names if (role := role_of(name)) is not None and role[0] != "provider")


def survey_set(machine: Machine, folder: str, *, complete: bool) -> QnnSet | None:
    """Describe the QNN libraries in a folder; ``None`` for a folder without any.

    Args:
        machine: the computer.
        folder: the folder.
        complete: whether to do slow checks as well (search large Linux files for versions, hash the skels).
    """
    names = [name for name in machine.names(folder) if role_of(name) is not None]
    if not names:
        return None
    files = tuple(_file(machine, folder, name, complete) for name in names)
    return QnnSet(folder, files, _sdk(files))


def _file(machine: Machine, folder: str, name: str, complete: bool) -> QnnFile:
    path = paths_of(machine.system).join(folder, name)
    role, arch = role_of(name) or ("other", None)
    size = machine.size(path) or 0
    # A catalog is read only to search it for the hash of its skel.
    if role == "catalog":
        return QnnFile(name, role, size, arch)
    quick = machine.system == "Windows" or size < _BIG_BYTES or role == "backend"
    # Do not read the version of a skel, a program for the NPU: it has the same build as its stub.
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
    """Return whether the signed catalog of a skel contains its hash; ``None`` without a catalog."""
    catalog = machine.data(paths_of(machine.system).join(folder, f"libqnnhtpv{arch}.cat"), _MAX_CATALOG_BYTES)
    digest = machine.sha256(skel) if catalog is not None else None
    # The catalog contains the hash as raw bytes.
    return bytes.fromhex(digest) in catalog if catalog is not None and digest else None


def _sdk(files: Sequence[QnnFile]) -> str | None:
    for role in _SDK_FROM:
        for file in files:
            if file.role == role and file.version:
                return file.version
    return None


LOADABLE: Final = {
    "win-arm64": {"ARM64", "ARM64X"},
    # ARM64X files contain code for ARM64 and x64, and an emulated x64 process can load ARM64EC.
    "win-amd64": {"x64", "ARM64EC", "ARM64X"},
    "linux-x86_64": {"x86_64"},
    "linux-aarch64": {"aarch64"},
}
_OF_ONE_BUILD: Final = ("backend", "prepare", "system", "stub")
# Hexagon versions of older chips, which accept a skel without a signed catalog.
_UNSIGNED_ARCHS: Final = frozenset({68, 69})

MAX_SEEN: Final = 6


def find(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the host's QNN libraries."""
    packages = facts.host.packages
    if packages is None or facts.host.answer is None:
        return
    yield from _damaged(facts, packages)
    loaded = packages.loaded_set
    if loaded is None:
        return
    yield from _machines(facts, facts.host.answer, packages, loaded)
    yield from _builds(facts, packages, loaded)
    yield from _complete(facts, packages, loaded)
    yield from _signed(facts, loaded)


def _damaged(facts: Facts, packages: Packages) -> Iterator[Finding]:
    """Yield findings about libraries that differ from the RECORD of their distribution."""
    # Omit libraries of a different build, which another check reports.
    loaded = packages.loaded_set
    others = {file.name for file in _of_other_builds(loaded, packages.plugin_sdk)} if loaded else set()
    wrong = [
        (one, file)
        for one in packages.distributions
        if one.name.startswith("onnxruntime")
        for file in one.wrong
        # Consider only libraries: missing .py files are `packages.half-installed`.
        if not file.path.endswith(".py") and file.path.rpartition("/")[2] not in others
    ]
    kinds = {
        "files.missing": [pair for pair in wrong if pair[1].what == "missing"],
        "files.truncated": [
            pair for pair in wrong if pair[1].what == "size" and (pair[1].found or 0) < pair[1].recorded
        ],
        "files.replaced": [
            pair for pair in wrong if pair[1].what == "hash" or (pair[1].found or 0) > pair[1].recorded
        ],
    }
    words = {
        "files.missing": "missing",
        "files.truncated": "cut off",
        "files.replaced": "not the package's",
    }
    for code, pairs in kinds.items():
        if pairs:
            name, more = pairs[0][1].path.rpartition("/")[2], len(pairs) - 1
            yield finding(
                code,
                f"{name} {f'and {more} more are' if more else 'is'} {words[code]}",
                *(_wrong_text(file) for _, file in pairs[:MAX_SEEN]),
                fix=fixes.install_again(facts, pairs[0][0].name, pairs[0][0].version),
            )


def _wrong_text(wrong: DamagedFile) -> str:
    if wrong.what == "missing":
        return f"{wrong.path}: missing"
    if wrong.what == "size":
        return f"{wrong.path}: {wrong.found} bytes, the package has {wrong.recorded}"
    return f"{wrong.path}: contents differ from the package's (SHA-256)"


def _machines(facts: Facts, answer: PythonReport, packages: Packages, loaded: QnnSet) -> Iterator[Finding]:
    allowed = LOADABLE.get(answer.platform)
    if allowed is None:
        return
    # Skip skels, whose machine type is always Hexagon, because they run on the NPU.
    bad = [f for f in loaded.files if f.role != "skel" and f.machine is not None and f.machine not in allowed]
    seen = [f"{file.name}: {file.machine}" for file in bad]
    if packages.runtime_machine is not None and packages.runtime_machine not in allowed:
        seen.insert(0, f"onnxruntime: {packages.runtime_machine}")
    if seen:
        yield finding(
            "files.wrong-machine",
            f"the {answer.platform} interpreter has libraries for another machine type",
            *seen[:MAX_SEEN],
            f"folder: {loaded.folder}",
            fix=fixes.reinstall(facts),
        )


def _of_other_builds(loaded: QnnSet, expected: str | None) -> list[QnnFile]:
    """Return files whose build differs from the package's version (2.51.0), or else from most other files."""
    versioned = [file for role in _OF_ONE_BUILD for file in loaded.of(role) if file.version]
    counts = collections.Counter(_build(file) for file in versioned)
    if len(counts) < 2:
        return []
    # The package's version takes precedence over the majority: with two files there is no majority.
    named = (build for build in counts if expected and build.startswith(expected + "."))
    main = next(named, counts.most_common(1)[0][0])
    return [file for file in versioned if _build(file) != main]


def _build(file: QnnFile) -> str:
    # Omit the suffix of versions of Windows libraries after the underscore: 2.37.1.250807093845_124904.
    return ".".join((file.version or "").split("_")[0].split(".")[:4])


def _builds(facts: Facts, packages: Packages, loaded: QnnSet) -> Iterator[Finding]:
    others = _of_other_builds(loaded, packages.plugin_sdk)
    if not others:
        return
    versioned = [file for role in _OF_ONE_BUILD for file in loaded.of(role) if file.version]
    yield finding(
        "files.mixed-builds",
        "the QNN libraries come from different builds",
        *(
            f"{file.name}: {file.version}"
            for file in [*others, *(f for f in versioned if f not in others)][:MAX_SEEN]
        ),
        f"folder: {loaded.folder}",
        fix=fixes.reinstall(facts),
    )


def _complete(facts: Facts, packages: Packages, loaded: QnnSet) -> Iterator[Finding]:
    # Provider and Prepare may be missing: onnxruntime.dll contains the provider in the first 1.x releases, and the
    # backend contains Prepare in some simulators.
    needed = [
        *(["provider"] if packages.plugin else []),
        "backend",
        *(["prepare"] if facts.is_arm else []),
        "system",
    ]
    # First check the roles that do not depend on the chip, unlike stub, skel and catalog.
    missing = [role for role in needed if not loaded.of(role)]
    arch = facts.computer.arch
    # Check a chip only if the set contains some of its files; an unsupported chip is reported as
    # `sdk.too-old-for-chip`.
    if facts.is_arm and arch is not None and arch in loaded.archs("stub") | loaded.archs("skel"):
        missing += [f"{role} V{arch}" for role in ("stub", "skel") if arch not in loaded.archs(role)]
        if facts.is_windows and arch not in _UNSIGNED_ARCHS and arch not in loaded.archs("catalog"):
            missing.append(f"catalog V{arch}")
    # A set that is only for the simulator has no stubs, which is a fault on an Arm computer.
    if facts.is_windows and facts.is_arm and not loaded.archs("stub") and not missing:
        missing = ["stub", "skel"]
    if missing:
        yield finding(
            "files.incomplete",
            f"QNN's {', '.join(missing)} is missing",
            f"folder: {loaded.folder}",
            "there: " + ", ".join(file.name for file in loaded.files),
            fix=fixes.reinstall(facts),
        )


def _signed(facts: Facts, loaded: QnnSet) -> Iterator[Finding]:
    unsigned = [file for file in loaded.of("skel") if file.in_catalog is False]
    if unsigned and facts.is_windows:
        yield finding(
            "files.skel-not-signed",
            "the signed catalog does not list the skel library",
            *(f"{file.name}: its SHA-256 is not in libqnnhtpv{file.arch}.cat" for file in unsigned),
            fix=fixes.reinstall(facts),
        )


def healthy(facts: Facts) -> str | None:
    """Describe the host's QNN libraries in one line."""
    loaded = facts.host.packages.loaded_set if facts.host.packages else None
    if loaded is None:
        return None
    archs = ", ".join(f"V{arch}" for arch in sorted(loaded.archs("stub")))
    text = f"{len(loaded.files)} QNN libraries, {'hashes' if facts.complete else 'sizes'} as in the package"
    return text + (f", stubs for {archs}" if archs else ", simulator")


CHECK = SubjectCheck("files", find, healthy)
