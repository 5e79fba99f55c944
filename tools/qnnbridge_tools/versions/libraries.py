"""What one library file of QNN tells of itself without being loaded: machine type, build, interface versions."""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path

from qnnbridge._launch.installed import read_executable

_BUILD = re.compile(rb"v(\d\.\d{1,3}\.\d{1,3}\.\d{12}(?:_\d+)?)")
_RESOURCE_NAME = "ProductVersion".encode("utf-16-le")
_RESOURCE_TEXT = re.compile(r"\d+\.\d+\.\d+\.\d{6,}(?:_\d+)?")
_RESOURCE_CHARACTERS = 64

_INTERFACE = re.compile(
    rb"(?=\x02\0\0\0[\x0a-\x63]\0\0\0[\0-\x63]\0\0\0[\x01-\x63]\0\0\0[\0-\xff]\0\0\0[\0-\x63]\0\0\0)"
)
"""Six numbers of QnnInterface_t: core API 2.x.y, then backend API. ELF compilers keep them as one constant."""

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
