"""Interface between the doctor and a computer: all queries that a survey makes.

`RealMachine` queries this computer. The tests simulate computers with contents of real wheels and a simulated
registry and environment. A query never raises: on failure it returns ``None`` or an empty result, because the
doctor must work on broken computers.
"""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import importlib
import json
import mmap
import ntpath
import os
import platform
import posixpath
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, Protocol, TypeVar

from qnnbridge_protocol.errors import BridgeError, VersionMismatch
from qnnbridge_protocol.field_types import read_document
from qnnbridge_tools.doctor import running_interpreter
from qnnbridge_tools.doctor.facts import (
    Catalogue,
    CatalogueProvider,
    DaemonFacts,
    NumbersRequest,
    ProbeRequest,
    ProbeResult,
    PythonReport,
    StartFailure,
)

if TYPE_CHECKING:
    from qnnbridge._daemon.discovery import Discovery
    from qnnbridge_host.cache.store import Store


Kind = Literal["file", "folder"]
RegistryValue = str | int | bytes

Root = Literal["HKLM", "HKCU"]


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """A program or library.

    machine: "ARM64", "x64", "ARM64EC", "ARM64X", "aarch64" ... version: the version that the file contains.
    """

    machine: str
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredInterpreter:
    """A Python in the Windows registry. tag: the argument of ``py -V:tag``."""

    tag: str
    version: str
    executable: str
    prefix: str


@dataclasses.dataclass(frozen=True, slots=True)
class CacheContents:
    """Contents of the cache.

    damaged: descriptions of entries that were set aside or are incomplete. bad_keys: keys of the incomplete
    entries.
    """

    entries: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    bad_keys: tuple[str, ...] = ()


class Machine(Protocol):
    """A computer, queried with the rights of the current user. Paths have its system's syntax (`paths_of`)."""

    # "Windows", "Linux" or another name of `platform.system`.
    system: str
    # The native machine type, even if this process is emulated: "ARM64" or "x64" on Windows, else the kernel's
    # name.
    machine: str
    environ: Mapping[str, str]
    user: str
    home: str

    def windows_build(self) -> int | None: ...

    def now(self) -> float:
        """Return the seconds since 1970."""

    # --- files ---

    def kind(self, path: str) -> Kind | None: ...

    def size(self, path: str) -> int | None: ...

    def names(self, folder: str) -> Sequence[str]:
        """Return the entries of a folder, sorted by name."""

    def data(self, path: str, limit: int) -> bytes | None:
        """Return the first `limit` bytes of a file."""

    def sha256(self, path: str) -> str | None:
        """Return the hash of a file in hexadecimal."""

    def library(self, path: str, *, version: bool) -> Library | None:
        """Describe a program or library; ``None`` for any other file. With `version` the whole file may be read."""

    def real_path(self, path: str) -> str:
        """Return the path with links resolved."""

    def is_store_alias(self, path: str) -> bool: ...

    def is_writable(self, folder: str) -> bool:
        """Return whether a file can be created in the folder, or in its nearest existing parent."""

    def can_open_device(self, path: str) -> bool: ...

    def free_bytes(self, folder: str) -> int | None: ...

    def is_network(self, path: str) -> bool: ...

    def cache(self, folder: str) -> CacheContents:
        """Describe the cache of compiled models in a folder."""

    def daemon(self) -> DaemonFacts:
        """Find the daemon that applications would use and query it, without starting one."""

    # --- Windows ---

    def registry(self, root: Root, key: str, name: str) -> RegistryValue | None: ...

    def registry_keys(self, root: Root, key: str) -> Sequence[str]: ...

    def registered_pythons(self) -> Sequence[RegisteredInterpreter]: ...

    def device_problem(self, instance: str) -> int | None:
        """Return the device manager's problem number; 0 for a working device."""

    # --- programs ---

    def running(self) -> PythonReport:
        """Describe this process's interpreter."""

    def ask(self, python: str) -> PythonReport | StartFailure:
        """Start an interpreter in the same way as the host, and let it describe itself."""

    def catalogue(self, python: str) -> Catalogue | None:
        """Read the Windows ML catalogue with this interpreter's ``windowsml``; ``None`` on other systems."""

    def measure_numbers(self, request: NumbersRequest) -> str:
        """Measure the known-wrong table in a separate process; return why this failed, or "" on success."""

    def probe(self, order: ProbeRequest) -> ProbeResult:
        """Start a host in a separate process, which may crash, and load, compile and run a model."""


def paths_of(system: str) -> ModuleType:
    """Return the module for paths of a system: `ntpath` or `posixpath`."""
    return ntpath if system == "Windows" else posixpath


def text_of(machine: Machine, path: str, limit: int = 1 << 20) -> str | None:
    """Return the text of a file up to `limit` bytes; ``None`` if it cannot be read."""
    data = machine.data(path, limit)
    return data.decode("utf-8", "replace") if data is not None else None


def variable_of(machine: Machine, name: str, otherwise: str = "") -> str:
    """Return an environment variable by its name in capitals. Windows ignores the case of names, such as Path."""
    return next((value for known, value in machine.environ.items() if known.upper() == name), otherwise)


def expanded(machine: Machine, path: str) -> str:
    """Replace a leading "~" by this user's home folder, as in qnnbridge's variables and settings."""
    return str(paths_of(machine.system).join(machine.home, path[2:])) if path[:2] in ("~/", "~\\") else path


def path_folders(text: str, system: str) -> list[str]:
    """Return the folders of a PATH without duplicates, and without relative entries, which depend on the working
    folder of the process.
    """
    separator = ";" if system == "Windows" else ":"
    # Windows allows quotes around an entry.
    folders = (folder.strip('"') for folder in text.split(separator))
    return list(dict.fromkeys(folder for folder in folders if paths_of(system).isabs(folder)))


def parsed_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text; raise `ValueError` if it is invalid."""
    # `tomllib` is new in Python 3.11.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    # Ignore a byte order mark, as the bridge does.
    return dict(toml.loads(text.removeprefix("\ufeff")))


# --- this computer; queries of Windows are in `qnnbridge_os` ---

if sys.platform == "win32":
    from qnnbridge_os import windows_facts as _windows
else:
    _windows = None

T = TypeVar("T")
ASK_TIMEOUT_S: Final = 20.0
_CHUNK_BYTES: Final = 1 << 20
_MAX_SAID: Final = 4000
_APP_ALIAS_TAG: Final = 0x8000001B  # IO_REPARSE_TAG_APPEXECLINK


class RealMachine:
    """Implementation of `Machine` for this computer. Not thread-safe."""

    def __init__(self) -> None:
        from qnnbridge_os.processes import native_machine

        self.system = platform.system()
        self.machine = native_machine()
        self.environ: Mapping[str, str] = os.environ
        self.home = os.path.expanduser("~")
        self._libraries: dict[tuple[str, bool], Library | None] = {}
        try:
            self.user = getpass.getuser()
        except Exception:  # noqa: BLE001 - without users in a container: KeyError or OSError, by Python
            self.user = ""

    def windows_build(self) -> int | None:
        return _windows.build() if _windows else None

    def now(self) -> float:
        return time.time()

    # --- files ---

    def kind(self, path: str) -> Kind | None:
        if _asked(False, os.path.isfile, path):
            return "file"
        return "folder" if _asked(False, os.path.isdir, path) else None

    def size(self, path: str) -> int | None:
        return _asked(None, os.path.getsize, path)

    def names(self, folder: str) -> Sequence[str]:
        return sorted(_asked(list[str](), lambda: os.listdir(folder)))

    def data(self, path: str, limit: int) -> bytes | None:
        return _asked(None, _first_bytes, path, limit)

    def sha256(self, path: str) -> str | None:
        return _asked(None, _sha256, path)

    def library(self, path: str, *, version: bool) -> Library | None:
        key = path, version
        if key not in self._libraries:  # read each file once: application and host often share an environment
            self._libraries[key] = _asked(None, read_library, path, version=version)
        return self._libraries[key]

    def real_path(self, path: str) -> str:
        return _asked(path, os.path.realpath, path)

    def is_store_alias(self, path: str) -> bool:
        try:
            status = os.lstat(path)
        except (OSError, ValueError):
            return False
        # Store aliases are reparse points with this tag. `st_reparse_tag` exists only on Windows.
        return getattr(status, "st_reparse_tag", 0) == _APP_ALIAS_TAG or (
            status.st_size == 0 and "windowsapps" in path.lower()
        )

    def is_writable(self, folder: str) -> bool:
        # Test the nearest existing parent, because the cache's folder is created at its first use.
        while folder and not os.path.isdir(folder):
            parent = os.path.dirname(folder)
            if parent == folder or os.path.exists(folder):
                return False
            folder = parent
        try:
            # Create a file, because `os.access` ignores access lists on Windows.
            with tempfile.TemporaryFile(dir=folder or os.curdir):
                return True
        except OSError:
            return False

    def can_open_device(self, path: str) -> bool:
        return os.access(path, os.R_OK | os.W_OK)

    def free_bytes(self, folder: str) -> int | None:
        while folder and not os.path.isdir(folder):
            folder, before = os.path.dirname(folder), folder
            if folder == before:
                return None
        try:
            return shutil.disk_usage(folder or os.curdir).free
        except OSError:
            return None

    def is_network(self, path: str) -> bool:
        return _windows.is_network(path) if _windows else False

    def cache(self, folder: str) -> CacheContents:
        if not os.path.isdir(folder):
            return CacheContents()  # without a cache, do not import the cache modules
        from pathlib import Path

        from qnnbridge_host.cache.store import Store, total_bytes

        store = Store(Path(folder))
        keys = store.all_keys()
        set_aside = tuple(
            f"{bad.label or bad.key[:12]}: {bad.reason or bad.fault}" for bad in store.invalid_entries()
        )
        bad = {key: text for key in keys if (text := _what_is_wrong(store, key))}
        return CacheContents(len(keys), total_bytes(store), (*bad.values(), *set_aside), tuple(bad))

    def daemon(self) -> DaemonFacts:
        return look_for_daemon(_windows.job_flags() if _windows else None)

    # --- Windows ---

    def registry(self, root: Root, key: str, name: str) -> RegistryValue | None:
        return _windows.value(root, key, name) if _windows else None

    def registry_keys(self, root: Root, key: str) -> Sequence[str]:
        return _windows.subkeys(root, key) if _windows else ()

    def registered_pythons(self) -> Sequence[RegisteredInterpreter]:
        from qnnbridge_os.programs import registered_pythons

        return tuple(
            RegisteredInterpreter(p.launcher_tag, "{}.{}".format(*p.version), p.executable, p.prefix)
            for p in registered_pythons()
        )

    def device_problem(self, instance: str) -> int | None:
        return _windows.device_problem(instance) if _windows else None

    # --- programs ---

    def running(self) -> PythonReport:
        return answer_of(running_interpreter.describe())

    def ask(self, python: str) -> PythonReport | StartFailure:
        try:
            done = run_interpreter(python, running_interpreter.__file__)
        except subprocess.TimeoutExpired:
            return StartFailure(None, f"no answer within {ASK_TIMEOUT_S:.0f} s")
        except (OSError, ValueError) as error:
            return StartFailure(None, str(error))
        said = done.stderr.decode("utf-8", "replace").strip()[-_MAX_SAID:]
        if done.returncode:
            return StartFailure(done.returncode, said)
        try:
            return answer_of(last_line(done))
        except (ValueError, LookupError):
            return StartFailure(
                0, said or "the program did not run the doctor's script, so it is probably not a Python interpreter"
            )

    def catalogue(self, python: str) -> Catalogue | None:
        try:
            answer = last_line(run_interpreter(python, "-m", "qnnbridge_host.windows_ml", "list"))
            wire = answer.get("error")
            names = ("name", "version", "package", "library", "state")
            entries = [] if isinstance(wire, dict) else answer["providers"]
            listed = [CatalogueProvider(*(str(one[name]) for name in names)) for one in entries]
        except subprocess.TimeoutExpired:
            return Catalogue(problem=f"no answer within {ASK_TIMEOUT_S:.0f} s")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            return Catalogue(problem=f"windowsml did not answer ({type(error).__name__})")
        if isinstance(wire, dict):
            return Catalogue(problem=str(wire.get("cause") or wire.get("message")), fix=str(wire.get("fix") or ""))
        return Catalogue(tuple(listed))

    def measure_numbers(self, request: NumbersRequest) -> str:
        from qnnbridge_tools.doctor.measure_rows import measure_numbers

        def shown(line: dict[str, Any]) -> None:
            if "row" in line:
                print(f"{line['row']}: {line['state']}", file=sys.stderr)

        return measure_numbers(request, shown)

    def probe(self, order: ProbeRequest) -> ProbeResult:
        from qnnbridge_tools.doctor.subjects.probe import run_probe

        return run_probe(order)


def _asked(otherwise: T, ask: Callable[..., T], *given: Any, **more: Any) -> T:
    """Call a function that queries the system; return `otherwise` if it fails (`ValueError`: NUL in a path)."""
    try:
        return ask(*given, **more)
    except (OSError, ValueError):
        return otherwise


def _first_bytes(path: str, limit: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(limit)


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _what_is_wrong(store: Store, key: str) -> str:
    """Return the fault of a cache entry, found by its manifest and file sizes; "" if it has no fault."""
    from qnnbridge_host.cache.files import Damaged

    try:
        entry = store.peek(key)
        # Compare only sizes: hashing the whole cache would take minutes.
        for record in entry.manifest.files if entry is not None else ():
            size = (store.entry_folder(key) / record.name).lstat().st_size
            if size != record.size:
                return f"{key[:12]}: {record.name} has {size} bytes instead of {record.size}"
    except Damaged as damage:
        return f"{key[:12]}: {damage}"
    except OSError as error:
        return f"{key[:12]}: {error.strerror or error}"
    return ""


def run_interpreter(
    python: str, *arguments: str, timeout_s: float = ASK_TIMEOUT_S
) -> subprocess.CompletedProcess[bytes]:
    """Run an interpreter in the same way as the host: isolated from packages and variables of the user.

    Raises:
        OSError, ValueError: the interpreter cannot be started.
        subprocess.TimeoutExpired: it did not end in time.
    """
    from qnnbridge._launch import INTERPRETER_FLAGS, host_environment

    return subprocess.run(
        [python, *INTERPRETER_FLAGS, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        env=host_environment(),
        # Do not open a console window if the command runs without one, as under pythonw.
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    )


def last_line(done: subprocess.CompletedProcess[bytes]) -> Any:
    """Return the last line of the output as JSON; a .pth file may have printed other lines before."""
    return json.loads(done.stdout.decode("utf-8", "replace").strip().splitlines()[-1])


def answer_of(answer: dict[str, object]) -> PythonReport:
    """Convert the output of `running_interpreter`. Raise `ValueError` for any other output."""
    return read_document(PythonReport, answer, "the answer")


ANSWER_TIMEOUT_S: Final = 5.0
_JOB_BREAKAWAY_OK: Final = 0x0800
_JOB_SILENT_BREAKAWAY_OK: Final = 0x1000
_JOB_KILL_ON_CLOSE: Final = 0x2000


def ends_with_job(flags: int | None) -> bool:
    """Return whether a Windows job with these limits ends all of its processes when it is closed, and its processes
    cannot leave it.
    """
    # With JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE, closing the job's last handle ends all of its processes. New
    # processes can leave the job only if a breakaway flag is set; Windows Terminal's job has none
    # (microsoft/terminal#20480).
    may_leave = _JOB_BREAKAWAY_OK | _JOB_SILENT_BREAKAWAY_OK
    return flags is not None and bool(flags & _JOB_KILL_ON_CLOSE) and not flags & may_leave


def look_for_daemon(job_flags: int | None) -> DaemonFacts:
    """Find the daemon that applications of this user would use, and query it. A daemon is never started.

    Args:
        job_flags: limits of this process's Windows job; ``None`` without a job.
    """
    dies_with_us = ends_with_job(job_flags)
    try:
        from qnnbridge._daemon.discovery import existing_runtime_folder, runtime_folder
        from qnnbridge_tools.host.link import left_behind
    except ImportError:
        return DaemonFacts(dies_with_us=dies_with_us)
    folder = str(runtime_folder())
    try:
        # Check the folder first, because a file in an untrusted folder must not be read.
        found = left_behind() if existing_runtime_folder() is not None else None
    except BridgeError as error:
        return DaemonFacts("untrusted", folder, said=error.message, fix=error.fix or "", dies_with_us=dies_with_us)
    if found is None:
        return DaemonFacts(folder=folder, dies_with_us=dies_with_us)
    return _ask_daemon(found, folder, dies_with_us)


def _ask_daemon(found: Discovery, folder: str, dies_with_us: bool) -> DaemonFacts:
    """Query the daemon that wrote the discovery file `found`."""
    from qnnbridge_tools.host import link

    runs = DaemonFacts("runs", folder, found.qnnbridge, found.pid, dies_with_us=dies_with_us)
    try:
        with link.reach(ANSWER_TIMEOUT_S) as daemon:
            status = daemon.status().get("daemon")
    except VersionMismatch as error:
        # The daemon answered, so it runs, but it does not accept applications of this version.
        return dataclasses.replace(runs, said=error.message, fix=error.fix or "", fits=False)
    except BridgeError as error:
        state = "stale" if link.is_none(error) else "silent"
        return dataclasses.replace(runs, state=state, said=error.cause or error.message)
    version = status.get("qnnbridge") if isinstance(status, dict) else None
    return dataclasses.replace(runs, version=str(version or found.qnnbridge))


# --- libraries: machine type and version, read from the file without loading it, on any computer ---
#
# Windows libraries contain a version resource. QNN's Linux libraries contain their build id as text,
# v2.51.0.2609..., anywhere in the file; searching it takes 0.1 s for the largest library.

_RESOURCES: Final = 2  # index of the resource table in the data directories of a PE file
_VERSION_RESOURCE: Final = 16  # RT_VERSION
_SUBDIRECTORY: Final = 0x80000000
_MAX_RESOURCE_BYTES: Final = 1 << 20
_PRODUCT_VERSION: Final = "ProductVersion".encode("utf-16-le") + b"\0\0"
# Signature of VS_FIXEDFILEINFO, which is used if the resource contains no version text.
_FIXED_INFO: Final = struct.pack("<I", 0xFEEF04BD)
# The version and the time of the build: v2.51.0.260929181845.
_BUILD_ID: Final = re.compile(rb"v(\d\.\d{1,3}\.\d{1,3}\.\d{12}[\d_]*)\0")
_MAX_HEADERS: Final = 4096


def read_library(path: str, *, version: bool) -> Library | None:
    """Describe a program or library; ``None`` if the file is neither PE nor ELF, or its header is incomplete.

    Raises:
        OSError: the file cannot be read.
    """
    from qnnbridge_os.programs import read_executable

    header = read_executable(path)
    if header is None:
        return None
    machine = header.machine
    if header.hybrid:
        # Hybrid images contain x64 code that calls ARM64 code (ARM64EC), or code of both types (ARM64X).
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
    """Return the ProductVersion text, which includes the build number of QNN's libraries; else the fixed
    version.
    """
    resource = _version_resource(file)
    if resource is None:
        return None
    at = resource.find(_PRODUCT_VERSION)
    if at >= 0:
        # The value follows the name, aligned to 4 bytes relative to the start of the resource.
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
    for _ in range(2):  # take the first name, then the first language
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
        # Use the larger size: in some files the size in memory is smaller than the size in the file.
        if virtual <= address < virtual + max(virtual_size, raw_size):
            return virtual, raw
    return None


def _entry(file: BinaryIO, root: int, directory: int, wanted: int | None) -> int | None:
    """Return the offset of an entry in a resource directory. The offset's highest bit marks a subdirectory."""
    # After flags, time and version (12 bytes) a directory has two counts: entries by name, then by number.
    file.seek(directory + 12)
    named, numbered = struct.unpack("<HH", file.read(4))
    # Limit the number of entries, because a damaged file may claim 131,070.
    for _ in range(min(named + numbered, 256)):
        number, offset = struct.unpack("<II", file.read(8))
        if wanted is None or number == wanted:
            return int(offset)
    return None
