"""A finding: one thing that is wrong, described, with its fix; and what a whole examination comes to.

What is always the same for a code (how bad, why it matters) is in `CATALOGUE`; a check adds what it saw and the fix
for this very machine. `report_text` and `report_document` show a report to a person and to a program.
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
    """Also the exit code of the command."""

    HEALTHY = 0
    DEGRADED = 1
    BLOCKED = 2


class Effect(enum.Enum):
    """The effect of a blocking fault on an application that just tries."""

    UNUSABLE = "The NPU cannot be used"
    SILENT_CPU = "Sessions would silently run on the CPU"
    SIMULATOR = "Sessions would run in QNN's simulator instead of the NPU"
    DEATH = "The process that loads QNN would die"


@dataclasses.dataclass(frozen=True, slots=True)
class Remedy:
    """The fix of a finding.

    Args:
        words: A sentence; empty where the commands say it.
        commands: Lines to copy in this order, each one command for the shells of that computer.
    """

    words: str = ""
    commands: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Args:
        code: Stable name, `area.problem`.
        title: One clause, which the verdict can use.
        seen: Evidence.
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
        """The words and, on lines of their own, the commands."""
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
    """One line about something that was examined and is well."""

    check: str
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """findings: most blocking first."""

    findings: tuple[Finding, ...]
    healthy: tuple[Healthy, ...]
    verdict: str
    seconds: float = 0.0

    @property
    def severity(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.HEALTHY)

    @property
    def exit_code(self) -> int:
        return int(self.severity)


@dataclasses.dataclass(frozen=True, slots=True)
class SubjectCheck:
    """A function that gives findings, or else one line that says what is well.

    Args:
        name: The beginning of the healthy line.
        find: The findings, none where all is well.
        healthy: The line, ``None`` where there is nothing to say on this computer.
    """

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    healthy: Callable[[Facts], str | None] = lambda _facts: None


# --- all findings: `assets/findings.json` ---
#
# The order is the order of a report: causes come before consequences. `hides` names findings (or beginnings of
# their codes) that are consequences of this one, or of each of its section. docs/doctor.md has the same table; a
# test compares both.


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
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
    """A finding of the catalogue, with what is particular to this computer.

    Args:
        fix: As a text, without a command.
    """
    entry = CATALOGUE[code]
    remedy = fix if isinstance(fix, Remedy) else Remedy(fix)
    shown = tuple(line for line in seen if line)
    return Finding(code, entry.severity, title, shown, entry.why, remedy, entry.effect, notes)


def rank(found: Finding) -> tuple[int, int]:
    """Sorts a report: the most blocking first, causes before what rests on them."""
    return -int(found.severity), _ORDER[found.code]


def is_hidden(found: Finding, others: Iterable[Finding]) -> bool:
    """Whether it is a mere consequence of one of the others, which then stands before it."""
    return any(
        # Strictly before: `model.unreadable` hides all of "model.", and must not hide itself.
        found.code.startswith(CATALOGUE[other.code].hides) and _ORDER[other.code] < _ORDER[found.code]
        for other in others
    )


# --- a report as text for a terminal and as a JSON document ---
#
# The text is one screen: most blocking first, one line per healthy thing, the verdict last. Where much is wrong,
# later findings are shown with less detail until all of it fits, in the end by their codes alone. ``--json`` shows
# everything.

# Columns and lines. What is piped into a file is read later, in a window of usual size.
LEAST_WIDTH: Final = 80
MOST_WIDTH: Final = 120
LEAST_HEIGHT: Final = 40
# Widths of the two columns on the left: the severity, and the label of a line.
_TAG: Final = 10
_LABEL: Final = 6
_NAMES: Final = {Severity.BLOCKED: "BLOCKED", Severity.DEGRADED: "DEGRADED", Severity.HEALTHY: "ok"}
_MORE: Final = "(less detail than there is: qnnbridge doctor --json shows all)"


class Detail(enum.IntEnum):
    """The shown part of a finding: code; title and commands; also the words of the fix and some evidence; all."""

    CODE = 0
    LINE = 1
    SHORT = 2
    FULL = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Screen:
    width: int = LEAST_WIDTH
    height: int = LEAST_HEIGHT

    @classmethod
    def of_terminal(cls) -> Screen:
        size = shutil.get_terminal_size((LEAST_WIDTH, LEAST_HEIGHT))
        return cls(min(max(size.columns, LEAST_WIDTH), MOST_WIDTH), max(size.lines, LEAST_HEIGHT))

    def lines(self, text: str) -> int:
        """Number of lines on the screen: a terminal breaks longer ones."""
        return sum(max(1, -(-len(line) // self.width)) for line in text.splitlines())


@dataclasses.dataclass(frozen=True, slots=True)
class _Layout:
    """The form of the report. dense: without empty lines. healthy: "whole" lines, "cut" ones, or their "names"."""

    details: list[Detail]
    dense: bool = False
    healthy: str = "whole"


def report_text(report: Report, screen: Screen | None = None) -> str:
    screen, text = screen or Screen(), ""
    for layout in _layouts(len(report.findings)):
        text = _joined(report, layout, screen)
        # One line of the screen is for the prompt that follows.
        if screen.lines(text) < screen.height:
            break
    return text


def _layouts(count: int) -> Iterator[_Layout]:
    """From all detail to the least: details of later findings go first."""
    details = [Detail.FULL] * count
    yield _Layout(details)
    yield _Layout(details, dense=True)
    # Never the first: it blocks the most, and keeps its detail to the end.
    later = range(count - 1, 0, -1)
    for detail, healthy in ((Detail.SHORT, "cut"), (Detail.LINE, "cut"), (Detail.CODE, "names")):
        yield _Layout(details, True, healthy)
        for index in later:
            details[index] = detail
            yield _Layout(details, True, healthy)
    # The last resort: only here does the first finding lose its words.
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
    """mended_by: code of one before it that has the same commands."""
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
    """A command stays on one line of its own: it is there to be copied."""
    if mended_by:
        yield f"{'':<{_TAG}}{'fix':<{_LABEL}}the commands of [{mended_by}] mend this, too"
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
        # Paths and commands are there to be copied: a part of one is useless.
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
    """The middle goes: paths say most at their ends."""
    if len(text) <= width:
        return text
    # Five characters are for " ... " between the halves.
    half = (width - 5) // 2
    return f"{text[: width - 5 - half]} ... {text[-half:]}"


SCHEMA: Final = 1


def report_document(report: Report) -> dict[str, Any]:
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
