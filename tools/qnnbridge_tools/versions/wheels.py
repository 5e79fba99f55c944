"""What one library file of QNN tells of itself without being loaded: machine type, build, interface versions."""

from __future__ import annotations

import dataclasses
import email
import hashlib
import mmap
import re
import struct
import tempfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from qnnbridge._launch.installed import read_executable
from qnnbridge_host.model.release_table import is_backend
from qnnbridge_protocol.errors import BridgeError

_BUILD = re.compile(rb"v(\d\.\d{1,3}\.\d{1,3}\.\d{12}(?:_\d+)?)")
_RESOURCE_NAME = "ProductVersion".encode("utf-16-le")
_RESOURCE_TEXT = re.compile(r"\d+\.\d+\.\d+\.\d{6,}(?:_\d+)?")
_RESOURCE_CHARACTERS = 64

# Six numbers of QnnInterface_t: core API 2.x.y, then backend API. ELF compilers keep them as one constant.
_INTERFACE = re.compile(
    rb"(?=\x02\0\0\0[\x0a-\x63]\0\0\0[\0-\x63]\0\0\0[\x01-\x63]\0\0\0[\0-\xff]\0\0\0[\0-\x63]\0\0\0)"
)

HTP_API_MAJOR = 5


def machine_of(path: Path) -> str:
    """Machine type; "ARM64X" for a file with code for ARM64 and ARM64EC processes."""
    executable = read_executable(path)
    if executable is None:
        return "unknown"
    if executable.hybrid:
        return {"x64": "ARM64EC", "ARM64": "ARM64X"}.get(executable.machine, executable.machine)
    return executable.machine


def build_of(path: Path) -> str | None:
    """The QNN SDK build, from the version resource of a PE file, else from the text in the file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _resource_version(data) or _text_version(data)


def interface_of(path: Path) -> tuple[str, str] | None:
    """Core API and backend API of the HTP backend library, if the file shows them without doubt."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = {struct.unpack_from("<6I", data, match.start()) for match in _INTERFACE.finditer(data)}
    versions = [numbers for numbers in found if numbers[3] == HTP_API_MAJOR]
    if len(versions) != 1:
        return None
    numbers = [str(number) for number in versions[0]]
    return ".".join(numbers[:3]), ".".join(numbers[3:])


def _resource_version(data: mmap.mmap) -> str | None:
    start = data.rfind(_RESOURCE_NAME)
    if start < 0:
        return None
    start += len(_RESOURCE_NAME)
    text = data[start : start + 2 * _RESOURCE_CHARACTERS].decode("utf-16-le", "replace")
    found = _RESOURCE_TEXT.search(text)
    return found[0] if found else None


def _text_version(data: mmap.mmap) -> str | None:
    found = {match[1] for match in _BUILD.finditer(data)}
    return found.pop().decode("ascii") if len(found) == 1 else None


_NAME = re.compile(r"onnxruntime_qnn-(?P<version>[^-]+)-(?P<python>[^-]+)-[^-]+-(?P<platform>[^-]+)\.whl")
_STUB = re.compile(r"(?:lib)?QnnHtpV(\d+)Stub\.(?:dll|so)")
_SKEL = re.compile(r"libQnnHtpV(\d+)Skel\.so")
_CATALOG = re.compile(r"libqnnhtpv(\d+)\.cat", re.IGNORECASE)
# Libraries that only the wheel for one Python has, such as libDlModelToolsPy312.pyd.
_OF_ONE_PYTHON = re.compile(r".*Py3\d+\.(?:pyd|so)")
_BACKENDS = ("Htp", "Gpu", "Cpu", "Dsp", "Ir", "Saver")
_LIBRARY_ENDS = (".dll", ".so", ".pyd")

BUILTIN, PLUGIN = "1.x builtin", "2.x plugin"


@dataclasses.dataclass(frozen=True)
class Facts:
    """What was read from one library."""

    machine: str
    build: str | None
    interface: tuple[str, str] | None


class WheelReader:
    """Reads wheels one after another and remembers the libraries it has seen. For one thread."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int, int], Facts] = {}

    def read(self, path: Path) -> dict[str, Any]:
        """One release with one wheel."""
        found = _NAME.fullmatch(path.name)
        if found is None:
            raise BridgeError(f"{path.name} is not named like a wheel of onnxruntime-qnn.")
        with zipfile.ZipFile(path) as archive:
            files = [PurePosixPath(name) for name in archive.namelist()]
            requires = _requires(archive, files)
            layout = BUILTIN if PurePosixPath("onnxruntime/__init__.py") in files else PLUGIN
            read = {file: self._facts(archive, file) for file in files if file.name.endswith(_LIBRARY_ENDS)}
            ort = _bundled_ort(archive) if layout == BUILTIN else _ort_requirement(requires)
        facts = {file: told for file, told in read.items() if not _OF_ONE_PYTHON.fullmatch(file.name)}
        folders = sorted({file.parent for file in facts if is_backend(file.name, "Htp")})
        return {
            "version": found["version"],
            "platform": found["platform"],
            "layout": layout,
            "ort_requirement": ort,
            "library_sets": [_library_set(folder, files, facts) for folder in folders],
            "machines": {file.name: told.machine for file, told in facts.items() if file.parent not in folders},
            "wheels": [
                {
                    "file": path.name,
                    "python": found["python"],
                    "size_bytes": path.stat().st_size,
                    "sha256": _sha256(path),
                    "requires": requires,
                    "own_libraries": {str(file): told.machine for file, told in read.items() if file not in facts},
                }
            ],
        }

    def _facts(self, archive: zipfile.ZipFile, file: PurePosixPath) -> Facts:
        entry = archive.getinfo(str(file))
        key = (file.name, entry.file_size, entry.CRC)
        if key not in self._seen:
            with tempfile.TemporaryDirectory() as folder:
                self._seen[key] = _read_library(Path(archive.extract(entry, folder)))
        return self._seen[key]


def _read_library(path: Path) -> Facts:
    is_htp = is_backend(path.name, "Htp")
    return Facts(
        machine=machine_of(path),
        build=build_of(path) if is_htp or is_backend(path.name, "System") else None,
        interface=interface_of(path) if is_htp and path.suffix == ".so" else None,
    )


def _library_set(
    folder: PurePosixPath, files: list[PurePosixPath], facts: dict[PurePosixPath, Facts]
) -> dict[str, Any]:
    here = {file.name for file in files if file.parent == folder}
    htp = next(told for file, told in facts.items() if file.parent == folder and is_backend(file.name, "Htp"))
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
        "machines": {file.name: told.machine for file, told in facts.items() if file.parent == folder},
    }


def _numbers(pattern: re.Pattern[str], names: set[str]) -> list[int]:
    return sorted(int(found[1]) for found in map(pattern.fullmatch, names) if found)


def _requires(archive: zipfile.ZipFile, files: list[PurePosixPath]) -> list[str]:
    """What pip installs with it; extras are left out."""
    metadata = next(file for file in files if file.name == "METADATA" and file.parent.name.endswith(".dist-info"))
    message = email.message_from_bytes(archive.read(str(metadata)))
    return sorted(text for text in message.get_all("Requires-Dist") or () if "extra ==" not in text)


def _ort_requirement(requires: list[str]) -> str:
    """The specifier of onnxruntime, "" if the metadata names none."""
    for text in requires:
        found = re.fullmatch(r"onnxruntime\s*\(?([<>=!~][^;)]*)?\)?(?:\s*;.*)?", text.strip())
        if found:
            return (found[1] or "").replace(" ", "")
    return ""


def _bundled_ort(archive: zipfile.ZipFile) -> str:
    source = archive.read("onnxruntime/__init__.py").decode("utf-8")
    found = re.search(r"""^__version__ = ["']([^"']+)["']""", source, re.MULTILINE)
    if found is None:
        raise BridgeError("onnxruntime/__init__.py in the wheel names no version.")
    return f"=={found[1]}"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
