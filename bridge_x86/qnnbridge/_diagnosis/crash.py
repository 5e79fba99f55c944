"""Deaths of a host: the evidence, the diagnosis, and the exception for the callers.

A `CrashRecord` is evidence only: the supervisor collects it and never changes it. `diagnose` draws the conclusions
by `death_rules` and `log_rules`, best first; `to_error` puts them into the exception. No tensor data is ever part
of a record.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge._diagnosis.death_rules import DEATH_RULES, DeathRule
from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._diagnosis.log_rules import HINT, STRONG, SYMPTOM
from qnnbridge._diagnosis.ort_log import explain_lines
from qnnbridge._launch.stderr import parse_line, shorten
from qnnbridge_protocol.errors import HostCrashed, HostStartFailed

# The steps that the host declares before it enters native code.
NATIVE_PHASES: Final = frozenset(("importing", "registering", "creating", "compiling", "running"))

# Above every rule: where this side ended the host, that is the cause, whatever its log says.
OUR_KILL: Final = 100
FROM_EXIT_CODE: Final = 10
MAX_EVIDENCE: Final = 3
MAX_DIAGNOSES: Final = 5
# Number of waiting requests that the message names.
MAX_WAITING: Final = 3

_WHILE: Final = {
    "starting": "before it was ready",
    "importing": "while importing ONNX Runtime",
    "registering": "while loading the QNN execution provider",
    "creating": "while creating a session of {models}",
    "compiling": "while compiling {models}",
    "running": "while running {models}",
    "idle": "while no call was under way",
    "closing": "while it was closing",
}

_FATAL = re.compile(r"^(?:Fatal Python error|Windows fatal exception): .+")
_FRAME = re.compile(r'^  File "(?:.*[/\\])?(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.+)')
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x")
_TERMINATE = re.compile(r"^(?:terminate called .+|libc\+\+abi: terminating .+|thread '.*' panicked at .+)")
_WHAT = re.compile(r"^\s+what\(\):\s*(?P<what>.*)")
_SEE_HELP = re.compile(r"^(?:Try|See) .*--?help\b|^usage:", re.IGNORECASE)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):")
_WATCHDOG = re.compile(r"^Timeout \(\d+:\d\d:\d\d")


@dataclasses.dataclass(frozen=True, slots=True)
class OpenCall:
    """A request that was open when the host died. phase: what the host had declared for it, ``None`` if queued.

    without_qnn: QNN is not asked for, or took no node of the session that runs. entry: an entry of the cache stands
    for the model.
    """

    request_id: int
    op: str
    model: str = ""
    fingerprint: str = ""
    options_hash: str = ""
    phase: str | None = None
    without_qnn: bool = False
    entry: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CrashRecord:
    """The evidence.

    exit: ``None`` if the code is not known. host_phase: what the host as a whole was doing; of a request it is
    in `in_flight`. stderr_head, stderr_tail: both ends, as text. killed_because: why we ended it ourselves.
    on_purpose: the application asked for that end, by a deadline for example; it is no crash.
    memory_ran_out: the kernel's out-of-memory killer struck while it lived; ``None`` if that is not known.
    processor: of the host's computer, with an emulator if there is one; empty if unknown.
    versions, application_versions: of the host and of this side. last_frames: headers of the last messages.
    """

    exit: ExitStatus | None
    host_phase: str = "idle"
    generation: int = 0
    uptime_s: float = 0.0
    in_flight: tuple[OpenCall, ...] = ()
    stderr_head: str = ""
    stderr_tail: str = ""
    ready: bool = True
    killed_because: str | None = None
    on_purpose: bool = False
    memory_ran_out: bool | None = None
    processor: str = ""
    interpreter: str = ""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    application_versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    last_frames: tuple[str, ...] = ()

    @property
    def suspects(self) -> tuple[OpenCall, ...]:
        """The requests that were inside native code: only these can have killed it."""
        return tuple(call for call in self.in_flight if call.phase in NATIVE_PHASES)

    @property
    def without_qnn(self) -> bool:
        """Whether QNN had no part in the host's work; unknown work counts as QNN's."""
        return bool(self.suspects) and all(call.without_qnn for call in self.suspects)

    @property
    def phase(self) -> str:
        suspects = self.suspects
        return str(suspects[0].phase) if suspects else self.host_phase

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the suspected models, each once."""
        return tuple(dict.fromkeys(call.model or call.fingerprint[:12] for call in self.suspects))

    @property
    def waiting(self) -> tuple[OpenCall, ...]:
        """The requests that the host had not begun to work on: none of these can have killed it."""
        return tuple(call for call in self.in_flight if call.phase is None)

    @property
    def from_outside(self) -> bool:
        """Another process ended it, so that its work says nothing. False if the kernel needed its memory."""
        if self.exit is None or self.killed_because is not None:
            return False
        code = self.exit.code
        if code.kind == "killed":
            return not (self.memory_ran_out and code.fault == "kill")
        if self.exit.platform != "win32" or self.exit.number != 1:
            return False
        # TerminateProcess(…, 1) leaves no word; what else ends with 1 does: an exception, the host's own watchdog.
        return self.terminate_line is None and not any(
            _TRACEBACK.match(line) or _WATCHDOG.match(line) for line in self.lines
        )

    @property
    def is_no_host(self) -> bool:
        """It ended by itself before a word of ours, as a program does that is no host at all: a wrong path, say."""
        return (
            not self.ready
            and self.host_phase == "starting"
            and self.exit is not None
            and self.exit.code.fault in ("ok", "usage")
        )

    @property
    def lines(self) -> list[str]:
        return f"{self.stderr_head}\n{self.stderr_tail}".splitlines()

    @property
    def last_line(self) -> str:
        """The last line of stderr that says something, without its time stamp, shortened."""
        said = (parse_line(line).text.strip() for line in reversed(self.lines))
        return shorten(next((text for text in said if text and not _SEE_HELP.match(text)), ""))

    @property
    def terminate_line(self) -> str | None:
        """How the C++ runtime said good-bye, with the exception's text."""
        said: str | None = None
        for line in self.lines:
            if _TERMINATE.match(line):
                said = line.strip()
            elif said is not None and (what := _WHAT.match(line)):
                # libstdc++ prints the exception's text on a line of its own.
                said = f"{said}: {what.group('what').strip()}"
        return said

    @property
    def python_stack(self) -> tuple[str, ...]:
        """What faulthandler printed: its title, then the frames of the thread that died, innermost first.

        That is the one it calls current. A thread of native code is not listed; the others then say nothing, unless
        there is only one, which waited for it.
        """
        title = ""
        threads: list[list[str]] = []
        current: list[str] | None = None
        for line in self.lines:
            if _FATAL.match(line):
                # The last dump counts: on Windows faulthandler also reports exceptions that native code handles.
                title, threads, current = line.strip(), [], None
            elif title and _THREAD.match(line):
                threads.append([])
                if line.startswith("Current"):
                    current = threads[-1]
            elif threads and _FRAME.match(line):
                threads[-1].append(line.strip())
        frames = current if current is not None else threads[0] if len(threads) == 1 else []
        return (title, *frames) if title else ()


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """One explanation. weight: how sure it is, to compare with the others. curable: whether a restart may help."""

    cause: str
    fix: str
    evidence: tuple[str, ...]
    weight: int
    curable: bool


def diagnose(record: CrashRecord) -> list[Diagnosis]:
    """The likely causes, best first; never empty."""
    if record.killed_because is not None:
        cause = f"qnnbridge ended it: {record.killed_because}."
        return [Diagnosis(cause, "", _evidence(record), OUR_KILL, True)]
    lines, evidence = record.lines, _evidence(record)
    found = [d for rule in DEATH_RULES if (d := _apply(rule, record, lines, evidence)) is not None]
    curable = record.exit is None or record.exit.code.curable
    # An earlier failure that was survived leaves its lines too, so a log line alone is a symptom at most.
    # All that are known are about QNN.
    found += [
        Diagnosis(finding.cause, finding.fix, finding.evidence, min(finding.weight, SYMPTOM) - 1, curable)
        for finding in explain_lines(lines)
        if finding.weight > HINT and not record.without_qnn
    ]
    if record.exit is None:
        found.append(Diagnosis("Its exit code could not be read.", "Look at stderr.", evidence, 0, True))
    else:
        code = record.exit.code
        cause = f"{code.name}: {code.meaning}."
        found.append(Diagnosis(cause, code.advice, evidence, FROM_EXIT_CODE, curable))
    found = sorted(found, key=lambda diagnosis: -diagnosis.weight)[:MAX_DIAGNOSES]
    if found[0].weight < STRONG and not found[0].evidence and record.last_line:
        # Nothing is proved: what it said last is the best that there is.
        found[0] = dataclasses.replace(found[0], evidence=(record.last_line,))
    return found


def to_error(record: CrashRecord, report_path: str | None = None) -> HostCrashed | HostStartFailed:
    """The exception for the callers: `HostStartFailed` before the host was ready, `HostCrashed` after."""
    diagnoses = diagnose(record)
    best = diagnoses[0]
    doing = _doing(record)
    code = f"exit code {record.exit.describe()}" if record.exit is not None else "exit code unknown"
    details = details_of(record, diagnoses, report_path)
    evidence = (*best.evidence, f"crash report: {report_path}") if report_path else best.evidence
    kind = HostCrashed if record.ready else HostStartFailed
    error = kind(
        f"The QNN host process ended {doing}: {code}.",
        cause=best.cause,
        fix=best.fix or None,
        evidence=evidence,
        details=details,
    )
    if not best.curable:
        error.retry = "pointless"
    return error


def _doing(record: CrashRecord) -> str:
    if record.phase == "idle" and record.waiting:
        named = dict.fromkeys(
            f"{call.op} of {name}" if (name := call.model or call.fingerprint[:12]) else call.op
            for call in record.waiting
        )
        text = ", ".join(list(named)[:MAX_WAITING]) + (" ..." if len(named) > MAX_WAITING else "")
        count = len(record.waiting)
        return f"while {'a request was' if count == 1 else f'{count} requests were'} waiting for it ({text})"
    models = " and ".join(record.models) or "a model"
    return _WHILE.get(record.phase, f"in phase {record.phase}").format(models=models)


def details_of(record: CrashRecord, diagnoses: list[Diagnosis], report_path: str | None) -> dict[str, Any]:
    """The record as data for programs: what `HostCrashed.details` holds."""
    return {
        **dataclasses.asdict(record),
        "exit": None if record.exit is None else _exit_json(record.exit),
        "phase": record.phase,
        "models": list(record.models),
        "suspects": [dataclasses.asdict(call) for call in record.suspects],
        "from_outside": record.from_outside,
        "terminate_line": record.terminate_line,
        "python_stack": list(record.python_stack),
        "in_flight": [dataclasses.asdict(call) for call in record.in_flight],
        "last_frames": list(record.last_frames),
        "diagnoses": [{"cause": d.cause, "fix": d.fix, "evidence": list(d.evidence)} for d in diagnoses],
        "report": report_path,
    }


def _apply(
    rule: DeathRule, record: CrashRecord, lines: Sequence[str], evidence: tuple[str, ...]
) -> Diagnosis | None:
    code = record.exit.code if record.exit is not None else None
    if rule.faults and (code is None or code.fault not in rule.faults.split()):
        return None
    if rule.source and record.versions.get("ep_source") != rule.source:
        return None
    if rule.memory and record.memory_ran_out not in rule.memory:
        return None
    if rule.phases and record.phase not in rule.phases:
        return None
    # One is the opposite of the other, so equal values contradict each other.
    if rule.qnn is not None and rule.qnn is record.without_qnn:
        return None
    if rule.ops and not any(call.op in rule.ops for call in record.in_flight):
        return None
    if rule.silent and (record.terminate_line is not None or any(_TRACEBACK.match(line) for line in lines)):
        return None
    if rule.silent and record.phase == "starting" and record.last_line:
        return None  # nothing logs that early, so this is what ended it
    words = {"signal": code.name if code is not None else "", "processor": record.processor or "not known"}
    if rule.line is not None:
        matches = [(line, match) for line in lines if (match := re.search(rule.line, line))]
        if not matches:
            return None
        line, match = matches[-1]
        words |= {key: value.strip() for key, value in match.groupdict(default="").items()}
        said = shorten(line.split("what():")[-1])
        # The text of a C++ exception is in the terminate line already.
        if not any(said in known for known in evidence):
            evidence = (said, *evidence)
    curable = rule.curable if rule.curable is not None else code is None or code.curable
    return Diagnosis(rule.cause.format(**words), rule.fix, evidence[:MAX_EVIDENCE], rule.weight, curable)


def _evidence(record: CrashRecord) -> tuple[str, ...]:
    """What the dying process said itself."""
    said = [record.terminate_line] if record.terminate_line else []
    stack = record.python_stack
    if stack:
        innermost = _FRAME.match("  " + stack[1]) if len(stack) > 1 else None
        place = " in {function} ({file}:{line})".format(**innermost.groupdict()) if innermost else ""
        said.append(stack[0] + place)
    return tuple(shorten(line) for line in said)


def _exit_json(status: ExitStatus) -> dict[str, Any]:
    code = status.code
    return {
        "number": status.number,
        "unsigned": status.unsigned,
        "signed": status.signed,
        "hex": status.hex,
        "signal": status.signal,
        "name": code.name,
        "kind": code.kind,
        "meaning": code.meaning,
        "advice": code.advice,
        "platform": status.platform,
    }
