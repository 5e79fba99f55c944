"""Explain failures of the host: exit codes, lines of ONNX Runtime's log, crashes; and write crash reports.

The other modules of the package are pure functions over tables. This module writes and reads the crash reports in
the state folder: for each host that ended unexpectedly, one JSON file for programs and one text file for people.

`_supervision`, the transport and the tools use this package, which imports the protocol, `qnnbridge_os` and
`_launch.stderr`. The tables take 20 ms to import and are needed only after a failure, so callers import the modules
inside functions.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.settings import state_dir
from qnnbridge_protocol.visible import visible

if TYPE_CHECKING:
    from qnnbridge._diagnosis.crash import CrashRecord, Diagnosis


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees the old file or the new one, never a part. Raise `OSError`."""
    from qnnbridge_os import files  # imported here because it is needed only after a crash

    files.make_folders(path.parent)
    # Escape bytes of a model's name that are not valid UTF-8, as JSON does (`\udc80`).
    files.write_whole(path, text.encode("utf-8", "backslashreplace"))


_CPUINFO: Final = "/proc/cpuinfo"
_MODEL_NAME: Final = re.compile(r"^model name\s*:\s*(\S.*?)\s*$", re.MULTILINE)
# Number of characters of /proc/cpuinfo to read: enough for the entry of the first processor.
_HEAD_CHARS: Final = 8192


def processor_of(host_machine: str = "") -> str:
    """Return the name of the processor, such as ``AMD EPYC 9R14 (x64), under Wine 8.0``; '' if unknown. Never
    raise.

    `host_machine` is the machine type of the host process. If it differs from the computer's machine type, an
    emulator runs the host.
    """
    # Determine the processor in this process: the host has ended, but ran on the same computer.
    try:
        from qnnbridge_os.processes import native_machine

        machine = native_machine()
        text = f"{name} ({machine})" if (name := _processor_name()) else machine
        if sys.platform == "win32":
            from qnnbridge_os.windows_facts import wine_version

            version = wine_version()
            text += f", under Wine {version}" if version else ""
    except Exception:  # noqa: BLE001 - a crash report is useful without the processor
        return ""
    if host_machine and machine and host_machine != machine:
        text += f", on which {host_machine} is emulated"
    return text


def _processor_name() -> str:
    if sys.platform == "win32":
        from qnnbridge_os.windows_facts import processor_name

        return " ".join((processor_name() or "").split())
    try:
        with open(_CPUINFO, encoding="utf-8", errors="replace") as file:
            found = _MODEL_NAME.search(file.read(_HEAD_CHARS))
    except OSError:
        return ""
    return found[1] if found is not None else ""


MAX_REPORTS: Final = 50
CRASHES: Final = "crashes"
ENDED: Final = "ended"
SCHEMA: Final = 1

# Environment variables that a report may contain. The values of all other variables may be secrets.
ENVIRONMENT: Final = frozenset(
    (
        "QNNBRIDGE_HOST_PYTHON",
        "QNNBRIDGE_ENGINE",
        "QNNBRIDGE_EP_PATH",
        "QNNBRIDGE_CONFIG",
        "QNNBRIDGE_DEBUG",
        "QNNBRIDGE_STATE_DIR",
        "QNNBRIDGE_CACHE_DIR",
        "ADSP_LIBRARY_PATH",
        "LD_LIBRARY_PATH",
        "QNN_SDK_ROOT",
        "LIBNATIVE_CONFIG",
        "PYTHONHOME",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PROCESSOR_ARCHITECTURE",
        "PROCESSOR_ARCHITEW6432",
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
    )
)

# Pattern of the names of reports. Other files in the folder are neither listed nor deleted.
_ID = re.compile(r"^\d{8}-\d{6}-[0-9a-f]{8}$")


@dataclasses.dataclass(frozen=True, slots=True)
class ReportSummary:
    """Summary of a crash report for a list. `path` is the path of the text file."""

    id: str
    when: str
    exit: str
    phase: str
    models: tuple[str, ...]
    cause: str
    path: Path


class CrashReports:
    """The crash reports in one folder, by default the folder ``crashes`` in `state_dir`."""

    def __init__(self, folder: Path | None = None, wall_clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._wall_clock = wall_clock

    @property
    def folder(self) -> Path:
        return self._folder if self._folder is not None else state_dir() / CRASHES

    @property
    def ended(self) -> CrashReports:
        """Reports about hosts that ended without a crash. They are stored in a separate folder next to `folder`."""
        return CrashReports(self.folder.with_name(ENDED), self._wall_clock)

    def write(self, record: CrashRecord) -> Path | None:
        """Write a report, in the folder of `ended` if the host did not crash. Keep only the newest 50 reports.

        Returns:
            Path of the text file; ``None`` if writing failed.
        """
        return (self.ended if _did_not_crash(record) else self)._write(record)

    def _write(self, record: CrashRecord) -> Path | None:
        # imported here because the import is slow and needed only after a crash
        from qnnbridge._diagnosis.crash import details_of, diagnose

        try:
            import secrets  # imported here because the import takes 8 ms and is rarely needed

            # The name begins with the time in UTC and has a fixed width, so that sorting reports by name sorts them
            # by time, even if the time zone changes.
            when = datetime.datetime.fromtimestamp(self._wall_clock(), datetime.timezone.utc)
            report_id = f"{when:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
            diagnoses = diagnose(record)
            data = {
                "schema": SCHEMA,
                "id": report_id,
                "when": when.isoformat(timespec="milliseconds"),
                "qnnbridge": __version__,
                **details_of(record, diagnoses, None),
                "environment": {name: os.environ[name] for name in sorted(ENVIRONMENT & os.environ.keys())},
            }
            data = without_home(data)
            path = self.folder / f"{report_id}.txt"
            # Write the JSON file first, because reports are listed and deleted by their JSON files. A text file
            # without a JSON file would never be deleted, but a JSON file without a text file is still listed.
            write_whole(path.with_suffix(".json"), json.dumps(data, indent=1, default=str))
            write_whole(path, _as_text(data, record, diagnoses))
            self._drop_old()
        except Exception:  # noqa: BLE001 - the application must get the crash error in any case
            return None
        return path

    def summaries(self) -> list[ReportSummary]:
        """Return the reports, newest first. Damaged reports are left out."""
        return [summary for path in self._files() if (summary := _summary(path)) is not None]

    def read(self, report_id: str) -> dict[str, Any]:
        """Return the report whose id begins with `report_id`, or the newest report for ``last``. Raise
        `OptionError` if no report or several reports match, or if the report is damaged."""
        return _read(self._file(report_id))

    def read_text(self, report_id: str) -> str:
        """Return the human-readable text of a report. Raise `OptionError` like `read`."""
        path = self._file(report_id)
        data = _read(path)
        try:
            return path.with_suffix(".txt").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return json.dumps(data, indent=1)

    def _file(self, report_id: str) -> Path:
        files = self._files()
        wanted = [p for p in files if p.stem.startswith(report_id)] if report_id != "last" else files[:1]
        if len(wanted) != 1:
            known = ", ".join(p.stem for p in files[:5]) or "none"
            raise OptionError(
                f"{'No' if not wanted else 'More than one'} crash report matches {report_id!r}.",
                fix=f"List them with `qnnbridge crashes`. The newest ones: {known}.",
            )
        return wanted[0]

    def _files(self) -> list[Path]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        stems = sorted((n[:-5] for n in names if n.endswith(".json") and _ID.match(n[:-5])), reverse=True)
        return [self.folder / f"{stem}.json" for stem in stems]

    def _drop_old(self) -> None:
        for path in self._files()[MAX_REPORTS:]:
            # Ignore a missing file, because another process may delete the same reports at the same time.
            path.unlink(missing_ok=True)
            path.with_suffix(".txt").unlink(missing_ok=True)


def _did_not_crash(record: CrashRecord) -> bool:
    return record.on_purpose or record.was_never_host


def without_home(value: Any, home: str | None = None) -> Any:
    """Return the data with the user's home folder replaced by ``~`` in every string."""
    if home is None:
        home = os.path.expanduser("~")
    if len(home) < 3:  # The home folder is unknown or the root folder: replacing it would damage other paths.
        return value
    # Programs on Windows write paths with slashes or backslashes.
    variants = {home, home.replace("\\", "/"), home.replace("/", "\\")}
    windows = os.name == "nt" or "\\" in home
    # The lookahead prevents a match of the home folder of `ann` in the home folder of `anna`.
    pattern = re.compile(
        "|".join(rf"{re.escape(text)}(?![\w.-])" for text in variants), re.IGNORECASE if windows else 0
    )
    return _replace(value, pattern)


def _replace(value: Any, pattern: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return pattern.sub("~", value)
    if isinstance(value, Mapping):
        return {key: _replace(item, pattern) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace(item, pattern) for item in value]
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"The crash report {path.stem} cannot be read.", cause=str(error)) from None
    if not isinstance(data, dict):
        raise OptionError(f"The crash report {path.stem} is damaged.")
    return data


def _summary(path: Path) -> ReportSummary | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        status = data["exit"] or {"number": "unknown", "name": ""}
        return ReportSummary(
            str(data["id"]),
            str(data["when"]),
            f"{status['number']} {status['name']}".strip(),
            str(data["phase"]),
            tuple(str(model) for model in data["models"]),
            str(data["diagnoses"][0]["cause"]),
            path.with_suffix(".txt"),
        )
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _as_text(data: Mapping[str, Any], record: CrashRecord, diagnoses: list[Diagnosis]) -> str:
    status = record.exit
    kind = "report of an ended host" if _did_not_crash(record) else "crash report"
    waiting = f", requests waiting: {len(record.waiting)}" if record.waiting else ""
    lines = [
        f"qnnbridge {kind} {data['id']} ({data['when']})",
        "",
        f"exit code   {status.describe() if status else 'unknown'}" + (f"   {status.hex}" if status else ""),
        f"phase       {record.phase}{waiting}",
        f"models      {', '.join(data['models']) or '-'}",
        f"generation  {record.generation}, {record.uptime_s:.1f} s old",
        f"interpreter {data['interpreter'] or '-'}",
        f"processor   {data['processor'] or '-'}",
        f"host        {_pairs(data['versions'])}",
        f"application {_pairs({'qnnbridge': __version__, **data['application_versions']})}",
        "",
        "Most likely causes, best first:",
    ]
    for number, found in enumerate(data["diagnoses"], 1):
        lines.append(f"{number}. {found['cause']}")
        lines.extend(f"   evidence: {line}" for line in found["evidence"])
        lines.extend([f"   fix: {found['fix']}"] if found["fix"] else [])
    sections = {
        "Open requests": [
            f"{call['request_id']} {call['op']} {call['model'] or '-'} {call['phase'] or 'queued'}"
            for call in data["in_flight"]
        ],
        "Python stack": data["python_stack"],
        "Last messages": data["last_frames"],
        "Environment": [f"{name}={value}" for name, value in data["environment"].items()],
        "Beginning of stderr": data["stderr_head"].splitlines(),
        "End of stderr": data["stderr_tail"].splitlines(),
    }
    for title, body in sections.items():
        if body:
            lines += ["", f"{title}:", *(f"  {line}" for line in body)]
    return "\n".join(visible(line) for line in lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "-"
