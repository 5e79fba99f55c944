"""Machine types of this process and the computer, and the installed Pythons that have the host's packages.

Neither `platform.machine()` nor the environment names the machine on Windows on ARM, where x64 and x86 programs
are emulated: both name now the one, now the other, by the version of Python. Names: "ARM64", "x64", "x86",
"ARM64EC" on Windows; "aarch64", "x86_64" ... on Linux. Packages are looked for as files and specs; nothing is
imported and no process is started.
"""

from __future__ import annotations

import dataclasses
import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qnnbridge_os.processes import native_machine
from qnnbridge_os.programs import (
    RegisteredPython,
    executable_machine,
    registered_pythons,
)
from qnnbridge_protocol.process_names import is_frozen

_WINDOWS_PLATFORMS = {"win32": "x86", "win-amd64": "x64", "win-arm64": "ARM64"}


def process_machine() -> str:
    """What this interpreter was built for; no emulation changes that."""
    # From the build of this interpreter, for example "win-amd64": emulation does not change it.
    name = sysconfig.get_platform()
    if name in _WINDOWS_PLATFORMS:
        return _WINDOWS_PLATFORMS[name]
    # On Linux that name comes from the kernel, which a 32-bit program shares with 64-bit ones.
    try:
        machine = executable_machine("/proc/self/exe")
    except OSError:
        machine = None
    return machine or name.rpartition("-")[2]


def interpreter_machine(path: str) -> str | None:
    """The machine of the interpreter that `path` starts in the end; ``None`` for a script.

    python.exe of a virtual environment on Windows is a small program that starts the real one, and may have been
    built for another machine.
    """
    base = base_interpreter(path)
    return executable_machine(base if base is not None else path)


def base_interpreter(path: str) -> str | None:
    """The interpreter behind a Windows virtual environment's python.exe, if `path` is one and names it."""
    return next((base for base in named_bases(path, _text_of) if os.path.isfile(base)), None)


def named_bases(path: str, text_of: Callable[[str], str | None], paths: Any = os.path) -> Iterator[str]:
    """What a virtual environment's python.exe may start, by its pyvenv.cfg, best first; whether it is there or not.

    text_of, paths: of the computer that is looked at, which may be another one.
    """
    folder = paths.dirname(path) if path.lower().endswith(".exe") else None
    for place in () if folder is None else (folder, paths.dirname(folder)):
        pairs = (line.partition("=") for line in (text_of(paths.join(place, "pyvenv.cfg")) or "").splitlines())
        settings = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if settings.get("executable"):
            yield settings["executable"]
        if settings.get("home"):
            yield paths.join(settings["home"], paths.basename(path))


def _text_of(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


# What onnxruntime-qnn has wheels for.
OLDEST_HOST_PYTHON = (3, 11)

# Module to distribution.
HOST_PACKAGES = {"qnnbridge_host": "qnnbridge", "onnxruntime": "onnxruntime"}

WINDOWS_MACHINES = frozenset({"ARM64", "x64", "x86", "ARM64EC", "ARM"})


def _origin(package: str) -> str | None:
    """Where a package would be imported from without the import hook (`qnnbridge.ort._import_hook`)."""
    # With the import hook active `onnxruntime` is this project's own stand-in, which cannot be the host's
    # package.
    stand_in = os.environ.get("QNNBRIDGE_DROPIN")
    path = [entry for entry in sys.path if entry != stand_in]
    for finder in sys.meta_path:
        if getattr(finder, "is_stand_in", False):
            continue
        try:
            # Looking for a spec runs no code of the package; importing onnxruntime would load its library
            # into the application.
            spec = finder.find_spec(package, path if finder is importlib.machinery.PathFinder else None)
        except (ImportError, ValueError):  # a broken finder
            return None
        if spec is not None:
            return spec.origin if spec.has_location else None
    return None


@dataclasses.dataclass
class Surroundings:
    """What the search looks at, so that a test can be on any machine.

    process, computer: machine types of this process and of the computer. executable: the running interpreter,
    empty in a program that is not Python itself. frozen: as an application is that was shipped with its Python.
    not_isolated: folders on the path that an interpreter started with ``-I`` does not have. install_tag: filled by
    the search, with the registered Python that only lacks the packages.
    """

    environ: Mapping[str, str]
    process: str
    computer: str
    executable: str
    version: tuple[int, int]
    not_isolated: tuple[str, ...]
    registered: Callable[[], list[RegisteredPython]]
    origin: Callable[[str], str | None] = _origin
    install_tag: str | None = None
    frozen: bool = False

    @classmethod
    def current(cls) -> Surroundings:
        return cls(
            environ=os.environ,
            process=process_machine(),
            computer=native_machine(),
            executable="" if is_frozen() else sys.executable or "",
            version=sys.version_info[:2],
            not_isolated=_not_isolated(),
            registered=registered_pythons,
            frozen=is_frozen(),
        )

    @property
    def is_windows(self) -> bool:
        return self.process in WINDOWS_MACHINES

    @property
    def is_windows_on_arm(self) -> bool:
        return self.is_windows and self.computer == "ARM64"

    def why_not_machine(self, machine: str | None) -> str | None:
        """Why an interpreter of this machine type cannot be the host here; ``None`` if it can.

        On Linux a foreign ELF program may run by an emulator that the kernel knows, and a script may do anything.
        """
        if not self.is_windows:
            return "that is a Windows program" if machine in WINDOWS_MACHINES else None
        if machine is None or machine not in WINDOWS_MACHINES:
            return "that is not a Windows program"
        # An ARM64EC Python does not pass either: its process is an x64 one.
        if machine == self.computer:
            return None
        problem = f"that is an {machine} Python and this computer is {self.computer}"
        if self.is_windows_on_arm and machine == "x64":
            problem += ": emulated, it computes in QNN's simulator and never on the NPU"
        return problem


def registered_host(surroundings: Surroundings, looked_at: list[str]) -> str | None:
    """The newest ARM64 Python of the registry that has the packages; why not the others goes to `looked_at`."""
    pythons = sorted(surroundings.registered(), key=lambda python: python.version, reverse=True)
    if not pythons:
        looked_at.append("registry: no Python is registered")
    for python in pythons:
        problem = _why_not_registered(surroundings, python)
        if problem is None:
            return python.executable
        looked_at.append(f"registry: {python.launcher_tag} ({python.executable}): {problem}")
    return None


def _why_not_registered(surroundings: Surroundings, python: RegisteredPython) -> str | None:
    try:
        # The registry keeps entries of Pythons that were removed by hand, and of emulated ones.
        problem = surroundings.why_not_machine(interpreter_machine(python.executable))
    except OSError:
        return "the file does not exist any more"
    if problem is not None:
        return problem
    if python.version < OLDEST_HOST_PYTHON:
        return "the host needs Python 3.11 or newer"
    missing = [name for name in HOST_PACKAGES if not _has_package(Path(python.prefix), name)]
    if missing:
        # The newest comes first: the fix of the error names it, for `py -V:TAG -m pip install`.
        surroundings.install_tag = surroundings.install_tag or python.launcher_tag
        return f"does not have {' and '.join(missing)}"
    return None


def _has_package(prefix: Path, name: str) -> bool:
    """The user's own site-packages do not count: the host is isolated and does not see them."""
    packages = prefix / "Lib" / "site-packages"
    if (packages / name).is_dir():
        return True
    # An editable install has only a file that names folders elsewhere.
    return any(packages.glob(f"{HOST_PACKAGES[name]}-*.dist-info"))


def running_host(surroundings: Surroundings, looked_at: list[str]) -> str | None:
    """The running interpreter, if it has the packages and is of the right machine type; else why not."""
    problem = _why_not_running(surroundings)
    if problem is None:
        return surroundings.executable
    looked_at.append(f"running interpreter ({surroundings.executable or 'unknown'}): {problem}")
    return None


def _why_not_running(surroundings: Surroundings) -> str | None:
    if surroundings.frozen:
        return "this application is frozen, it has no Python that could run the host"
    if not surroundings.executable:
        return "this program is not a Python interpreter that could be started again"
    problem = surroundings.why_not_machine(surroundings.process)
    if problem is not None:
        return problem
    # The application may run on 3.10, but onnxruntime-qnn has no wheel for it.
    if surroundings.version < OLDEST_HOST_PYTHON:
        return "the host needs Python 3.11 or newer, this is {}.{}".format(*surroundings.version)
    for name in HOST_PACKAGES:
        origin = surroundings.origin(name)
        if origin is None:
            return f"does not have {name}"
        hidden = next((folder for folder in surroundings.not_isolated if _is_from(origin, folder)), None)
        if hidden is not None:
            return (
                f"has {name} in {hidden}, which the host does not see: it is started isolated, without PYTHONPATH "
                "and without packages installed by --user"
            )
    return None


def _not_isolated() -> tuple[str, ...]:
    if sys.flags.isolated:
        return ()
    # The host is started with -I: it would not find what this process finds only there.
    folders = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # A folder that the interpreter itself puts on the path, by a .pth file for example, is seen all the same.
    own = {os.path.normcase(folder) for folder in _own_folders()}
    return tuple(folder for folder in folders if folder and os.path.normcase(folder) not in own)


def _own_folders() -> list[str]:
    """What the path files in the interpreter's own site-packages put on the path."""
    folders: list[str] = []
    for packages in site.getsitepackages():
        for file in Path(packages).glob("*.pth"):
            try:
                folders += [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            except (OSError, UnicodeDecodeError):
                continue
    return folders


def _is_from(origin: str, folder: str) -> bool:
    """Whether a package was found by this entry of the path. One below it proves nothing: a project often has its
    environment inside of its own folder."""
    found = os.path.dirname(os.path.dirname(os.path.abspath(origin)))
    return os.path.normcase(found) == os.path.normcase(os.path.abspath(folder))
