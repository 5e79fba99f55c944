"""`qnnbridge doctor` without its command line: survey, diagnosis, report, snapshot, repairs, explanation of texts.

`diagnose` is a pure function: it runs all checks on the facts and returns a report, with causes before consequences
and one verdict.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from qnnbridge_os.outputs import OutputFile
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.field_types import read_document
from qnnbridge_tools import output
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import (
    Computer,
    DaemonFacts,
    Driver,
    EngineFacts,
    ExaminedModel,
    Facts,
    HostFacts,
    Interpreter,
    NumbersRequest,
    Packages,
    ProbeRequest,
    ProbeResult,
    PythonReport,
    SavedState,
)
from qnnbridge_tools.doctor.findings import (
    CATALOGUE,
    Finding,
    Healthy,
    Remedy,
    Report,
    Screen,
    Severity,
    SubjectCheck,
    finding,
    is_hidden,
    rank,
    report_document,
    report_text,
)
from qnnbridge_tools.doctor.fixes import SETUP_HOST
from qnnbridge_tools.doctor.machine import Machine, paths_of
from qnnbridge_tools.doctor.subjects import (
    computer,
    environment,
    host,
    library_files,
    measured,
    model,
    packages,
    probe,
    qnn,
)
from qnnbridge_tools.doctor.subjects.model import survey_model

# --- the survey: queries a computer for everything that the checks need, and returns `facts.Facts` ---
#
# If one query of the survey fails, its facts have default values, and a line is added to ``unknown``. Such failures
# are normal here, because the doctor examines computers on which something is broken.

T = TypeVar("T")
PROBE_TIMEOUT_S: Final = 60.0
# Placeholder for a running interpreter that could not describe itself.
_NOBODY: Final = PythonReport("", "0.0", "", "", "", "", "", ())


@dataclasses.dataclass(frozen=True, slots=True)
class SurveyOptions:
    """Options of a survey.

    Attributes:
        host_python: the host's interpreter; ``None`` to search for one.
        model: path of a model to examine.
        backend: the application's backend_path.
        quick: whether to skip hashing and the live probe.
        numbers: whether to measure the known-wrong table.
        probe_timeout_s: deadline of a live probe.
        dimensions: sizes for free dimensions of the model, as NAME=SIZE.
    """

    host_python: str | None = None
    model: str | None = None
    backend: str | None = None
    quick: bool = False
    numbers: bool = False
    probe_timeout_s: float = PROBE_TIMEOUT_S
    dimensions: tuple[str, ...] = ()


def survey(machine: Machine, order: SurveyOptions) -> Facts:
    """Query a computer and return the facts about it."""
    complete, unknown = not order.quick, list[str]()

    def part(name: str, otherwise: T, ask: Callable[..., T], *given: Any, **more: Any) -> T:
        try:
            return ask(*given, **more)
        except Exception as error:  # noqa: BLE001 - any fault of one part must not prevent the other parts
            unknown.append(f"{name}: {type(error).__name__}: {error}")
            return otherwise

    running = part("running interpreter", _NOBODY, machine.running)
    # Query the driver first: the NPU's name helps to identify the chip, and QNN libraries in the driver's folder
    # must not be reported as foreign.
    driven = part("driver", Driver("unknown"), computer.survey_driver, machine)
    nothing: tuple[Interpreter, ...] = ()
    found = part("interpreters", nothing, host.survey_interpreters, machine)
    hosted = part("host", HostFacts(), host.survey_host, machine, order.host_python, found, complete=complete)
    # If application and host use the same environment, examine its libraries only once.
    own = hosted.packages if hosted.answer and _sees_the_same(machine, running, hosted.answer) else None
    # Do not hash the application's libraries: QNN is loaded by the host, not by the application.
    application = own or part("packages", Packages(), packages.survey_packages, machine, running, complete=False)
    # Folders whose QNN libraries may be on a search path and are not reported as foreign.
    folders = (
        tuple(one.folder for installed in (hosted.packages, application) if installed for one in installed.sets)
        + ((hosted.packages.plugin,) if hosted.packages and hosted.packages.plugin else ())
        + ((driven.folder,) if driven.folder else ())
    )
    home = hosted.packages.plugin or hosted.packages.runtime if hosted.packages else None
    facts = Facts(
        qnnbridge=__version__,
        taken_at=datetime.datetime.fromtimestamp(machine.now(), datetime.timezone.utc).isoformat(
            timespec="seconds"
        ),
        computer=part(
            "computer", Computer(machine.system, machine.machine), computer.survey_computer, machine, driven
        ),
        application=running,
        application_machine=part("process", "", _machine_of, machine, running),
        application_packages=application,
        host=hosted,
        driver=driven,
        interpreters=found,
        environment=part("environment", {}, environment.survey_environment, machine),
        unknown_variables=part("variables", (), environment.survey_unknown_variables, machine),
        unusable_values=part("values", (), environment.survey_unusable_values, machine),
        sdks=part("SDKs", (), qnn.survey_sdks, machine),
        engine=part("source of QNN", EngineFacts(), qnn.survey_engine, machine, hosted),
        foreign=part("search paths", (), qnn.survey_foreign, machine, folders),
        places=part("folders", (), environment.survey_places, machine, hosted.answer, home),
        state=part("state", SavedState(), environment.survey_state, machine),
        daemon=part("daemon", DaemonFacts(), machine.daemon),
        missing_vc_runtime=part("C++ runtime", (), environment.survey_vc_runtime, machine, hosted.answer),
        backend=part("backend_path", None, qnn.survey_backend, machine, order.backend),
        # Record whether hashes were compared: without hashes, a modified library can look intact.
        complete=complete,
    )
    if order.numbers:
        part("known-wrong operators", None, _measure, machine, facts)
    facts = dataclasses.replace(facts, measured=part("measured rows", (), measured.survey_measured, machine))
    # Probe and model are last, because they take longest and need all other facts.
    probe = part("probe", None, _probe, machine, facts, order)
    model = part("model", None, _model, machine, facts, order)
    return dataclasses.replace(facts, probe=probe, model=model, unknown=tuple(unknown))


def _sees_the_same(machine: Machine, running: PythonReport, host: PythonReport) -> bool:
    """Return whether application and host import the same packages.

    The application may have additional folders that it searches first.
    """
    more = len(running.path) - len(host.path)
    join = paths_of(machine.system).join
    return (
        more >= 0
        and running.path[more:] == host.path
        and not any(machine.kind(join(folder, "onnxruntime")) for folder in running.path[:more])
    )


def _machine_of(machine: Machine, running: PythonReport) -> str:
    # Do not use `platform.machine`, whose result under emulation depends on the Python version.
    if running.platform in host.PLATFORMS:
        return host.PLATFORMS[running.platform]
    # On Linux, read the program file: the platform's name contains the kernel's machine type, even for a 32-bit
    # program.
    file = machine.library(running.executable, version=False)
    return file.machine if file else running.platform.rpartition("-")[2]


def _why_no_probe(facts: Facts, order: SurveyOptions) -> str:
    if order.quick:
        return "--quick was given"
    missing = [name for name in ("numpy", "msgpack") if name not in facts.application_packages.modules]
    if missing:
        return f"this interpreter lacks {' and '.join(missing)}, which qnnbridge needs"
    if facts.host.answer is None:
        return "there is no host to start"
    return ""


def _probe(machine: Machine, facts: Facts, order: SurveyOptions) -> ProbeResult:
    skipped = _why_no_probe(facts, order)
    if skipped:
        return ProbeResult(skipped=skipped)
    return machine.probe(ProbeRequest(facts.host.path, None, order.probe_timeout_s))


def _measure(machine: Machine, facts: Facts) -> None:
    """Measure the known-wrong table. Raise `RuntimeError` with the reason if some rows were not measured.

    The results of the rows that were measured are stored in any case.
    """
    skipped = _why_no_probe(facts, SurveyOptions())
    problem = skipped or machine.measure_numbers(NumbersRequest(facts.host.path))
    if problem:
        raise RuntimeError(problem)


def _model(machine: Machine, facts: Facts, order: SurveyOptions) -> ExaminedModel | None:
    if order.model is None:
        return None
    model = survey_model(machine, order.model, facts)
    skipped = _why_no_probe(facts, order)
    # Do not run a model that is known to fail: the probe would only report the same fault again.
    unusable = model.problem or model.missing or model.verdict == "cannot run here"
    if skipped or unusable or not model.exists or model.layout:
        return model
    result = machine.probe(ProbeRequest(facts.host.path, order.model, order.probe_timeout_s, order.dimensions))
    return dataclasses.replace(model, probe=result)


# --- snapshots: the facts of a computer in a file, for diagnosis on another computer ---
#
# The classes of `facts` are the schema. Unknown keys are ignored and missing keys get default values, so that a
# doctor can read snapshots of older and newer versions. A snapshot contains only what the checks need: no
# environment variables outside the allow-list, and no file contents. Home folders and the user's name are replaced,
# so that the file can be shared.


def decode_facts(document: Any) -> Facts:
    """Return the facts in a JSON document. Raise `ValueError` with the position of a value of a wrong type."""
    return read_document(Facts, document, "facts")


SCHEMA: Final = 1
KIND: Final = "qnnbridge doctor snapshot"
_SNAPSHOT_BEGIN: Final = f'{{\n "kind": "{KIND}",'
USER: Final = "user"
# Replacement for a user name that is not ASCII. It is not ASCII either, so that faults of such paths stay visible.
FOREIGN_USER: Final = "üser"
# A shorter user name is only replaced in profile folders, because replacing it everywhere would garble words.
_LEAST_NAME: Final = 3
_TOO_COMMON: Final = frozenset({"root", "python", "windows", "admin", "user", "users", "public"})
_PROFILE: Final = re.compile(
    r"(?i)(?P<before>(?:[\\/]|^)(?:users|home|documents and settings)[\\/]+)(?P<name>[^\\/\"']+)"
)


def snapshot_text(facts: Facts, machine: Machine) -> str:
    """Return the snapshot's JSON text, with the user's name replaced."""
    document = {"kind": KIND, "schema": SCHEMA, "facts": _clean(dataclasses.asdict(facts), machine)}
    # Use only ASCII, so that no encoding can damage the file.
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


_WRITE_ONE = "Write a snapshot on the computer to diagnose: qnnbridge doctor --snapshot FILE"


def read_snapshot(path: Path) -> Facts:
    """Return the facts of a snapshot, or of a report of `qnnbridge report`, which ends with a snapshot.

    Raises:
        OptionError: the file is not a snapshot, or has another schema.
        OSError: the file cannot be read.
    """
    try:
        text = path.read_text("utf-8")
        document = json.loads(text[max(0, text.rfind(_SNAPSHOT_BEGIN)) :])
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise OptionError(f"{path} is not a snapshot of the doctor.", fix=_WRITE_ONE)
        if document.get("schema") != SCHEMA:
            raise OptionError(
                f"{path} has schema {document.get('schema')!r}, this qnnbridge reads {SCHEMA}.",
                fix="Use the same version of qnnbridge on both computers.",
            )
        return decode_facts(document.get("facts"))
    except (ValueError, RecursionError) as error:
        # Re-raise an `OptionError`. Convert other errors, such as RecursionError for deeply nested JSON.
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{path} is not a snapshot of the doctor.", cause=f"{error}.", fix=_WRITE_ONE) from None


def _clean(value: Any, machine: Machine) -> Any:
    if isinstance(value, str):
        return _clean_text(value, machine)
    if isinstance(value, (list, tuple)):
        return [_clean(item, machine) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item, machine) for key, item in value.items()}
    return value


def _clean_text(text: str, machine: Machine) -> str:
    # First replace the names of profile folders, which may differ from the user's name.
    text = _PROFILE.sub(lambda match: match["before"] + _stand_in(match["name"]), text)
    name = machine.user
    if len(name) < _LEAST_NAME or name.lower() in _TOO_COMMON:
        return text
    # Do not replace parts of longer words. An underscore counts as a boundary, because it separates words in file
    # names.
    return re.sub(rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])", _stand_in(name), text)


def _stand_in(name: str) -> str:
    # Profiles that Windows itself creates do not contain a user's name.
    if name.lower() in ("public", "all users", "default"):
        return name
    return USER if name.isascii() else FOREIGN_USER


# --- the diagnosis, and the command without its command line ---

# The checks in the order of their lines in a report without findings.
CHECKS: Final = (
    computer.COMPUTER_CHECK,
    host.CHECK,
    computer.APPLICATION_CHECK,
    packages.CHECK,
    qnn.SOURCE_CHECK,
    model.GENAI_CHECK,
    library_files.CHECK,
    qnn.SDK_CHECK,
    computer.DRIVER_CHECK,
    environment.PATHS_CHECK,
    environment.ENVIRONMENT_CHECK,
    environment.MEMORY_CHECK,
    environment.DAEMON_CHECK,
    probe.CHECK,
    measured.CHECK,
    model.CHECK,
)

# Findings that predict a failure. A successful probe on the NPU disproves them for the probe's model.
_PROVED_WRONG: Final = (
    "sdk.newer-than-system",
    "engine.catalogue-fits-better",
    "path.not-ascii",
    "path.too-long",
    "files.incomplete",
)

# Findings that predict a failure based on known releases. A later release may have other files and still be
# complete.
_BY_KNOWN_RELEASES: Final = ("files.incomplete", "files.mixed-builds", "files.skel-not-signed")

_SNAPSHOT: Final = ("qnnbridge doctor --snapshot report.json",)


def diagnose(facts: Facts, checks: Sequence[SubjectCheck] = CHECKS) -> Report:
    """Run the checks on the facts and return the report. Findings that are consequences of others are omitted."""
    found: list[Finding] = []
    healthy: list[Healthy] = []
    for check in checks:
        try:
            tempered = (_tempered(one, facts) for one in check.find(facts))
            findings = tuple(one for one in tempered if one is not None)
            line = check.healthy(facts) if not findings else None
        except Exception as error:  # noqa: BLE001 - a fault of one check must not hide the findings of others
            broken = finding(
                "doctor.incomplete",
                f"the check of {check.name} failed",
                f"{type(error).__name__}: {error}",
                fix=Remedy("Report it with a snapshot.", _SNAPSHOT),
            )
            findings, line = (broken,), None
        found += findings
        if line:
            healthy.append(Healthy(check.name, line))
    # Report failed queries: their facts have default values, so the checks' results may be wrong.
    if facts.unknown:
        found.append(
            finding(
                "doctor.incomplete",
                "parts of this computer could not be examined",
                *facts.unknown,
                fix=Remedy("Run the doctor again. If this finding remains, report it with a snapshot.", _SNAPSHOT),
            )
        )
    shown = _with_probe(tuple(sorted((one for one in found if not is_hidden(one, found)), key=rank)), found)
    return Report(shown, tuple(healthy), verdict(facts, shown))


def verdict(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """Return the verdict of the report in one sentence."""
    if findings and findings[0].severity is Severity.BLOCKED:
        first = findings[0]
        if first.code.startswith("model."):
            return f"This model cannot be used on QNN without changes, because {first.title}."
        # Without an Arm processor there is no NPU, but QNN can run in the simulator: replace "The NPU" by "QNN".
        effect = first.effect.value if facts.is_arm else first.effect.value.replace("The NPU", "QNN")
        return f"{effect}, because {first.title}."
    well = _what_works(facts)
    return f"{well}, but {findings[0].title}." if findings else f"{well}."


def _what_works(facts: Facts) -> str:
    probe = facts.probe
    if probe is None or probe.skipped:
        unknown = fixes.unknown_packages(facts)
        but = f", though {fixes.unknown_text(unknown)}" if unknown else ""
        if not facts.is_arm:
            no_npu = "this computer has no NPU; no live probe was made"
            return f"No known problem prevents using QNN's simulator here{but} ({no_npu})"
        return f"No known problem prevents using the NPU{but} (no live probe was made)"
    if probe.simulator:
        return "QNN works here, in its simulator: this computer has no NPU"
    return "The NPU can be used"


def _tempered(found: Finding, facts: Facts) -> Finding | None:
    probe = facts.probe
    worked = probe is not None and not probe.failed and not probe.skipped
    if found.code in _BY_KNOWN_RELEASES and _is_unknown_and_whole(facts):
        if worked:
            return None
        note = "This release is not in the version table: it may work although it differs from earlier releases."
        found = dataclasses.replace(found, notes=(*found.notes, note))
        # Without a probe it is unknown whether the release works, so the finding must not block.
        if probe is None or probe.skipped:
            # Suggest a probe instead of a known release, because the installed release may work.
            see = Remedy("Find out with a live probe whether the release works.", ("qnnbridge doctor",))
            found = dataclasses.replace(found, severity=Severity.DEGRADED, remedy=see)
        return found
    # Compare with False: a run in the simulator (True) proves nothing about the NPU, and None means unknown.
    if worked and probe is not None and probe.simulator is False and found.code in _PROVED_WRONG:
        notes = (*found.notes, "The live probe worked nevertheless; other models may fail.")
        return dataclasses.replace(found, severity=Severity.DEGRADED, notes=notes)
    return found


def _is_unknown_and_whole(facts: Facts) -> bool:
    """Return whether the host has a later release than the version table, with all files unchanged."""
    packages = facts.host.packages
    wheel = packages.distribution(fixes.QNN) if packages is not None else None
    return wheel is not None and wheel.has_record and not wheel.wrong and fixes.is_unknown_release(facts)


def _with_probe(shown: tuple[Finding, ...], found: Sequence[Finding]) -> tuple[Finding, ...]:
    """If the finding about the failed live probe is hidden, add the failure as a note to the first finding."""
    probe = next((one for one in found if one.code.startswith("probe.")), None)
    if probe is None or probe in shown or not shown:
        return shown
    proved = dataclasses.replace(shown[0], notes=(*shown[0].notes, f"The live probe failed, too: {probe.title}."))
    return (proved, *shown[1:])


EXIT_UNKNOWN_TEXT = 1
EXIT_NOT_WRITTEN = 1


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The parsed command line.

    Attributes:
        order: options of the survey.
        snapshot: file for a snapshot.
        overwrite: whether to replace an existing file.
        from_snapshot: snapshot to diagnose instead of this computer.
        explain: text to explain; "-" for standard input.
        fix: whether to offer repairs.
        as_json: whether to print one JSON document.
    """

    order: SurveyOptions
    snapshot: Path | None = None
    overwrite: bool = False
    from_snapshot: Path | None = None
    explain: str | None = None
    fix: bool = False
    as_json: bool = False


def perform(request: DoctorOptions, confirm: Callable[[str], bool]) -> int:
    """Execute the command and return the exit code: 0 healthy, 1 degraded, 2 blocked.

    Args:
        request: the parsed command line.
        confirm: asks the user a question; returns whether the answer is yes.
    """
    # Do not examine this computer to explain a text, which may come from another computer.
    if request.explain is not None:
        meanings = explained(sys.stdin.read() if request.explain == "-" else request.explain)
        if request.as_json:
            output.print_json({"meanings": meanings})
        else:
            print(explanation_text(meanings))
        return 0 if meanings else EXIT_UNKNOWN_TEXT
    if request.order.dimensions:
        from qnnbridge_tools.arguments import read_dimensions

        read_dimensions(request.order.dimensions)  # report an invalid --dim before anything is started
    place = OutputFile(request.snapshot, overwrite=request.overwrite) if request.snapshot is not None else None
    with output.reporting_beside(request.snapshot):
        return _examine(request, place, confirm)


def _examine(request: DoctorOptions, place: OutputFile | None, confirm: Callable[[str], bool]) -> int:
    if request.from_snapshot is not None:
        report, snapshot = diagnose(read_snapshot(request.from_snapshot)), ""
    else:
        report, snapshot = examined(request.order, snapshot=place is not None)
    if request.as_json:
        output.print_json(report_document(report))
    else:
        print(report_text(report, Screen.of_terminal()))
    # Never use another computer's facts to repair this computer.
    if request.fix and request.from_snapshot is None:
        # If standard input is not a terminal, nobody can answer: each repair is then reported as not done.
        for line in apply_fixes(report, lambda question: sys.stdin.isatty() and confirm(question)):
            # With --json print on stderr, so that stdout contains one document.
            print(line, file=sys.stderr if request.as_json else sys.stdout)
    if place is not None and snapshot and not _write(place, snapshot):
        return max(report.exit_code, EXIT_NOT_WRITTEN)
    return report.exit_code


def examined(order: SurveyOptions, *, snapshot: bool = False) -> tuple[Report, str]:
    """Examine this computer; return the report, and the text of its snapshot ("" unless requested)."""
    from qnnbridge_tools.doctor.machine import RealMachine

    begun = time.perf_counter()
    machine = RealMachine()
    facts = survey(machine, order)
    text = snapshot_text(facts, machine) if snapshot else ""
    return dataclasses.replace(diagnose(facts), seconds=time.perf_counter() - begun), text


def _write(place: OutputFile, text: str) -> bool:
    """Write the snapshot. On failure print an error and return False: the diagnosis is still useful."""
    path = place.path
    try:
        place.write_text(text)
    except OSError as error:
        print(
            f"Error: the snapshot was not written: {output.visible(path)}: {error.strerror or error}",
            file=sys.stderr,
        )
        return False
    print(f"Snapshot: {output.visible(path)}", file=sys.stderr)
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class Fix:
    """A repair that ``--fix`` offers.

    Args:
        codes: codes of findings that the repair may fix.
        question: question to the user before the repair.
        apply: applies the repair to the first of these findings and returns a description.
        command: the repair also applies to findings whose own fix contains this command.
    """

    codes: tuple[str, ...]
    question: str
    apply: Callable[[Finding], str]
    command: str | None = None

    def mends(self, found: Finding) -> bool:
        """Return whether this repair applies to a finding."""
        if found.code in self.codes:
            return True
        return self.command is not None and any(line.startswith(self.command) for line in found.remedy.commands)


def _clear_quarantine(_found: Finding) -> str:
    from qnnbridge._supervision.blame import Quarantine

    quarantine = Quarantine()
    # Read the quarantined models before clearing the quarantine, because the message contains their names.
    accounts = quarantine.accounts()
    quarantine.clear()
    return f"removed {len(accounts)} models from quarantine: {', '.join(account.model for account in accounts)}"


def _prune_cache(_found: Finding) -> str:
    from qnnbridge_protocol.settings import cache_dir
    from qnnbridge_tools.doctor.machine import RealMachine

    bad = RealMachine().cache(str(cache_dir())).bad_keys
    done = [_run_command("cache", "clear", *bad)] if bad else []
    return "; ".join([*done, _run_command("cache", "prune")])


def _set_up_host(found: Finding) -> str:
    """Run `setup` with the options of the finding's own fix; return a text with the commands left to the user."""
    lines = found.remedy.commands
    own = next((line for line in lines if line.startswith(SETUP_HOST)), SETUP_HOST)
    said = _run_command(*own.split()[1:])
    rest = lines[lines.index(own) + 1 :] if own in lines else ()
    return said + "".join(f"; then run: {line}" for line in rest)


def _run_command(*arguments: str) -> str:
    # Run qnnbridge as a module, because the script `qnnbridge` need not be on the PATH.
    command = [sys.executable, "-m", "qnnbridge_tools", *arguments]
    code = subprocess.run(command, check=False).returncode
    return f"ran qnnbridge {' '.join(arguments)}: " + ("done" if code == 0 else f"ended with exit code {code}")


FIXES: Final = (
    Fix(
        ("host.none", "host.only-emulated", "host.packages-missing", "host.python-too-old", "host.base-missing"),
        "Set up a host in a separate environment (qnnbridge setup)?",
        _set_up_host,
        SETUP_HOST,
    ),
    Fix(("cache.damaged", "path.disk-full"), "Remove damaged and old entries of the cache?", _prune_cache),
    Fix(("state.quarantine",), "Let the models in quarantine try again?", _clear_quarantine),
)


def apply_fixes(report: Report, ask: Callable[[str], bool]) -> list[str]:
    """Offer all repairs for a report; return lines about what was done and what was not.

    ask: asks the user a question; returns whether the answer is yes.
    """
    lines = []
    left = list(report.findings)
    for fix in FIXES:
        found = [one for one in left if fix.mends(one)]
        if not found:
            continue
        # If two repairs apply to a finding, only offer the first.
        left = [one for one in left if one not in found]
        reasons = [one.code for one in found]
        if not ask(fix.question):
            lines.append(f"not done ({', '.join(reasons)}): {fix.question}")
            continue
        try:
            lines.append(f"done ({', '.join(reasons)}): {fix.apply(found[0])}")
        except Exception as error:  # noqa: BLE001 - a failed repair must not prevent the others
            lines.append(f"failed ({', '.join(reasons)}): {error}")
    lines += [f"not fixed by --fix ({code}): follow the fix in the report" for code in (one.code for one in left)]
    return lines


UNKNOWN = (
    "qnnbridge has no explanation for this text. The text may still describe a serious problem.\nPaste the whole "
    "message with the lines before it, or run the failing program with QNNBRIDGE_DEBUG=1;\n`qnnbridge doctor` "
    "examines this computer."
)


def explained(text: str) -> list[dict[str, Any]]:
    """Return the explanations of a text, best first; empty if the text is unknown."""
    # Also accept a code in square brackets, because reports print codes like this.
    code = text.strip().strip("[]")
    if code in CATALOGUE:
        fix = "Run `qnnbridge doctor` on the computer with this finding: its report contains the command."
        return [{"title": code, "cause": CATALOGUE[code].why, "fix": fix, "seen": "a finding of this doctor"}]
    from qnnbridge_tools.explanations import explain_text

    return [meaning.to_json() for meaning in explain_text(text)]


def explanation_text(meanings: list[dict[str, Any]]) -> str:
    """Return the text of `doctor --explain` for the results of `explained`."""
    if not meanings:
        return UNKNOWN
    parts = []
    for meaning in meanings:
        lines = [output.visible(meaning["title"])]
        for key in filter(meaning.get, ("seen", "cause", "fix")):
            shown = output.visible(meaning[key])
            lines += textwrap.wrap(shown, 110, initial_indent=f"  {key:<6}", subsequent_indent=" " * 8)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)
