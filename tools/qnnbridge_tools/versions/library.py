"""Machine type and version of a library, read from the file without loading it, on any computer.

Windows libraries carry a version resource. QNN's Linux libraries carry their build as a text (``v2.51.0.2609...``)
somewhere in the file; finding it means reading the file, 0.1 s for the largest.
"""

from __future__ import annotations

import dataclasses
import mmap
import re
import struct
from typing import BinaryIO, Final

_RESOURCES: Final = 2  # index of the directory
_VERSION_RESOURCE: Final = 16  # RT_VERSION
_SUBDIRECTORY: Final = 0x80000000
_MAX_RESOURCE_BYTES: Final = 1 << 20
_PRODUCT_VERSION: Final = "ProductVersion".encode("utf-16-le") + b"\0\0"
# The signature of VS_FIXEDFILEINFO, which stands where no text with the version does.
_FIXED_INFO: Final = struct.pack("<I", 0xFEEF04BD)
# The version and the time of the build: v2.51.0.260929181845.
_BUILD_ID: Final = re.compile(rb"v(\d\.\d{1,3}\.\d{1,3}\.\d{12}[\d_]*)\0")
_MAX_HEADERS: Final = 4096


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """A program or library. machine: "ARM64", "x64", "ARM64EC", "ARM64X", "aarch64" ... version: as it says
    itself."""

    machine: str
    version: str | None = None


def read_library(path: str, *, version: bool) -> Library | None:
    """``None`` for what is neither PE nor ELF, or cut off within its header. Raises `OSError`."""
    from qnnbridge_os.programs import read_executable

    header = read_executable(path)
    if header is None:
        return None
    machine = header.machine
    if header.hybrid:
        # A hybrid image: x64 code that calls into ARM64 (ARM64EC), or code of both kinds in one file (ARM64X).
        machine = {"x64": "ARM64EC", "ARM64": "ARM64X"}.get(machine, machine)
    if not version:
        return Library(machine)
    try:
        with open(path, "rb") as file:
            text = _pe_version(file) if header.format == "PE" else _elf_version(file)
    except (struct.error, ValueError, IndexError):
        text = None
    return Library(machine, text)


def _elf_version(file: BinaryIO) -> str | None:
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = _BUILD_ID.search(content)
        return found.group(1).decode("ascii") if found else None


def _pe_version(file: BinaryIO) -> str | None:
    """ProductVersion as text, which QNN's libraries have with their build; else the fixed file version."""
    resource = _version_resource(file)
    if resource is None:
        return None
    at = resource.find(_PRODUCT_VERSION)
    if at >= 0:
        # The value follows the name, aligned to 4 bytes from the beginning of the resource.
        start = at + len(_PRODUCT_VERSION)
        start += -start % 4
        text = resource[start : start + 256].decode("utf-16-le", "replace").split("\0")[0].strip()
        if re.match(r"v?\d+\.\d+", text):
            return text.lstrip("v")
    at = resource.find(_FIXED_INFO)
    if at < 0:
        return None
    # dwFileVersionMS and dwFileVersionLS follow the signature and the version of the structure.
    high, low = struct.unpack_from("<II", resource, at + 8)
    return f"{high >> 16}.{high & 0xFFFF}.{low >> 16}.{low & 0xFFFF}"


def _version_resource(file: BinaryIO) -> bytes | None:
    head = file.read(_MAX_HEADERS)
    # 0x3C holds the offset of "PE\0\0"; after its 4 bytes come the COFF header (20) and the optional header.
    start = struct.unpack_from("<I", head, 0x3C)[0]
    sections, optional_size = struct.unpack_from("<HxxxxxxxxxxxxH", head, start + 6)
    optional = start + 24
    magic = struct.unpack_from("<H", head, optional)[0]
    # 0x20B is PE32+: its data directories begin at 112, those of PE32 at 96.
    directories = optional + (112 if magic == 0x20B else 96)
    address, size = struct.unpack_from("<II", head, directories + 8 * _RESOURCES)
    if not address or not size:
        return None
    section = _section_of(head, optional + optional_size, sections, address)
    if section is None:
        return None
    virtual_start, raw_start = section
    root = raw_start + address - virtual_start
    entry = _entry(file, root, root, _VERSION_RESOURCE)
    for _ in range(2):  # name and language: the first of each
        if entry is None or not entry & _SUBDIRECTORY:
            break
        entry = _entry(file, root, root + (entry & ~_SUBDIRECTORY), None)
    if entry is None:
        return None
    file.seek(root + entry)
    data_address, data_size = struct.unpack("<II", file.read(8))
    if data_size > _MAX_RESOURCE_BYTES:
        return None
    file.seek(raw_start + data_address - virtual_start)
    return file.read(data_size)


def _section_of(head: bytes, table: int, sections: int, address: int) -> tuple[int, int] | None:
    for index in range(sections):
        virtual_size, virtual, raw_size, raw = struct.unpack_from("<IIII", head, table + 40 * index + 8)
        # The larger of both: a linker may leave the size in memory below the one in the file.
        if virtual <= address < virtual + max(virtual_size, raw_size):
            return virtual, raw
    return None


def _entry(file: BinaryIO, root: int, directory: int, wanted: int | None) -> int | None:
    """Offset (with the flag for a subdirectory) of an entry of a resource directory."""
    # After its flags, time and version (12 bytes) a directory has two counts: entries by name, then by number.
    file.seek(directory + 12)
    named, numbered = struct.unpack("<HH", file.read(4))
    # Bounded: a damaged file may claim 131,070 entries.
    for _ in range(min(named + numbered, 256)):
        number, offset = struct.unpack("<II", file.read(8))
        if wanted is None or number == wanted:
            return int(offset)
    return None
