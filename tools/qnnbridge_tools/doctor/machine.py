"""The seam between the doctor and a computer: everything that a survey asks of one.

`RealMachine` asks this computer. The tests answer out of the contents of real wheels, a simulated registry and
environment, so any computer can be surveyed anywhere. A question never raises: what cannot be answered is ``None``
or empty, because the doctor has to work on exactly the computers where something is broken.
"""

from __future__ import annotations

import dataclasses
import importlib
import ntpath
import posixpath
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, Protocol

from qnnbridge_tools.doctor.facts import Catalogue, DaemonFacts, ProbeResult, PythonReport, StartFailure

Kind = Literal["file", "folder"]
RegistryValue = str | int | bytes

Root = Literal["HKLM", "HKCU"]


@dataclasses.dataclass(frozen=True, slots=True)
class Library:
    """A program or library. machine: "ARM64", "x64", "ARM64EC", "ARM64X", "aarch64" ... version: as it says
    itself."""

    machine: str
    version: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RegisteredInterpreter:
    """A Python of the Windows registry. tag: what ``py -V:tag`` takes."""

    tag: str
    version: str
    executable: str
    prefix: str


@dataclasses.dataclass(frozen=True, slots=True)
class CacheContents:
    """damaged: entries that were set aside, or are in place and incomplete, described; bad_keys: the latter."""

    entries: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    bad_keys: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeRequest:
    """A live probe: which interpreter is the host, which model (``None``: the doctor's own), how long at most."""

    host_python: str
    model: str | None
    timeout_s: float
    dimensions: tuple[str, ...] = ()


class Machine(Protocol):
    """One computer, as the user sees it. Paths are in its own form (`paths_of`)."""

    # "Windows", "Linux" or another name of `platform.system`.
    system: str
    # What the computer really is, whatever this process is: "ARM64", "x64" on Windows, else the kernel's name.
    machine: str
    environ: Mapping[str, str]
    user: str
    home: str

    def windows_build(self) -> int | None: ...

    def now(self) -> float:
        """Seconds since 1970."""

    # --- files ---

    def kind(self, path: str) -> Kind | None: ...

    def size(self, path: str) -> int | None: ...

    def names(self, folder: str) -> Sequence[str]:
        """The names in a folder, sorted."""

    def data(self, path: str, limit: int) -> bytes | None:
        """The first `limit` bytes of a file."""

    def sha256(self, path: str) -> str | None:
        """In hexadecimal."""

    def library(self, path: str, *, version: bool) -> Library | None:
        """A program or library; ``None`` for another file. `version` may read all of the file."""

    def real_path(self, path: str) -> str:
        """The path with its links resolved."""

    def is_store_alias(self, path: str) -> bool: ...

    def is_writable(self, folder: str) -> bool:
        """Whether a file can be made there; of a folder that does not exist, in the nearest one that does."""

    def can_open_device(self, path: str) -> bool: ...

    def free_bytes(self, folder: str) -> int | None: ...

    def is_network(self, path: str) -> bool: ...

    def cache(self, folder: str) -> CacheContents:
        """The contents of the cache of compiled models in that folder."""

    def daemon(self) -> DaemonFacts:
        """The daemon that applications would use: looked for and asked, never started."""

    # --- Windows ---

    def registry(self, root: Root, key: str, name: str) -> RegistryValue | None: ...

    def registry_keys(self, root: Root, key: str) -> Sequence[str]: ...

    def registered_pythons(self) -> Sequence[RegisteredInterpreter]: ...

    def device_problem(self, instance: str) -> int | None:
        """The problem number that the device manager shows; 0 for a device that works."""

    # --- programs ---

    def running(self) -> PythonReport:
        """The report of this process's interpreter."""

    def ask(self, python: str) -> PythonReport | StartFailure:
        """Start an interpreter as the host is started and let it describe itself."""

    def catalogue(self, python: str) -> Catalogue | None:
        """The catalogue of Windows ML, as this interpreter's ``windowsml`` reads it; ``None`` elsewhere."""

    def probe(self, order: ProbeRequest) -> ProbeResult:
        """Start a host, load, compile and run; in a process of its own, which may die of it."""


def paths_of(system: str) -> ModuleType:
    """`ntpath` or `posixpath`: the rules of another computer's paths."""
    return ntpath if system == "Windows" else posixpath


def text_of(machine: Machine, path: str, limit: int = 1 << 20) -> str | None:
    data = machine.data(path, limit)
    return data.decode("utf-8", "replace") if data is not None else None


def variable_of(machine: Machine, name: str, otherwise: str = "") -> str:
    """A variable by its name in capitals. Those of Windows have no case: it writes Path, and SystemRoot."""
    return next((value for known, value in machine.environ.items() if known.upper() == name), otherwise)


def parsed_toml(text: str) -> dict[str, Any]:
    """Raises `ValueError`."""
    # `tomllib` is new in Python 3.11.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return dict(toml.loads(text))
