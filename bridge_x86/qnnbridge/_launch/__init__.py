"""The start of a host: its interpreter, its command line and environment, and the collection of its stderr.

Overview. The host's interpreter comes from a setting (argument, environment variable or configuration file); the
result is a command line and an environment for `HostProcess`. A setting that cannot be used raises an error with
the reason. A setting is never ignored, because a host with another interpreter would have other packages and so
other results. If there is no setting, installed interpreters are searched. The search reads files and import specs,
because packages for another machine type cannot be imported, and starting each interpreter would take seconds.

The host inherits the application's environment without the parts that would change its Python (PYTHON*, a virtual
environment, the libraries of a frozen application). Python runs isolated (``-I``), so neither the current folder
nor user packages can replace its modules.

One thread reads the host's stderr from its first byte on, because a full pipe would stop the host. The collector
keeps a limited part of the output: the beginning, the end, and the output of open requests between their marker
lines. `_diagnosis` reads it after a failure. Invariants: reading never blocks a call, and the memory is limited for
any amount of output.

`HostNotFound` is the only error of the search. `_host`, `_supervision` and the tools use this package, which
imports the protocol and `qnnbridge_os`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import json
import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge_os.processes import native_machine
from qnnbridge_os.programs import (
    RegisteredPython,
    executable_machine,
    registered_pythons,
)
from qnnbridge_protocol.errors import BridgeError, HostNotFound
from qnnbridge_protocol.process_names import is_frozen, name_of

# --- the command line of a host and its environment ---

HOST_MODULE = "qnnbridge_host"

# The host runs isolated (no PYTHON* variables, no user packages, no current folder on the path), with unbuffered
# output, UTF-8 everywhere, and a Python stack on stderr when native code crashes.
INTERPRETER_FLAGS = ("-I", "-u", "-X", "utf8", "-X", "faulthandler")

DROPPED_PREFIXES = ("PYTHON", "CONDA_", "_CE_", "PIP_", "_PYI_", "_MEIPASS")
# Variables that describe the application's interpreter and would break another interpreter. Preloaded libraries are
# meant for the application and built for its machine type. LD_LIBRARY_PATH is kept, because it is needed to find
# vendors' NPU libraries.
DROPPED = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__", "LD_PRELOAD", "LD_AUDIT"})

_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LIBPATH")

# Variables for every host. `Host(env=...)` overrides them, but the application's environment does not, because its
# values are meant for the application.
HOST_DEFAULTS = {
    # By default numpy's BLAS library starts a thread per core, which doubles the start time under load.
    "OPENBLAS_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}


def host_command(python: str, *arguments: str) -> list[str]:
    """Return the command line of a host that ends with this process.

    The option ``--worker`` contains the command with which the host starts its workers, because `sys.executable` of
    an interpreter in an emulator or a wrapper cannot always be started.
    """
    start = [python, *INTERPRETER_FLAGS, "-m", HOST_MODULE]
    # `name_of` adds the name of this system to the process id, so that a host on another system (a container) does
    # not watch an unrelated process with the same id.
    return [*start, "--parent", name_of(os.getpid()), "--worker", json.dumps(start), *arguments]


def host_environment(
    extra: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment `base` (default: this process's environment) without variables that are meant for the
    application's own Python. `extra` takes precedence."""
    whole = without_bundle(os.environ if base is None else base)
    kept = {name: value for name, value in whole.items() if not _dropped(name)}
    return {**kept, **HOST_DEFAULTS, **(extra or {})}


def without_bundle(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that the loader of a frozen application has set only for the
    application.

    PyInstaller's loader puts the application's folder first in library paths, and stores the user's value under
    another name. With these paths another Python would load the application's libraries.
    """
    kept = dict(environ)
    if is_frozen():
        bundle = getattr(sys, "_MEIPASS", None)
        for name in _LIBRARY_PATHS:
            now = kept.pop(name, "")
            entries = kept.pop(f"{name}_ORIG", now).split(os.pathsep)
            left = [entry for entry in entries if entry and entry != bundle]
            if left:
                kept[name] = os.pathsep.join(left)
    return kept


def _dropped(name: str) -> bool:
    # The prefix PYTHON includes PYTHONHOME and PYTHONPATH, which would make the host use the application's Python.
    upper = name.upper()  # names are case-insensitive on Windows
    return upper in DROPPED or upper.startswith(DROPPED_PREFIXES)


# --- settings, and the interpreter that they select; without a setting, installed interpreters are searched ---

CONFIG_VARIABLE = "QNNBRIDGE_CONFIG"


def configuration_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the configuration file, which need not exist.

    The path is QNNBRIDGE_CONFIG, or else ``config.toml`` in the user's configuration folder.
    """
    # An empty variable counts as unset.
    named = (os.environ if environ is None else environ).get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    # imported here because it is needed only when a host is started
    import platformdirs

    try:
        return Path(platformdirs.user_config_dir("qnnbridge", appauthor=False)) / "config.toml"
    except RuntimeError:
        # The home folder is unknown, so there is no configuration file: return a path that cannot exist.
        return Path(os.devnull, "qnnbridge", "config.toml")


def configured_host(file: Path, *, must_exist: bool = False) -> str | None:
    """Return the host's interpreter from the configuration file. A relative path is relative to the file's folder.

    Returns:
        ``None`` if there is no file, or the file has no such entry.

    Raises:
        HostNotFound: the file cannot be parsed, or it does not exist although `must_exist` is true.
    """
    python = _text_in_host(file, "python", must_exist)
    return None if python is None else _from_folder_of(file, python)


def engine_setting(given: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that select the host's QNN, from the configuration file.

    Returns:
        An empty dict if the environment or the variables `given` to the host already select it.

    Raises:
        OptionError: a setting has an invalid value.
        HostNotFound: the file cannot be parsed.
    """
    # imported here because it is needed only when a host is started
    from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE, engine_of, engine_variables

    # If a variable is set, ignore both settings of the configuration file: an engine from one source and a path
    # from the other would not match.
    env = {**(os.environ if environ is None else environ), **given}
    if env.get(ENGINE_VARIABLE) or env.get(EP_PATH_VARIABLE):
        engine_of(env)
        return {}
    file = configuration_file(env)
    engine, path = _text_in_host(file, "engine"), _text_in_host(file, "ep_path")
    return engine_variables(engine, path if path is None else _from_folder_of(file, path, always=True))


def engine_not_taken(get_source: Callable[[], Mapping[str, Any]]) -> str:
    """Return a warning if environment variables select a QNN that the daemon does not use; '' otherwise.

    Args:
        get_source: function that returns the daemon's `HostInfo.qnn_source`; called only if such variables are set.
    """
    from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE, engine_of

    asked = [f"{name}={os.environ[name]}" for name in (ENGINE_VARIABLE, EP_PATH_VARIABLE) if os.environ.get(name)]
    if not asked:
        return ""
    try:
        engine, path = engine_of(os.environ)
        has = get_source()
    except BridgeError:
        return ""
    taken = engine == "auto" or has.get("engine") in (None, engine)
    if path is not None and has:
        taken = str(has.get("library", "")).startswith(os.path.abspath(os.path.expanduser(path)))
    if taken:
        return ""
    return (
        f"{' '.join(asked)} has no effect: the daemon uses {has.get('words') or has.get('engine')}, because a "
        "daemon reads these variables only when it starts. Restart the daemon with the new variables (qnnbridge "
        "host restart --daemon), or give the session a separate host: host=qnnbridge.Host()."
    )


def _from_folder_of(file: Path, text: str, *, always: bool = False) -> str:
    path = os.path.expanduser(text)
    # A name without a folder ("python3") is a program on PATH, not a file next to the configuration file.
    return os.path.join(file.parent, path) if always or os.path.dirname(path) else path


def _text_in_host(file: Path, name: str, must_exist: bool = False) -> str | None:
    """Return an entry of the table [host], which must be a string; ``None`` if the entry is missing."""
    settings = _read(file, must_exist)
    host = settings.get("host", {})
    if not isinstance(host, dict):
        raise _refused_file(
            file, "its entry 'host' is not a table", 'Write [host] on one line and python = "..." on the next line.'
        )
    text = host.get(name)
    if text is None or isinstance(text, str):
        return text
    raise _refused_file(file, f"its entry {name!r} in [host] is not a string", f'Write {name} = "...".')


def _read(file: Path, must_exist: bool) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            # Use import statements, so that PyInstaller and similar tools find the modules.
            if sys.version_info >= (3, 11):
                import tomllib as toml
            else:
                toml = importlib.import_module("tomli")
            # Some editors on Windows write a byte order mark at the start of a file, which TOML does not allow.
            return dict(toml.loads(stream.read().decode("utf-8-sig")))
    except FileNotFoundError:
        if must_exist:
            raise _refused_file(file, "it does not exist", f"Create it, or unset {CONFIG_VARIABLE}.") from None
        return {}
    except OSError as error:
        # Ignore the error if no configuration file exists: in services and containers the home folder may be a file
        # or belong to another user. Report an existing file that cannot be read.
        if not must_exist and not os.path.lexists(file):
            return {}
        raise _refused_file(file, f"it cannot be read ({error.strerror})", None) from error
    except ValueError as error:  # toml.TOMLDecodeError, UnicodeDecodeError
        raise _refused_file(
            file,
            f"it is not valid TOML ({error})",
            "In TOML a backslash in double quotes starts an escape: write 'C:\\...' in single quotes, or use /.",
        ) from error


def _refused_file(file: Path, problem: str, fix: str | None) -> HostNotFound:
    return HostNotFound(
        f"The configuration file {file} cannot be used: {problem}.", fix=fix, details={"path": str(file)}
    )


VARIABLE: Final = "QNNBRIDGE_HOST_PYTHON"

Source = Literal["argument", "QNNBRIDGE_HOST_PYTHON", "configuration file", "registry", "running interpreter"]

_APP_ALIAS_TAG = 0x8000001B  # IO_REPARSE_TAG_APPEXECLINK


@dataclasses.dataclass(frozen=True, slots=True)
class HostInterpreter:
    """The interpreter of a host. machine: machine type ("ARM64", "x86_64" ...); ``None`` if `path` is a script."""

    path: str
    source: Source
    machine: str | None


def find_host(explicit: str | os.PathLike[str] | None = None) -> HostInterpreter:
    """Return the interpreter for the host.

    The following are tried in this order: `explicit`; the environment variable QNNBRIDGE_HOST_PYTHON; ``[host]
    python`` in the configuration file; on Windows on ARM the newest ARM64 Python in the registry that has the
    host's packages; the running interpreter if it has them.

    Raises:
        HostNotFound: no interpreter was found. The error lists what to set or to install.
    """
    return find_host_in(Surroundings.current(), explicit)


def find_host_in(surroundings: Surroundings, explicit: str | os.PathLike[str] | None = None) -> HostInterpreter:
    """Find the interpreter like `find_host`, with the facts about the computer in `surroundings`."""
    if explicit is not None:
        return _checked(os.fspath(explicit), "argument", "", surroundings)
    # Ignore an empty variable, which many shells and CI systems use to mean "not set".
    named = surroundings.environ.get(VARIABLE)
    if named:
        return _checked(named, VARIABLE, f"The environment variable {VARIABLE}", surroundings)
    file = configuration_file(surroundings.environ)
    configured = configured_host(file, must_exist=bool(surroundings.environ.get("QNNBRIDGE_CONFIG")))
    if configured is not None:
        return _checked(configured, "configuration file", f"The configuration file {file}", surroundings)

    looked_at = [
        f"environment variable {VARIABLE}: not set",
        f"configuration file {file}: {'has no [host] python' if os.path.lexists(file) else 'does not exist'}",
    ]
    # Search the registry for an ARM64 Python first: the running interpreter may be an emulated x64 Python with all
    # packages, which would compute in QNN's simulator.
    if surroundings.is_windows_on_arm:
        found = registered_host(surroundings, looked_at)
        if found is not None:
            return HostInterpreter(found, "registry", interpreter_machine(found))
    running = running_host(surroundings, looked_at)
    if running is not None:
        return HostInterpreter(running, "running interpreter", surroundings.process)
    raise HostNotFound(
        "No Python interpreter was found that could run the host.",
        cause="Nothing is configured, and no Python that was checked has the packages of the host.",
        fix=_how_to_install(surroundings)
        if surroundings.frozen
        else f"Run: qnnbridge setup   (it creates an environment for the host). By hand: "
        f"{_how_to_install(surroundings)}",
        evidence=looked_at,
    )


def _how_to_install(surroundings: Surroundings) -> str:
    if surroundings.frozen:
        machine = "an ARM64 Python" if surroundings.is_windows_on_arm else "a Python"
        return (
            f"The application has to be shipped with a host: {machine} 3.11 or newer with the "
            f"packages of the extra [host], given by Host(python=...), {VARIABLE} or [host] python in the "
            "configuration file. See docs/howto/pyinstaller.md of qnnbridge."
        )
    # imported here because it is needed only for this error
    from qnnbridge_protocol.installing import install_command

    if surroundings.is_windows_on_arm:
        tag = surroundings.install_tag or "3.13-arm64"
        python = (
            ""
            if surroundings.install_tag
            else 'Install Python 3.13 with the "Windows installer (ARM64)" from https://www.python.org/downloads/'
            "windows/ . Then run: "
        )
        return (
            f"{python}{install_command('host', python=f'py -V:{tag}')}   (without --user, because the host ignores "
            "user packages). That Python is then found automatically; to choose it by hand, set "
            f"{VARIABLE} to its python.exe."
        )
    return (
        f"{install_command('host')} with Python 3.11 or newer, in this interpreter or in another one, "
        f"and set {VARIABLE} to that interpreter."
    )


# --- explicit settings -----------------------------------------------------------------------------------


def _checked(text: str, source: Source, place: str, surroundings: Surroundings) -> HostInterpreter:
    path = _full_path(text)
    what = f"{place} names {text!r}" if place else f"{text!r} was given"

    def refuse(problem: str, fix: str | None = None) -> HostNotFound:
        makes = "Give the full path of a Python that has the packages of a host. `qnnbridge setup` creates one."
        return HostNotFound(
            f"{what} as the host's interpreter, but {problem}.",
            # Do not suggest the command `qnnbridge`, which a frozen application does not contain.
            fix=_how_to_install(surroundings) if surroundings.frozen else fix or makes,
            details={"path": path or text, "source": source},
        )

    if path is None:
        raise refuse("the PATH contains no program of that name" if text else "that is empty")
    if _is_store_alias(path):
        raise refuse(
            "that is an alias of the Microsoft Store, not an interpreter",
            "Install Python from https://www.python.org/downloads/windows/ and give the path of its python.exe.",
        )
    if os.path.isdir(path):
        raise refuse("that is a folder")
    if not os.path.exists(path):
        raise refuse("that file does not exist")
    try:
        machine = interpreter_machine(path)
    except OSError as error:
        raise refuse(f"that file cannot be read ({error.strerror})") from error
    # Check the machine type in the file's header before starting the interpreter: a wrong interpreter would fail
    # much later, or compute without the NPU.
    problem = surroundings.why_not_machine(machine)
    if problem is not None:
        raise refuse(problem, _how_to_install(surroundings) if surroundings.is_windows else None)
    if not os.access(path, os.X_OK):
        raise refuse("that file is not executable")
    return HostInterpreter(path, source, machine)


def _full_path(text: str) -> str | None:
    """Return the absolute path. Search PATH for a name without a folder. Do not resolve links, because the
    interpreter of a virtual environment is a link."""
    if not text:
        return None
    if os.path.dirname(text):
        return os.path.abspath(os.path.expanduser(text))
    # `which` searches PATH and also uses PATHEXT on Windows.
    found = shutil.which(text)
    if found is None and os.path.exists(text):
        found = text
    return found and os.path.abspath(found)


def _is_store_alias(path: str) -> bool:
    """Return whether a file is an alias of the Microsoft Store. Such a file is on the PATH, has the size 0, and
    starts a program from the Store or the Store itself."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if getattr(status, "st_reparse_tag", 0) == _APP_ALIAS_TAG:
        return True
    return status.st_size == 0 and "windowsapps" in (part.lower() for part in Path(path).parts)


# --- machine types, and the installed Pythons that have the host's packages ---------------------------------- On
# Windows on ARM, which emulates x64 and x86 programs, neither `platform.machine()` nor the environment variables
# are reliable: their values depend on the version of Python. Values of machine types here: "ARM64", "x64", "x86",
# "ARM64EC" on Windows; "aarch64", "x86_64" ... on Linux.

_WINDOWS_PLATFORMS = {"win32": "x86", "win-amd64": "x64", "win-arm64": "ARM64"}


def process_machine() -> str:
    """Return the machine type for which this interpreter was built."""
    # `get_platform` returns the platform of the build, for example "win-amd64", which emulation does not change.
    name = sysconfig.get_platform()
    if name in _WINDOWS_PLATFORMS:
        return _WINDOWS_PLATFORMS[name]
    # On Linux, read the program's header: `get_platform` reports the kernel's type, which may be 64-bit for a
    # 32-bit interpreter.
    try:
        machine = executable_machine("/proc/self/exe")
    except OSError:
        machine = None
    return machine or name.rpartition("-")[2]


def interpreter_machine(path: str) -> str | None:
    """Return the machine type of the interpreter that `path` starts; ``None`` for a script.

    python.exe of a virtual environment on Windows is a small program that starts the real interpreter, and may have
    been built for another machine.
    """
    base = base_interpreter(path)
    return executable_machine(base if base is not None else path)


def base_interpreter(path: str) -> str | None:
    """Return the base interpreter of a Windows virtual environment's python.exe; ``None`` for other files."""
    return next((base for base in named_bases(path, _text_of) if os.path.isfile(base)), None)


def named_bases(path: str, text_of: Callable[[str], str | None], paths: Any = os.path) -> Iterator[str]:
    """Yield the interpreters that a virtual environment's python.exe may start according to its pyvenv.cfg, best
    first.

    The paths need not exist.

    Args:
        text_of: function that reads a text file. `qnnbridge doctor` may read the files of another computer.
        paths: module for paths of the examined computer, like `os.path`.
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


# Oldest Python version for which onnxruntime-qnn has wheels.
OLDEST_HOST_PYTHON = (3, 11)

# Distribution names by module name.
HOST_PACKAGES = {"qnnbridge_host": "qnnbridge", "onnxruntime": "onnxruntime"}

WINDOWS_MACHINES = frozenset({"ARM64", "x64", "x86", "ARM64EC", "ARM"})


def _origin(package: str) -> str | None:
    """Return where a package would be imported from without the import hook (`qnnbridge.ort._import_hook`)."""
    # Skip the import hook, which would find the drop-in replacement of the package `onnxruntime`.
    stand_in = os.environ.get("QNNBRIDGE_DROPIN")
    path = [entry for entry in sys.path if entry != stand_in]
    for finder in sys.meta_path:
        if getattr(finder, "is_stand_in", False):
            continue
        try:
            # Finding a spec runs no code of the package; importing onnxruntime would load its library into the
            # application.
            spec = finder.find_spec(package, path if finder is importlib.machinery.PathFinder else None)
        except (ImportError, ValueError):  # an import finder of another package failed
            return None
        if spec is not None:
            return spec.origin if spec.has_location else None
    return None


@dataclasses.dataclass
class Surroundings:
    """Facts about the computer that the search needs. Tests replace this object to simulate other machines.

    Attributes:
        process, computer: machine types of this process and of the computer.
        executable: the running interpreter; '' in a program that is not a Python interpreter.
        not_isolated: folders on this process's path that an interpreter started with ``-I`` would not search.
        origin: function that returns where a package would be imported from.
        install_tag: tag of a registered Python that lacks only the packages; set by the search.
        frozen: whether the application was packed together with its Python, for example by PyInstaller.
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
        """Return why an interpreter of this machine type cannot be the host here; ``None`` if it can.

        On Linux scripts and all ELF programs are accepted, because an emulator may be registered in the kernel.
        """
        if not self.is_windows:
            return "that is a Windows program" if machine in WINDOWS_MACHINES else None
        if machine is None or machine not in WINDOWS_MACHINES:
            return "that is not a Windows program"
        # An ARM64EC Python is refused like an x64 Python, because Windows runs it as an x64 process.
        if machine == self.computer:
            return None
        problem = f"that is a Python for {machine}, and the machine type of this computer is {self.computer}"
        if self.is_windows_on_arm and machine == "x64":
            problem += ": under emulation it uses QNN's simulator and never the NPU"
        return problem


def registered_host(surroundings: Surroundings, looked_at: list[str]) -> str | None:
    """Return the newest ARM64 Python in the registry that has the packages. For each rejected Python, append the
    reason to `looked_at`."""
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
        # Check each Python: the registry also contains deleted Pythons, and Pythons that need emulation.
        problem = surroundings.why_not_machine(interpreter_machine(python.executable))
    except OSError:
        return "the file no longer exists"
    if problem is not None:
        return problem
    if python.version < OLDEST_HOST_PYTHON:
        return "the host needs Python 3.11 or newer"
    missing = [name for name in HOST_PACKAGES if not _has_package(Path(python.prefix), name)]
    if missing:
        # The fix of the error suggests the newest Python that lacks only the packages (`py -V:TAG -m pip install`).
        surroundings.install_tag = surroundings.install_tag or python.launcher_tag
        return f"does not have {' and '.join(missing)}"
    return None


def _has_package(prefix: Path, name: str) -> bool:
    """Return whether a Python has a package. Ignore the user's site-packages, which the isolated host does not
    use."""
    packages = prefix / "Lib" / "site-packages"
    if (packages / name).is_dir():
        return True
    # Check the metadata, too: an editable installation has its package folder outside site-packages.
    return any(packages.glob(f"{HOST_PACKAGES[name]}-*.dist-info"))


def running_host(surroundings: Surroundings, looked_at: list[str]) -> str | None:
    """Return the running interpreter if it can be the host; otherwise append the reason to `looked_at`."""
    problem = _why_not_running(surroundings)
    if problem is None:
        return surroundings.executable
    looked_at.append(f"running interpreter ({surroundings.executable or 'unknown'}): {problem}")
    return None


def _why_not_running(surroundings: Surroundings) -> str | None:
    if surroundings.frozen:
        return "this application is frozen and has no Python that could run the host"
    if not surroundings.executable:
        return "this program is not a Python interpreter"
    problem = surroundings.why_not_machine(surroundings.process)
    if problem is not None:
        return problem
    # The application may use Python 3.10, for which onnxruntime-qnn has no wheels.
    if surroundings.version < OLDEST_HOST_PYTHON:
        return "the host needs Python 3.11 or newer, this is {}.{}".format(*surroundings.version)
    for name in HOST_PACKAGES:
        origin = surroundings.origin(name)
        if origin is None:
            return f"does not have {name}"
        hidden = next((folder for folder in surroundings.not_isolated if _is_from(origin, folder)), None)
        if hidden is not None:
            return (
                f"has {name} in {hidden}, which the host ignores: it is started isolated, without PYTHONPATH "
                "and without packages installed by --user"
            )
    return None


def _not_isolated() -> tuple[str, ...]:
    if sys.flags.isolated:
        return ()
    # The host runs with -I, so it does not find packages that exist only in these folders.
    folders = [] if sys.flags.ignore_environment else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    # The host does find packages in folders that the interpreter itself adds to the path (by a .pth file).
    own = {os.path.normcase(folder) for folder in _own_folders()}
    return tuple(folder for folder in folders if folder and os.path.normcase(folder) not in own)


def _own_folders() -> list[str]:
    """Return the folders that .pth files in the interpreter's site-packages add to the path."""
    folders: list[str] = []
    for packages in site.getsitepackages():
        for file in Path(packages).glob("*.pth"):
            try:
                folders += [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
            except (OSError, UnicodeDecodeError):
                continue
    return folders


def _is_from(origin: str, folder: str) -> bool:
    """Return whether a package was found directly in this folder of the path. A package in a subfolder does not
    count, because the folder may be a project that contains a virtual environment with the package."""
    found = os.path.dirname(os.path.dirname(os.path.abspath(origin)))
    return os.path.normcase(found) == os.path.normcase(os.path.abspath(folder))
