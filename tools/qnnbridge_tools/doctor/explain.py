"""`qnnbridge doctor --explain TEXT`: a pasted message, code, log or finding, in words."""

from __future__ import annotations

import textwrap
from typing import Any

from qnnbridge_tools import output
from qnnbridge_tools.doctor.catalogue import CATALOGUE

UNKNOWN = (
    "Nothing in this text is known to qnnbridge. That does not mean that it is harmless.\n"
    "Paste the whole message with the lines before it, or run the failing program with QNNBRIDGE_DEBUG=1;\n"
    "`qnnbridge doctor` examines this computer."
)


def explained(text: str) -> list[dict[str, Any]]:
    """Meanings, best first; empty if nothing is known."""
    entry = CATALOGUE.get(text.strip().strip("[]"))
    if entry is not None:
        fix = "Run `qnnbridge doctor` on the computer concerned: it names the command."
        return [
            {"title": text.strip().strip("[]"), "cause": entry.why, "fix": fix, "seen": "a finding of this doctor"}
        ]
    from qnnbridge._diagnosis.messages import explain_text

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
