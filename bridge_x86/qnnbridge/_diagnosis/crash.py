"""Deaths of a host: the evidence, the diagnosis, and the exception for the callers.

A `CrashRecord` contains evidence only: the supervisor collects it and never changes it. `diagnose` draws
conclusions with `DEATH_RULES` and `log_rules`, best first; `to_error` puts them into the exception. A record never
contains tensor data.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge._diagnosis.exit_codes import ExitStatus
from qnnbridge._diagnosis.log_rules import HINT, ONE_SET, PROOF, STRONG, SYMPTOM
from qnnbridge._diagnosis.ort_log import explain_lines
from qnnbridge._launch.stderr import parse_line, shorten
from qnnbridge_protocol.errors import HostCrashed, HostStartFailed

# Steps that the host declares before it enters native code.
NATIVE_PHASES: Final = frozenset(("importing", "registering", "creating", "compiling", "running"))

# Operations that compile; qnnbridge refuses to compile a compiled model.
_COMPILES: Final = frozenset(("model.compile", "worker.compile"))

# Weight above those of all rules: if this side ended the host, that is the cause, whatever the host's log contains.
OUR_KILL: Final = 100
FROM_EXIT_CODE: Final = 10
MAX_EVIDENCE: Final = 3
MAX_DIAGNOSES: Final = 5
# Number of waiting requests that the message lists.
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
    """A request without an answer when the host died.

    Attributes:
        phase: step that the host had declared for the request; ``None`` if it was still queued.
        without_qnn: whether QNN was not requested, or runs no node of the session.
        entry: whether the model was loaded from an entry of the cache.
        known: known fault of the model on QNN, as text.
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
    """The evidence of one death.

    Attributes:
        exit: how the process ended; ``None`` if the exit code is unknown.
        host_phase: step of the host itself, such as its start. The steps of requests are in `in_flight`.
        stderr_head, stderr_tail: beginning and end of stderr.
        killed_because: why this side ended the host.
        on_purpose: whether the application caused the end, for example by a deadline, so it is not a crash.
        memory_ran_out: whether the kernel's out-of-memory killer was active while the host ran; ``None`` if
            unknown.
        processor: processor of the host's computer, with an emulator if there is one; '' if unknown.
        versions, application_versions: package versions of the host and of this side.
        last_frames: headers of the last messages.
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
        """Requests that were inside native code: only these can have crashed the host."""
        return tuple(call for call in self.in_flight if call.phase in NATIVE_PHASES)

    @property
    def without_qnn(self) -> bool:
        """Whether QNN took no part in the host's work. Unknown work counts as QNN's."""
        return bool(self.suspects) and all(call.without_qnn for call in self.suspects)

    @property
    def of_originals(self) -> bool:
        """Whether all suspected models were being compiled, so none of them is a compiled model."""
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
        """Requests that the host had not started to process: none of these can have crashed it."""
        return tuple(call for call in self.in_flight if call.phase is None)

    @property
    def from_outside(self) -> bool:
        """Whether another process ended the host, so that no request caused the death. False if the kernel ended
        the host because it needed memory."""
        if self.exit is None or self.killed_because is not None:
            return False
        code = self.exit.code
        if code.kind == "killed":
            return not (self.memory_ran_out and code.fault == "kill")
        if self.exit.platform != "win32" or self.exit.number != 1:
            return False
        # A process that TerminateProcess(…, 1) ends writes nothing to stderr. The other reasons for exit code 1, an
        # exception and the host's own watchdog, leave output there.
        return self.terminate_line is None and not any(
            _TRACEBACK.match(line) or _WATCHDOG.match(line) for line in self.lines
        )

    @property
    def is_no_host(self) -> bool:
        """Whether the process ended by itself before its first message, as a program does that is not a host (after
        a wrong path, for example)."""
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
        """Last meaningful line of stderr, shortened and without its time stamp."""
        said = (parse_line(line).text.strip() for line in reversed(self.lines))
        return shorten(next((text for text in said if text and not _SEE_HELP.match(text)), ""))

    @property
    def terminate_line(self) -> str | None:
        """Last message of the C++ runtime, with the text of the exception."""
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

        The thread that crashed is the one that faulthandler calls current. If a native thread crashed, faulthandler
        does not list it, and the frames of the other threads are meaningless. Only if there is a single other
        thread are its frames returned, since it waited for the native thread.
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
    """One explanation of a death.

    Attributes:
        weight: certainty, relative to other explanations.
        curable: whether a restart may help.
    """

    cause: str
    fix: str
    evidence: tuple[str, ...]
    weight: int
    curable: bool


def diagnose(record: CrashRecord) -> list[Diagnosis]:
    """Return the likely causes, best first; never empty."""
    if record.killed_because is not None:
        # The reason is often a complete sentence with a full stop.
        cause = f"qnnbridge ended the host: {record.killed_because.rstrip('.')}."
        return [Diagnosis(cause, "", _evidence(record), OUR_KILL, True)]
    lines, evidence = record.lines, _evidence(record)
    found = [d for rule in DEATH_RULES if (d := _apply(rule, record, lines, evidence)) is not None]
    found += _of_known_faults(record, evidence)
    curable = record.exit is None or record.exit.code.curable
    # Failures that the host survived also leave lines in the log, so a log line alone counts at most as a symptom.
    # All known lines are about QNN, so none explains a death without QNN.
    found += [
        Diagnosis(finding.cause, finding.fix, finding.evidence, min(finding.weight, SYMPTOM) - 1, curable)
        for finding in explain_lines(lines)
        if finding.weight > HINT and not record.without_qnn
    ]
    if record.exit is None:
        found.append(Diagnosis("The exit code could not be read.", "Look at stderr.", evidence, 0, True))
    else:
        code = record.exit.code
        cause = f"{code.name}: {code.meaning}."
        found.append(Diagnosis(cause, code.advice, evidence, FROM_EXIT_CODE, curable))
    found = sorted(found, key=lambda diagnosis: -diagnosis.weight)[:MAX_DIAGNOSES]
    if found[0].weight < STRONG and not found[0].evidence and record.last_line:
        # If no rule found evidence, the last line of stderr is the best evidence.
        found[0] = dataclasses.replace(found[0], evidence=(record.last_line,))
    return found


def _of_known_faults(record: CrashRecord, evidence: tuple[str, ...]) -> list[Diagnosis]:
    """Return diagnoses for faults of the model that were known before it ran. They rank above rules about the crash
    itself."""
    code = record.exit.code if record.exit is not None else None
    if record.without_qnn or (code is not None and code.fault not in f"{_CRASH} {_ABORT}".split()):
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
    """Return the record as data for programs: the value of `HostCrashed.details`."""
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
    if rule.original is not None and rule.original is not record.of_originals:
        return None
    if rule.memory and record.memory_ran_out not in rule.memory:
        return None
    if rule.phases and record.phase not in rule.phases:
        return None
    # `qnn` and `without_qnn` are opposites, so equal values contradict each other.
    if rule.qnn is not None and rule.qnn is record.without_qnn:
        return None
    if rule.ops and not any(call.op in rule.ops for call in record.in_flight):
        return None
    if rule.silent and (record.terminate_line is not None or any(_TRACEBACK.match(line) for line in lines)):
        return None
    if rule.silent and record.phase == "starting" and record.last_line:
        return None  # only a failure logs that early, so this line shows the cause
    words = {"signal": code.name if code is not None else "", "processor": record.processor or "not known"}
    if rule.line is not None:
        matches = [(line, match) for line in lines if (match := re.search(rule.line, line))]
        if not matches:
            return None
        line, match = matches[-1]
        words |= {key: value.strip() for key, value in match.groupdict(default="").items()}
        said = shorten(line.split("what():")[-1])
        # The terminate line may already contain the text of a C++ exception.
        if not any(said in known for known in evidence):
            evidence = (said, *evidence)
    curable = rule.curable if rule.curable is not None else code is None or code.curable
    return Diagnosis(rule.cause.format(**words), rule.fix, evidence[:MAX_EVIDENCE], rule.weight, curable)


def _evidence(record: CrashRecord) -> tuple[str, ...]:
    """Return the last output of the dying process: the C++ exception, and the place of a Python fault."""
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


# --- causes of deaths, as data: kind of fault, phase and a line on stderr -> cause and fix --------------------

START: Final = ("starting", "importing", "registering")
MODEL: Final = ("creating", "compiling", "running")


@dataclasses.dataclass(frozen=True, slots=True)
class DeathRule:
    """Rule for the cause of a death. It applies if all conditions that it specifies are met: fault, phase,
    operation, line.

    Attributes:
        faults: values of `ExitCode.fault`, separated by blanks.
        line: pattern searched in each line of stderr. The last match counts; its named groups can be used in the
            texts. A pattern that begins with ``.*`` must be anchored, or a log of long lines takes seconds.
        curable: whether a restart may help; ``None``: the exit code decides.
    """

    cause: str
    fix: str
    weight: int = PROOF
    _: dataclasses.KW_ONLY
    faults: str = ""
    phases: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    line: str | None = None
    # Whether the rule applies only if stderr does not show the fault (no C++ exception, no traceback; at the start,
    # no output).
    silent: bool = False
    curable: bool | None = None
    # Whether QNN may have taken part in the work; ``None``: any.
    qnn: bool | None = None
    # Whether the kernel's out-of-memory killer was active (``None``: unknown); empty: any.
    memory: tuple[bool | None, ...] = ()
    # Where the host loads QNN from; empty: any.
    source: str = ""
    # Platform of the exit code; empty: any.
    platform: str = ""
    # Whether the model is certainly not a compiled one; ``None``: any.
    original: bool | None = None


_REBUILD = "Compile the model again with this onnxruntime-qnn; copy the .onnx and the .bin file together."
_REINSTALL = "Reinstall onnxruntime and onnxruntime-qnn in the host's interpreter."
_INSTALL = "`qnnbridge doctor` shows how to install it; `qnnbridge setup --repair` creates the host again."
_NAME_PYTHON = (
    "Give the full path of a Python interpreter with the packages of a host; `qnnbridge setup` creates one."
)
_CPU = "Run this model on the CPU provider meanwhile, and report it to onnxruntime-qnn with the crash report."
_FIND_OPERATOR = "`qnnbridge verify` of the model finds the operator."
_ABORT = "abort cpp-exception"
# "unknown": an NTSTATUS error or a signal that the tables of exit codes do not contain.
_CRASH = "access-violation illegal-instruction stack-overflow float unknown"

# fmt: off
# Each rule that applies yields a diagnosis. `diagnose` sorts the diagnoses by weight and keeps the order of this
# table for equal weights, so the order matters for rules of equal weight that apply to the same death.
DEATH_RULES: Final[tuple[DeathRule, ...]] = (
    # --- the model, and the options of its runs ---
    DeathRule("A tensor of the model has a dimension of size 0: QNN divides by it.",
        "Find the dimension of size 0 (also after Slice or Reshape) and give it a size, or remove that part.",
        faults="divide-by-zero", phases=MODEL, qnn=True),
    DeathRule(
        "An integer division failed on the CPU: the smallest integer was divided by -1, or an integer by 0.",
        "Check the integer inputs of Div and Mod for these values, and exclude them.", STRONG,
        faults="divide-by-zero", phases=MODEL, qnn=False),
    DeathRule("A dynamic option (set_ep_dynamic_options) has a value that QNN cannot read.",
        "Correct the value: kvcache_rewind needs a number.", faults=_ABORT,
        ops=("session.set_ep_dynamic_options",)),
    DeathRule(
        "An option that must be a number is not one ({function} failed): a run option such as "
        "qnn.rpc_control_latency, or a provider option.", "Correct the option.", faults=_ABORT,
        line=r"(?:what\(\):|exception of type).*\b(?P<function>sto(?:i|l|ll|ul|ull|f|d))\b"),
    DeathRule("The .bin file does not belong to this .onnx file: it was made from another model.", _REBUILD,
        faults=_ABORT, line=r"what\(\):\s+(?:Tensor|Input) name not found"),
    DeathRule("The context binary is damaged ({what}).", _REBUILD, faults=_ABORT, phases=MODEL, qnn=True,
        line=r"(?P<what>std::out_of_range|std::length_error)"),
    DeathRule("Libraries of two QNN versions were loaded into one process.", ONE_SET, faults=_ABORT,
        line=r"duplicate op key"),
    DeathRule(
        "A check inside of ONNX Runtime or QNN failed ({what}): they do not handle one of the model's operators, "
        "or the operators around it.", _FIND_OPERATOR, SYMPTOM + 1, faults=_ABORT, phases=MODEL, qnn=True,
        line=r"Assertion [`'](?P<what>.{1,200}?)' failed"),
    DeathRule(
        "QNN ended the process without a message while it compiled this model. An operator is the cause, or a "
        "provider option that must be a number and is not one.",
        "Check the provider options. " + _FIND_OPERATOR, SYMPTOM, faults=_ABORT, phases=MODEL, qnn=True,
        silent=True, original=True),
    DeathRule(
        "On Windows this death leaves no message. A run or provider option that should be a number and is not one "
        "has exactly this effect, and so does a context binary of another model.",
        "Check the options. If the model is a compiled one: " + _REBUILD[0].lower() + _REBUILD[1:], SYMPTOM,
        faults=_ABORT, phases=MODEL, qnn=True, silent=True, platform="win32", original=False),
    DeathRule(
        "QNN ended the process without a message. An operator of the model is the cause, or an option that must be "
        "a number and is not one; in a compiled model (EPContext) it may be the context binary.",
        "Check the options. " + _FIND_OPERATOR + " Compiled: compile it again with this onnxruntime-qnn.", SYMPTOM,
        faults=_ABORT, phases=MODEL, qnn=True, silent=True, platform="posix", original=False),
    DeathRule(
        # The weight is higher by 1 than that of the rules for a crash of QNN below, which also apply to this fault.
        "A native library used an instruction that the processor, or the emulator that runs it, does not have. "
        "Processor: {processor}.",
        "Update the emulator or the operating system; if there is none newer, use another version of onnxruntime "
        "in the host's Python.", SYMPTOM + 1, faults="illegal-instruction"),
    DeathRule(
        "The provider from the catalogue of Windows crashed when a session was made. onnxruntime-windowsml is "
        "known to crash like this with every model (microsoft/WindowsML#22), although plain onnxruntime works with "
        "the same provider.",
        "In the host's interpreter, if onnxruntime-windowsml is installed there: python -m pip uninstall -y "
        "onnxruntime-windowsml, then python -m pip install --force-reinstall onnxruntime. Otherwise take QNN from "
        "its wheel (onnxruntime-qnn, QNNBRIDGE_ENGINE=wheel).",
        SYMPTOM + 1, faults="access-violation", phases=("creating", "compiling"), qnn=True, source="windowsml"),
    DeathRule(
        "QNN crashed on this model. If it is a compiled one (EPContext), its context binary is damaged or was made "
        "by another QNN version; otherwise one of its operators is the cause (some poolings, "
        "and STFT with a computed step).",
        "Compiled: compile it again with this onnxruntime-qnn. Otherwise: replace the operator. " + _FIND_OPERATOR
        + " " + _CPU, SYMPTOM, faults=_CRASH, phases=("creating", "compiling"), qnn=True, original=False),
    DeathRule(
        "QNN crashed while it compiled this model. One of its operators is the cause (some poolings, STFT with a "
        "computed step).",
        _FIND_OPERATOR + " Replace the operator. " + _CPU, SYMPTOM, faults=_CRASH,
        phases=("creating", "compiling"), qnn=True, original=True),
    DeathRule(
        "QNN or the driver crashed while running this model: an operator or this input triggers a fault in "
        "one of them, or the context binary of a compiled model is damaged.",
        "Compile the model again with this onnxruntime-qnn, if it is a compiled one. Otherwise `qnnbridge verify` "
        "of it may find the operator. On an NPU an update of its driver may help. " + _CPU, SYMPTOM,
        faults=_CRASH, phases=("running",), qnn=True),
    DeathRule(
        "ONNX Runtime itself, or a library of custom operators, crashed on this model: it is on the CPU, and QNN "
        "has no part in it. An operator is the cause, or an input that it does not expect.",
        "Use another version of onnxruntime in the host's Python, or set graph_optimization_level to "
        "ORT_DISABLE_ALL; report it to onnxruntime with the crash report.", SYMPTOM,
        faults=f"{_CRASH} {_ABORT} heap-corruption breakpoint invalid-handle", phases=MODEL, qnn=False),
    # --- files and libraries ---
    DeathRule("A QNN library or the context binary is truncated (an interrupted installation, a full disk).",
        _REINSTALL + " Check the free space. " + _REBUILD, STRONG, faults="bus",
        phases=(*START, "creating", "compiling"), qnn=True),
    DeathRule("A file that is mapped into memory is truncated: the model's weights, or a library.",
        "Copy the model again, or reinstall onnxruntime in the host's interpreter. Check the free space.",
        STRONG, faults="bus in-page", phases=("creating", "compiling"), qnn=False),
    DeathRule(
        "A file that QNN has mapped into memory (context binary, weights) was cut off or replaced while in use.",
        "Do not overwrite models in use: write a new file and rename it.", STRONG, faults="bus in-page",
        phases=("running",), qnn=True),
    DeathRule("A file that is mapped into memory (weights) was cut off or replaced while in use.",
        "Do not overwrite models in use: write a new file and rename it.", STRONG, faults="bus in-page",
        phases=("running",), qnn=False),
    DeathRule(
        "ONNX Runtime's library died while it was loaded: it cannot read what processor this is (a container or "
        "emulator without /proc/cpuinfo), or the installation is mixed from several versions.",
        _REINSTALL + " In a container mount /proc.", STRONG, faults="access-violation", phases=("importing",)),
    DeathRule("The QNN execution provider died while it was loaded: it is incompatible with this ONNX Runtime.",
        _REINSTALL, STRONG, faults="access-violation abort", phases=("registering",)),
    DeathRule("Two copies of a library, each with its own memory allocator, are in the process.", ONE_SET, STRONG,
        faults="heap-corruption", qnn=True),
    DeathRule("The heap was damaged ({what}): a double free, or two copies of one library in the process.",
        ONE_SET, faults=_ABORT, qnn=True,
        line=r"(?P<what>(?:free|malloc|realloc)\(\): [\w /,!=<>.-]+|double free or corruption|munmap_chunk)"),
    DeathRule("The Visual C++ runtime for this machine is missing, or the Python installation is incomplete.",
        "Install the Visual C++ redistributable (ARM64 for an ARM64 host), or repair Python.",
        faults="library-missing", phases=("starting",), curable=False),
    DeathRule("The program needs the library {library}, which is not installed.",
        "Install it, or use another interpreter.", faults="not-found",
        line=r"error while loading shared libraries: (?P<library>[^:]+):", curable=False),
    # --- Python ---
    DeathRule("qnnbridge is not installed in the host's interpreter.", _INSTALL, faults="python-error usage",
        line=r"No module named '?qnnbridge_(?:host|os|protocol)\b", curable=False),
    # All modules but `encodings`: the next rule applies to a Python without its own files.
    DeathRule("The host's interpreter lacks the package {module}.", _INSTALL, faults="python-error",
        line=r"ModuleNotFoundError: No module named '(?P<module>(?!encodings')[\w.]+)'", curable=False),
    DeathRule("The host's interpreter found another Python's files: PYTHONHOME or a broken virtual environment.",
        "Unset PYTHONHOME and PYTHONPATH for the host; make the virtual environment again.",
        line=r"No module named 'encodings'|init_fs_encoding", curable=False),
    DeathRule("The host was given standard streams that it cannot use.", "Start it through qnnbridge, with pipes.",
        line=r"can't initialize sys standard streams|init_sys_streams", curable=False),
    DeathRule("A native library of {module} could not be loaded: {why}",
        _REINSTALL + " Install the Visual C++ redistributable for the host's machine.",
        line=r"DLL load failed while importing (?P<module>\S+): (?P<why>.+)", curable=False),
    DeathRule("A native library is for another machine: {why}",
        "Install the packages with the host's own interpreter; never copy them from another one. " + _INSTALL,
        line=r"^(?P<why>.*(?:\[WinError (?:193|216)\]|wrong ELF class|invalid ELF header|Exec format error|"
        r"incompatible architecture).*)", curable=False),
    DeathRule("A native library could not be loaded: {why}", _REINSTALL, STRONG, faults="python-error",
        line=r"(?:ImportError|OSError): (?P<why>.*(?:cannot open shared object file|undefined symbol|"
        r"version `[^']*' not found).*)", curable=False),
    DeathRule("The host's interpreter is too old for qnnbridge (a SyntaxError in its own files).",
        "Use Python 3.11 or newer for the host.", STRONG, faults="python-error", phases=("starting",),
        line=r"^SyntaxError: ", curable=False),
    DeathRule("The host's interpreter is too old for qnnbridge: it does not have the option {option} (Python 2).",
        "Use Python 3.11 or newer for the host.", faults="usage", phases=("starting",),
        line=r"^Unknown option: (?P<option>-\w)$", curable=False),
    DeathRule(
        "The program given as the host's interpreter is not a Python interpreter: it rejects Python's options.",
        _NAME_PYTHON, STRONG, faults="usage python-error", phases=("starting",),
        line=r"^\S.*: (?:invalid|unrecognized|unknown|illegal|bad) option", curable=False),
    DeathRule(
        "The program given as the host's interpreter is not a Python interpreter: it ended at once, without "
        "output. (If it is one after all, a module that it loads at its start calls sys.exit().)", _NAME_PYTHON,
        STRONG, faults="ok usage", phases=("starting",), silent=True),
    # The title of faulthandler.dump_traceback_later, which ends the process with _exit(1).
    DeathRule("The native call took longer than its budget; the host's own watchdog ended the process.",
        "Give the call more time, or find out why it hangs: the stack below shows where.",
        line=r"^Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!", faults="python-error"),
    DeathRule("A Python exception ended the host: {error}", "Read the traceback in the crash report.", SYMPTOM,
        faults="python-error",
        line=r"^(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)(?:: .+)?)$"),
    DeathRule("Nothing on stderr: another program ended the process (Task Manager, taskkill, a security program).",
        "Find out which program ended it; the next start may succeed.", SYMPTOM, faults="python-error",
        silent=True),
    # --- lack of memory, and ends from outside ---
    DeathRule("The system had no memory left.",
        "Keep fewer sessions; use context binaries instead of compiling; close other programs.", STRONG,
        line=r"std::bad_alloc|^MemoryError|Cannot allocate memory|failed to commit"),
    DeathRule(
        # Exactly one of this rule and the next three applies to a SIGKILL: the kernel's counter decides where it is
        # readable, otherwise the phase.
        "The kernel's out-of-memory killer was active while the host ran: the machine (or container) had no memory "
        "left.",
        "Keep fewer sessions, use context binaries instead of compiling, close other programs. The kernel log "
        "(dmesg, journalctl -k) shows which process was killed.", PROOF, faults="kill", memory=(True,)),
    DeathRule(
        "Another process killed the host (SIGKILL); the kernel's out-of-memory killer was not active meanwhile.",
        "Find out which program ended it; the next start may succeed.", PROOF, faults="kill", memory=(False,)),
    DeathRule(
        "The kernel's out-of-memory killer or another process ended the host (SIGKILL); it is unknown which.",
        "Look for 'Out of memory' in the kernel log (dmesg, journalctl -k). If it is there: keep fewer sessions, "
        "use context binaries instead of compiling.", STRONG, faults="kill", phases=("importing", *MODEL),
        memory=(None,)),
    DeathRule(
        "Another process or the kernel's out-of-memory killer ended the host (SIGKILL); it is unknown which.",
        "Find out which program ended it; look for 'Out of memory' in the kernel log (dmesg, journalctl -k).",
        STRONG, faults="kill", phases=("starting", "registering", "idle", "closing"), memory=(None,)),
    DeathRule("Another process asked the host to end ({signal}).",
        "Find out which program; the next start may succeed.", STRONG, faults="terminate interrupt pipe"),
    # C++ calls std::terminate with this text when a std::thread is destroyed that is still joinable.
    DeathRule("The process ended while one of its threads was still in native code; all work was done.",
        "Nothing: no answer was lost.", STRONG, faults="abort", phases=("closing", "idle"),
        line=r"terminate called without an active exception"),
    DeathRule(
        "The host ended as if on request: its standard input was closed, or code in it called sys.exit().",
        "Check custom operators and site hooks of the host's interpreter for sys.exit().", SYMPTOM,
        faults="ok"),
)
# fmt: on
