"""Explain codes and texts that a user has seen on a terminal, in a log or in a forum.

`explain_code` takes a code as it was copied and returns *every* meaning, because the same number has different
meanings in different places: 127 is a shell's "not found", Git Bash's replacement for nearly every Windows crash,
and the Windows load error "procedure not found". `explain_text` searches all tables: log lines, messages of Python,
pip, Windows and ONNX Runtime's Python layer (listed here), deaths, QNN codes, load errors and exit codes. It
returns an empty list for an unknown text. All functions are pure functions over tables.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from qnnbridge._diagnosis import exit_codes as codes
from qnnbridge._diagnosis import log_rules
from qnnbridge._diagnosis.crash import DEATH_RULES
from qnnbridge._diagnosis.exit_codes import WINDOWS, ExitCode, ExitStatus
from qnnbridge._diagnosis.log_rules import MODEL_RULES, SETUP_RULES, STRONG, SYMPTOM
from qnnbridge._diagnosis.ort_log import occurs, search
from qnnbridge._diagnosis.tables import TEXTS
from qnnbridge._launch.stderr import shorten
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shown import closest
from qnnbridge_protocol.tables import read_tables
from qnnbridge_tools import own_errors

# --- codes ---

__all__ = ["ExitCode", "ExitStatus", "Explanation", "Reading", "explain_code"]

# The usual causes of Git Bash's 127 when QNN is involved, most likely first. Cygwin maps six statuses to signals,
# and shows all others from 0xC0000000 on as 127.
GIT_BASH_127: Final = (0xC0000409, 0xC0000374, 0xC0000139, 0xC0000135)

# QNN errors carry flags up to bit 63.
MAX_NUMBER: Final = 1 << 64

_WORDS = re.compile(
    r"^(?:\[?(?P<kind>win ?error|signal|hresult|ntstatus|qnn(?: error)?|code|error(?: code)?|"
    r"exit(?:ed with)?(?: status| code)?|rc|returncode|status|\$\?|%errorlevel%|\$lastexitcode))"
    r"(?![A-Za-z_])\]?\s*[:=]?\s*",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"^[+-]?(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)$")
# Eight digits without 0x count as hexadecimal only if one of them is a letter: 10000000 is a decimal number. C's
# suffixes L and U are copied along with a number.
_HEX = re.compile(
    r"^(?P<sign>-?)(?:0x(?P<digits>[0-9a-f]+)|(?P<bare>(?=[0-9a-f]*[a-f])[0-9a-f]{8}))[lu]*$", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True, slots=True)
class LoadError:
    name: str
    meaning: str
    advice: str


_TABLES: Final = read_tables(Path(__file__).with_name("assets").joinpath("messages.json").read_text("utf-8"), TEXTS)
# Windows error codes for a failure to load a library or program.
LOAD_ERRORS: Final = {
    row["number"]: LoadError(row["name"], row["meaning"], row["advice"]) for row in _TABLES["load_errors"]
}


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One possible meaning of the code.

    seen: where the number has this meaning. candidates: exit codes that an ambiguous number may stand for, the
    most likely first. kind: as in `ExitCode`, or ``load-error`` and ``qnn-error``, which are not exit codes.
    """

    seen: str
    name: str
    meaning: str
    advice: str
    kind: str
    candidates: tuple[ExitCode, ...] = ()

    def to_json(self) -> dict[str, Any]:
        out = dataclasses.asdict(self)
        out["candidates"] = [
            {"number": c.number, "hex": f"0x{c.number:08X}", "name": c.name, "meaning": c.meaning}
            for c in self.candidates
        ]
        return out


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """All meanings of a code, most likely first. elsewhere: how other programs show the same code."""

    text: str
    number: int
    readings: tuple[Reading, ...]
    elsewhere: tuple[tuple[str, str], ...] = ()

    def to_text(self) -> str:
        lines = []
        if len(self.readings) > 1:
            lines.append(f"{self.text} has {len(self.readings)} meanings, depending on where the number was seen.")
        for number, reading in enumerate(self.readings, 1):
            mark = f"{number}. " if len(self.readings) > 1 else ""
            lines.append(f"{mark}{reading.seen}: {reading.name}")
            lines.append(f"   Meaning: {reading.meaning}.")
            lines.extend(f"   - 0x{c.number:08X} {c.name}: {c.meaning}" for c in reading.candidates)
            lines.append(f"   Fix: {reading.advice}")
        if self.elsewhere:
            lines.append(
                "The same code elsewhere: " + ", ".join(f"{where} {value}" for where, value in self.elsewhere)
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "number": self.number,
            "readings": [reading.to_json() for reading in self.readings],
            "elsewhere": dict(self.elsewhere),
        }


def explain_code(text: str) -> Explanation:
    """Explain an exit code, a signal, a Windows load error or a QNN error, as a user copied it.

    Args:
        text: the code as a number or a name, with or without words such as "exit code" before it.

    Returns:
        All meanings of the code, most likely first.

    Raises:
        OptionError: the text is not a code, or it is an unknown name.
    """
    original = text.strip()
    prefix = _WORDS.match(original)
    kind = (prefix.group("kind") or "").lower() if prefix else ""
    body = original[prefix.end() :] if prefix else original
    # Codes are copied with the punctuation around them.
    body = body.strip(" .;()[]'\"`")
    number, is_hex = _parse(body)
    if number is None:
        return _explain_name(original, body)
    if kind.replace(" ", "") == "winerror":
        # Do not look up a negative number as a load error: it is the NTSTATUS of a crash that ctypes caught and
        # reports as [WinError N].
        readings = list(_load_error(number) if number >= 0 else _readings(number, is_hex=False))
    elif kind == "signal":
        readings = [_exit_reading("A signal", codes.signal_code(number))]
    elif abs(number) > MAX_NUMBER:
        raise _nonsense(original)
    else:
        readings = list(_readings(number, is_hex=is_hex))
        # Explain an unknown number as an exit code that the program itself defines.
        if not readings and 0 < number <= codes.UINT32:
            readings = [_exit_reading("Any program on Windows", codes.windows_code(number))]
        if kind.startswith(("exit", "rc", "returncode", "status")):
            # Words such as "exit code" before the number show that the number is an exit code.
            readings = [r for r in readings if r.kind not in ("load-error", "qnn-error")] or readings
    if not readings:
        raise _nonsense(original)
    return Explanation(original, number, tuple(readings), _elsewhere(number))


def _parse(body: str) -> tuple[int | None, bool]:
    """Return the number in the text, and whether it was written as hexadecimal."""
    match = _HEX.match(body)
    if match:
        number = int(match.group("digits") or match.group("bare"), 16)
        return (-number if match.group("sign") else number), True
    if _NUMBER.match(body):
        return int(body.replace(",", "").replace("_", "")), False
    return None, False


def _explain_name(original: str, body: str) -> Explanation:
    row = codes.code_by_name(body)
    if row is not None:
        if row.name.startswith("SIG"):
            reading = _exit_reading("A signal (Linux, macOS)", row)
            return Explanation(original, -row.number, (reading,), _elsewhere(-row.number))
        return Explanation(
            original, row.number, (_exit_reading("A Windows exit code", row),), _elsewhere(row.number)
        )
    qnn = log_rules.qnn_code_named(body)
    if qnn is not None:
        return Explanation(original, qnn.number, (_qnn_reading(qnn),))
    raise _nonsense(original)


def _nonsense(text: str) -> OptionError:
    close = closest(text.upper(), codes.known_names(), 0.75)
    hint = f"Did you mean {close}? " if close else ""
    if " " in text:
        hint += "For a message or a part of a log run `qnnbridge doctor --explain TEXT`. "
    return OptionError(
        f"{text!r} is not an exit code, a signal or a QNN error." if text else "There is no code to explain.",
        fix=f"{hint}Give a number (3221226505, -11, 127), a hexadecimal number (0xC0000409) or a name "
        "(SIGSEGV, STATUS_HEAP_CORRUPTION, QNN_COMMON_ERROR_MEM_ALLOC).",
    )


def _readings(number: int, *, is_hex: bool) -> Iterator[Reading]:
    if number < 0:
        yield from _negative(number)
    elif number <= 0xFF:
        yield from _byte(number, is_hex=is_hex)
    elif number <= codes.UINT32:
        # Skip exit codes that a program defines itself, except 259 (STILL_ACTIVE): some supervisors consider a
        # process that ended with 259 still running.
        if codes.windows_code(number).kind != "python" or number == 259:
            yield _exit_reading("Windows exit code", codes.windows_code(number))
        if log_rules.fastrpc(number):
            yield _qnn_reading(log_rules.fastrpc(number))
        yield from _qnn_error(number)
        yield from _load_error(number)
    else:
        yield from _qnn_error(number)


def _negative(number: int) -> Iterator[Reading]:
    # Linux numbers its signals up to 64.
    if number >= -64:
        yield _exit_reading("Python's subprocess on Linux or macOS (-N is signal N)", codes.signal_code(-number))
    # -1 can be signal 1 as reported by Python on Linux, or cmd's notation for 0xFFFFFFFF.
    if number == -1 or -0x80000000 <= number < -64:
        row = codes.windows_code(number & codes.UINT32)
        yield _exit_reading("cmd or PowerShell on Windows (signed 32-bit exit code)", row)


def _byte(number: int, *, is_hex: bool) -> Iterator[Reading]:
    posix = codes.posix_code(number)
    signal = ExitStatus(number, "posix").signal
    if posix is not None:
        yield _exit_reading("A POSIX shell, or subprocess on Linux or macOS", posix)
    if signal is not None:
        yield _exit_reading(f"A POSIX shell on Linux (128 + {signal})", codes.signal_code(signal))
    windows = codes.windows_code(number)
    if windows.fault != "own-number" and (posix is None or windows.meaning != posix.meaning):
        yield _exit_reading("Windows exit code", windows)
    yield from _git_bash(number)
    if is_hex and log_rules.fastrpc(number):
        yield _qnn_reading(log_rules.fastrpc(number))
    yield from _load_error(number)
    # A Windows code that was cut to its low byte can look like a shell's code: 0xC06D007F like 127, 0xC06D007E like
    # 126.
    cut = tuple(row for row in WINDOWS if row.number >= codes.NTSTATUS_ERROR and row.number & 0xFF == number)
    if cut:
        yield Reading(
            "A Linux parent of a Windows process (WSL, a container, Wine): only the low byte is left",
            _names(cut),
            "the Windows code was cut to its low byte, so several codes look like this",
            "Read the full 32-bit code on the Windows side.",
            "crash",
            cut,
        )
    if posix is None and signal is None and windows.fault == "own-number" and not cut:
        yield _exit_reading("Any program", windows)


def _git_bash(number: int) -> Iterator[Reading]:
    seen = "Git Bash, MSYS2 or Cygwin after a native Windows program"
    if number == 127:
        candidates = tuple(codes.windows_code(n) for n in GIT_BASH_127)
        yield Reading(
            seen,
            _names(candidates) + ", or command not found",
            "these shells show almost every Windows crash as 127; with QNN it is most likely one of the codes "
            "below (most likely first), and only rarely a command that was not found",
            "Start the program from Python or PowerShell, read the full code, and explain that code.",
            "crash",
            candidates,
        )
        return
    rows = tuple(
        row for row in WINDOWS if row.number >= codes.NTSTATUS_ERROR and codes.git_bash_status(row.number) == number
    )
    for row in rows:
        yield _exit_reading(seen, row)


def _load_error(number: int) -> Iterator[Reading]:
    row = LOAD_ERRORS.get(number)
    if row is not None:
        yield Reading(
            f"WinError {number} inside a message (a load error of a running process, not an exit code)",
            row.name,
            row.meaning,
            row.advice,
            "load-error",
        )


def _qnn_error(number: int) -> Iterator[Reading]:
    # QNN codes are compared by their low 16 bits. Any 32-bit number may match, so accept only numbers of at most 16
    # bits, or with flags above bit 32.
    row = log_rules.qnn_code(number) if number <= 0xFFFF or number > codes.UINT32 else None
    if row is not None:
        yield _qnn_reading(row)


def _qnn_reading(row: log_rules.QnnCode | None) -> Reading:
    assert row is not None
    advice = row.advice or "Read the lines before this one in ONNX Runtime's log."
    number = "" if row.name.startswith("FastRPC") else f" ({row.number})"
    return Reading("An error number in a QNN message", row.name + number, row.meaning, advice, "qnn-error")


def _exit_reading(seen: str, row: ExitCode) -> Reading:
    name = row.name if row.number < 0x40000000 or "0x" in row.name else f"{row.name} (0x{row.number:08X})"
    return Reading(seen, name, row.meaning, row.advice, row.kind)


def _names(rows: tuple[ExitCode, ...]) -> str:
    return ", ".join(row.name for row in rows)


def _elsewhere(number: int) -> tuple[tuple[str, str], ...]:
    """Return how other programs show the same code, for a signal or a full Windows code."""
    # Exclude -1, which can be signal 1 or 0xFFFFFFFF.
    if -64 <= number < -1:
        return (("Python", str(number)), ("POSIX shell", str(codes.SHELL_SIGNAL_BASE - number)))
    unsigned = number & codes.UINT32
    known = unsigned >= codes.NTSTATUS_ERROR or codes.windows_code(unsigned).fault != "own-number"
    if not -0x80000000 <= number <= codes.UINT32 or unsigned <= 0xFFFF or number == -1 or not known:
        return ()
    return (
        ("Python", str(unsigned)),
        ("hexadecimal", f"0x{unsigned:08X}"),
        ("cmd and PowerShell", str(codes.to_signed(unsigned))),
        ("Git Bash", str(codes.git_bash_status(unsigned))),
        ("WSL and containers", str(unsigned & 0xFF)),
    )


# --- pasted texts: a code, a message, a piece of a log, in whatever form a user copied it ---

# Messages of Python, pip, Windows and shells that users see when they set up or start a host. The first rule that
# matches a line explains it. These rules come before the rules for the host's log, whose fixes apply only to the
# host's interpreter. A rule for crashes also requires the exit code and the phase, which a pasted text lacks, so
# only the rule's log line is matched.
MESSAGE_RULES: Final = log_rules.log_rules(_TABLES["messages"])
# Rules for lines that no other rule matches.
LAST_RULES: Final = log_rules.log_rules(_TABLES["last"])


MAX_MEANINGS: Final = 5
# Only the beginning and the end of a longer line are read: no message is that long, and some patterns would be too
# slow.
_MAX_LINE_CHARS: Final = 4000
# Maximum number of different exit codes to read from a text. The result contains only the first few.
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
# 0xC: NTSTATUS errors. 0x8: NTSTATUS warnings and HRESULT failures. 0xE: exceptions of C++ and .NET.
_HEX_STATUS: Final = re.compile(r"\b0x[CE8][0-9a-f]{7}\b", re.IGNORECASE)
_SIGNAL: Final = re.compile(r"\bSIG(?:SEGV|ABRT|ILL|FPE|BUS|KILL)\b|\b(?:Segmentation fault|Aborted|Bus error)\b")
_SIGNAL_WORDS: Final = {"Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS"}
# Match English, German and French, because Windows and shells print messages in the user's language.
_BARE_CODE: Final = re.compile(r"\b(?:error|code|fehler|erreur)\b[^\d\n]{0,12}(?P<code>\d{4,20})\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Meaning:
    """One possible meaning of the text. seen: the line it was read from, or where a code has this meaning."""

    title: str
    cause: str
    fix: str
    seen: str
    weight: int

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "cause": self.cause, "fix": self.fix, "seen": self.seen}


def explain_text(text: str) -> list[Meaning]:
    """Return the likely meanings, best first; empty if nothing in the text is known."""
    text = text.strip()
    if not text:
        return []
    # A code alone is not a message: the line rules would match nothing, or too much.
    whole = _code(text)
    if whole is not None:
        return list(_line_readings(whole))
    # Logs contain repeated lines: each line is searched once.
    lines = list(dict.fromkeys(_bounded(line) for line in text.splitlines()))
    text = "\n".join(lines)
    found = [*_from_rules(lines), *_from_deaths(lines, text), *_from_codes(text), *_from_own_errors(lines)]
    best: dict[str, Meaning] = {}
    for meaning in sorted(found, key=lambda one: -one.weight):
        # If several rules have the same cause, keep the first, which has the most weight.
        best.setdefault(meaning.cause, meaning)
    meanings = list(best.values())
    # If Windows' name of a load error is found, omit other explanations of this error.
    if any(one.title.startswith("ERROR_") for one in meanings):
        meanings = [one for one in meanings if one.title not in _WORDS_OF_LOAD_ERRORS]
    # If the best explanation has at least the weight `STRONG`, omit those that explain only a symptom.
    certain = meanings[0].weight >= STRONG if meanings else False
    return [one for one in meanings if not certain or one.weight > SYMPTOM][:MAX_MEANINGS]


def _from_own_errors(lines: list[str]) -> Iterator[Meaning]:
    for error, cause, fix, line in own_errors.in_lines(lines):
        # An error of qnnbridge is a symptom: any other match in the text is its cause.
        yield Meaning(f"{error.__name__} ({error.code})", cause, fix, shorten(line), SYMPTOM)
    for name, cause, fix, line in own_errors.warnings_in(lines):
        yield Meaning(name, cause, fix, shorten(line), SYMPTOM)


def _bounded(line: str) -> str:
    half = _MAX_LINE_CHARS // 2
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:half]} {line[-half:]}"


def _code(text: str) -> Explanation | None:
    """Explain the text if it is only a code: ``1002``, ``WinError 126``, ``0xC0000409``, ``SIGSEGV``."""
    if len(text) > 80 or "\n" in text:
        return None
    try:
        return explain_code(text)
    except OptionError:
        return None


def _line_readings(explanation: Explanation, weight: int = STRONG) -> Iterator[Meaning]:
    for index, reading in enumerate(explanation.readings):
        # Reduce the weight of each later reading, so that sorting by weight keeps the readings in order of
        # likelihood.
        fix = reading.advice
        yield Meaning(reading.name, _sentence(reading.meaning), fix, reading.seen, weight - index)


def _from_rules(lines: list[str]) -> Iterator[Meaning]:
    # Try all rules on all lines: pasted lines may lack the prefix that identifies the program, and messages of
    # Python have no prefix.
    for finding in search(lines, (*MESSAGE_RULES, *SETUP_RULES, *MODEL_RULES, *LAST_RULES)):
        seen = finding.evidence[0] if finding.evidence else ""
        yield Meaning(finding.rule, finding.cause, finding.fix, seen, finding.weight)


def _from_deaths(lines: list[str], text: str) -> Iterator[Meaning]:
    for death in DEATH_RULES:
        # Search the whole text first: most rules do not match at all, and the slow search of single lines is
        # skipped.
        if death.line is None or not occurs(death.line, text):
            continue
        pattern = re.compile(death.line)
        for line in lines:
            match = pattern.search(line)
            if match is None:
                continue
            # Some causes have a placeholder for the signal, which a log line does not contain.
            words = {key: value.strip() for key, value in match.groupdict(default="").items()} | {"signal": ""}
            # Limit the rule's weight, because the exit code and the phase are unknown.
            weight = min(death.weight, STRONG if death.weight > SYMPTOM else SYMPTOM)
            yield Meaning(
                "death of the process", death.cause.format(**words), death.fix, shorten(line.strip()), weight
            )
            break


def _from_codes(text: str) -> Iterator[Meaning]:
    for match in _WIN_ERROR.finditer(text):
        row = LOAD_ERRORS.get(int(match[1] or match[2]))
        if row is not None:
            yield Meaning(row.name, _sentence(row.meaning), row.advice, match.group(), STRONG + 5)
    qnn = log_rules.find_qnn_code(text)
    if qnn is None:
        rows = (log_rules.qnn_code(int(match["code"])) for match in _BARE_CODE.finditer(text))
        qnn = next(filter(None, rows), None)
    if qnn is not None:
        advice = qnn.advice or "Read the lines before this one in ONNX Runtime's log."
        yield Meaning(f"{qnn.name} ({qnn.number})", _sentence(qnn.meaning), advice, str(qnn.number), STRONG - 5)
    exits = (f"exit code {match['code']}" for match in _EXIT.finditer(text))
    others = (match.group() for match in (*_HEX_STATUS.finditer(text), *_SIGNAL.finditer(text)))
    for said in itertools.islice(dict.fromkeys((*exits, *others)), _MAX_CODES):
        explained = _code(_SIGNAL_WORDS.get(said, said))
        if explained is not None:
            # A code has less weight than a message in the same text.
            yield from _line_readings(explained, SYMPTOM + 10)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
