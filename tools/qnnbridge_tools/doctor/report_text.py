"""A report for a person: one screen, most blocking first, one line per healthy thing, the verdict last."""

from __future__ import annotations

import textwrap
from typing import Final

from qnnbridge_tools import output
from qnnbridge_tools.doctor.findings import Finding, Report, Severity

_WIDTH: Final = 110
_INDENT: Final = " " * 10
_NAMES: Final = {Severity.BLOCKED: "BLOCKED", Severity.DEGRADED: "DEGRADED", Severity.HEALTHY: "ok"}


def report_text(report: Report) -> str:
    parts = [_finding(one) for one in report.findings]
    healthy = "\n".join(
        f"{'ok':<10}{output.visible(one.check)}: {output.visible(one.text)}" for one in report.healthy
    )
    if healthy:
        parts.append(healthy)
    parts.append(f"Verdict: {output.visible(report.verdict)}")
    return "\n\n".join(parts)


def _finding(one: Finding) -> str:
    lines = [f"{_NAMES[one.severity]:<10}{output.visible(one.title)}  [{one.code}]"]
    for label, texts in (("seen", one.seen), ("note", one.notes), ("why", (one.why,)), ("fix", (one.fix,))):
        for index, text in enumerate(texts):
            lines += _wrapped(label if index == 0 else "", output.visible(text), whole=label == "fix")
    return "\n".join(lines)


def _wrapped(label: str, text: str, *, whole: bool) -> list[str]:
    """A fix stays on one line: it is there to be copied."""
    first, later = f"{_INDENT}{label:<6}", _INDENT + " " * 6
    if whole:
        return [first + text]
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
