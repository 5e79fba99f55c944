"""For which machine a program or library file was built, read from its PE or ELF header.

Pure Python and a few small reads: works for files of any machine on any machine, without loading them.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from typing import BinaryIO, Literal

PE_MACHINES = {0x014C: "x86", 0x01C4: "ARM", 0x8664: "x64", 0xAA64: "ARM64"}
ELF_MACHINES = {0x03: "i386", 0x28: "arm", 0x3E: "x86_64", 0xA4: "hexagon", 0xB7: "aarch64", 0xF3: "riscv"}

_LOAD_CONFIG = 10  # index of the directory
_CHPE_METADATA = 0xC8  # offset of CHPEMetadataPointer in the 64-bit load configuration
_MAX_SECTIONS = 96  # the Windows loader's own limit


@dataclasses.dataclass(frozen=True, slots=True)
class Executable:
    """What the header says.

    machine: "ARM64", "x64", "x86" (PE), "aarch64", "x86_64" ... (ELF), or the number in hexadecimal.
    hybrid: holds code for two machines (CHPE metadata): x64 is then ARM64EC, ARM64 is then ARM64X.
    """

    format: Literal["PE", "ELF"]
    machine: str
    hybrid: bool = False


def read_executable(path: str | os.PathLike[str]) -> Executable | None:
    """The file's header, or ``None`` if it is neither PE nor ELF (a script, say). A missing file is an OSError."""
    with open(path, "rb") as file:
        magic = file.read(4)
        try:
            if magic == b"\x7fELF":
                return _read_elf(file)
            if magic[:2] == b"MZ":
                return _read_pe(file)
        except (struct.error, ValueError):
            return None  # cut off or nonsense: no loader takes it either
    return None


def executable_machine(path: str | os.PathLike[str]) -> str | None:
    """ "ARM64", "x64", "x86", "ARM64EC" for a Windows program, "aarch64", "x86_64" for a Linux one, else ``None``.

    ARM64X (one file for ARM64 and ARM64EC processes) is reported as "ARM64", which is what starting it gives.
    """
    executable = read_executable(path)
    if executable is None:
        return None
    if executable.hybrid and executable.machine == "x64":
        return "ARM64EC"
    return executable.machine


def _unpack(file: BinaryIO, offset: int, layout: str) -> tuple[int, ...]:
    file.seek(offset)
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _read_elf(file: BinaryIO) -> Executable:
    word_bits, byte_order = _unpack(file, 4, "BB")
    (number,) = _unpack(file, 18, ">H" if byte_order == 2 else "<H")
    name = ELF_MACHINES.get(number, hex(number))
    if name == "x86_64" and word_bits == 1:
        name = "x32"  # 64-bit instructions, 32-bit pointers: another ABI
    return Executable("ELF", name)


def _read_pe(file: BinaryIO) -> Executable | None:
    (start,) = _unpack(file, 0x3C, "<I")
    signature, number, sections, optional_size = _unpack(file, start, "<IHH12xH2x")
    if signature != 0x4550:  # "PE", 0, 0
        return None  # a DOS program
    hybrid = False
    if number in (0x8664, 0xAA64):
        hybrid = _has_chpe_metadata(file, start + 24, optional_size, min(sections, _MAX_SECTIONS))
    return Executable("PE", PE_MACHINES.get(number, hex(number)), hybrid)


def _has_chpe_metadata(file: BinaryIO, optional: int, optional_size: int, sections: int) -> bool:
    magic, directories = (_unpack(file, optional, "<H")[0], _unpack(file, optional + 108, "<I")[0])
    if magic != 0x20B or directories <= _LOAD_CONFIG:
        return False
    address, size = _unpack(file, optional + 112 + 8 * _LOAD_CONFIG, "<II")
    if not address:
        return False
    for index in range(sections):
        virtual_size, virtual_address, raw_size, raw_start = _unpack(
            file, optional + optional_size + 40 * index + 8, "<IIII"
        )
        if virtual_address <= address < virtual_address + max(virtual_size, raw_size):
            config = raw_start + address - virtual_address
            # The structure's own size counts: the directory's size is wrong in files of some linkers.
            (config_size,) = _unpack(file, config, "<I")
            if max(config_size, size) < _CHPE_METADATA + 8:
                return False
            return _unpack(file, config + _CHPE_METADATA, "<Q") != (0,)
    return False
