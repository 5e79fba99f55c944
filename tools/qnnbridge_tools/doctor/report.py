"""A report as text for a terminal and as a JSON document.

The text is one screen: most blocking first, one line per healthy thing, the verdict last. Where much is
wrong, later findings are shown with less detail until all of it fits, in the end by their codes alone.
``--json`` shows everything.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import shutil
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, Final

from qnnbridge_protocol import __version__
from qnnbridge_tools import output
from qnnbridge_tools.doctor.findings import Finding, Healthy, Remedy, Report, Severity

LEAST_WIDTH: Final = 80
MOST_WIDTH: Final = 120
LEAST_HEIGHT: Final = 40
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


@dataclasses.dataclass(slots=True)
class _Layout:
    """The form of the report. dense: without empty lines. healthy: "whole" lines, "cut" ones, or their "names"."""

    details: list[Detail]
    dense: bool = False
    healthy: str = "whole"


def report_text(report: Report, screen: Screen | None = None) -> str:
    screen = screen or Screen()
    layout = _Layout([Detail.FULL] * len(report.findings))
    text = _joined(report, layout, screen)
    for make_smaller in _steps(len(report.findings)):
        # One line of the screen is for the prompt that follows.
        if screen.lines(text) < screen.height:
            break
        make_smaller(layout)
        text = _joined(report, layout, screen)
    return text


def _steps(count: int) -> Iterator[Callable[[_Layout], None]]:
    """The reductions in their order: details of later findings first."""
    # Never the first: it blocks the most, and keeps its detail to the end.
    later = range(count - 1, 0, -1)
    yield lambda layout: setattr(layout, "dense", True)
    yield lambda layout: setattr(layout, "healthy", "cut")
    for detail in (Detail.SHORT, Detail.LINE):
        yield from (functools.partial(_reduce, index=index, detail=detail) for index in later)
    yield lambda layout: setattr(layout, "healthy", "names")
    yield from (functools.partial(_reduce, index=index, detail=Detail.CODE) for index in later)
    # The last resort: only here does the first finding lose its words.
    if count:
        yield from (functools.partial(_reduce, index=0, detail=detail) for detail in (Detail.SHORT, Detail.LINE))


def _reduce(layout: _Layout, index: int, detail: Detail) -> None:
    layout.details[index] = min(layout.details[index], detail)


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
        "healthy": [{"check": one.check, "text": one.text} for one in report.healthy],
    }
