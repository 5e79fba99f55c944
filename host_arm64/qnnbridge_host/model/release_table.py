"""The version table: what is inside every onnxruntime-qnn wheel, read from the wheels.

The data is `releases.json` beside this file. It is made and checked by ``python -m
qnnbridge_tools.versions.generate``, never edited by hand. Everything here is immutable; any thread may use it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any, Final, Literal

from qnnbridge_host.model.release_versions import sdk_numbers, version_key

SCHEMA_VERSION: Final = 1

Layout = Literal["1.x builtin", "2.x plugin"]
"""1.x is ONNX Runtime itself with QNN built in (package `onnxruntime`); 2.x is a library that the plain onnxruntime
loads (package `onnxruntime_qnn`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wheel:
    """One file of the index.

    python: the interpreter tag, such as "cp313". requires: what pip installs with it. own_libraries: libraries
    that the wheels for other Pythons do not have, and their machine types, by path.
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
    """One folder of QNN libraries in a wheel; they belong together and must come from one build.

    folder: inside the wheel. qnn_sdk: the build, as in "2.51.0.260929181845". core_api, backend_api: what
    QnnHtp announces ("2.40.0", "5.51.0"); ``None`` where the file does not show it. stubs, skels, catalogs: the
    Hexagon versions that have such a file. backends: "htp", "gpu", "cpu" ... machines: machine type by file name,
    as `qnnbridge._launch.executable_machine` names them, and "ARM64X".
    """

    folder: str
    qnn_sdk: str
    core_api: str | None
    backend_api: str | None
    stubs: tuple[int, ...]
    skels: tuple[int, ...]
    catalogs: tuple[int, ...]
    backends: tuple[str, ...]
    machines: dict[str, str] = dataclasses.field(hash=False)

    @property
    def machine(self) -> str:
        """What QnnHtp was built for: "ARM64", "ARM64X", "x64", "aarch64" or "x86_64"."""
        return next(machine for file, machine in self.machines.items() if is_backend(file, "Htp"))

    @property
    def is_simulator(self) -> bool:
        """Computes on the CPU: no stub, so no way to an NPU."""
        return not self.stubs


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """One version for one platform: what all its wheels have in common.

    platform: the wheel's platform tag, as in "win_arm64" or "manylinux_2_35_x86_64". ort_requirement: which
    onnxruntime it needs ("==1.23.2" for 1.x, which is one; ">=1.24.2" for 2.x, as its metadata says).
    library_sets: several in those for win_amd64 that serve x64 PCs and Arm machines; none in the oldest, which rely
    on an installed SDK. machines: machine types of the libraries outside of the sets.
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
        """The libraries that reach an NPU."""
        return next((libraries for libraries in self.library_sets if not libraries.is_simulator), None)

    @property
    def simulator_set(self) -> LibrarySet | None:
        return next((libraries for libraries in self.library_sets if libraries.is_simulator), None)

    @property
    def _main_set(self) -> LibrarySet | None:
        return self.npu_set or self.simulator_set

    @property
    def qnn_sdk(self) -> str | None:
        """The bundled build; all sets of a release are of the same one. ``None`` without libraries."""
        return self._main_set.qnn_sdk if self._main_set else None

    @property
    def core_api(self) -> str | None:
        return self._main_set.core_api if self._main_set else None

    @property
    def backend_api(self) -> str | None:
        return self._main_set.backend_api if self._main_set else None

    @property
    def stubs(self) -> tuple[int, ...]:
        """The Hexagon versions whose NPU it can drive."""
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
    """Whether a file is QNN's library of that name: QnnHtp.dll or libQnnHtp.so for "Htp"."""
    return file in (f"Qnn{name}.dll", f"libQnn{name}.so")


@functools.cache
def load_releases() -> tuple[Release, ...]:
    """The whole table, newest version first."""
    return read_table(_document())


def generated_on() -> str:
    """The day on which the index was read, as in "2026-11-21"."""
    return str(_document()["generated"])


def read_table(document: dict[str, Any]) -> tuple[Release, ...]:
    """The releases of a parsed data file. Raises `ValueError` for a file of another schema."""
    if document.get("schema") != SCHEMA_VERSION:
        raise ValueError(f"the version table has schema {document.get('schema')!r}, not {SCHEMA_VERSION}")
    releases = [_release(entry) for entry in document["releases"]]
    return tuple(sorted(releases, key=lambda release: version_key(release.version), reverse=True))


def for_version(version: str, platform: str | None = None) -> tuple[Release, ...]:
    """The releases of one version, of all platforms or those whose platform begins with the given text."""
    wanted = version_key(version)
    return tuple(
        release
        for release in load_releases()
        if version_key(release.version) == wanted and release.platform.startswith(platform or "")
    )


def for_sdk(sdk: str) -> tuple[Release, ...]:
    """The releases that bundle this QNN SDK, by as many numbers as are given: "2.42", "2.42.0", a build."""
    wanted = sdk_numbers(sdk)
    return tuple(
        release
        for release in load_releases()
        if release.qnn_sdk is not None and sdk_numbers(release.qnn_sdk)[: len(wanted)] == wanted
    )


def for_chip(hexagon: int) -> tuple[Release, ...]:
    """The releases that can drive an NPU of this Hexagon version (73 for V73)."""
    return tuple(release for release in load_releases() if hexagon in release.stubs)


@functools.cache
def _document() -> dict[str, Any]:
    text = resources.files("qnnbridge_host.model").joinpath("releases.json").read_text("utf-8")
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("the version table is not a JSON object")
    return document


def _release(entry: dict[str, Any]) -> Release:
    return Release(
        version=entry["version"],
        platform=entry["platform"],
        layout=entry["layout"],
        ort_requirement=entry["ort_requirement"],
        library_sets=tuple(_library_set(libraries) for libraries in entry["library_sets"]),
        machines=dict(entry["machines"]),
        wheels=tuple(Wheel(**{**wheel, "requires": tuple(wheel["requires"])}) for wheel in entry["wheels"]),
    )


def _library_set(entry: dict[str, Any]) -> LibrarySet:
    return LibrarySet(
        folder=entry["folder"],
        qnn_sdk=entry["qnn_sdk"],
        core_api=entry["core_api"],
        backend_api=entry["backend_api"],
        stubs=tuple(entry["stubs"]),
        skels=tuple(entry["skels"]),
        catalogs=tuple(entry["catalogs"]),
        backends=tuple(entry["backends"]),
        machines=dict(entry["machines"]),
    )
