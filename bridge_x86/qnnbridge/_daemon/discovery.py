"""The folder in which a daemon and its applications find each other, and `daemon.json`, which the daemon leaves
there.

The folder belongs to this user and is closed to other users. Its contents are as good as a password, so a
folder that others could use, that is not ours, or that is a link is refused, never put right silently.

The file is a hint. The process id in it is never acted on, and a file without a daemon does no harm: its endpoint
cannot be opened, or the other end does not know the token. The daemon that holds the lock writes it, whole. No
state; any thread.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from pathlib import Path
from typing import Any, Final

from qnnbridge_os import private
from qnnbridge_os.native import sleep
from qnnbridge_os.private import read_private_file, write_private_file
from qnnbridge_protocol.auth import INSTANCE_BYTES, TOKEN_BYTES
from qnnbridge_protocol.errors import HostStartFailed

VARIABLE: Final = "QNNBRIDGE_RUNTIME_DIR"
_NOT_PRIVATE: Final = (
    "A user who can write there could pretend to be the daemon, and one who can read there could use it."
)


def runtime_folder() -> Path:
    """Where it is, or would be: ``QNNBRIDGE_RUNTIME_DIR``, else the place that the system has for such things."""
    named = os.environ.get(VARIABLE)
    return Path(os.path.abspath(os.path.expanduser(named))) if named else private.default_runtime_folder()


def make_runtime_folder() -> Path:
    """The folder, made if it is not there. Raises `HostStartFailed` if it cannot be made, or be trusted."""
    folder = runtime_folder()
    try:
        private.make_private_folder(folder)
    except OSError as error:
        raise _refused(folder, f"it cannot be made ({error.strerror or error})") from error
    _check_folder(folder)
    return folder


def existing_runtime_folder() -> Path | None:
    """The folder if it is there. Raises `HostStartFailed` if it cannot be trusted."""
    folder = runtime_folder()
    return folder if _check_folder(folder) else None


def _check_folder(path: Path) -> bool:
    # A link to a folder passes here and is refused by `check_private`, which does not follow it.
    if path.exists() and not path.is_dir():
        raise _refused(path, "it is no folder")
    return check_private(path)


def check_private(path: Path) -> bool:
    """Whether it is there. Raises `HostStartFailed` if it is not for us alone."""
    try:
        problem = private.why_not_private(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _refused(path, f"it cannot be looked at ({error.strerror or error})") from error
    if problem is not None:
        raise _refused(path, problem, private.how_to_make_private(path), _NOT_PRIVATE)
    return True


def _refused(path: Path, problem: str, fix: str | None = None, cause: str | None = None) -> HostStartFailed:
    elsewhere = f"{VARIABLE} to a folder of your own."
    error = HostStartFailed(
        f"{path} cannot be used for the daemon: {problem}.",
        cause=cause,
        fix=f"{fix}. Or set {elsewhere}" if fix else f"Set {elsewhere}",
        details={"path": str(path)},
    )
    # Rights do not change by themselves; each start would end here.
    error.retry = "pointless"
    return error


FILE_NAME: Final = "daemon.json"

_MAX_BYTES: Final = 64 * 1024
_REPLACE_TRIES: Final = 20
# On Windows a file that another process reads this moment cannot be replaced.
_REPLACE_INTERVAL_S: Final = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Discovery:
    """endpoint: of the door. started: seconds since 1970, for people. token: never shown (`repr` leaves it out)."""

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
        """Raises `ValueError` for anything that `to_json` does not make."""
        if type(data) is not dict:
            raise ValueError("not a map")
        fields: dict[str, Any] = {f.name: data.get(f.name) for f in dataclasses.fields(cls)}
        for name, kind in (("endpoint", str), ("qnnbridge", str), ("log_file", str), ("pid", int)):
            if type(fields[name]) is not kind:
                raise ValueError(f"{name} is no {kind.__name__}")
        if type(fields["started"]) not in (int, float):
            raise ValueError("started is no number")
        for name, size in (("instance", INSTANCE_BYTES), ("token", TOKEN_BYTES)):
            fields[name] = bytes.fromhex(str(fields[name]))
            if len(fields[name]) != size:
                raise ValueError(f"{name} has {len(fields[name])} bytes, not {size}")
        # Every field has been checked by its exact type: the file may be damaged, or of another release.
        return cls(**fields)


def read_discovery(folder: Path) -> Discovery | None:
    """What the last daemon left, ``None`` if there is nothing that could be of one.

    Raises `HostStartFailed` if others could have written or read it.
    """
    try:
        return look_at_discovery(folder)
    except OSError:
        return None


def look_at_discovery(folder: Path) -> Discovery | None:
    """`read_discovery`; raises `OSError` for a file that is there and cannot be read now."""
    path = folder / FILE_NAME
    if not check_private(path):
        return None
    try:
        return Discovery.from_json(json.loads(read_private_file(path, _MAX_BYTES)))
    except (FileNotFoundError, ValueError, RecursionError):
        return None  # being replaced, or damaged: then the daemon that is about to start writes a new one


def write_discovery(folder: Path, discovery: Discovery) -> None:
    """For the daemon alone. Raises `OSError`."""
    # In the same folder, since a rename works within one file system; the random name is nobody else's.
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
        temporary.unlink(missing_ok=True)  # a full disk, say, lets it be made and not be written
        if isinstance(error, OSError) and error.filename is None:
            error.filename = os.fspath(folder / FILE_NAME)
        raise


def remove_discovery(folder: Path, instance: bytes) -> None:
    """The daemon leaves; a file of another one stays."""
    found = read_discovery(folder)
    # Another daemon may have taken over and written its own file meanwhile.
    if found is not None and found.instance == instance:
        (folder / FILE_NAME).unlink(missing_ok=True)
