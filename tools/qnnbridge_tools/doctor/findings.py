"""Findings (faults with a description and a fix), and the report of an examination.

The constant fields of a finding (severity, and why it matters) are in `CATALOGUE`; a check adds the evidence and
the fix for this computer. `report_text` formats a report for people, `report_document` for programs.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from qnnbridge_protocol import __version__
from qnnbridge_tools import output
from qnnbridge_tools.doctor.facts import Facts


class Severity(enum.IntEnum):
    """Severity of a finding; also the exit code of the command."""

    HEALTHY = 0
    DEGRADED = 1
    BLOCKED = 2


class Effect(enum.Enum):
    """Effect of a blocking fault on an application that is started anyway."""

    UNUSABLE = "The NPU cannot be used"
    SILENT_CPU = "Sessions would silently run on the CPU"
    SIMULATOR = "Sessions would run in QNN's simulator instead of the NPU"
    DEATH = "The process that loads QNN would die"


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """The fix of a finding.

    Args:
        words: a sentence; empty if the commands need no explanation.
        commands: lines to copy in this order; each is one command for the computer's shells.
    """

    words: str = ""
    commands: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a computer.

    Args:
        code: stable identifier, `area.problem`.
        severity: how bad the fault is.
        title: a clause, which the verdict sentence can include.
        seen: evidence.
        why: why the fault matters.
        remedy: the fix.
        effect: effect of a blocking fault.
        notes: further remarks.
    """

    code: str
    severity: Severity
    title: str
    seen: tuple[str, ...]
    why: str
    remedy: Remedy
    effect: Effect = Effect.UNUSABLE
    notes: tuple[str, ...] = ()

    @property
    def fix(self) -> str:
        """Text of the fix, with each command on a separate line."""
        return "\n".join((*filter(None, [self.remedy.words]), *self.remedy.commands))

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity.name.lower(),
            "title": self.title,
            "seen": list(self.seen),
            "why": self.why,
            "fix": self.fix,
            "commands": list(self.remedy.commands),
            **({"notes": list(self.notes)} if self.notes else {}),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Healthy:
    """One line about a subject without findings."""

    check: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Result of an examination. findings: the most severe first. seconds: duration."""

    findings: tuple[Finding, ...]
    healthy: tuple[Healthy, ...]
    verdict: str
    seconds: float = 0.0

    @property
    def severity(self) -> Severity:
        """Highest severity of the findings."""
        return max((finding.severity for finding in self.findings), default=Severity.HEALTHY)

    @property
    def exit_code(self) -> int:
        return int(self.severity)


@dataclasses.dataclass(frozen=True, slots=True)
class SubjectCheck:
    """The check of one subject.

    Args:
        name: beginning of the line about a healthy subject.
        find: returns the findings; empty for a healthy subject.
        healthy: returns the line about a healthy subject; ``None`` if the subject does not apply to this computer.
    """

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    healthy: Callable[[Facts], str | None] = lambda _facts: None


# --- all findings: `assets/findings.json` ---
#
# The order of the entries is the order of a report: causes come before consequences. `hides` lists codes (or
# prefixes of codes) of findings that are consequences; given for a section, it applies to every finding of the
# section. docs/doctor.md has the same table; a test compares both.


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Entry of the catalogue. hides: code prefixes of the findings that are consequences of this problem."""

    severity: Severity
    why: str
    effect: Effect
    hides: tuple[str, ...]


def _catalogue() -> dict[str, Problem]:
    sections = json.loads(Path(__file__).with_name("assets").joinpath("findings.json").read_text("utf-8"))
    return {
        code: Problem(
            Severity[entry["severity"].upper()],
            entry["why"],
            Effect[entry.get("effect", "unusable").upper()],
            (*section.get("hides", ()), *entry.get("hides", ())),
        )
        for section in sections
        for code, entry in section["findings"].items()
    }


CATALOGUE: Final = _catalogue()
_ORDER: Final = {code: index for index, code in enumerate(CATALOGUE)}


def finding(code: str, title: str, *seen: str, fix: Remedy | str, notes: tuple[str, ...] = ()) -> Finding:
    """Create a finding of the catalogue.

    Args:
        code: the finding's code.
        title: one clause.
        seen: evidence; empty lines are omitted.
        fix: the fix, or its text if it does not have commands.
        notes: further remarks.
    """
    entry = CATALOGUE[code]
    remedy = fix if isinstance(fix, Remedy) else Remedy(fix)
    shown = tuple(line for line in seen if line)
    return Finding(code, entry.severity, title, shown, entry.why, remedy, entry.effect, notes)


def rank(found: Finding) -> tuple[int, int]:
    """Return the sort key for a report: the most severe first, causes before consequences."""
    return -int(found.severity), _ORDER[found.code]


def is_hidden(found: Finding, others: Iterable[Finding]) -> bool:
    """Return whether a finding is a consequence of another finding that precedes it in the report."""
    return any(
        # `hides` of `model.unreadable` matches all codes with "model.", including itself, so compare the order as
        # well.
        found.code.startswith(CATALOGUE[other.code].hides) and _ORDER[other.code] < _ORDER[found.code]
        for other in others
    )


# --- a report as text for a terminal and as a JSON document ---
#
# The text fits on one screen: the most severe findings first, one line for each healthy subject, the verdict last.
# If there are many findings, later findings are shortened until the text fits, and finally reduced to their codes.
# ``--json`` shows everything.

# Limits of the layout in columns and lines. They also apply to a report written to a file, which is read in a
# window of usual size later.
LEAST_WIDTH: Final = 80
MOST_WIDTH: Final = 120
LEAST_HEIGHT: Final = 40
# Widths of the two left columns: the severity, and the label of a line.
_TAG: Final = 10
_LABEL: Final = 6
_NAMES: Final = {Severity.BLOCKED: "BLOCKED", Severity.DEGRADED: "DEGRADED", Severity.HEALTHY: "ok"}
_MORE: Final = "(shortened: qnnbridge doctor --json shows everything)"


class Detail(enum.IntEnum):
    """Level of detail of a finding. CODE: only the code. LINE: title and commands. SHORT: also the fix's text and
    some evidence. FULL: everything.
    """

    CODE = 0
    LINE = 1
    SHORT = 2
    FULL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Screen:
    """Size of a terminal, in columns and lines."""

    width: int = LEAST_WIDTH
    height: int = LEAST_HEIGHT

    @classmethod
    def of_terminal(cls) -> Screen:
        size = shutil.get_terminal_size((LEAST_WIDTH, LEAST_HEIGHT))
        return cls(min(max(size.columns, LEAST_WIDTH), MOST_WIDTH), max(size.lines, LEAST_HEIGHT))

    def lines(self, text: str) -> int:
        """Return the number of screen lines, including those created where the terminal wraps longer lines."""
        return sum(max(1, -(-len(line) // self.width)) for line in text.splitlines())


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of the report.

    dense: whether to omit empty lines. healthy: how healthy subjects are shown: "whole" lines, "cut" lines, or only
    "names".
    """

    details: list[Detail]
    dense: bool = False
    healthy: str = "whole"


def report_text(report: Report, screen: Screen | None = None) -> str:
    """Return the report for a terminal, with as much detail as fits on the screen."""
    screen, text = screen or Screen(), ""
    for layout in _layouts(len(report.findings)):
        text = _joined(report, layout, screen)
        # Reserve one line of the screen for the prompt.
        if screen.lines(text) < screen.height:
            break
    return text


def _layouts(count: int) -> Iterator[_Layout]:
    """Yield layouts from the most to the least detailed; later findings lose details first."""
    details = [Detail.FULL] * count
    yield _Layout(details)
    yield _Layout(details, dense=True)
    # The first finding is the most severe, so it is shortened last.
    later = range(count - 1, 0, -1)
    for detail, healthy in ((Detail.SHORT, "cut"), (Detail.LINE, "cut"), (Detail.CODE, "names")):
        yield _Layout(details, True, healthy)
        for index in later:
            details[index] = detail
            yield _Layout(details, True, healthy)
    # As a last resort, shorten the first finding.
    for detail in (Detail.SHORT, Detail.LINE) if count else ():
        details[0] = detail
        yield _Layout(details, True, "names")


def _joined(report: Report, layout: _Layout, screen: Screen) -> str:
    pairs = list(zip(report.findings, layout.details, strict=True))
    shown: list[str] = []
    first: dict[tuple[str, ...], str] = {}
    for one, detail in pairs:
        if detail is not Detail.CODE:
            shown.append(_finding(one, detail, screen, first.get(one.remedy.commands)))
            if one.remedy.commands:
                first.setdefault(one.remedy.commands, one.code)
    gap = "\n" if layout.dense else "\n\n"
    parts = [gap.join(shown), _healthy(report.healthy, layout.healthy, screen)]
    if any(detail is not Detail.FULL for detail in layout.details):
        codes = [one.code for one, detail in pairs if detail is Detail.CODE]
        more = f"and {len(codes)} more: {', '.join(codes)} " if codes else ""
        parts += textwrap.wrap(more + _MORE, screen.width, break_on_hyphens=False)
    parts.append(f"Verdict: {output.visible(report.verdict)}")
    return gap.join(part for part in parts if part)


def _finding(one: Finding, detail: Detail, screen: Screen, mended_by: str | None) -> str:
    """Return the text of a finding. mended_by: code of an earlier finding with the same commands."""
    lines = [f"{_NAMES[one.severity]:<{_TAG}}{output.visible(one.title)}  [{one.code}]"]
    shown = {
        Detail.FULL: (("seen", one.seen), ("note", one.notes), ("why", (one.why,))),
        Detail.SHORT: (("seen", one.seen[:1]),),
        Detail.LINE: (),
    }[detail]
    for label, texts in shown:
        for index, text in enumerate(texts):
            lines += _wrapped(label if index == 0 else "", output.visible(text), screen.width)
    return "\n".join([*lines, *_remedy(one.remedy, detail, screen.width, mended_by)])


def _remedy(remedy: Remedy, detail: Detail, width: int, mended_by: str | None) -> Iterator[str]:
    """Yield the lines of a fix. Each command stays on a single line, so that it can be copied."""
    if mended_by:
        yield f"{'':<{_TAG}}{'fix':<{_LABEL}}the commands of [{mended_by}] fix this, too"
        return
    words = _wrapped("fix", output.visible(remedy.words), width) if remedy.words else []
    if detail > Detail.LINE:
        yield from words
    elif words and not remedy.commands:
        yield words[0] + (" ..." if words[1:] else "")
    for index, command in enumerate(remedy.commands):
        yield f"{'':<{_TAG}}{'run' if index == 0 else '':<{_LABEL}}{output.visible(command)}"


def _wrapped(label: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=f"{'':<{_TAG}}{label:<{_LABEL}}",
        subsequent_indent=" " * (_TAG + _LABEL),
        # Do not break paths and commands, which the user may copy.
        break_long_words=False,
        break_on_hyphens=False,
    )


def _healthy(lines: tuple[Healthy, ...], how: str, screen: Screen) -> str:
    if how == "names":
        names = ", ".join(output.visible(one.check) for one in lines)
        return _cut(f"{'ok':<{_TAG}}{names}", screen.width) if names else ""
    texts = (f"{'ok':<{_TAG}}{output.visible(one.check)}: {output.visible(one.text)}" for one in lines)
    return "\n".join(_cut(text, screen.width) if how == "cut" else text for text in texts)


def _cut(text: str, width: int) -> str:
    """Shorten a line in the middle, because the two ends of a path are the most informative."""
    if len(text) <= width:
        return text
    # Subtract the five characters of " ... ", which joins the two halves.
    half = (width - 5) // 2
    return f"{text[: width - 5 - half]} ... {text[-half:]}"


SCHEMA: Final = 1


def report_document(report: Report) -> dict[str, Any]:
    """Return the report as a JSON document (`doctor.schema.json`)."""
    return {
        "schema": SCHEMA,
        "qnnbridge": __version__,
        "status": report.severity.name.lower(),
        "exit_code": report.exit_code,
        "verdict": report.verdict,
        "seconds": round(report.seconds, 3),
        "findings": [one.to_json() for one in report.findings],
        "healthy": [dataclasses.asdict(one) for one in report.healthy],
    }
