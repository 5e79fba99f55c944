"""Find and start a daemon. Its folder contains its lock and `daemon.json`, with which applications find the daemon.

The folder belongs to this user and is inaccessible to other users, because its contents are as secret as a
password. A folder that other users can access, that belongs to another user, or that is a link is refused, and
never corrected silently.

`daemon.json` is not trusted. No process is ended because of the process id in the file, and a stale file does no
harm: its endpoint cannot be opened, or the process at the endpoint does not have the token. The daemon that holds
the lock writes the file atomically. Stateless; thread-safe.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import secrets
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from qnnbridge._daemon import command
from qnnbridge_os import private
from qnnbridge_os.native import sleep
from qnnbridge_os.private import read_private_file, write_private_file
from qnnbridge_os.processes import Detached, native_machine, start_detached, wait_readable
from qnnbridge_os.programs import start_failed
from qnnbridge_protocol.auth import INSTANCE_BYTES, TOKEN_BYTES
from qnnbridge_protocol.errors import HostNotFound, HostStartFailed
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.process_names import is_frozen

VARIABLE: Final = "QNNBRIDGE_RUNTIME_DIR"
# Name of the lock file in the daemon's folder. The process that holds the lock is the daemon.
LOCK_NAME: Final = "daemon.lock"
_NOT_PRIVATE: Final = (
    "A user who can write to it could impersonate the daemon; a user who can read it could use the daemon."
)


def runtime_folder() -> Path:
    """Return the path of the daemon's folder, which need not exist: ``QNNBRIDGE_RUNTIME_DIR`` or the default."""
    named = os.environ.get(VARIABLE)
    return Path(os.path.abspath(os.path.expanduser(named))) if named else private.default_runtime_folder()


def make_runtime_folder() -> Path:
    """Create the daemon's folder if needed, and return its path. Raise `HostStartFailed` if the folder cannot be
    created or is not private."""
    folder = runtime_folder()
    try:
        private.make_private_folder(folder)
    except OSError as error:
        raise _refused(folder, f"it cannot be created ({error.strerror or error})") from error
    _check_folder(folder)
    return folder


def existing_runtime_folder() -> Path | None:
    """Return the path of the daemon's folder if it exists. Raise `HostStartFailed` if it is not private."""
    folder = runtime_folder()
    return folder if _check_folder(folder) else None


def _check_folder(path: Path) -> bool:
    # A link to a folder passes this check, because `is_dir` follows links; `check_private` then refuses the link.
    if path.exists() and not path.is_dir():
        raise _refused(path, "it is not a folder")
    return check_private(path)


def check_private(path: Path) -> bool:
    """Return whether `path` exists. Raise `HostStartFailed` if other users can access it."""
    try:
        problem = private.why_not_private(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _refused(path, f"it cannot be examined ({error.strerror or error})") from error
    if problem is not None:
        raise _refused(path, problem, private.how_to_make_private(path), _NOT_PRIVATE)
    return True


def _refused(path: Path, problem: str, fix: str | None = None, cause: str | None = None) -> HostStartFailed:
    elsewhere = f"{VARIABLE} to a folder that only you can access."
    error = HostStartFailed(
        f"{path} cannot be used for the daemon: {problem}.",
        cause=cause,
        fix=f"{fix}. Or set {elsewhere}" if fix else f"Set {elsewhere}",
        details={"path": str(path)},
    )
    # Do not try again: permissions do not change by themselves.
    error.retry = "pointless"
    return error


FILE_NAME: Final = "daemon.json"

_MAX_BYTES: Final = 64 * 1024
# Latest valid time, in the year 4147. `datetime` fails beyond the year 9999.
_LATEST_S: Final = 2**36
_LARGEST_PID: Final = 2**32
_REPLACE_TRIES: Final = 20
# Pause between attempts to replace the file: on Windows this fails while another process reads the file.
_REPLACE_INTERVAL_S: Final = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Discovery:
    """Contents of `daemon.json`.

    Attributes:
        endpoint: address of the socket or pipe at which the daemon listens.
        token: secret of the daemon; `repr` omits it.
        started: time of the start in seconds since 1970, only for display.
    """

    endpoint: str
    instance: bytes
    token: bytes = dataclasses.field(repr=False)
    pid: int = 0
    started: float = 0.0
    qnnbridge: str = ""
    log_file: str = ""

    def to_json(self) -> dict[str, Any]:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {**fields, "instance": self.instance.hex(), "token": self.token.hex()}

    @classmethod
    def from_json(cls, data: Any) -> Discovery:
        """Convert parsed JSON. Raise `ValueError` for data that `to_json` cannot have produced."""
        if type(data) is not dict:
            raise ValueError("not a map")
        fields: dict[str, Any] = {f.name: data.get(f.name) for f in dataclasses.fields(cls)}
        for name, kind in (("endpoint", str), ("qnnbridge", str), ("log_file", str), ("pid", int)):
            if type(fields[name]) is not kind:
                raise ValueError(f"{name} is not of type {kind.__name__}")
        if type(fields["started"]) not in (int, float) or not 0 <= fields["started"] < _LATEST_S:
            raise ValueError("started is not a time")
        if not 0 < fields["pid"] < _LARGEST_PID:
            raise ValueError("pid is not a process id")
        for name, size in (("instance", INSTANCE_BYTES), ("token", TOKEN_BYTES)):
            fields[name] = bytes.fromhex(str(fields[name]))
            if len(fields[name]) != size:
                raise ValueError(f"{name} has {len(fields[name])} bytes, not {size}")
        # Each field was checked for its exact type, because the file may be damaged or come from another release.
        return cls(**fields)


def read_discovery(folder: Path) -> Discovery | None:
    """Return the contents of the last daemon's file; ``None`` if there is no valid file.

    Raises:
        HostStartFailed: other users can access the file or the folder.
    """
    try:
        return look_at_discovery(folder)
    except OSError:
        return None


def look_at_discovery(folder: Path) -> Discovery | None:
    """Read the file like `read_discovery`, but raise `OSError` if the file exists and cannot be read now."""
    path = folder / FILE_NAME
    if not check_private(path):
        return None
    try:
        return Discovery.from_json(json.loads(read_private_file(path, _MAX_BYTES)))
    except (FileNotFoundError, ValueError, RecursionError):
        return None  # the file is being replaced or is damaged; the next daemon writes a new one


def write_discovery(folder: Path, discovery: Discovery) -> None:
    """Write `daemon.json`. Only the daemon calls this function. Raise `OSError` on failure."""
    # Create the temporary file in the same folder, because a rename works only within one file system.
    temporary = folder / f".{FILE_NAME}.{secrets.token_hex(8)}"
    try:
        write_private_file(temporary, json.dumps(discovery.to_json(), indent=1).encode())
        for tries_left in reversed(range(_REPLACE_TRIES)):
            try:
                os.replace(temporary, folder / FILE_NAME)
                return
            except PermissionError:
                if not tries_left:
                    raise
                sleep(_REPLACE_INTERVAL_S)
    except BaseException as error:
        temporary.unlink(missing_ok=True)  # the file exists even if writing failed, for example on a full disk
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(folder / FILE_NAME)
        raise


def remove_discovery(folder: Path, instance: bytes) -> None:
    """Remove `daemon.json` when a daemon ends, but not if another daemon has written the file."""
    found = read_discovery(folder)
    if found is not None and found.instance == instance:
        (folder / FILE_NAME).unlink(missing_ok=True)


# --- start ----------------------------------------------------------------------------------------------

READY: Final = "@qnnbridge-daemon ready"
# Line that a daemon prints if another daemon holds the lock.
RUNNING: Final = "@qnnbridge-daemon running"
# Line that a daemon prints repeatedly while it waits for a lock that another daemon holds.
WAITING: Final = "@qnnbridge-daemon waiting"

MODULE: Final = "qnnbridge_daemon"
DETACHED: Final = "--detached"
TAKE_OVER: Final = "--take-over"

_PACKAGES: Final = ("qnnbridge_protocol", "qnnbridge_os", "qnnbridge_host", "qnnbridge", MODULE)
# Variables that the daemon does not inherit. QNNBRIDGE_HOST=daemon is meant for applications: the daemon itself
# must start a host and not connect to a daemon.
_DROPPED: Final = ("QNNBRIDGE_HOST",)
_PATHS: Final = tuple(
    f"QNNBRIDGE_{name}" for name in ("STATE_DIR", "CACHE_DIR", "RUNTIME_DIR", "CONFIG", "EP_PATH")
)
_INTERPRETER: Final = "QNNBRIDGE_HOST_PYTHON"
_TEXT_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 4096

Outcome = Literal["ready", "running", "waiting"]


class Starting:
    """A started daemon that has not yet reported whether it is ready."""

    def __init__(self, arguments: Sequence[str] = (), python: str | None = None) -> None:
        """Start a daemon. Raise `HostStartFailed`.

        Args:
            arguments: options of the daemon.
            python: the daemon's interpreter; default: the running interpreter.
        """
        # The daemon's working folder is the runtime folder, because the application's folder may be deleted later.
        folder = make_runtime_folder()
        argv = [*daemon_command(python), DETACHED, *arguments]
        try:
            self._process: Detached = start_detached(argv, _environment(), str(folder))
        except OSError as error:
            raise start_failed(argv[0], str(folder), error, native_machine()) from error
        self._text = b""
        self._waiting = False

    def wait(self, deadline: float) -> Outcome | None:
        """Return the daemon's report ("ready", "running" or "waiting"), or ``None`` if there is none in time.

        "waiting" is returned once and is not final: the caller must call again.

        Raises:
            HostStartFailed: the daemon ended; the error contains its output.
        """
        while True:
            whole, _, rest = self._text.decode("utf-8", "replace").rpartition("\n")
            # Evaluate only complete lines, because one read may return only the beginning of a line.
            lines = whole.splitlines()
            if READY in lines or RUNNING in lines:
                self.close()
                return "ready" if READY in lines else "running"
            # The daemon prints this line repeatedly, but report it only once.
            if WAITING in lines and not self._waiting:
                self._waiting = True
                return "waiting"
            if not wait_readable(self._process.stderr_fd, max(0.0, deadline - time.monotonic())):
                return None
            try:
                data = os.read(self._process.stderr_fd, _READ_BYTES)
            except OSError:
                data = b""  # on Windows reading at the end of a pipe raises an error
            if not data:
                self.close()
                raise _did_not_start([*lines, rest])
            # Limit the kept output, because a library may log endlessly at its start.
            self._text = (self._text + data)[-_TEXT_BYTES:]

    def close(self) -> None:
        """Stop waiting; the daemon continues."""
        self._process.close()


def daemon_command(python: str | None = None) -> list[str]:
    """Return the command that starts a daemon with `python`, or else with this process's interpreter and packages.

    A frozen application uses the host's interpreter, which has all packages. Raise `HostNotFound` if no interpreter
    can be used.
    """
    if is_frozen():
        from qnnbridge._launch import find_host

        return [python or find_host().path, "-I", "-X", "utf8", "-m", MODULE]
    if python is not None:
        return [python, "-X", "utf8", "-m", MODULE]
    if not sys.executable:
        raise HostNotFound(
            "The daemon cannot be started: the path of this program's Python interpreter is unknown.",
            cause="sys.executable is empty.",
            fix="Start it from a terminal: qnnbridge host start",
        )
    roots = _roots()
    # All packages are in the interpreter's folder of installed packages, so the daemon finds them without options.
    if len(roots) == 1 and roots[0] in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        return [sys.executable, "-X", "utf8", "-m", MODULE]
    # The packages are in a checkout or in a path that this program added. Pass these paths, so that the daemon uses
    # the same packages.
    program = f"import sys; sys.path[:0] = {roots!r}; from {MODULE}.main import main; main()"
    return [sys.executable, "-X", "utf8", "-c", program]


def _roots() -> list[str]:
    found: list[str] = []
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.origin:
            raise HostNotFound(
                f"The daemon cannot be started: the package {package} is not installed together with qnnbridge.",
                fix=f"Install qnnbridge again: {install_command(options='--force-reinstall')}",
            )
        root = str(Path(spec.origin).absolute().parents[1])
        # Collect all folders, because in an editable installation each package has its own folder.
        if root not in found:
            found.append(root)
    return found


def _environment() -> dict[str, str]:
    from qnnbridge._launch import without_bundle

    whole = without_bundle(os.environ)
    return variables_from_anywhere({name: value for name, value in whole.items() if name.upper() not in _DROPPED})


def variables_from_anywhere(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with absolute paths in qnnbridge's variables, because the daemon has another working
    folder."""
    kept = dict(environment)
    for name in _PATHS:
        if kept.get(name):
            kept[name] = os.path.abspath(os.path.expanduser(kept[name]))
    if kept.get(_INTERPRETER):
        kept[_INTERPRETER] = from_anywhere(kept[_INTERPRETER])
    return kept


def from_anywhere(program: str) -> str:
    """Return the absolute path of a program, because the daemon has another working folder. Return a name
    without a folder unchanged: the daemon searches for it."""
    return os.path.abspath(os.path.expanduser(program)) if os.path.dirname(program) else program


def _did_not_start(lines: list[str]) -> HostStartFailed:
    said = [line for line in lines if line.strip() and line != WAITING]
    error = HostStartFailed(
        "The qnnbridge daemon did not start.",
        cause=said[-1].strip() if said else "It ended without output.",
        fix=f"To see its output, run the daemon in a terminal: {command('host run')}",
        evidence=said[-10:-1],
    )
    # If the daemon printed an error, another start would fail, too. If it printed nothing, it was probably killed,
    # so another start may succeed.
    error.retry = "pointless" if said else "safe"
    return error
