"""`qnnbridge doctor` without its command line: survey, diagnose, print, write a snapshot, mend, explain a text."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qnnbridge_tools import output
from qnnbridge_tools.doctor.catalogue import CATALOGUE
from qnnbridge_tools.doctor.diagnose import diagnose
from qnnbridge_tools.doctor.findings import Finding, Report
from qnnbridge_tools.doctor.fixes import SETUP_HOST
from qnnbridge_tools.doctor.survey import SurveyOptions, survey

EXIT_UNKNOWN_TEXT = 1
EXIT_NOT_WRITTEN = 1


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The command line, read."""

    order: SurveyOptions
    snapshot: Path | None = None
    from_snapshot: Path | None = None
    explain: str | None = None
    fix: bool = False
    as_json: bool = False


def perform(request: DoctorOptions, confirm: Callable[[str], bool]) -> int:
    """The exit code: 0 healthy, 1 degraded, 2 blocked.

    Args:
        confirm: Asks the user for a yes.
    """
    # A text is explained without looking at this computer: it may come from another one.
    if request.explain is not None:
        return _print_explanation(sys.stdin.read() if request.explain == "-" else request.explain, request.as_json)
    if request.order.dimensions:
        from qnnbridge_tools.arguments import read_dimensions

        read_dimensions(request.order.dimensions)  # a typing error is reported before anything is started
    if request.from_snapshot is not None:
        report, snapshot = _read(request.from_snapshot), ""
    else:
        report, snapshot = _examine(request)
    _print(report, request.as_json)
    # Facts of another computer never lead to a repair of this one.
    if request.fix and request.from_snapshot is None:
        _mend(report, request.as_json, confirm)
    if request.snapshot is not None and snapshot and not _write(request.snapshot, snapshot):
        return max(report.exit_code, EXIT_NOT_WRITTEN)
    return report.exit_code


def _examine(request: DoctorOptions) -> tuple[Report, str]:
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
        from qnnbridge_tools.doctor.report import report_document

        output.print_json(report_document(report))
    else:
        from qnnbridge_tools.doctor.report import Screen, report_text

        print(report_text(report, Screen.of_terminal()))


def _mend(report: Report, as_json: bool, confirm: Callable[[str], bool]) -> None:
    """Prints to stderr beside a JSON document, so that stdout holds one document."""

    # Nobody can answer at a pipe: each repair is then listed as not done.
    for line in apply_fixes(report, lambda question: sys.stdin.isatty() and confirm(question)):
        print(line, file=sys.stderr if as_json else sys.stdout)


def _print_explanation(text: str, as_json: bool) -> int:

    meanings = explained(text)
    if as_json:
        from qnnbridge_tools import output

        output.print_json({"meanings": meanings})
    else:
        print(explanation_text(meanings))
    return 0 if meanings else EXIT_UNKNOWN_TEXT


@dataclasses.dataclass(frozen=True, slots=True)
class Fix:
    """A repair that ``--fix`` offers.

    Args:
        codes: Findings that it may mend.
        question: Asked before.
        apply: Mends the first of the findings and says what it did.
        command: Findings whose own fix has this command are mended, too.
    """

    codes: tuple[str, ...]
    question: str
    apply: Callable[[Finding], str]
    command: str | None = None

    def mends(self, found: Finding) -> bool:
        if found.code in self.codes:
            return True
        return self.command is not None and any(line.startswith(self.command) for line in found.remedy.commands)


def _clear_quarantine(_found: Finding) -> str:
    from qnnbridge._supervision.quarantine import Quarantine

    quarantine = Quarantine()
    # Read before the clearing, to name them.
    accounts = quarantine.accounts()
    quarantine.clear()
    return f"let {len(accounts)} models out of quarantine: {', '.join(account.model for account in accounts)}"


def _prune_cache(_found: Finding) -> str:
    from qnnbridge_protocol.cache_settings import cache_dir
    from qnnbridge_tools.doctor.real_machine import RealMachine

    bad = RealMachine().cache(str(cache_dir())).bad_keys
    done = [_run_command("cache", "clear", *bad)] if bad else []
    return "; ".join([*done, _run_command("cache", "prune")])


def _set_up_host(found: Finding) -> str:
    """Runs `setup-host` with the options of the finding's own fix; the user runs its other commands."""
    lines = found.remedy.commands
    own = next((line for line in lines if line.startswith(SETUP_HOST)), SETUP_HOST)
    said = _run_command(*own.split()[1:])
    rest = lines[lines.index(own) + 1 :] if own in lines else ()
    return said + "".join(f"; then run: {line}" for line in rest)


def _run_command(*arguments: str) -> str:
    import subprocess
    import sys

    # As a module: the script `qnnbridge` need not be on the PATH.
    command = [sys.executable, "-m", "qnnbridge_tools", *arguments]
    code = subprocess.run(command, check=False).returncode
    return f"ran qnnbridge {' '.join(arguments)}: " + ("done" if code == 0 else f"it ended with {code}")


FIXES: Final = (
    Fix(
        ("host.none", "host.only-emulated", "host.packages-missing", "host.python-too-old", "host.base-missing"),
        "Set up a host in an environment of its own (qnnbridge setup-host)?",
        _set_up_host,
        SETUP_HOST,
    ),
    Fix(("cache.damaged", "path.disk-full"), "Remove damaged and old entries of the cache?", _prune_cache),
    Fix(("state.quarantine",), "Let the models in quarantine try again?", _clear_quarantine),
)


def apply_fixes(report: Report, ask: Callable[[str], bool]) -> list[str]:
    """Lines about what was done, and about what was not."""
    lines = []
    left = list(report.findings)
    for fix in FIXES:
        found = [one for one in left if fix.mends(one)]
        if not found:
            continue
        # A finding that two repairs fit is mended by the first alone.
        left = [one for one in left if one not in found]
        reasons = [one.code for one in found]
        if not ask(fix.question):
            lines.append(f"not done ({', '.join(reasons)}): {fix.question}")
            continue
        try:
            lines.append(f"done ({', '.join(reasons)}): {fix.apply(found[0])}")
        except Exception as error:  # noqa: BLE001 - one fix that fails must not keep the others from being tried
            lines.append(f"failed ({', '.join(reasons)}): {error}")
    lines += [f"not mended by --fix ({code}): do what its fix says" for code in (one.code for one in left)]
    return lines


UNKNOWN = (
    "Nothing in this text is known to qnnbridge. That does not mean that it is harmless.\n"
    "Paste the whole message with the lines before it, or run the failing program with QNNBRIDGE_DEBUG=1;\n"
    "`qnnbridge doctor` examines this computer."
)


def explained(text: str) -> list[dict[str, Any]]:
    """Meanings, best first; empty if nothing is known."""
    # In square brackets, too: so a report prints its codes, and so they are copied.
    entry = CATALOGUE.get(text.strip().strip("[]"))
    if entry is not None:
        fix = "Run `qnnbridge doctor` on the computer concerned: it names the command."
        return [
            {"title": text.strip().strip("[]"), "cause": entry.why, "fix": fix, "seen": "a finding of this doctor"}
        ]
    from qnnbridge_tools.known_texts import explain_text

    return [meaning.to_json() for meaning in explain_text(text)]


def explanation_text(meanings: list[dict[str, Any]]) -> str:
    if not meanings:
        return UNKNOWN
    return "\n\n".join(_meaning(meaning) for meaning in meanings)


def _meaning(meaning: dict[str, Any]) -> str:
    lines = [output.visible(meaning["title"])]
    for label, key in (("seen", "seen"), ("cause", "cause"), ("fix", "fix")):
        if meaning[key]:
            lines += textwrap.wrap(
                output.visible(meaning[key]), 110, initial_indent=f"  {label:<6}", subsequent_indent=" " * 8
            )
    return "\n".join(lines)
