"""Pasted texts and what they mean: a code, a message, a piece of a log, in whatever form a user copied it.

`explain_text` asks all tables: log lines, messages of Python, pip, Windows and ONNX Runtime's Python layer (listed
here), deaths, QNN codes, load errors, exit codes. An unknown text gives nothing. Pure functions.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

from qnnbridge._diagnosis import log_rules
from qnnbridge._diagnosis.death_rules import DEATH_RULES
from qnnbridge._diagnosis.log_rules import HINT, MODEL_RULES, SETUP_RULES, STRONG, SYMPTOM, LogRule
from qnnbridge._diagnosis.ort_log import occurs, search
from qnnbridge._launch.stderr import shorten
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.known_codes import LOAD_ERRORS, Explanation, explain_code

_REINSTALL = (
    "Reinstall onnxruntime and onnxruntime-qnn with the host's own interpreter: qnnbridge doctor names the command."
)
_VC = (
    "Install the Visual C++ redistributable of the interpreter's machine type: winget install "
    "Microsoft.VCRedist.2015+.arm64 (x64 for an x64 Python)."
)
_MACHINE = "Use packages and an interpreter of one machine type: qnnbridge doctor names the odd one."

# What users see around a host: messages of Python, pip, Windows and shells. The first rule that knows a line
# explains it, and these come before the rules for the host's log, whose fixes are for the host's interpreter alone.
# A rule for deaths needs exit code and phase as well; in a pasted text only its line can be looked for.
# fmt: off
MESSAGE_RULES: Final[tuple[LogRule, ...]] = (
    LogRule("message.dynamic-shape",
        r"Dynamic shape is not supported yet(?:, for (?:input|output): *(?P<name>[^\s\"]+))?",
        "QNN needs fixed dimensions, and the model has one that is not.",
        "Fix it: SessionOptions.add_free_dimension_override_by_name(NAME, SIZE), or qnnbridge run "
        "MODEL --random --dim "
        "NAME=SIZE."),
    LogRule("message.epcontext-not-implemented",
        r"NOT_IMPLEMENTED.*EPContext|Could not find an implementation for EPContext",
        "The model is compiled for QNN (EPContext), and this session has no QNN provider that takes it: it was not "
        "asked for, its libraries could not be loaded, or the host has only the CPU.",
        "Ask for QNNExecutionProvider on a host that has it (qnnbridge doctor), or run the original model.",
        STRONG),
    LogRule("message.not-available",
        r"Specified provider '?QNNExecutionProvider'? is not in available provider names",
        "This onnxruntime has no QNN: plain onnxruntime has replaced onnxruntime-qnn 1.x, or with "
        "2.x the plugin was "
        "not registered (the old providers=[...] call never does).",
        "Install one of both: pip uninstall -y onnxruntime onnxruntime-qnn, then pip install "
        "onnxruntime-qnn (1.x) or "
        "both (2.x). qnnbridge registers the plugin itself."),
    LogRule("message.fell-back", r"\*+ EP Error \*+|Falling back to \['CPUExecutionProvider'\]",
        "ONNX Runtime's Python layer could not make the session on QNN and made one on the CPU "
        "instead, with no error.",
        "Read the line above it for the reason. qnnbridge sessions are strict and raise that reason instead.",
        STRONG),
    LogRule("message.dll-load-failed", r"DLL load failed while importing (?P<module>\S+?):? (?P<why>.+)",
        "A library that {module} needs could not be loaded ({why}): the Visual C++ runtime is "
        "missing, or libraries of "
        "another machine type or version are found first.", _VC + " " + _REINSTALL, STRONG),
    LogRule("message.not-a-valid-win32",
        r"is not a valid Win32 application|%1 ist keine zulässige Win32|n.est pas une application Win32 valide",
        "The file is built for another machine type than the program that loads it, or it is cut off.",
        _MACHINE, STRONG),
    LogRule("message.no-driver",
        r"Could not find module '[^']*QnnHtpV\d+Stub\.dll'|MCDM service name discovery failed|"
        r"open registry key '[^']*\\Services\\(?:qcnspmcdm|qcadsprpc)'|OpenServiceW error: 1060|"
        r"^ *libcdsprpc\.dll *$",
        "The NPU's driver is not installed: with it come its service, qcnspmcdm or qcadsprpc, and libcdsprpc.dll, "
        "which every stub library of QNN (QnnHtpV73Stub.dll) needs.",
        "Install the NPU driver (Windows Update, or the computer maker's support page), then restart; "
        "qnnbridge doctor looks for it.", STRONG),
    LogRule("message.htp-startup", r"Htp startup on load failed",
        "QNN's library for the NPU found none when it was loaded: there is no NPU, or no driver.",
        "qnnbridge doctor says which of both.", SYMPTOM),
    LogRule("message.plugin-too-old", r"OrtEp has invalid\b|invalid ort_version_supported",
        "This onnxruntime (1.28 or later) refuses the provider of onnxruntime-qnn 2.0 to 2.3, though pip allows "
        "the pair.",
        "Update the provider in the host's interpreter: pip install -U onnxruntime-qnn; or take onnxruntime 1.24.2 "
        "to 1.27.", STRONG),
    LogRule("message.module-not-found",
        r"specified module could not be found|angegebene Modul wurde nicht gefunden|"
        r"Could not find module '[^']+' \(or one of its dependencies\)",
        "The library, or one that it needs, is not there.", _VC + " " + _REINSTALL, STRONG),
    LogRule("message.procedure-not-found",
        r"specified procedure could not be found|angegebene Prozedur wurde nicht gefunden",
        "A library of another version was found first: versions are mixed.",
        "Remove QNN SDK folders from PATH; " + _REINSTALL[0].lower() + _REINSTALL[1:], STRONG),
    LogRule("message.elf", r"wrong ELF class|invalid ELF header|file too short",
        "The library is for another machine type, or cut off.", _REINSTALL, STRONG),
    LogRule("message.no-wheel",
        r"Could not find a version that satisfies the requirement (?P<name>onnxruntime[\w-]*)",
        "{name} has no wheel for this interpreter: its version of Python or its machine type is not supported.",
        "See which ones are: qnnbridge versions. For a host on Windows on Arm use an ARM64 Python 3.11 to 3.14."),
    LogRule("message.no-wheel",
        r"Could not find a version that satisfies the requirement (?P<name>\S+)|"
        r"Failed building wheel for (?P<built>\S+)|Microsoft Visual C\+\+ 14\.0 or greater is required",
        "A package has no ready wheel for this interpreter, often because it is an ARM64 one.",
        "Keep the application in its x64 Python and give qnnbridge an ARM64 host: that one needs only "
        "onnxruntime, onnxruntime-qnn, onnx, numpy and msgpack.", SYMPTOM),
    LogRule("message.not-supported-wheel", r"(?P<wheel>(?<!\S)\S+\.whl) is not a supported wheel on this platform",
        "The wheel {wheel} is for another machine type or version of Python than this pip.",
        "Use the pip of the interpreter that it is for: PATH-TO-PYTHON -m pip install ..."),
    LogRule("message.no-module",
        r"No module named '?(?P<module>onnxruntime(?:_qnn)?|numpy|msgpack|qnnbridge\w*)\b",
        "The interpreter that runs this has no package {module}.",
        'For the host: its python -m pip install "qnnbridge[host]". For the application: pip install qnnbridge.'),
    LogRule("message.node-inserted", r"Conflicting session configuration: explicitly added the CPU EP",
        "ONNX Runtime's retry on the CPU contradicts disable_cpu_ep_fallback and hides the true reason.",
        "Pass enable_fallback=0 to see it; qnnbridge always does.", STRONG),
    LogRule("message.unsupported-arch",
        r"No libraries available for architecture: (?P<arch>\S+)|Unsupported architecture: (?P<other>\S+)",
        "onnxruntime_qnn found itself on a machine type that its wheel has no libraries for: the "
        "wheel is for another "
        "one (an x64 wheel in an ARM64 Python, or the other way round).",
        "Install onnxruntime-qnn with the interpreter's own pip."),
    LogRule("message.terminated-by", r"invalid stoi argument|std::invalid_argument.*\bsto[a-z]+",
        "An option that should be a number is none; QNN ends the process for it.",
        "Correct the provider or run option (device_id, vtcm_mb, qnn.rpc_control_latency)."),
    LogRule("message.command-not-found", r"command not found|is not recognized as an internal or external command",
        "The shell found no program of that name; nothing was started.",
        "Use the full path of the interpreter.", STRONG),
)
# fmt: on

# For lines that nothing else knows.
# fmt: off
LAST_RULES: Final[tuple[LogRule, ...]] = (
    LogRule("message.qnn-log", r"QnnDsp <E>|QNN_\w+_ERROR_\w+", "QNN reports an error of its own.",
        "Paste the lines around it, too.", HINT),
)
# fmt: on


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
# 0xC: errors of NTSTATUS. 0x8: its warnings, and failures of HRESULT. 0xE: exceptions of C++ and .NET.
_HEX_STATUS: Final = re.compile(r"\b0x[CE8][0-9a-f]{7}\b", re.IGNORECASE)
_SIGNAL: Final = re.compile(r"\bSIG(?:SEGV|ABRT|ILL|FPE|BUS|KILL)\b|\b(?:Segmentation fault|Aborted|Bus error)\b")
_SIGNAL_WORDS: Final = {"Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS"}
# Windows and shells speak the user's language.
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
    # A code alone is no message: the rules for lines would find nothing, or too much.
    whole = _code(text)
    if whole is not None:
        return list(_readings(whole))
    # Logs repeat themselves: each line is looked at once.
    lines = list(dict.fromkeys(_bounded(line) for line in text.splitlines()))
    text = "\n".join(lines)
    found = [*_from_rules(lines), *_from_deaths(lines, text), *_from_codes(text)]
    best: dict[str, Meaning] = {}
    for meaning in sorted(found, key=lambda one: -one.weight):
        # Several rules may say the same: the first of them has the most weight.
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
        # Readings come most likely first, and sorting by weight has to keep that order.
        fix = reading.advice
        yield Meaning(reading.name, _sentence(reading.meaning), fix, reading.seen, weight - index)


def _from_rules(lines: list[str]) -> Iterator[Meaning]:
    # Pasted lines may have lost their beginnings, and the messages of Python have none: all rules for all lines.
    for finding in search(lines, (*MESSAGE_RULES, *SETUP_RULES, *MODEL_RULES, *LAST_RULES)):
        seen = finding.evidence[0] if finding.evidence else ""
        yield Meaning(finding.rule, finding.cause, finding.fix, seen, finding.weight)


def _from_deaths(lines: list[str], text: str) -> Iterator[Meaning]:
    for death in DEATH_RULES:
        # The whole text at once: most rules match none of its lines, which then are not asked one by one.
        if death.line is None or not occurs(death.line, text):
            continue
        pattern = re.compile(death.line)
        for line in lines:
            match = pattern.search(line)
            if match is None:
                continue
            # Some causes name the signal, which no line of a log does.
            words = {key: value.strip() for key, value in match.groupdict(default="").items()} | {"signal": ""}
            # Without exit code and phase a line proves less than the rule's weight says.
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
        advice = qnn.advice or "Read the lines before it in ONNX Runtime's log."
        yield Meaning(f"{qnn.name} ({qnn.number})", _sentence(qnn.meaning), advice, str(qnn.number), STRONG - 5)
    exits = (f"exit code {match['code']}" for match in _EXIT.finditer(text))
    others = (match.group() for match in (*_HEX_STATUS.finditer(text), *_SIGNAL.finditer(text)))
    for said in itertools.islice(dict.fromkeys((*exits, *others)), _MAX_CODES):
        explained = _code(_SIGNAL_WORDS.get(said, said))
        if explained is not None:
            # A code says less than a message that stands beside it.
            yield from _readings(explained, SYMPTOM + 10)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
