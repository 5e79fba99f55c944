"""QNN's error codes (`qnn_codes.json`), and lines of the logs of QNN and ONNX Runtime (`log_rules.json`).

Only the low 16 bits of a QNN error are its code. The upper bits are internal flags of the library, and ONNX Runtime
prints the whole number (``Code: 216172828125104107`` is 1003). The names were read from the QNN 2.40 core API.

The patterns come from logs of provoked errors of onnxruntime-qnn 2.6 and 2.7. Patterns of messages that occur only
with a real NPU come from the strings inside the libraries of these wheels. The first rule that matches a line
explains it, so special cases come first. `ort_log` applies the rules.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Final

from qnnbridge._diagnosis.tables import read

# --- QNN's error codes, and the few FastRPC codes that appear in logs ---


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCode:
    number: int
    name: str
    meaning: str
    advice: str = ""


def _codes(rows: list[dict[str, Any]]) -> tuple[QnnCode, ...]:
    return tuple(
        QnnCode(**{**row, "number": number if isinstance(number := row["number"], int) else int(number, 16)})
        for row in rows
    )


_CODES: Final = read("qnn_codes.json")
QNN_CODES: Final = _codes(_CODES["qnn"])
FASTRPC_CODES: Final = _codes(_CODES["fastrpc"])

_BY_NUMBER: Final = {row.number: row for row in QNN_CODES}
_BY_NAME: Final = {row.name: row for row in QNN_CODES}
_FASTRPC: Final = {row.number: row for row in FASTRPC_CODES}
_QNN_NAME = re.compile(r"\bQNN_[A-Z]+(?:_[A-Z]+)*_?ERROR_[A-Z_]+\b")
# A 64-bit number has at most 20 digits.
_QNN_NUMBER = re.compile(r"\b[Cc]ode:? *(\d{4,20})\b")


def qnn_code(number: int) -> QnnCode | None:
    """Return the row for an error number printed by QNN or ONNX Runtime, ignoring its internal upper bits."""
    return _BY_NUMBER.get(number & 0xFFFF)


def qnn_code_named(name: str) -> QnnCode | None:
    return _BY_NAME.get(name.upper())


def fastrpc(number: int) -> QnnCode | None:
    return _FASTRPC.get(number & 0xFFFFFFFF)


def find_qnn_code(text: str) -> QnnCode | None:
    """Return the first QNN error in a log line or message. An error's name takes precedence over a number."""
    for match in _QNN_NAME.finditer(text):
        row = qnn_code_named(match.group())
        if row is not None:
            return row
    for match in _QNN_NUMBER.finditer(text):
        row = qnn_code(int(match.group(1)))
        if row is not None:
            return row
    return None


# --- log lines ---

# Weight of a rule whose line has exactly one cause.
PROOF: Final = 90
# Weight of a rule whose line nearly always has the cause that the rule gives.
STRONG: Final = 70
# Weight of a rule whose line shows what failed, but not which of several causes applies.
SYMPTOM: Final = 40
# Weight of a rule whose line may have nothing to do with the failure.
HINT: Final = 15
# Names of the weights in the tables. "symptom+1" is the weight of a rule that takes precedence over "symptom" rules
# which match the same crash.
WEIGHTS: Final = {"proof": PROOF, "strong": STRONG, "symptom+1": SYMPTOM + 1, "symptom": SYMPTOM, "hint": HINT}


@dataclasses.dataclass(frozen=True, slots=True)
class LogRule:
    """Pattern of a log line, and an explanation of the line.

    Attributes:
        pattern: pattern to search in a line without its time stamp. Its named groups can be used in `cause` and
            `fix`; a group ``qnn`` (name or number of a QNN error) also defines ``{meaning}`` and ``{advice}``. The
            pattern is compiled at its first use, because most processes never need it.
        setup: whether the line shows that QNN did not start at all. This explains all nodes that QNN does not run.
    """

    name: str
    pattern: str
    cause: str
    fix: str
    weight: int = PROOF
    setup: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LogFinding:
    """Result of a rule that matched. `evidence` contains the matched lines, shortened, without time stamps."""

    rule: str
    cause: str
    fix: str
    weight: int
    evidence: tuple[str, ...] = ()
    setup: bool = False


def render(matched: LogRule, match: re.Match[str], evidence: str) -> LogFinding:
    """Return the result for a line, with the matched groups inserted into cause and fix."""
    words = {key: value.strip() for key, value in match.groupdict(default="").items()}
    if "qnn" in words:
        text = words["qnn"]
        row = qnn_code(int(text)) if text.isdigit() else qnn_code_named(text)
        words |= (
            {"qnn": text, "meaning": "a QNN error without a description", "advice": ""}
            if row is None
            else {"qnn": f"{row.name} ({row.number})", "meaning": row.meaning, "advice": row.advice}
        )
    cause = matched.cause.format(**words)
    # `{advice}` may be empty. Without `strip`, a fix that consists of blanks would count as a fix.
    return LogFinding(
        matched.name, cause, matched.fix.format(**words).strip(), matched.weight, (evidence,), matched.setup
    )


def log_rules(rows: list[dict[str, Any]]) -> tuple[LogRule, ...]:
    """Return the rules of a table. A row without a weight gets the weight "proof"."""
    return tuple(LogRule(**{**row, "weight": WEIGHTS[row.get("weight", "proof")]}) for row in rows)


_RULES: Final = read("log_rules.json")
# Rules for errors of the whole installation: QNN does not start, or the installation or an option is wrong.
SETUP_RULES: Final = log_rules([*_RULES["backend"], *_RULES["options"], *_RULES["installation"]])
MODEL_RULES: Final = log_rules([*_RULES["reset"], *_RULES["context"], *_RULES["graph"], *_RULES["run"]])
