"""The start of a host: its interpreter, its command line and environment, and the collection of its stderr.

Theory of operation. What comes in is a setting (the argument, the environment variable, the configuration file) or
none; what goes out is a command line and an environment for `HostProcess`. A setting is used or refused with the
reason. It is never passed over: a host of another interpreter than the one that was named would have other
packages, and so other results. Only without a setting installed interpreters are searched, by files and specs: a
Python of another machine type cannot be imported, and starting each candidate would take seconds.

The host inherits the application's environment without what would change its Python (PYTHON*, a virtual
environment, the libraries of a frozen application). It starts isolated (``-I``), so neither the current folder nor
user packages can replace its modules.

From its first byte the host's stderr is read by one thread, because a full pipe would stop the host. The collector
keeps a bounded part: the beginning, the end, and the text of open requests between their marker lines.
`_diagnosis` reads it after a failure. Invariant: reading never blocks a call, and no amount of output costs more
than its bounds.

`HostNotFound` is the one error of the search. `_host`, `_supervision` and the tools call it. It imports the
protocol and `qnnbridge_os`.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge._launch.installed import Surroundings, interpreter_machine, registered_host, running_host
from qnnbridge_protocol.errors import BridgeError, HostNotFound
from qnnbridge_protocol.process_names import is_frozen, name_of

# --- the command line of a host and its environment ---

HOST_MODULE = "qnnbridge_host"

# Isolated (no PYTHON* variables, no user packages, no current folder on the path), unbuffered, UTF-8 everywhere,
# and a Python stack on stderr when native code crashes.
INTERPRETER_FLAGS = ("-I", "-u", "-X", "utf8", "-X", "faulthandler")

DROPPED_PREFIXES = ("PYTHON", "CONDA_", "_CE_", "PIP_", "_PYI_", "_MEIPASS")
# What describes the application's interpreter and poisons another one. A preloaded library was chosen for the
# application, and built for its machine; LD_LIBRARY_PATH stays, because vendors' NPU libraries are found by it.
DROPPED = frozenset({"VIRTUAL_ENV", "VIRTUAL_ENV_PROMPT", "__PYVENV_LAUNCHER__", "LD_PRELOAD", "LD_AUDIT"})

_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LIBPATH")

# Overridden by `Host(env=...)`, but not by the application's environment, where they are set for the
# application.
HOST_DEFAULTS = {
    # Else numpy's library starts a thread per core, and start-up under load takes twice as long.
    "OPENBLAS_NUM_THREADS": "1",
    "ORT_DISABLE_TELEMETRY": "1",
}


def host_command(python: str, *arguments: str) -> list[str]:
    """The command line of a host that ends with this process.

    An argument says how its workers are started: `sys.executable` of an emulated interpreter, or of one behind a
    wrapper, is not always what can be started again.
    """
    start = [python, *INTERPRETER_FLAGS, "-m", HOST_MODULE]
    # A number alone may be used again by another process: `name_of` adds what tells them apart, and the host
    # watches that very process.
    return [*start, "--parent", name_of(os.getpid()), "--worker", json.dumps(start), *arguments]


def host_environment(
    extra: Mapping[str, str] | None = None, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment `base`, by default this process', without what harms the host; `extra` has the last word."""
    whole = without_bundle(os.environ if base is None else base)
    kept = {name: value for name, value in whole.items() if not _dropped(name)}
    return {**kept, **HOST_DEFAULTS, **(extra or {})}


def without_bundle(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what the loader of a frozen application has put there for itself alone.

    PyInstaller's has its libraries found first, and keeps what the user had set under another name. Another Python
    would take the application's libraries for its own.
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
    # DROPPED_PREFIXES covers PYTHONHOME, PYTHONPATH and the like, which point into the application's Python.
    upper = name.upper()  # Windows does not care
    return upper in DROPPED or upper.startswith(DROPPED_PREFIXES)


# --- settings, and the interpreter that they name; without any the search goes on (`installed`) ---

CONFIG_VARIABLE = "QNNBRIDGE_CONFIG"


def configuration_file(environ: Mapping[str, str] | None = None) -> Path:
    """Where it is, or would be: QNNBRIDGE_CONFIG, else ``config.toml`` in the user's configuration folder."""
    # An empty variable counts as none.
    named = (os.environ if environ is None else environ).get(CONFIG_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    # Imported here: only needed when a host is started.
    import platformdirs

    return Path(platformdirs.user_config_dir("qnnbridge", appauthor=False)) / "config.toml"


def configured_host(file: Path, *, must_exist: bool = False) -> str | None:
    """What the file names as the host's interpreter; a relative path is relative to the file's folder.

    ``None`` if there is no file or it names none. Raises `HostNotFound` for a file that cannot be understood, or
    that `must_exist` and does not.
    """
    python = _text_in_host(file, "python", must_exist)
    return None if python is None else _from_folder_of(file, python)


def engine_setting(given: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that say where the host takes QNN from, by the configuration file.

    Empty if those that are `given` to the host or the environment say it. Raises `OptionError` for a setting that
    does not exist, `HostNotFound` for a file that cannot be understood.
    """
    # Not before a host is started.
    from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE, engine_of, engine_variables

    # The variables beat the file as a pair: an engine of one and a path of the other would not belong
    # together.
    env = {**(os.environ if environ is None else environ), **given}
    if env.get(ENGINE_VARIABLE) or env.get(EP_PATH_VARIABLE):
        engine_of(env)
        return {}
    file = configuration_file(env)
    engine, path = _text_in_host(file, "engine"), _text_in_host(file, "ep_path")
    return engine_variables(engine, path if path is None else _from_folder_of(file, path, always=True))


def engine_not_taken(learn: Callable[[], Mapping[str, Any]]) -> str:
    """As text: the variables of this application ask for another QNN than its daemon has. Empty if not.

    learn: gives `HostInfo.qnn_source` of the daemon; called if there are such variables.
    """
    from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE, engine_of

    asked = [f"{name}={os.environ[name]}" for name in (ENGINE_VARIABLE, EP_PATH_VARIABLE) if os.environ.get(name)]
    if not asked:
        return ""
    try:
        engine, path = engine_of(os.environ)
        # Only asked where the variables are set: it is a request to the daemon.
        has = learn()
    except BridgeError:
        return ""
    taken = engine == "auto" or has.get("engine") in (None, engine)
    if path is not None and has:
        taken = str(has.get("library", "")).startswith(os.path.abspath(os.path.expanduser(path)))
    if taken:
        return ""
    return (
        f"{' '.join(asked)} has no effect: the daemon has {has.get('words') or has.get('engine')}. A daemon goes "
        "by the variables that it was started with. Restart it with these (qnnbridge host restart --daemon), or "
        "give the session a host of its own: host=qnnbridge.Host()."
    )


def _from_folder_of(file: Path, text: str, *, always: bool = False) -> str:
    path = os.path.expanduser(text)
    # A bare name ("python3") is a program to look for on PATH, not a file beside the configuration.
    return os.path.join(file.parent, path) if always or os.path.dirname(path) else path


def _text_in_host(file: Path, name: str, must_exist: bool = False) -> str | None:
    """An entry of the table [host]."""
    settings = _read(file, must_exist)
    host = settings.get("host", {})
    if not isinstance(host, dict):
        raise _refused_file(
            file, "its entry 'host' is not a table", 'Write [host] on one line and python = "..." below.'
        )
    text = host.get(name)
    if text is None or isinstance(text, str):
        return text
    raise _refused_file(file, f"its entry {name!r} in [host] is not a text", f'Write {name} = "...".')


def _read(file: Path, must_exist: bool) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            # Imports that tools which freeze applications see.
            if sys.version_info >= (3, 11):
                import tomllib as toml
            else:
                toml = importlib.import_module("tomli")
            # Some of Windows' editors begin a text with a byte order mark, which TOML does not know.
            return dict(toml.loads(stream.read().decode("utf-8-sig")))
    except FileNotFoundError:
        if must_exist:
            raise _refused_file(file, "it does not exist", f"Create it, or unset {CONFIG_VARIABLE}.") from None
        return {}
    except OSError as error:
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
    """machine: what the interpreter was built for ("ARM64", "x86_64" ...), ``None`` if `path` is a script."""

    path: str
    source: Source
    machine: str | None


def find_host(explicit: str | os.PathLike[str] | None = None) -> HostInterpreter:
    """The interpreter to run the host with.

    `explicit`, else the environment variable QNNBRIDGE_HOST_PYTHON, else ``[host] python`` in the configuration
    file, else (Windows on ARM) the newest ARM64 Python in the registry that has the host's packages, else the
    running interpreter if it has them. Raises `HostNotFound`, which says what to set or to install.
    """
    return find_host_in(Surroundings.current(), explicit)


def find_host_in(surroundings: Surroundings, explicit: str | os.PathLike[str] | None = None) -> HostInterpreter:
    """`find_host` with everything that it looks at handed in."""
    if explicit is not None:
        return _checked(os.fspath(explicit), "argument", "", surroundings)
    # An empty variable is how many shells and CI systems say "not set".
    named = surroundings.environ.get(VARIABLE)
    if named:
        return _checked(named, VARIABLE, f"The environment variable {VARIABLE}", surroundings)
    file = configuration_file(surroundings.environ)
    configured = configured_host(file, must_exist=bool(surroundings.environ.get("QNNBRIDGE_CONFIG")))
    if configured is not None:
        return _checked(configured, "configuration file", f"The configuration file {file}", surroundings)

    looked_at = [
        f"environment variable {VARIABLE}: not set",
        f"configuration file {file}: {'has no [host] python' if file.exists() else 'does not exist'}",
    ]
    # Before the running interpreter: an emulated x64 Python with all packages would compute in QNN's
    # simulator.
    if surroundings.is_windows_on_arm:
        found = registered_host(surroundings, looked_at)
        if found is not None:
            # Of several the newest that has the packages (`registered_host`).
            return HostInterpreter(found, "registry", interpreter_machine(found))
    running = running_host(surroundings, looked_at)
    if running is not None:
        return HostInterpreter(running, "running interpreter", surroundings.process)
    raise HostNotFound(
        "No Python interpreter was found that could run the host.",
        cause="Nothing is configured, and no Python that was looked at has the packages of the host.",
        fix=_how_to_install(surroundings)
        if surroundings.frozen
        else f"Run: qnnbridge setup-host   (it makes an environment for the host). By hand: "
        f"{_how_to_install(surroundings)}",
        evidence=looked_at,
    )


def _how_to_install(surroundings: Surroundings) -> str:
    if surroundings.frozen:
        machine = "an ARM64 Python" if surroundings.is_windows_on_arm else "a Python"
        return (
            f"The application has to be shipped with a host: {machine} 3.11 or newer with the "
            f"packages of qnnbridge[host], named by Host(python=...), {VARIABLE} or [host] python in the "
            "configuration file. See docs/shipping.md of qnnbridge."
        )
    if surroundings.is_windows_on_arm:
        tag = surroundings.install_tag or "3.13-arm64"
        python = (
            ""
            if surroundings.install_tag
            else 'Install Python 3.13 with the "Windows installer (ARM64)" from https://www.python.org/downloads/'
            "windows/ . Then run: "
        )
        return (
            f'{python}py -V:{tag} -m pip install "qnnbridge[host]"   (as that Python\'s own package, not with '
            f"--user). It is then found by itself; to choose it by hand, set {VARIABLE} to its python.exe."
        )
    return (
        f'pip install "qnnbridge[host]" with Python 3.11 or newer, in this interpreter or in another one, '
        f"and name that one in {VARIABLE}."
    )


# --- what was set explicitly -----------------------------------------------------------------------------


def _checked(text: str, source: Source, place: str, surroundings: Surroundings) -> HostInterpreter:
    path = _full_path(text)
    what = f"{place} names {text!r}" if place else f"{text!r} was given"

    def refuse(problem: str, fix: str | None = None) -> HostNotFound:
        return HostNotFound(
            f"{what} as the host's interpreter, but {problem}.",
            fix=fix or "Name the full path of a Python interpreter that has qnnbridge[host] installed.",
            details={"path": path or text, "source": source},
        )

    if path is None:
        raise refuse("there is no program of that name on the PATH" if text else "that is empty")
    if _is_store_alias(path):
        raise refuse(
            "that is an alias of the Microsoft Store, not an interpreter",
            "Install Python from https://www.python.org/downloads/windows/ and name its python.exe.",
        )
    if os.path.isdir(path):
        raise refuse("that is a folder")
    if not os.path.exists(path):
        raise refuse("that file does not exist")
    try:
        machine = interpreter_machine(path)
    except OSError as error:
        raise refuse(f"that file cannot be read ({error.strerror})") from error
    # Read from the file's header, before anything is started: an interpreter of the wrong machine would fail
    # much later, or compute without the NPU.
    problem = surroundings.why_not_machine(machine)
    if problem is not None:
        raise refuse(problem, _how_to_install(surroundings) if surroundings.is_windows else None)
    if not os.access(path, os.X_OK):
        raise refuse("that file is not executable")
    return HostInterpreter(path, source, machine)


def _full_path(text: str) -> str | None:
    """A bare name is looked up as a shell would. Links are kept: a virtual environment's interpreter is one."""
    if not text:
        return None
    if os.path.dirname(text):
        return os.path.abspath(os.path.expanduser(text))
    # `which` looks at PATH and, on Windows, at PATHEXT.
    found = shutil.which(text)
    if found is None and os.path.exists(text):
        found = text
    return found and os.path.abspath(found)


def _is_store_alias(path: str) -> bool:
    """Windows puts files of no length on the PATH that start a program of the Store, or the Store itself."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    if getattr(status, "st_reparse_tag", 0) == _APP_ALIAS_TAG:
        return True
    return status.st_size == 0 and "windowsapps" in (part.lower() for part in Path(path).parts)
