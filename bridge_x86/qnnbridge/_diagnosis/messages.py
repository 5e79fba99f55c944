"""What a pasted text means: a code, a message, a piece of a log, in whatever form a user copied it.

`explain_text` asks all the tables that there are: log lines, messages, deaths, QNN codes, load errors, exit codes.
What none of them knows gives nothing, and the caller says so. Pure functions.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge._diagnosis import qnn_codes
from qnnbridge._diagnosis.death_rules import DEATH_RULES
from qnnbridge._diagnosis.exit_codes import Explanation, explain_code
from qnnbridge._diagnosis.load_errors import LOAD_ERRORS
from qnnbridge._diagnosis.messages_data import LAST_RULES, MESSAGE_RULES
from qnnbridge._diagnosis.model_rules import MODEL_RULES
from qnnbridge._diagnosis.ort_log import occurs, search
from qnnbridge._diagnosis.rules import STRONG, SYMPTOM
from qnnbridge._diagnosis.setup_rules import SETUP_RULES
from qnnbridge._diagnosis.stderr_text import shorten
from qnnbridge_protocol.errors import OptionError

MAX_MEANINGS: Final = 5
# Of a longer line the beginning and the end are read: no message is that long, and some patterns would take for
# ever.
_MAX_LINE_CHARS: Final = 4000
# Different exit codes in one text; all but the first few are dropped in the end.
_MAX_CODES: Final = 1000
_WORDS_OF_LOAD_ERRORS: Final = (
    "message.module-not-found",
    "message.procedure-not-found",
    "message.not-a-valid-win32",
)
_WIN_ERROR: Final = re.compile(
    r"\bwin ?error:? *(\d{1,5})\b|\berror loading .{0,300}?\berror[: ]+(\d{3,5})\b", re.IGNORECASE
)
_EXIT: Final = re.compile(
    r"\b(?:exit(?:ed)?(?: with)?(?: status| code)?|return ?code|returned|\$\?|errorlevel|lastexitcode)\b[ :=]*"
    r"(?P<code>-?0x[0-9a-f]+|-?\d+)",
    re.IGNORECASE,
)
_HEX_STATUS: Final = re.compile(r"\b0x[CE8][0-9a-f]{7}\b", re.IGNORECASE)
_SIGNAL: Final = re.compile(r"\bSIG(?:SEGV|ABRT|ILL|FPE|BUS|KILL)\b|\b(?:Segmentation fault|Aborted|Bus error)\b")
_SIGNAL_WORDS: Final = {"Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS"}
_BARE_CODE: Final = re.compile(r"\b(?:error|code|fehler|erreur)\b[^\d\n]{0,12}(?P<code>\d{4,20})\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that the text can mean. seen: the line it was read from, or where a code has this meaning."""

    title: str
    cause: str
    fix: str
    seen: str
    weight: int

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "cause": self.cause, "fix": self.fix, "seen": self.seen}


def explain_text(text: str) -> list[Meaning]:
    """The likely meanings, best first; empty if nothing in the text is known."""
    text = text.strip()
    if not text:
        return []
    whole = _code(text)
    if whole is not None:
        return list(_readings(whole))
    lines = list(dict.fromkeys(_bounded(line) for line in text.splitlines()))
    text = "\n".join(lines)
    found = [*_from_rules(lines), *_from_deaths(lines, text), *_from_codes(text)]
    best: dict[str, Meaning] = {}
    for meaning in sorted(found, key=lambda one: -one.weight):
        best.setdefault(meaning.cause, meaning)
    meanings = list(best.values())
    if any(one.title.startswith("ERROR_") for one in meanings):  # Windows' own words for the number beside them
        meanings = [one for one in meanings if one.title not in _WORDS_OF_LOAD_ERRORS]
    # What is merely possible is not worth reading beside what is sure.
    certain = meanings[0].weight >= STRONG if meanings else False
    return [one for one in meanings if not certain or one.weight > SYMPTOM][:MAX_MEANINGS]


def _bounded(line: str) -> str:
    half = _MAX_LINE_CHARS // 2
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:half]} {line[-half:]}"


def _code(text: str) -> Explanation | None:
    """The text as a code and nothing else: ``1002``, ``WinError 126``, ``0xC0000409``, ``SIGSEGV``."""
    if len(text) > 80 or "\n" in text:
        return None
    try:
        return explain_code(text)
    except OptionError:
        return None


def _readings(explanation: Explanation, weight: int = STRONG) -> Iterator[Meaning]:
    for index, reading in enumerate(explanation.readings):
        fix = reading.advice
        yield Meaning(reading.name, _sentence(reading.meaning), fix, reading.seen, weight - index)


def _from_rules(lines: list[str]) -> Iterator[Meaning]:
    # Pasted lines may have lost their beginnings, and the messages of Python have none: all rules for all lines.
    for finding in search(lines, (*MESSAGE_RULES, *SETUP_RULES, *MODEL_RULES, *LAST_RULES)):
        seen = finding.evidence[0] if finding.evidence else ""
        yield Meaning(finding.rule, finding.cause, finding.fix, seen, finding.weight)


def _from_deaths(lines: list[str], text: str) -> Iterator[Meaning]:
    for rule in DEATH_RULES:
        if rule.line is None or not occurs(rule.line, text):
            continue
        pattern = re.compile(rule.line)
        for line in lines:
            match = pattern.search(line)
            if match is None:
                continue
            words = {key: value.strip() for key, value in match.groupdict(default="").items()} | {"signal": ""}
            weight = min(rule.weight, STRONG if rule.weight > SYMPTOM else SYMPTOM)
            yield Meaning(
                "death of the process", rule.cause.format(**words), rule.fix, shorten(line.strip()), weight
            )
            break


def _from_codes(text: str) -> Iterator[Meaning]:
    for match in _WIN_ERROR.finditer(text):
        row = LOAD_ERRORS.get(int(match[1] or match[2]))
        if row is not None:
            yield Meaning(row.name, _sentence(row.meaning), row.advice, match.group(), STRONG + 5)
    qnn = qnn_codes.find(text)
    if qnn is None:
        qnn = next(_bare_codes(text), None)
    if qnn is not None:
        advice = qnn.advice or "Read the lines before it in ONNX Runtime's log."
        yield Meaning(f"{qnn.name} ({qnn.number})", _sentence(qnn.meaning), advice, str(qnn.number), STRONG - 5)
    exits = (f"exit code {match['code']}" for match in _EXIT.finditer(text))
    others = (match.group() for match in (*_HEX_STATUS.finditer(text), *_SIGNAL.finditer(text)))
    for said in itertools.islice(dict.fromkeys((*exits, *others)), _MAX_CODES):
        explained = _code(_SIGNAL_WORDS.get(said, said))
        if explained is not None:
            yield from _readings(explained, SYMPTOM + 10)


def _bare_codes(text: str) -> Iterator[qnn_codes.QnnCode]:
    rows = (qnn_codes.by_number(int(match["code"])) for match in _BARE_CODE.finditer(text))
    return (row for row in rows if row is not None)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
