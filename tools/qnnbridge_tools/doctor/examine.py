"""What `qnnbridge doctor` does, apart from its command line: survey, diagnose, print, write, mend."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path

from qnnbridge_tools.doctor.diagnose import diagnose
from qnnbridge_tools.doctor.findings import Report
from qnnbridge_tools.doctor.survey import Order, survey

EXIT_UNKNOWN_TEXT = 1
EXIT_NOT_WRITTEN = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """The command line, read."""

    order: Order
    snapshot: Path | None = None
    from_snapshot: Path | None = None
    explain: str | None = None
    fix: bool = False
    as_json: bool = False


def perform(request: Request, confirm: Callable[[str], bool]) -> int:
    """The exit code: 0 healthy, 1 degraded, 2 blocked. confirm: asks the user for a yes."""
    if request.explain is not None:
        return _explain(sys.stdin.read() if request.explain == "-" else request.explain, request.as_json)
    if request.order.dimensions:
        from qnnbridge_tools.arguments import read_dimensions

        read_dimensions(request.order.dimensions)  # a typing error is told before anything is started
    if request.from_snapshot is not None:
        report, snapshot = _read(request.from_snapshot), ""
    else:
        report, snapshot = _examine(request)
    _print(report, request.as_json)
    if request.fix and request.from_snapshot is None:
        _mend(report, request.as_json, confirm)
    if request.snapshot is not None and snapshot and not _write(request.snapshot, snapshot):
        return max(report.exit_code, EXIT_NOT_WRITTEN)
    return report.exit_code


def _examine(request: Request) -> tuple[Report, str]:
    """The report, and the text of the snapshot, if one is wanted."""
    from qnnbridge_tools.doctor.real_machine import RealMachine

    begun = time.perf_counter()
    machine = RealMachine()
    facts = survey(machine, request.order)
    text = ""
    if request.snapshot is not None:
        from qnnbridge_tools.doctor.snapshot import snapshot_text

        text = snapshot_text(facts, machine)
    return dataclasses.replace(diagnose(facts), seconds=time.perf_counter() - begun), text


def _write(path: Path, text: str) -> bool:
    """A snapshot that cannot be written is no reason to keep the diagnosis back."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"Error: the snapshot was not written: {path}: {error.strerror or error}", file=sys.stderr)
        return False
    print(f"Snapshot: {path}", file=sys.stderr)
    return True


def _read(path: Path) -> Report:
    from qnnbridge_tools.doctor.snapshot import read_snapshot

    return diagnose(read_snapshot(path))


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        from qnnbridge_tools import output
        from qnnbridge_tools.doctor.report_json import report_document

        output.print_json(report_document(report))
    else:
        from qnnbridge_tools.doctor.report_text import Screen, report_text

        print(report_text(report, Screen.of_terminal()))


def _mend(report: Report, as_json: bool, confirm: Callable[[str], bool]) -> None:
    """What is said here goes to stderr with a JSON document, so that this stays one."""
    from qnnbridge_tools.doctor.fixes import apply_fixes

    for line in apply_fixes(report, lambda question: sys.stdin.isatty() and confirm(question)):
        print(line, file=sys.stderr if as_json else sys.stdout)


def _explain(text: str, as_json: bool) -> int:
    from qnnbridge_tools.doctor.explain import explained, explanation_text

    meanings = explained(text)
    if as_json:
        from qnnbridge_tools import output

        output.print_json({"meanings": meanings})
    else:
        print(explanation_text(meanings))
    return 0 if meanings else EXIT_UNKNOWN_TEXT
