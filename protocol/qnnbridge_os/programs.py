"""Programs: machine types of files, reasons why a program does not start, registered Pythons, and child processes.

The machine type is read from the PE or ELF header with a few small reads. This works for files of any machine type
on any machine, without loading them. Installed Pythons are listed in the Windows registry (PEP 514); other systems
have no such list. Each system implements the interfaces `ChildProcess` and `Spawner`.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from qnnbridge_protocol.errors import HostNotFound, HostStartFailed

if TYPE_CHECKING:
    import subprocess

    from qnnbridge_os.fds import OwnedFds

PE_MACHINES = {0x014C: "x86", 0x01C4: "ARM", 0x8664: "x64", 0xAA64: "ARM64"}
ELF_MACHINES = {0x03: "i386", 0x28: "arm", 0x3E: "x86_64", 0xA4: "hexagon", 0xB7: "aarch64", 0xF3: "riscv"}

_LOAD_CONFIG = 10  # index of the load configuration among the data directories
_CHPE_METADATA = 0xC8  # offset of CHPEMetadataPointer in the 64-bit load configuration
_MAX_SECTIONS = 96  # the Windows loader's own limit


@dataclasses.dataclass(frozen=True, slots=True)
class Executable:
    """Contents of a program's header.

    Attributes:
        machine: "ARM64", "x64", "x86" (PE), "aarch64", "x86_64" ... (ELF), or the machine number in hexadecimal.
        hybrid: whether the file contains code for two machine types (CHPE metadata). In such a file x64 means
            ARM64EC, and ARM64 means ARM64X.
    """

    format: Literal["PE", "ELF"]
    machine: str
    hybrid: bool = False


def read_executable(path: str | os.PathLike[str]) -> Executable | None:
    """Return the contents of the file's header; ``None`` if it is neither PE nor ELF (for example a script).
    Raise `OSError`."""
    with open(path, "rb") as file:
        magic = file.read(4)
        try:
            if magic == b"\x7fELF":
                return _read_elf(file)
            if magic[:2] == b"MZ":
                return _read_pe(file)
        except (struct.error, ValueError):
            return None  # the header is truncated or invalid, so no loader accepts the file either
    return None


def executable_machine(path: str | os.PathLike[str]) -> str | None:
    """Return the machine type of a program: "ARM64", "x64", "x86", "ARM64EC" on Windows, "aarch64", "x86_64" on
    Linux.

    Return ``None`` for any other file, and "ARM64" for ARM64X (one file for ARM64 and ARM64EC processes), which
    Windows starts as an ARM64 process.
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
    # EI_CLASS and EI_DATA. The machine (e_machine) is at offset 18.
    word_bits, byte_order = _unpack(file, 4, "BB")
    (number,) = _unpack(file, 18, ">H" if byte_order == 2 else "<H")
    name = ELF_MACHINES.get(number, hex(number))
    if name == "x86_64" and word_bits == 1:
        name = "x32"  # 64-bit instructions, 32-bit pointers: another ABI
    return Executable("ELF", name)


def _read_pe(file: BinaryIO) -> Executable | None:
    # Offset of the PE header (e_lfanew).
    (start,) = _unpack(file, 0x3C, "<I")
    # The signature, then three fields of the file header: Machine, NumberOfSections, SizeOfOptionalHeader.
    signature, number, sections, optional_size = _unpack(file, start, "<IHH12xH2x")
    if signature != 0x4550:  # "PE", 0, 0
        return None  # a DOS program
    hybrid = False
    if number in (0x8664, 0xAA64):
        # The optional header follows the signature and the file header, which together have 24 bytes.
        hybrid = _has_chpe_metadata(file, start + 24, optional_size, min(sections, _MAX_SECTIONS))
    return Executable("PE", PE_MACHINES.get(number, hex(number)), hybrid)


def _has_chpe_metadata(file: BinaryIO, optional: int, optional_size: int, sections: int) -> bool:
    # In the 64-bit header (0x20B) the number of data directories is at offset 108, and the directories begin at
    # 112.
    magic, directories = (_unpack(file, optional, "<H")[0], _unpack(file, optional + 108, "<I")[0])
    if magic != 0x20B or directories <= _LOAD_CONFIG:
        return False
    address, size = _unpack(file, optional + 112 + 8 * _LOAD_CONFIG, "<II")
    if not address:
        return False
    for index in range(sections):
        # A section header has 40 bytes. VirtualSize follows the name, which has 8 bytes.
        virtual_size, virtual_address, raw_size, raw_start = _unpack(
            file, optional + optional_size + 40 * index + 8, "<IIII"
        )
        if virtual_address <= address < virtual_address + max(virtual_size, raw_size):
            config = raw_start + address - virtual_address
            # Use the size in the structure itself, because some linkers write a wrong size to the directory.
            (config_size,) = _unpack(file, config, "<I")
            if max(config_size, size) < _CHPE_METADATA + 8:
                return False
            return _unpack(file, config + _CHPE_METADATA, "<Q") != (0,)
    return False


# Win32 error numbers (`OSError.winerror`) of failures that a restart cannot fix.
_WIN_NOT_FOUND = (2, 3)
_WIN_ACCESS_DENIED = 5
_WIN_BAD_FORMAT = (193, 216)
_WIN_BLOCKED = {
    225: "an antivirus program considers the file harmful",
    740: "the program requires administrator rights",
    1260: "a policy of the administrator forbids the program",
    4551: "Windows' application control policy forbids the program",
}
# ERROR_CANT_ACCESS_FILE and ERROR_INVALID_REPARSE_DATA: an alias of the Microsoft Store is a reparse point.
_WIN_ALIAS_BROKEN = (1920, 4392)

_OUT_OF = {
    errno.EAGAIN: "the limit of processes is reached",
    errno.ENOMEM: "there is not enough memory",
    errno.EMFILE: "this process has too many files open",
    errno.ENFILE: "the computer has too many files open",
}
_WIN_OUT_OF = {
    8: "there is not enough memory",
    14: "there is not enough memory",
    1450: "Windows is out of system resources",
    1455: "the page file is too small",
}


def start_failed(program: str, cwd: str | None, error: OSError, computer: str) -> HostStartFailed:
    """Return the error for a `program` that could not be started on a computer of machine type `computer`."""
    number: int | None = getattr(error, "winerror", None)
    windows = number is not None
    evidence = [f"WinError {number}: {error.strerror}" if windows else f"errno {error.errno}: {error.strerror}"]
    details = {"program": program, "errno": error.errno, "winerror": number}

    def final(cause: str, fix: str) -> HostNotFound:
        return HostNotFound(_message(program), cause=cause, fix=fix, evidence=evidence, details=details)

    # Check the working folder first: if it is missing, Linux reports ENOENT, as if the program were missing.
    if cwd is not None and not os.path.isdir(cwd):
        return final(f"Its working folder {cwd} does not exist.", "Give a folder that exists.")
    if number in _WIN_NOT_FOUND or (not windows and error.errno in (errno.ENOENT, errno.ENOTDIR)):
        if os.path.exists(program):
            return final(_missing_interpreter(program), "Reinstall it for this computer.")
        return final("There is no such file.", "Give the interpreter's full path.")
    if number in _WIN_BAD_FORMAT or (not windows and error.errno == errno.ENOEXEC):
        return final(_wrong_machine(program, computer), f"Use an interpreter that is built for {computer}.")
    if number in _WIN_ALIAS_BROKEN:
        return final(
            "It is an alias of the Microsoft Store, and its program is not installed.",
            "Install Python from python.org and give the path of its python.exe.",
        )
    if number in _WIN_BLOCKED:
        return final(f"Windows reports: {_WIN_BLOCKED[number]}.", "Allow the program, or use another interpreter.")
    if number == _WIN_ACCESS_DENIED or (not windows and error.errno in (errno.EACCES, errno.EPERM)):
        return final(
            "This user may not execute the file, or its disk is mounted without permission to execute files.",
            "Give the interpreter itself (not a folder or a text file) and check its permissions.",
        )
    if windows:
        shortage = _WIN_OUT_OF.get(number) if number is not None else None
    else:
        shortage = _OUT_OF.get(error.errno or 0)
    return HostStartFailed(
        _message(program),
        cause=f"At the moment {shortage}." if shortage else error.strerror or str(error),
        fix="Close programs and sessions that you do not need, then try again." if shortage else None,
        evidence=evidence,
        details=details,
    )


def _message(program: str) -> str:
    return f"The host interpreter {program} could not be started."


def _wrong_machine(program: str, computer: str) -> str:
    try:
        machine = executable_machine(program)
    except OSError:
        machine = None
    if machine is None:
        return "The file is not a program: it has neither a known header nor an interpreter line."
    if machine == computer:
        return (
            f"The file is built for this computer ({computer}), but the system cannot run the file: it is damaged."
        )
    return f"The file is a program for {machine}, but this computer is {computer}."


def _missing_interpreter(program: str) -> str:
    """Explain "no such file" for an existing file: the program or loader that must run the file is missing."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        first = b""
    if first.startswith(b"#!"):
        runner = first[2:].strip().decode(errors="replace")
        return f"The file is a script and its first line requires {runner}, which does not exist."
    machine = executable_machine(program) if first else None
    return f"The file exists ({machine or 'not a program'}), but the loader that it requires does not."


_PYTHONS = r"Software\Python"
# PEP 514 reserves this name for settings of the launcher.
_NOT_AN_INSTALLATION = "PyLauncher"


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredPython:
    """A Python in the registry.

    Attributes:
        company: publisher; "PythonCore" for Python from python.org.
        tag: argument of ``py -V:tag``, such as "3.13-arm64".
    """

    company: str
    tag: str
    version: tuple[int, int]
    executable: str
    prefix: str

    @property
    def launcher_tag(self) -> str:
        return self.tag if self.company == "PythonCore" else f"{self.company}/{self.tag}"


def registered_python(
    company: str, tag: str, values: Mapping[str, str], install: Mapping[str, str]
) -> RegisteredPython | None:
    """Return the Python that one registry key describes. values: the key's values. install: the values of its
    subkey InstallPath (the default value has the name "")."""
    prefix = install.get("", "").strip().strip('"')
    executable = install.get("ExecutablePath", "").strip().strip('"')
    if not executable:
        if not prefix:
            return None
        executable = os.path.join(prefix, "python.exe")
    for text in (values.get("SysVersion"), values.get("Version"), tag):
        found = re.match(r"(\d+)\.(\d+)", text or "")
        if found:
            version = (int(found[1]), int(found[2]))
            return RegisteredPython(company, tag, version, executable, prefix or os.path.dirname(executable))
    return None


# Registry views: the current user's, then the computer's views for 64-bit and 32-bit programs (KEY_WOW64_64KEY,
# _32KEY).
_VIEWS = (("HKCU", 0), ("HKLM", 0x0100), ("HKLM", 0x0200))


def registered_pythons() -> list[RegisteredPython]:
    """Return all Pythons in the Windows registry, of any machine type, without duplicates. Other systems have no
    such list."""
    found: dict[str, RegisteredPython] = {}
    if sys.platform == "win32":
        from qnnbridge_os.windows_facts import subkeys, texts

        for root, view in _VIEWS:
            for company in subkeys(root, _PYTHONS, view):
                if company == _NOT_AN_INSTALLATION:
                    continue
                for tag in subkeys(root, rf"{_PYTHONS}\{company}", view):
                    key = rf"{_PYTHONS}\{company}\{tag}"
                    python = registered_python(
                        company, tag, texts(root, key, view), texts(root, rf"{key}\InstallPath", view)
                    )
                    if python is not None:
                        found.setdefault(python.executable.lower(), python)
    return list(found.values())


class ChildProcess(Protocol):
    """A running program and this side's ends of its three standard streams.

    This object owns the descriptors; after `close` the attributes are -1. Thread-safe. In a fork of the owning
    process the descriptors are closed, `kill`, `terminate` and `close` do nothing, and `poll` and `wait` raise
    `ForkedClient`.
    """

    # Process id from the operating system. With a virtual environment on Windows it is the id of the launcher.
    pid: int

    # Descriptor for `write_some`. On POSIX writing to it never blocks.
    stdin_fd: int

    stdout_fd: int
    stderr_fd: int

    def poll(self) -> int | None:
        """Return the exit code; ``None`` while the program runs. On Windows it is an unsigned 32-bit number, on
        POSIX the code or -signal."""

    def wait(self, timeout_s: float | None) -> int | None:
        """Wait for the end of the process or the timeout, and return the result of `poll`."""

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM). Windows cannot ask a process without a window; use `kill` there."""

    def kill(self) -> None:
        """End the process and all processes that it has started, immediately. Do not wait."""

    def close(self) -> None:
        """Release descriptors and handles. Idempotent. Never blocks and never waits for the child.

        A POSIX child that is still alive continues, but reads the end of its input. A Windows child is killed with
        its job.
        """


class Spawner(Protocol):
    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str | None) -> ChildProcess:
        """Start a program without a shell, inheriting only its three standard streams.

        Raises:
            HostNotFound: the program cannot be started, and another attempt would also fail.
            HostStartFailed: the program cannot be started now, but another attempt may succeed.
        """


class DetachedBase:
    """A program that does not end with this program. Its output can be read from `stderr_fd` until it closes its
    stderr."""

    def __init__(self, process: subprocess.Popen[bytes], fds: OwnedFds, stderr_fd: int) -> None:
        self._process = process
        self._fds = fds
        self.stderr_fd = stderr_fd

    def close(self) -> None:
        self.stderr_fd = -1
        self._fds.close_all()
