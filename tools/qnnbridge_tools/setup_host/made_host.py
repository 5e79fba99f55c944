"""Find, examine and remove the host that an earlier set-up created."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge._launch import Surroundings, configuration_file, configured_host
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.settings import state_dir
from qnnbridge_tools.doctor.findings import Severity
from qnnbridge_tools.doctor.machine import parsed_toml
from qnnbridge_tools.options import SetupOptions
from qnnbridge_tools.setup_host.bring_python import python_folder
from qnnbridge_tools.setup_host.environment import (
    RECORD,
    AlreadyThere,
    failed,
    is_marked,
    is_taken,
    mark,
    not_written,
    old_folder,
    put_aside,
    python_in,
    recover,
    remove_marked,
)
from qnnbridge_tools.setup_host.plan import default_folder, read_config, with_host
from qnnbridge_tools.setup_host.steps import check_host, write_text

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_tools.doctor.findings import Report

LOCK_NAME = "setup.lock"


class SetupBusy(BridgeError):
    """Raised if another process sets up, repairs or removes a host of this user."""

    code = "setup.Busy"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of this user's set-ups. Raise `SetupBusy` if another process holds it."""
    from filelock import FileLock, Timeout

    folder = state_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME)
        lock.acquire(timeout=0)
    except Timeout:
        raise SetupBusy(
            "Another `qnnbridge setup` of this user is running.",
            fix="Wait until the other command has ended, then run this command again.",
        ) from None
    except OSError as error:
        raise failed(
            "environment",
            f"The folder {folder} cannot be written to: {error.strerror or error}.",
            fix="Set QNNBRIDGE_STATE_DIR to another folder.",
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclasses.dataclass(frozen=True, slots=True)
class MadeHost:
    """Environment that a set-up created.

    Args:
        folder: folder of the environment.
        config: configuration file.
        is_configured: whether the configuration contains the environment's interpreter.
    """

    folder: Path
    config: Path
    is_configured: bool

    @property
    def python(self) -> Path:
        return python_in(self.folder)


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """Result of an examination.

    Args:
        info: the host's report; ``None`` if it does not start.
        found: the doctor's report.
        error: why the host does not start.
    """

    info: HostInfo | None
    found: Report | None
    error: BridgeError | None = None

    @property
    def is_usable(self) -> bool:
        return self.found is not None and self.found.severity < Severity.BLOCKED


def host_folder(options: SetupOptions) -> Path:
    """Return the folder of the host's environment."""
    return (options.folder or default_folder()).expanduser().absolute()


def made_host(options: SetupOptions, surroundings: Surroundings) -> MadeHost | None:
    """Return the environment in the folder of these options; ``None`` if no set-up created one."""
    folder = host_folder(options)
    config = configuration_file(surroundings.environ)
    named = configured_host(config) if config.exists() else None
    is_configured = named is not None and os.path.normcase(named) == os.path.normcase(str(python_in(folder)))
    if not is_taken(folder) or not (folder / "pyvenv.cfg").is_file():
        return None
    # Environments of older `setup` versions have no record, but are in the configuration.
    is_ours = is_configured or (folder / RECORD).is_file()
    return MadeHost(folder, config, is_configured) if is_ours else None


def with_settings_of(options: SetupOptions, host: MadeHost) -> SetupOptions:
    """Return options that replace this host and keep the configured source of QNN."""
    engine, ep_path = options.engine, options.ep_path
    if host.is_configured and engine == "wheel" and ep_path is None:
        table = parsed_toml(host.config.read_text("utf-8")).get("host", {})
        engine = table["engine"] if table.get("engine") in ("windowsml", "folder") else engine
        ep_path = Path(table["ep_path"]) if table.get("ep_path") else None
    return dataclasses.replace(options, replace=True, engine=engine, ep_path=ep_path)


def examine(host: MadeHost) -> Health:
    """Start the host and examine it with the doctor."""
    from qnnbridge_tools.doctor.examine import SurveyOptions, examined

    try:
        info = check_host(host.python)
    except BridgeError as error:
        return Health(None, None, error)
    return Health(info, examined(SurveyOptions(host_python=str(host.python)))[0])


def to_remove(folder: Path, host: MadeHost | None) -> list[Path]:
    """Return the folders of a host: environment, remains of interrupted commands, downloaded Python."""
    old, python = old_folder(folder), python_folder(folder)
    is_old = is_marked(old) or (old / "pyvenv.cfg").is_file()
    return [
        *([folder] if host is not None or is_marked(folder) else []),
        *([old] if is_old else []),
        *([python] if (python / RECORD).is_file() or is_marked(python) else []),
    ]


def remove_host(folder: Path, host: MadeHost | None) -> list[str]:
    """Remove the folders that `to_remove` lists, and the host's setting. Return what was removed."""
    text = _config_without(host) if host is not None and host.is_configured else None
    folders = to_remove(folder, host)
    if host is not None:
        _remove(old_folder(folder))
        # Rename the folder first, because renaming fails while a host is running.
        put_aside(folder)
        if text is not None:
            try:
                write_text(host.config, text)
            except OSError as error:
                recover(folder)
                raise not_written(host.config, error.strerror or str(error)) from error
        _remove(old_folder(folder))
    for one in folders:
        _remove(one)
    return [*map(str, folders), *([f"[host] in {host.config}"] if host is not None and text is not None else [])]


def _config_without(host: MadeHost) -> str:
    text = with_host(read_config(host.config), dict.fromkeys(("python", "engine", "ep_path")))
    if text is None:
        raise failed(
            "configuration",
            f"The configuration file {host.config} is written in a way that this command cannot change.",
            fix="Remove `python` under [host] by hand, and run this command again.",
        )
    return text


def _remove(folder: Path) -> None:
    """Remove a folder of a host, if it exists.

    If the removal fails, the remaining files are marked, so that the next removal finds them.
    """
    if not os.path.lexists(folder):
        return
    try:
        if folder.is_symlink():
            folder.unlink()
            return
        with contextlib.suppress(OSError):  # a full disk must not prevent a removal
            mark(folder)
        remove_marked(folder)
    except OSError as error:
        raise failed(
            "removal",
            f"{error.filename or folder} cannot be removed: {error.strerror or error}.",
            fix="End the programs that use this file or folder, then run `qnnbridge setup --remove` again.",
        ) from error


def no_host(options: SetupOptions) -> BridgeError | None:
    """Return why the folder is not removed; ``None`` if the folder does not exist."""
    folder = host_folder(options)
    if not is_taken(folder):
        return None
    return AlreadyThere(
        f"The folder {folder} was not created by `qnnbridge setup`.",
        fix="Remove the folder by hand if it is not needed, or give the host's folder with --dir.",
    )
