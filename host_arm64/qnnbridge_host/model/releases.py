"""Version table with the contents of every onnxruntime-qnn wheel, and comparison of versions.

The data is `releases.json` next to this file. ``python -m scripts.makers.releases`` creates and checks it from the
wheels; it is never edited by hand. Package versions follow the part of PEP 440 that onnxruntime and onnxruntime-qnn
use: numbers, ``rc``, ``post`` and ``dev``. This module parses them, because the base install contains no library
for versions. Everything is immutable and can be used from any thread.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final, Literal

Key = tuple[tuple[int, ...], int, int]

_VERSION = re.compile(
    r"v?(\d+(?:\.\d+)*)(?:(a|b|rc)(\d+))?(?:[.-]?post(\d+))?(?:[.-]?dev(\d+))?(?:\+.*)?", re.IGNORECASE
)
# The version in older libraries has one more number after the build stamp: 2.27.0.240926142112_100894.
_SDK = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:\.\d+)?(?:[_-].*)?", re.IGNORECASE)
# Rank of each type of version in a sort key. A development build has the rank 0.
_PRE = {"a": 1, "b": 2, "rc": 3}
_FINAL, _POST = 4, 5


def version_key(text: str) -> Key:
    """Return a sort key in release order. Raise `ValueError` for a text that is not a version."""
    found = _VERSION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a version number")
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()  # 2.0 and 2.0.0 are one version
    if found[2]:
        return tuple(numbers), _PRE[found[2].lower()], int(found[3])
    if found[4]:
        return tuple(numbers), _POST, int(found[4])
    return tuple(numbers), 0 if found[5] else _FINAL, int(found[5] or 0)


def is_final(text: str) -> bool:
    """Return whether a version is neither a development build nor a candidate."""
    return version_key(text)[1] >= _FINAL


def sdk_numbers(text: str) -> tuple[int, ...]:
    """Parse an SDK version: ``v2.51.0.260929181845`` is (2, 51, 0), without the build stamp; ``2.40`` is (2, 40).

    Raises:
        ValueError: the text is not an SDK version.
    """
    found = _SDK.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a QNN SDK version")
    return tuple(int(part) for part in found.groups() if part is not None)


def sdk_is_newer(sdk: str, than: str) -> bool:
    """Return whether the SDK version `sdk` is newer than `than`. Only the numbers that both versions have are
    compared: 2.40.1 is not newer than "2.40"."""
    left, right = sdk_numbers(sdk), sdk_numbers(than)
    shared = min(len(left), len(right))
    return left[:shared] > right[:shared]


def satisfies(version: str, specifier: str) -> bool:
    """Return whether a version meets a specifier such as ``>=1.24.2,<2``. Supports ``>= <= > < == !=`` without
    wildcards.

    Raises:
        ValueError: the version or the specifier is invalid or not supported.
    """
    key = version_key(version)
    return all(_meets(key, clause) for clause in specifier.split(",") if clause.strip())


def _meets(key: Key, clause: str) -> bool:
    found = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\S+)\s*", clause)
    if found is None:
        raise ValueError(f"{clause!r} is not a version specifier")
    other = version_key(found[2])
    return {
        ">=": key >= other,
        "<=": key <= other,
        ">": key > other,
        "<": key < other,
        "==": key == other,
        "!=": key != other,
    }[found[1]]


# Relation of a version to a table. "unlisted": between two versions of the table, as a development build may be.
# "unreadable": the text is not a version.
Standing = Literal["listed", "newer", "older", "unlisted", "unreadable"]
# If a version has one of these relations to the table, the table does not show the version's properties.
AFTER_THE_TABLE: Final[frozenset[Standing]] = frozenset(("newer", "unreadable"))
STANDING_WORDS: Final[Mapping[Standing, str]] = {
    "listed": "in this table",
    "newer": "newer than this table",
    "older": "older than this table",
    "unlisted": "not in this table",
    "unreadable": "a version that this table cannot judge",
}


def standing(version: str, table: Iterable[str]) -> Standing:
    """Return how a version relates to the versions in a table. A local version ("2.7.0+site") counts as its
    release.

    The result is "newer" for a development build or release candidate of a version that is newer than the table.
    """
    known = sorted(map(version_key, table))
    try:
        key = version_key(version)
    except ValueError:
        return "unreadable"
    if key in known:
        return "listed"
    return "newer" if key > known[-1] else "older" if key < known[0] else "unlisted"


SCHEMA_VERSION: Final = 1

# 1.x is ONNX Runtime itself with QNN built in (package `onnxruntime`); 2.x is a library that the plain
# onnxruntime loads (package `onnxruntime_qnn`).
Layout = Literal["1.x builtin", "2.x plugin"]


@dataclasses.dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel in the package index.

    python: the interpreter tag, such as "cp313". requires: packages that pip installs with the wheel.
    own_libraries: machine type by path, for libraries that this wheel contains and the release's wheels for other
    Python versions lack.
    """

    file: str
    python: str
    size_bytes: int
    sha256: str
    requires: tuple[str, ...]
    own_libraries: dict[str, str] = dataclasses.field(hash=False)

    @property
    def python_version(self) -> tuple[int, int]:
        return int(self.python[2]), int(self.python[3:])


@dataclasses.dataclass(frozen=True, slots=True)
class LibrarySet:
    """A folder of QNN libraries in a wheel. All of these libraries must come from the same build.

    folder: path inside of the wheel. qnn_sdk: the build, as in "2.51.0.260929181845". core_api, backend_api: API
    versions that QnnHtp reports ("2.40.0", "5.51.0"); ``None`` if the file does not contain them. stubs, skels,
    catalogs: Hexagon versions for which the folder contains a stub, a skel or a catalog. backends: "htp", "gpu",
    "cpu" ... machines: machine type by file name, with the same names as in `qnnbridge._launch.executable_machine`,
    and "ARM64X".
    """

    folder: str
    qnn_sdk: str
    core_api: str | None
    backend_api: str | None
    stubs: tuple[int, ...]
    skels: tuple[int, ...]
    catalogs: tuple[int, ...]
    backends: tuple[str, ...]
    # Exclude this field from the hash, because a dict has none; the other fields identify the record.
    machines: dict[str, str] = dataclasses.field(hash=False)

    @property
    def machine(self) -> str:
        """Machine type of QnnHtp: "ARM64", "ARM64X", "x64", "aarch64" or "x86_64"."""
        return next(machine for file, machine in self.machines.items() if is_backend(file, "Htp"))

    @property
    def is_simulator(self) -> bool:
        """Whether the libraries compute on the CPU: without a stub they cannot communicate with an NPU."""
        return not self.stubs


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """A version for one platform, with the data that all its wheels share.

    platform: the wheel's platform tag, as in "win_arm64" or "manylinux_2_35_x86_64". ort_requirement: the version
    of onnxruntime that the release needs ("==1.23.2" for 1.x, whose wheels contain onnxruntime; ">=1.24.2" for 2.x,
    from the metadata). library_sets: several in win_amd64 wheels that serve both x64 PCs and Arm machines; none in
    the oldest wheels, which rely on an installed SDK. machines: machine types of the libraries that are in no set.
    """

    version: str
    platform: str
    layout: Layout
    ort_requirement: str
    library_sets: tuple[LibrarySet, ...]
    machines: dict[str, str] = dataclasses.field(hash=False)
    wheels: tuple[Wheel, ...]

    @property
    def name(self) -> str:
        return f"onnxruntime-qnn {self.version}"

    @property
    def is_windows(self) -> bool:
        return self.platform.startswith("win")

    @property
    def npu_set(self) -> LibrarySet | None:
        """Libraries that use an NPU; ``None`` if the release has none."""
        return next((libraries for libraries in self.library_sets if not libraries.is_simulator), None)

    @property
    def simulator_set(self) -> LibrarySet | None:
        return next((libraries for libraries in self.library_sets if libraries.is_simulator), None)

    @property
    def _main_set(self) -> LibrarySet | None:
        return self.npu_set or self.simulator_set

    @property
    def qnn_sdk(self) -> str | None:
        """The bundled SDK build, which all sets of a release share; ``None`` without libraries."""
        return self._main_set.qnn_sdk if self._main_set else None

    @property
    def core_api(self) -> str | None:
        return self._main_set.core_api if self._main_set else None

    @property
    def backend_api(self) -> str | None:
        return self._main_set.backend_api if self._main_set else None

    @property
    def stubs(self) -> tuple[int, ...]:
        """Hexagon versions whose NPU the release can use."""
        return self.npu_set.stubs if self.npu_set else ()

    @property
    def skels(self) -> tuple[int, ...]:
        return self.npu_set.skels if self.npu_set else ()

    @property
    def python_tags(self) -> tuple[str, ...]:
        return tuple(wheel.python for wheel in self.wheels)

    def wheel_for(self, python: tuple[int, int]) -> Wheel | None:
        return next((wheel for wheel in self.wheels if wheel.python_version == python), None)


def is_backend(file: str, name: str) -> bool:
    """Return whether a file is QNN's library of that name: QnnHtp.dll or libQnnHtp.so for "Htp"."""
    return file in (f"Qnn{name}.dll", f"libQnn{name}.so")


@functools.cache
def load_releases() -> tuple[Release, ...]:
    """Return the whole table, newest version first."""
    return read_table(_document())


def generated_on() -> str:
    """Return the day on which the package index was read, as in "2026-11-21"."""
    return str(_document()["generated"])


def read_table(document: dict[str, Any]) -> tuple[Release, ...]:
    """Return the releases of a parsed data file. Raise `ValueError` for a file of another schema."""
    if document.get("schema") != SCHEMA_VERSION:
        raise ValueError(f"the version table has schema {document.get('schema')!r}, not {SCHEMA_VERSION}")
    releases = [_release(entry) for entry in document["releases"]]
    return tuple(sorted(releases, key=lambda release: version_key(release.version), reverse=True))


def standing_of(version: str) -> Standing:
    """Return how a release of onnxruntime-qnn relates to the table."""
    return standing(version, (release.version for release in load_releases()))


def newest_final() -> str:
    """Return the newest release of the table that is not a development build."""
    return next(release.version for release in load_releases() if is_final(release.version))


def for_version(version: str, platform: str | None = None) -> tuple[Release, ...]:
    """Return the releases of a version, for all platforms or those whose tag begins with the given text."""
    wanted = version_key(version)
    return tuple(
        release
        for release in load_releases()
        if version_key(release.version) == wanted and release.platform.startswith(platform or "")
    )


@functools.cache
def _document() -> dict[str, Any]:
    text = resources.files("qnnbridge_host.model").joinpath("releases.json").read_text("utf-8")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the version table is not a JSON object")
    return document


def _release(entry: dict[str, Any]) -> Release:
    library_sets = tuple(LibrarySet(**_with_tuples(libraries)) for libraries in entry["library_sets"])
    wheels = tuple(Wheel(**_with_tuples(wheel)) for wheel in entry["wheels"])
    return Release(**{**entry, "library_sets": library_sets, "wheels": wheels})


def _with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
