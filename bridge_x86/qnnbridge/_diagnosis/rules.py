"""The shape of a log rule: a pattern, and what a line that matches it means. The rules themselves are data
(`ort_rules`, `death_rules`)."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from qnnbridge._diagnosis import qnn_codes

# Weight of a line that names the one cause.
PROOF: Final = 90
# The line nearly always has this cause.
STRONG: Final = 70
# The line says what failed, its cause is one of several.
SYMPTOM: Final = 40
# The line may have nothing to do with the failure.
HINT: Final = 15


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """pattern: searched in a line without its time stamp; its named groups can be used in `cause` and `fix`. It is
    compiled when it is first needed: most processes never need one.

    A group called ``qnn`` (a name or a number of a QNN error) also gives ``{meaning}`` and ``{advice}``.
    setup: the line says that QNN as a whole did not start, which explains every node that is not on QNN.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    weight: int
    setup: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A rule that matched. evidence: the lines, without time stamps and shortened."""

    rule: str
    cause: str
    fix: str
    weight: int
    evidence: tuple[str, ...] = ()
    setup: bool = False


def rule(name: str, pattern: str, cause: str, fix: str, weight: int = PROOF, *, setup: bool = False) -> Rule:
    return Rule(name, pattern, cause, fix, weight, setup)


def render(matched: Rule, match: re.Match[str], evidence: str) -> Finding:
    """The finding for a line, with the words of the line put into the rule's sentences."""
    words = {key: value.strip() for key, value in match.groupdict(default="").items()}
    if "qnn" in words:
        words |= _qnn_words(words["qnn"])
    cause = matched.cause.format(**words)
    return Finding(
        matched.name, cause, matched.fix.format(**words).strip(), matched.weight, (evidence,), matched.setup
    )


def _qnn_words(text: str) -> dict[str, str]:
    row = qnn_codes.by_number(int(text)) if text.isdigit() else qnn_codes.by_name(text)
    if row is None:
        return {"qnn": text, "meaning": "a QNN error without a description", "advice": ""}
    return {"qnn": f"{row.name} ({row.number})", "meaning": row.meaning, "advice": row.advice}
