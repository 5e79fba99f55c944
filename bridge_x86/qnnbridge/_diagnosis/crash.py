"""Explain why a host process ended: the evidence, the diagnosis, and the exception for the callers.

A `CrashRecord` contains only evidence, which the supervisor collects and never changes. `diagnose` applies
`DEATH_RULES` and `log_rules` to it and returns the likely causes, best first; `to_error` puts the causes into the
exception. A record never contains tensor data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._diagnosis.log_rules import HINT, PROOF, STRONG, SYMPTOM, WEIGHTS
from qnnbridge._diagnosis.ort_log import explain_lines
from qnnbridge._diagnosis.tables import TEXTS, read
from qnnbridge._launch.stderr import parse_line, shorten
from qnnbridge_protocol.errors import HostCrashed, HostStartFailed

# Native steps that the host declares before it starts them.
NATIVE_PHASES: Final = frozenset(("importing", "registering", "creating", "compiling", "running"))

# Operations that compile a model, and that fail if the model is already compiled.
_COMPILES: Final = frozenset(("model.compile", "worker.compile"))

# Weight above those of all rules: if qnnbridge itself ended the host, the host's log does not matter.
OUR_KILL: Final = 100
FROM_EXIT_CODE: Final = 10
MAX_EVIDENCE: Final = 3
MAX_DIAGNOSES: Final = 5
# Maximum number of waiting requests that the error message lists.
MAX_WAITING: Final = 3

_WHILE: Final = {
    "starting": "before it was ready",
    "importing": "while importing ONNX Runtime",
    "registering": "while loading the QNN execution provider",
    "creating": "while creating a session of {models}",
    "compiling": "while compiling {models}",
    "running": "while running {models}",
    "idle": "while no call was running",
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
    """A request that the host had not answered when it died.

    Attributes:
        phase: native step that the host had declared for the request; ``None`` if the request was still queued.
        without_qnn: whether QNN was not requested, or runs no node of the session.
        entry: whether the model was loaded from a cache entry.
        known: description of a known fault of the model on QNN.
    """

    request_id: int
    op: str
    model: str = ""
    fingerprint: str = ""
    options_hash: str = ""
    phase: str | None = None
    without_qnn: bool = False
    entry: bool = False
    known: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class CrashRecord:
    """The evidence about the end of one host process.

    Attributes:
        exit: how the process ended; ``None`` if the exit code is unknown.
        host_phase: step of the host itself, such as its start. `in_flight` contains the steps of the requests.
        stderr_head, stderr_tail: beginning and end of stderr.
        killed_because: reason why qnnbridge ended the host; ``None`` if it did not.
        on_purpose: whether the application caused the end, for example by a deadline. Such an end is not a crash.
        memory_ran_out: whether the kernel's out-of-memory killer was active while the host ran; ``None`` if
            unknown.
        processor: processor of the host's computer and the emulator, if any; '' if unknown.
        versions, application_versions: package versions in the host and in the application.
        last_frames: headers of the last messages between application and host.
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
        """Requests that were inside native code. Only these requests can have crashed the host."""
        return tuple(call for call in self.in_flight if call.phase in NATIVE_PHASES)

    @property
    def without_qnn(self) -> bool:
        """Whether no suspected request used QNN; ``False`` if there is no suspected request."""
        return bool(self.suspects) and all(call.without_qnn for call in self.suspects)

    @property
    def only_originals(self) -> bool:
        """Whether every suspected request compiles its model. The model is then certainly not a compiled model."""
        suspects = self.suspects
        return bool(suspects) and all(call.op in _COMPILES for call in suspects)

    @property
    def phase(self) -> str:
        suspects = self.suspects
        return str(suspects[0].phase) if suspects else self.host_phase

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the suspected models, without duplicates."""
        return tuple(dict.fromkeys(call.model or call.fingerprint[:12] for call in self.suspects))

    @property
    def waiting(self) -> tuple[OpenCall, ...]:
        """Requests that the host had not started to process, so that none of them can have crashed the host."""
        return tuple(call for call in self.in_flight if call.phase is None)

    @property
    def from_outside(self) -> bool:
        """Whether another process ended the host, so that no request caused the death. ``False`` if the kernel
        ended the host because memory was short."""
        if self.exit is None or self.killed_because is not None:
            return False
        code = self.exit.code
        if code.kind == "killed":
            return not (self.memory_ran_out and code.fault == "kill")
        if self.exit.platform != "win32" or self.exit.number != 1:
            return False
        # A process that TerminateProcess(…, 1) ends writes nothing to stderr. The other reasons for exit code 1, an
        # exception and the host's own watchdog, both write to stderr.
        return self.terminate_line is None and not any(
            _TRACEBACK.match(line) or _WATCHDOG.match(line) for line in self.lines
        )

    @property
    def was_never_host(self) -> bool:
        """Whether the process ended by itself before its first message. The usual reason is a wrong path of the
        host's interpreter, which starts another program."""
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
        """Last line of stderr that is neither empty nor a hint at --help, shortened, without its time stamp."""
        said = (parse_line(line).text.strip() for line in reversed(self.lines))
        return shorten(next((text for text in said if text and not _SEE_HELP.match(text)), ""))

    @property
    def terminate_line(self) -> str | None:
        """Last message of the C++ runtime, including the text of the exception."""
        said: str | None = None
        for line in self.lines:
            if _TERMINATE.match(line):
                said = line.strip()
            elif said is not None and (what := _WHAT.match(line)):
                # libstdc++ prints the text of the exception on a separate line.
                said = f"{said}: {what.group('what').strip()}"
        return said

    @property
    def python_stack(self) -> tuple[str, ...]:
        """Output of faulthandler: its title, then the frames of the thread that crashed, innermost first.

        faulthandler marks the crashed thread as "current". If a native thread crashed, faulthandler lists only the
        other threads, whose frames are not returned. If only one thread is listed, this thread was waiting for the
        native thread, so its frames are returned.
        """
        title = ""
        threads: list[list[str]] = []
        current: list[str] | None = None
        for line in self.lines:
            if _FATAL.match(line):
                # Keep only the last dump: on Windows faulthandler also prints a dump for an exception that native
                # code then handles.
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
    """One explanation why the host died.

    Attributes:
        weight: certainty relative to other explanations.
        curable: whether a restart may help.
    """

    cause: str
    fix: str
    evidence: tuple[str, ...]
    weight: int
    curable: bool


def diagnose(record: CrashRecord) -> list[Diagnosis]:
    """Return the likely causes, best first. The list is never empty."""
    if record.killed_because is not None:
        # Remove the full stop, because the reason is often a complete sentence.
        cause = f"qnnbridge ended the host: {record.killed_because.rstrip('.')}."
        return [Diagnosis(cause, "", _evidence(record), OUR_KILL, True)]
    lines, evidence = record.lines, _evidence(record)
    found = [d for rule in DEATH_RULES if (d := _apply(rule, record, lines, evidence)) is not None]
    found += _of_known_faults(record, evidence)
    curable = record.exit is None or record.exit.code.curable
    # Log lines weigh less than symptoms, because failures that the host survived also leave lines in the log. If no
    # call was running, log lines weigh less than the exit code, because they belong to an earlier call. If QNN was
    # not used, ignore log lines, because all known lines are about QNN.
    most = FROM_EXIT_CODE if record.phase == "idle" else SYMPTOM
    found += [
        Diagnosis(finding.cause, finding.fix, finding.evidence, min(finding.weight, most) - 1, curable)
        for finding in explain_lines(lines)
        if finding.weight > HINT and not record.without_qnn
    ]
    if record.exit is None:
        found.append(Diagnosis("The exit code could not be read.", "Read the end of stderr.", evidence, 0, True))
    else:
        code = record.exit.code
        cause = f"{code.name}: {code.meaning}."
        found.append(Diagnosis(cause, code.advice, evidence, FROM_EXIT_CODE, curable))
    found = sorted(found, key=lambda diagnosis: -diagnosis.weight)[:MAX_DIAGNOSES]
    if found[0].weight < STRONG and not found[0].evidence and record.last_line:
        # If no rule matched any evidence, the last line of stderr is the best evidence.
        found[0] = dataclasses.replace(found[0], evidence=(record.last_line,))
    return found


def _of_known_faults(record: CrashRecord, evidence: tuple[str, ...]) -> list[Diagnosis]:
    """Return diagnoses for known faults of QNN that affect a suspect model. These diagnoses have more weight than
    those of rules about the crash itself."""
    code = record.exit.code if record.exit is not None else None
    if record.without_qnn or (code is not None and code.fault not in _FAULTS_OF_MODELS):
        return []
    curable = code is None or code.curable
    found = []
    for call in record.suspects:
        what, _, fix = call.known.partition(" Fix: ")
        if what:
            fix = fix[:1].upper() + fix[1:]
            found.append(
                Diagnosis(f"Most likely a known fault of QNN. {what}", fix, evidence, SYMPTOM + 2, curable)
            )
    return found


def to_error(record: CrashRecord, report_path: str | None = None) -> HostCrashed | HostStartFailed:
    """Return the exception for the callers: `HostStartFailed` before the host was ready, `HostCrashed`
    afterwards."""
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
    """Return the record as data for programs. The result is stored in `HostCrashed.details`."""
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
    if rule.platform and (record.exit is None or record.exit.platform != rule.platform):
        return None
    if rule.original is not None and rule.original is not record.only_originals:
        return None
    if rule.memory and record.memory_ran_out not in rule.memory:
        return None
    if rule.phases and record.phase not in rule.phases:
        return None
    # Skip a rule for crashes of QNN if QNN was not used, and a rule for crashes without QNN if QNN may have been
    # used.
    if rule.qnn is not None and rule.qnn is record.without_qnn:
        return None
    if rule.ops and not any(call.op in rule.ops for call in record.in_flight):
        return None
    if rule.silent and (record.terminate_line is not None or any(_TRACEBACK.match(line) for line in lines)):
        return None
    if rule.silent and record.phase == "starting" and record.last_line:
        return None  # the last line shows the cause: before HELLO, a host writes to stderr only if it fails
    words = {"signal": code.name if code is not None else "", "processor": record.processor or "not known"}
    if rule.line is not None:
        matches = [(line, match) for line in lines if (match := re.search(rule.line, line))]
        if not matches:
            return None
        line, match = matches[-1]
        words |= {key: value.strip() for key, value in match.groupdict(default="").items()}
        said = shorten(line.split("what():")[-1])
        # Do not repeat the line if the evidence (the message of the C++ runtime) contains it already.
        if not any(said in known for known in evidence):
            evidence = (said, *evidence)
    curable = rule.curable if rule.curable is not None else code is None or code.curable
    return Diagnosis(rule.cause.format(**words), rule.fix, evidence[:MAX_EVIDENCE], rule.weight, curable)


def _evidence(record: CrashRecord) -> tuple[str, ...]:
    """Return the last output of the dying process: the C++ exception, or the location of a Python fault."""
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


# --- causes of crashes, in `death_rules.json`: kind of fault, phase and line on stderr -> cause and fix -----


@dataclasses.dataclass(frozen=True, slots=True)
class DeathRule:
    """Rule for the cause of a crash. It applies if all its conditions (fault, phase, line ...) are met.

    Most attributes are conditions: the values with which the rule applies. A condition that is empty or ``None`` is
    always met.

    Attributes:
        faults: values of `ExitCode.fault`, separated by spaces.
        line: pattern to search in each line of stderr. The last match counts, and its named groups can be used in
            cause and fix. A pattern that begins with ``.*`` must be anchored, because otherwise a search in long
            lines takes seconds.
        curable: whether a restart may help; ``None``: use the value of the exit code.
    """

    cause: str
    fix: str
    weight: int = PROOF
    _: dataclasses.KW_ONLY
    faults: str = ""
    phases: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    line: str | None = None
    # Whether the rule applies only if stderr contains neither a C++ exception nor a traceback. Before the host's
    # first message, stderr must contain no line at all.
    silent: bool = False
    curable: bool | None = None
    # Condition: whether QNN may have been used, the opposite of `CrashRecord.without_qnn`.
    qnn: bool | None = None
    # Condition: values of `CrashRecord.memory_ran_out`.
    memory: tuple[bool | None, ...] = ()
    # Condition: where the host loads QNN from, for example "windowsml".
    source: str = ""
    # Condition: platform of the exit code, "win32" or "posix".
    platform: str = ""
    # Condition: value of `CrashRecord.only_originals`.
    original: bool | None = None


def _rule(row: dict[str, Any]) -> DeathRule:
    lists: dict[str, Any] = {name: tuple(row[name]) for name in ("phases", "ops", "memory") if name in row}
    return DeathRule(**{**row, **lists, "weight": WEIGHTS[row.get("weight", "proof")]})


# Each rule that applies returns a diagnosis. `diagnose` sorts the diagnoses by weight and keeps the order of this
# table for equal weights.
DEATH_RULES: Final = tuple(map(_rule, read("death_rules.json")["rules"]))
# Faults that a model can cause, including "unknown": an NTSTATUS error or a signal that is not in the tables.
_FAULTS_OF_MODELS: Final = frozenset(f"{TEXTS['crash_faults']} {TEXTS['abort_faults']}".split())
