"""What `qnnbridge host service` prints and writes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.host import scheduled_task, systemd_unit
from qnnbridge_tools.host.service import ON_WINDOWS, Service, this_computer


def give(options: Sequence[str], *, systemd: bool, task_scheduler: bool, output: Path | None, another: int) -> None:
    """The file on stdout or in `output`, what to do with it on stderr. another: see `systemd_unit.unit_text`."""
    if systemd and task_scheduler:
        raise OptionError("--systemd and --task-scheduler are for different systems.", fix="Give one of them.")
    for_windows = task_scheduler or (ON_WINDOWS and not systemd)
    service = this_computer(options, for_windows)
    if output is None:
        sys.stdout.write(
            scheduled_task.task_text(service) if for_windows else systemd_unit.unit_text(service, another)
        )
        sys.stdout.flush()
    else:
        _write(service, output, for_windows, another)
    print(_words(service, str(output) if output else "", for_windows), file=sys.stderr)


def _write(service: Service, path: Path, for_windows: bool, another: int) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OptionError(f"{path} cannot be written: it is a folder, or lies in none.")
    text = (
        systemd_unit.unit_text(service, another).encode() if not for_windows else scheduled_task.task_file(service)
    )
    path.write_bytes(text)


def _words(service: Service, path: str, for_windows: bool) -> str:
    if not for_windows:
        return systemd_unit.instructions(path)
    parts = [scheduled_task.instructions(path), scheduled_task.variables_note(service)]
    if not ON_WINDOWS:
        parts.append("This was made on another system: put your interpreter and your user in their places.")
    return "\n".join(part for part in parts if part)
