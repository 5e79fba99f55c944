"""Find, download and read the wheels of onnxruntime-qnn.

The package index is accessed through pip, whose configuration contains the index, certificates, proxies and
passwords. Each call starts one pip process. Wheels are read without installing them, and libraries without loading
them.
"""

from __future__ import annotations

import dataclasses
import email
import hashlib
import mmap
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from qnnbridge_host.engine.sources import build_of
from qnnbridge_host.model.releases import is_backend
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.doctor.machine import read_library
from qnnbridge_tools.versions.packages import is_network_trouble, last_lines, unreachable

PACKAGE = "onnxruntime-qnn"
CALL_TIMEOUT_S = 900.0
PIP_RETRIES = "2"


@dataclasses.dataclass(frozen=True, slots=True)
class WheelTarget:
    """The target of a wheel: a family of platforms and a Python version such as "3.13"."""

    family: str
    python: str

    @property
    def platforms(self) -> tuple[str, ...]:
        return FAMILIES[self.family]


def _linux(machine: str) -> tuple[str, ...]:
    # pip compares tags literally, so the list must contain each glibc version that a wheel may require.
    return (f"linux_{machine}", *(f"manylinux_2_{minor}_{machine}" for minor in range(17, 60)))


FAMILIES: dict[str, tuple[str, ...]] = {
    "win_arm64": ("win_arm64",),
    "win_amd64": ("win_amd64",),
    "linux_x86_64": _linux("x86_64"),
    "linux_aarch64": _linux("aarch64"),
}
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 17))


def published(target: WheelTarget) -> list[str]:
    """Return the versions with a wheel for this target, including development builds, newest first."""
    result = _pip("index", "versions", PACKAGE, "--pre", *_selection(target))
    found = re.search(r"^Available versions: (.*)$", result.stdout, re.MULTILINE)
    if found:
        return [version.strip() for version in found[1].split(",")]
    if "no matching distribution" in result.stderr.lower() and not is_network_trouble(result.stderr):
        return []
    raise unreachable(result.stderr)


def download(version: str, target: WheelTarget, folder: Path) -> Path:
    """Download the wheel of this version, without its dependencies, into an empty folder and return its path."""
    where = ("--no-deps", "--no-cache-dir", "--dest", str(folder))
    result = _pip("download", f"{PACKAGE}=={version}", *where, *_selection(target))
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        if is_network_trouble(result.stderr):
            raise unreachable(result.stderr)
        raise BridgeError(
            f"pip could not download {PACKAGE} {version} for {target.family}, Python {target.python}.",
            evidence=last_lines(result.stderr),
        )
    return wheels[0]


def _selection(target: WheelTarget) -> list[str]:
    platforms = [word for platform in target.platforms for word in ("--platform", platform)]
    return [*platforms, "--python-version", target.python, "--only-binary", ":all:"]


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", PIP_RETRIES, *arguments]
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        timeout=CALL_TIMEOUT_S,
        check=False,
    )


# Six numbers of QnnInterface_t: core API 2.x.y, then backend API. Compilers for ELF store them as one constant.
_INTERFACE = re.compile(
    rb"(?=\x02\0\0\0[\x0a-\x63]\0\0\0[\0-\x63]\0\0\0[\x01-\x63]\0\0\0[\0-\xff]\0\0\0[\0-\x63]\0\0\0)"
)

HTP_API_MAJOR = 5


def interface_of(path: Path) -> tuple[str, str] | None:
    """Return the versions of core API and backend API of an HTP library; ``None`` if they are not unique in the
    file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = {struct.unpack_from("<6I", data, match.start()) for match in _INTERFACE.finditer(data)}
    versions = [numbers for numbers in found if numbers[3] == HTP_API_MAJOR]
    if len(versions) != 1:
        return None
    numbers = [str(number) for number in versions[0]]
    return ".".join(numbers[:3]), ".".join(numbers[3:])


_NAME = re.compile(r"onnxruntime_qnn-(?P<version>[^-]+)-(?P<python>[^-]+)-[^-]+-(?P<platform>[^-]+)\.whl")
_STUB = re.compile(r"(?:lib)?QnnHtpV(\d+)Stub\.(?:dll|so)")
_SKEL = re.compile(r"libQnnHtpV(\d+)Skel\.so")
_CATALOG = re.compile(r"libqnnhtpv(\d+)\.cat", re.IGNORECASE)
# Libraries for a single Python version, such as libDlModelToolsPy312.pyd.
_OF_ONE_PYTHON = re.compile(r".*Py3\d+\.(?:pyd|so)")
_BACKENDS = ("Htp", "Gpu", "Cpu", "Dsp", "Ir", "Saver")
_LIBRARY_ENDS = (".dll", ".so", ".pyd")

BUILTIN, PLUGIN = "1.x builtin", "2.x plugin"


@dataclasses.dataclass(frozen=True)
class LibraryTraits:
    """Machine type, build and API versions that a library file contains."""

    machine: str
    build: str | None
    interface: tuple[str, str] | None


class WheelReader:
    """Reader of wheels that caches the properties of libraries. Not thread-safe."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], LibraryTraits] = {}

    def read(self, path: Path) -> dict[str, Any]:
        """Return a release entry with one wheel."""
        found = _NAME.fullmatch(path.name)
        if found is None:
            raise BridgeError(f"{path.name} is not named like a wheel of onnxruntime-qnn.")
        with zipfile.ZipFile(path) as archive:
            files = [PurePosixPath(name) for name in archive.namelist()]
            requires = _requires(archive, files)
            layout = BUILTIN if PurePosixPath("onnxruntime/__init__.py") in files else PLUGIN
            read = {file: self._facts(archive, file) for file in files if file.name.endswith(_LIBRARY_ENDS)}
            ort = _bundled_ort(archive) if layout == BUILTIN else _ort_requirement(requires)
        facts = {file: header for file, header in read.items() if not _OF_ONE_PYTHON.fullmatch(file.name)}
        folders = sorted({file.parent for file in facts if is_backend(file.name, "Htp")})
        return {
            "version": found["version"],
            "platform": found["platform"],
            "layout": layout,
            "ort_requirement": ort,
            "library_sets": [_library_set(folder, files, facts) for folder in folders],
            "machines": {file.name: header.machine for file, header in facts.items() if file.parent not in folders},
            "wheels": [
                {
                    "file": path.name,
                    "python": found["python"],
                    "size_bytes": path.stat().st_size,
                    "sha256": _sha256(path),
                    "requires": requires,
                    "own_libraries": {
                        str(file): header.machine for file, header in read.items() if file not in facts
                    },
                }
            ],
        }

    def _facts(self, archive: zipfile.ZipFile, file: PurePosixPath) -> LibraryTraits:
        entry = archive.getinfo(str(file))
        key = (file.name, entry.file_size, entry.CRC)
        if key not in self._seen:
            with tempfile.TemporaryDirectory() as folder:
                self._seen[key] = _read_library(Path(archive.extract(entry, folder)))
        return self._seen[key]


def _read_library(path: Path) -> LibraryTraits:
    library = read_library(str(path), version=False)
    is_htp = is_backend(path.name, "Htp")
    return LibraryTraits(
        machine=library.machine if library else "unknown",
        build=build_of(path) if is_htp or is_backend(path.name, "System") else None,
        interface=interface_of(path) if is_htp and path.suffix == ".so" else None,
    )


def _library_set(
    folder: PurePosixPath, files: list[PurePosixPath], facts: dict[PurePosixPath, LibraryTraits]
) -> dict[str, Any]:
    here = {file.name for file in files if file.parent == folder}
    htp = next(header for file, header in facts.items() if file.parent == folder and is_backend(file.name, "Htp"))
    if htp.build is None:
        raise BridgeError(f"The QNN build of {folder}/QnnHtp cannot be read.")
    core_api, backend_api = htp.interface or (None, None)
    return {
        "folder": str(folder),
        "qnn_sdk": htp.build,
        "core_api": core_api,
        "backend_api": backend_api,
        "stubs": _numbers(_STUB, here),
        "skels": _numbers(_SKEL, here),
        "catalogs": _numbers(_CATALOG, here),
        "backends": [name.lower() for name in _BACKENDS if any(is_backend(file, name) for file in here)],
        "machines": {file.name: header.machine for file, header in facts.items() if file.parent == folder},
    }


def _numbers(pattern: re.Pattern[str], names: set[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


def _requires(archive: zipfile.ZipFile, files: list[PurePosixPath]) -> list[str]:
    """Return the requirements of the wheel, except those of extras."""
    metadata = next(file for file in files if file.name == "METADATA" and file.parent.name.endswith(".dist-info"))
    message = email.message_from_bytes(archive.read(str(metadata)))
    return sorted(text for text in message.get_all("Requires-Dist") or () if "extra ==" not in text)


def _ort_requirement(requires: list[str]) -> str:
    """Return the versions of onnxruntime that the wheel requires, as a specifier; "" if it requires none."""
    for text in requires:
        found = re.fullmatch(r"onnxruntime\s*\(?([<>=!~][^;)]*)?\)?(?:\s*;.*)?", text.strip())
        if found:
            return (found[1] or "").replace(" ", "")
    return ""


def _bundled_ort(archive: zipfile.ZipFile) -> str:
    source = archive.read("onnxruntime/__init__.py").decode("utf-8")
    found = re.search(r"""^__version__ = ["']([^"']+)["']""", source, re.MULTILINE)
    if found is None:
        raise BridgeError("onnxruntime/__init__.py in the wheel does not contain a version.")
    return f"=={found[1]}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
