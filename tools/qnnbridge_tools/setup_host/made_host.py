"""The host that an earlier set-up made: whether it is ours, whether it is healthy, and its removal."""

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
    is_taken,
    not_written,
    put_aside,
    python_in,
    recover,
    remove,
)
from qnnbridge_tools.setup_host.plan import default_folder, with_host
from qnnbridge_tools.setup_host.steps import check_host, write_text

if TYPE_CHECKING:
    from qnnbridge import HostInfo
    from qnnbridge_tools.doctor.findings import Report

LOCK_NAME = "setup.lock"


class SetupBusy(BridgeError):
    """Another process sets up, repairs or removes a host of this user."""

    code = "setup.Busy"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Keep a second set-up of this user out. Raises `SetupBusy`."""
    from filelock import FileLock, Timeout

    folder = state_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_NAME)
        lock.acquire(timeout=0)
    except Timeout:
        raise SetupBusy(
            "Another `qnnbridge setup` of this user is running.",
            fix="Wait until it has ended, then run this command again.",
        ) from None
    except OSError as error:
        raise failed(
            "environment",
            f"The folder {folder} cannot be written to: {error.strerror or error}.",
            fix="Name another folder in QNNBRIDGE_STATE_DIR.",
        ) from error
    try:
        yield
    finally:
        lock.release()


@dataclasses.dataclass(frozen=True, slots=True)
class MadeHost:
    """An environment that a set-up made. config: the configuration file; is_configured: whether it names it."""

    folder: Path
    config: Path
    is_configured: bool

    @property
    def python(self) -> Path:
        return python_in(self.folder)

    @property
    def brought(self) -> Path | None:
        """The folder of the Python that was downloaded for it."""
        folder = python_folder(self.folder)
        return folder if (folder / RECORD).is_file() else None


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """info: of the host, ``None`` if it does not start; then `error` is the reason. found: the doctor's report."""

    info: HostInfo | None
    found: Report | None
    error: BridgeError | None = None

    @property
    def is_usable(self) -> bool:
        return self.found is not None and self.found.severity < Severity.BLOCKED


def made_host(options: SetupOptions, surroundings: Surroundings) -> MadeHost | None:
    """The environment in the folder of these options, if a set-up made it."""
    folder = (options.folder or default_folder()).expanduser().absolute()
    config = configuration_file(surroundings.environ)
    named = configured_host(config) if config.exists() else None
    is_configured = named is not None and os.path.normcase(named) == os.path.normcase(str(python_in(folder)))
    if not is_taken(folder) or not (folder / "pyvenv.cfg").is_file():
        return None
    # Set-ups before the record existed are known by the configuration.
    is_ours = is_configured or (folder / RECORD).is_file()
    return MadeHost(folder, config, is_configured) if is_ours else None


def with_settings_of(options: SetupOptions, host: MadeHost) -> SetupOptions:
    """The options to make this host again: replaced, and with the source of QNN that the configuration names."""
    engine, ep_path = options.engine, options.ep_path
    if host.is_configured and engine == "wheel" and ep_path is None:
        table = parsed_toml(host.config.read_text("utf-8")).get("host", {})
        engine = table["engine"] if table.get("engine") in ("windowsml", "folder") else engine
        ep_path = Path(table["ep_path"]) if table.get("ep_path") else None
    return dataclasses.replace(options, replace=True, engine=engine, ep_path=ep_path)


def examine(host: MadeHost) -> Health:
    """Start the host and let the doctor look at it."""
    from qnnbridge_tools.doctor.examine import SurveyOptions, examined

    try:
        info = check_host(host.python)
    except BridgeError as error:
        return Health(None, None, error)
    return Health(info, examined(SurveyOptions(host_python=str(host.python)))[0])


def remove_host(host: MadeHost) -> list[str]:
    """Remove the environment, its setting and the Python that was downloaded for it. Return what was removed."""
    text = None
    if host.is_configured:
        before = host.config.read_bytes().decode("utf-8")
        text = with_host(before, None, {"engine": None, "ep_path": None})
        if text is None:
            raise failed(
                "configuration",
                f"The configuration file {host.config} is written in a way that this command cannot change.",
                fix="Remove `python` under [host] by hand, and run this command again.",
            )
    old = put_aside(host.folder)
    if text is not None:
        try:
            write_text(host.config, text)
        except OSError as error:
            recover(host.folder)
            raise not_written(host.config, error.strerror or str(error)) from error
    removed = [str(host.folder)]
    remove(old)
    if host.brought is not None:
        removed.append(str(host.brought))
        remove(host.brought)
    if text is not None:
        removed.append(f"[host] in {host.config}")
    return removed


def no_host(options: SetupOptions) -> BridgeError | None:
    """The reason why the folder holds nothing to remove; ``None`` if it is simply not there."""
    folder = (options.folder or default_folder()).expanduser().absolute()
    if not is_taken(folder):
        return None
    return AlreadyThere(
        f"The folder {folder} was not made by `qnnbridge setup`.",
        fix="Remove it by hand if it is not needed, or name the host's folder with --dir.",
    )
