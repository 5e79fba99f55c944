"""`qnnbridge doctor` without its command line: survey, diagnose, print, write a snapshot, mend, explain a text.

`diagnose` is pure: from facts to a report by all checks, causes before consequences, one verdict.
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

# --- the survey: asks a computer everything that the checks need to know, and gives `facts.Facts` ---
#
# A part that fails leaves its defaults and a line in ``unknown``: a computer on which something is broken is the
# normal case here.

T = TypeVar("T")
PROBE_TIMEOUT_S: Final = 60.0
# Stands for a running interpreter that could not describe itself.
_NOBODY: Final = PythonReport("", "0.0", "", "", "", "", "", ())


@dataclasses.dataclass(frozen=True, slots=True)
class SurveyOptions:
    """Options of a survey. quick: no hashing, no live probe. backend: the application's backend_path."""

    host_python: str | None = None
    model: str | None = None
    backend: str | None = None
    quick: bool = False
    numbers: bool = False
    probe_timeout_s: float = PROBE_TIMEOUT_S
    dimensions: tuple[str, ...] = ()


def survey(machine: Machine, order: SurveyOptions) -> Facts:
    complete, unknown = not order.quick, list[str]()

    def part(name: str, otherwise: T, ask: Callable[..., T], *given: Any, **more: Any) -> T:
        try:
            return ask(*given, **more)
        except Exception as error:  # noqa: BLE001 - whatever is broken there, the other parts are still worth knowing
            unknown.append(f"{name}: {type(error).__name__}: {error}")
            return otherwise

    running = part("running interpreter", _NOBODY, machine.running)
    # Before the rest: the driver's name for the NPU helps to recognise the chip, its folder to recognise foreign
    # files.
    driven = part("driver", Driver("unknown"), computer.survey_driver, machine)
    nothing: tuple[Interpreter, ...] = ()
    found = part("interpreters", nothing, host.survey_interpreters, machine)
    hosted = part("host", HostFacts(), host.survey_host, machine, order.host_python, found, complete=complete)
    # Where both sides are one environment, its libraries are looked at once.
    own = hosted.packages if hosted.answer and _sees_the_same(machine, running, hosted.answer) else None
    # Not hashed below: what the application imports itself is not what QNN runs from.
    application = own or part("packages", Packages(), packages.survey_packages, machine, running, complete=False)
    # Folders whose QNN libraries are accounted for: found on a search path, they are not foreign.
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
        # A snapshot says whether hashes were compared: without them a library that looks whole may be changed.
        complete=complete,
    )
    if order.numbers:
        part("known-wrong operators", None, _measure, machine, facts)
    facts = dataclasses.replace(facts, measured=part("measured rows", (), measured.survey_measured, machine))
    # Last: these take the longest, and need all that was found before.
    probe = part("probe", None, _probe, machine, facts, order)
    model = part("model", None, _model, machine, facts, order)
    return dataclasses.replace(facts, probe=probe, model=model, unknown=tuple(unknown))


def _sees_the_same(machine: Machine, running: PythonReport, host: PythonReport) -> bool:
    """Whether both sides have the same packages. The application's path also begins with its own folder."""
    more = len(running.path) - len(host.path)
    join = paths_of(machine.system).join
    return (
        more >= 0
        and running.path[more:] == host.path
        and not any(machine.kind(join(folder, "onnxruntime")) for folder in running.path[:more])
    )


def _machine_of(machine: Machine, running: PythonReport) -> str:
    # Not from `platform.machine`: under emulation it depends on the version of Python.
    if running.platform in host.PLATFORMS:
        return host.PLATFORMS[running.platform]
    # Elsewhere that name comes from the kernel, which a 32-bit program shares with 64-bit ones.
    file = machine.library(running.executable, version=False)
    return file.machine if file else running.platform.rpartition("-")[2]


def _why_no_probe(facts: Facts, order: SurveyOptions) -> str:
    if order.quick:
        return "--quick was given"
    missing = [name for name in ("numpy", "msgpack") if name not in facts.application_packages.modules]
    if missing:
        return f"this interpreter has no {' and no '.join(missing)}, which qnnbridge needs"
    if facts.host.answer is None:
        return "there is no host to start"
    return ""


def _probe(machine: Machine, facts: Facts, order: SurveyOptions) -> ProbeResult:
    skipped = _why_no_probe(facts, order)
    if skipped:
        return ProbeResult(skipped=skipped)
    return machine.probe(ProbeRequest(facts.host.path, None, order.probe_timeout_s))


def _measure(machine: Machine, facts: Facts) -> None:
    """Raises `RuntimeError` with the reason why the rows were not all measured; those that were are kept."""
    skipped = _why_no_probe(facts, SurveyOptions())
    problem = skipped or machine.measure_numbers(NumbersRequest(facts.host.path))
    if problem:
        raise RuntimeError(problem)


def _model(machine: Machine, facts: Facts, order: SurveyOptions) -> ExaminedModel | None:
    if order.model is None:
        return None
    model = survey_model(machine, order.model, facts)
    skipped = _why_no_probe(facts, order)
    # A model that is known to fail is not run: the probe would only report the same, later and in other words.
    unusable = model.problem or model.missing or model.verdict == "cannot run here"
    if skipped or unusable or not model.exists or model.layout:
        return model
    result = machine.probe(ProbeRequest(facts.host.path, order.model, order.probe_timeout_s, order.dimensions))
    return dataclasses.replace(model, probe=result)


# --- snapshots: the facts of a computer in a file, to be diagnosed on another one ---
#
# The classes of `facts` are the schema: unknown names are passed over, missing ones get their default, so that
# a doctor reads snapshots of older and newer ones. A snapshot holds what the checks need and nothing else: no
# variable outside of the allow-list, no contents of files. Home folders and the user's name are replaced, so that
# it can be handed on.


def decode_facts(document: Any) -> Facts:
    """Raises `ValueError`, which names the place, for what is not as the classes say."""
    return read_document(Facts, document, "facts")


SCHEMA: Final = 1
KIND: Final = "qnnbridge doctor snapshot"
_SNAPSHOT_BEGIN: Final = f'{{\n "kind": "{KIND}",'
USER: Final = "user"
# Stands for a name that is not ASCII, which may be the fault that is looked for.
FOREIGN_USER: Final = "üser"
# A shorter user name, replaced wherever it occurs, would garble words.
_LEAST_NAME: Final = 3
_TOO_COMMON: Final = frozenset({"root", "python", "windows", "admin", "user", "users", "public"})
_PROFILE: Final = re.compile(
    r"(?i)(?P<before>(?:[\\/]|^)(?:users|home|documents and settings)[\\/]+)(?P<name>[^\\/\"']+)"
)


def snapshot_text(facts: Facts, machine: Machine) -> str:
    document = {"kind": KIND, "schema": SCHEMA, "facts": _clean(dataclasses.asdict(facts), machine)}
    # ASCII alone, so that the file survives any encoding on its way.
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def read_snapshot(path: Path) -> Facts:
    """Raises `OptionError` for a file of another kind, `OSError` for one that cannot be read."""
    try:
        text = path.read_text("utf-8")
        # `qnnbridge report` ends with a snapshot.
        document = json.loads(text[max(0, text.rfind(_SNAPSHOT_BEGIN)) :])
        if not isinstance(document, dict) or document.get("kind") != KIND:
            raise OptionError(
                f"{path} is no snapshot of the doctor.", fix="Make one: qnnbridge doctor --snapshot FILE"
            )
        if document.get("schema") != SCHEMA:
            raise OptionError(
                f"{path} has schema {document.get('schema')!r}, this qnnbridge reads {SCHEMA}.",
                fix="Use the same version of qnnbridge on both computers.",
            )
        return decode_facts(document.get("facts"))
    except (ValueError, RecursionError) as error:
        # `json` raises RecursionError for deep nesting.
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"{path} is no snapshot of the doctor: {error}.") from None


def _clean(value: Any, machine: Machine) -> Any:
    if isinstance(value, str):
        return _clean_text(value, machine)
    if isinstance(value, (list, tuple)):
        return [_clean(item, machine) for item in value]
    if isinstance(value, dict):
        return {key: _clean(item, machine) for key, item in value.items()}
    return value


def _clean_text(text: str, machine: Machine) -> str:
    # First by the place: the folder of a profile may have another name than its user.
    text = _PROFILE.sub(lambda match: match["before"] + _stand_in(match["name"]), text)
    name = machine.user
    if len(name) < _LEAST_NAME or name.lower() in _TOO_COMMON:
        return text
    # Not within a longer word. An underscore is a boundary: file names join words by it.
    return re.sub(rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])", _stand_in(name), text)


def _stand_in(name: str) -> str:
    # Profiles that Windows makes itself name nobody.
    if name.lower() in ("public", "all users", "default"):
        return name
    return USER if name.isascii() else FOREIGN_USER


# --- the diagnosis, and the command without its command line ---

# In the order of their healthy lines.
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

# Predictions: a probe on the NPU that went well proves that they did not come true.
_PROVED_WRONG: Final = (
    "sdk.newer-than-system",
    "engine.catalogue-fits-better",
    "path.not-ascii",
    "path.too-long",
    "files.incomplete",
)

# Predictions from how the known releases are made: a later one may be made otherwise and be whole.
_BY_KNOWN_RELEASES: Final = ("files.incomplete", "files.mixed-builds", "files.skel-not-signed")

_SNAPSHOT: Final = ("qnnbridge doctor --snapshot report.json",)


def diagnose(facts: Facts, checks: Sequence[SubjectCheck] = CHECKS) -> Report:
    found: list[Finding] = []
    healthy: list[Healthy] = []
    for check in checks:
        try:
            tempered = (_tempered(one, facts) for one in check.find(facts))
            findings = tuple(one for one in tempered if one is not None)
            line = check.healthy(facts) if not findings else None
        except Exception as error:  # noqa: BLE001 - a fault of one check must not hide what the others found
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
    # A part of the survey that failed leaves defaults, and a check would take these for facts of the computer.
    if facts.unknown:
        found.append(
            finding(
                "doctor.incomplete",
                "some of this computer could not be examined",
                *facts.unknown,
                fix=Remedy("Run it again; if it stays, report it with a snapshot.", _SNAPSHOT),
            )
        )
    shown = _with_probe(tuple(sorted((one for one in found if not is_hidden(one, found)), key=rank)), found)
    return Report(shown, tuple(healthy), verdict(facts, shown))


def verdict(facts: Facts, findings: tuple[Finding, ...]) -> str:
    """One sentence."""
    if findings and findings[0].severity is Severity.BLOCKED:
        first = findings[0]
        if first.code.startswith("model."):
            return f"This model cannot be used on QNN as it is, because {first.title}."
        # Without an Arm processor there is no NPU that could be unusable: QNN's simulator is.
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
            return f"Nothing speaks against QNN's simulator here{but} ({no_npu})"
        return f"Nothing speaks against the NPU{but} (no live probe was made)"
    if probe.simulator:
        return "QNN works here, in its simulator: this computer has no NPU"
    return "The NPU can be used"


def _tempered(found: Finding, facts: Facts) -> Finding | None:
    probe = facts.probe
    worked = probe is not None and not probe.failed and not probe.skipped
    if found.code in _BY_KNOWN_RELEASES and _is_unknown_and_whole(facts):
        if worked:
            return None
        note = "This release is not in the version table: it may be made otherwise than those before it, and work."
        found = dataclasses.replace(found, notes=(*found.notes, note))
        # Without a probe nothing is known either way, so the finding stays and blocks nothing.
        if probe is None or probe.skipped:
            # A repair by what is known would take away what perhaps works.
            see = Remedy("See whether it works, with a live probe.", ("qnnbridge doctor",))
            found = dataclasses.replace(found, severity=Severity.DEGRADED, remedy=see)
        return found
    # Only False counts: a run in the simulator (True) touches no computer, and None means that nothing was said of
    # it.
    if worked and probe is not None and probe.simulator is False and found.code in _PROVED_WRONG:
        notes = (*found.notes, "The live probe worked all the same; other models may not.")
        return dataclasses.replace(found, severity=Severity.DEGRADED, notes=notes)
    return found


def _is_unknown_and_whole(facts: Facts) -> bool:
    """A later release than the table's, with all its files as they were packed."""
    packages = facts.host.packages
    wheel = packages.distribution(fixes.QNN) if packages is not None else None
    return wheel is not None and wheel.has_record and not wheel.wrong and fixes.is_unknown_release(facts)


def _with_probe(shown: tuple[Finding, ...], found: Sequence[Finding]) -> tuple[Finding, ...]:
    """The failure of the live probe is hidden as a consequence in most reports; there it proves the cause."""
    probe = next((one for one in found if one.code.startswith("probe.")), None)
    if probe is None or probe in shown or not shown:
        return shown
    proved = dataclasses.replace(
        shown[0], notes=(*shown[0].notes, f"The live probe failed accordingly: {probe.title}.")
    )
    return (proved, *shown[1:])


EXIT_UNKNOWN_TEXT = 1
EXIT_NOT_WRITTEN = 1


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The command line, read."""

    order: SurveyOptions
    snapshot: Path | None = None
    overwrite: bool = False
    from_snapshot: Path | None = None
    explain: str | None = None
    fix: bool = False
    as_json: bool = False


def perform(request: DoctorOptions, confirm: Callable[[str], bool]) -> int:
    """The exit code: 0 healthy, 1 degraded, 2 blocked.

    Args:
        confirm: Asks the user for a yes.
    """
    # A text is explained without looking at this computer: it may come from another one.
    if request.explain is not None:
        meanings = explained(sys.stdin.read() if request.explain == "-" else request.explain)
        if request.as_json:
            output.print_json({"meanings": meanings})
        else:
            print(explanation_text(meanings))
        return 0 if meanings else EXIT_UNKNOWN_TEXT
    if request.order.dimensions:
        from qnnbridge_tools.arguments import read_dimensions

        read_dimensions(request.order.dimensions)  # a typing error is reported before anything is started
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
    # Facts of another computer never lead to a repair of this one.
    if request.fix and request.from_snapshot is None:
        # Nobody can answer at a pipe: each repair is then listed as not done.
        for line in apply_fixes(report, lambda question: sys.stdin.isatty() and confirm(question)):
            # On stderr beside a JSON document, so that stdout holds one document.
            print(line, file=sys.stderr if request.as_json else sys.stdout)
    if place is not None and snapshot and not _write(place, snapshot):
        return max(report.exit_code, EXIT_NOT_WRITTEN)
    return report.exit_code


def examined(order: SurveyOptions, *, snapshot: bool = False) -> tuple[Report, str]:
    """The report on this computer, and the text of its snapshot, if one is wanted."""
    from qnnbridge_tools.doctor.machine import RealMachine

    begun = time.perf_counter()
    machine = RealMachine()
    facts = survey(machine, order)
    text = snapshot_text(facts, machine) if snapshot else ""
    return dataclasses.replace(diagnose(facts), seconds=time.perf_counter() - begun), text


def _write(place: OutputFile, text: str) -> bool:
    """A snapshot that cannot be written is no reason to keep the diagnosis back."""
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
        codes: Findings that it may mend.
        question: Asked before.
        apply: Mends the first of the findings and says what it did.
        command: Findings whose own fix has this command are mended, too.
    """

    codes: tuple[str, ...]
    question: str
    apply: Callable[[Finding], str]
    command: str | None = None

    def mends(self, found: Finding) -> bool:
        if found.code in self.codes:
            return True
        return self.command is not None and any(line.startswith(self.command) for line in found.remedy.commands)


def _clear_quarantine(_found: Finding) -> str:
    from qnnbridge._supervision.blame import Quarantine

    quarantine = Quarantine()
    # Read before the clearing, to name them.
    accounts = quarantine.accounts()
    quarantine.clear()
    return f"let {len(accounts)} models out of quarantine: {', '.join(account.model for account in accounts)}"


def _prune_cache(_found: Finding) -> str:
    from qnnbridge_protocol.settings import cache_dir
    from qnnbridge_tools.doctor.machine import RealMachine

    bad = RealMachine().cache(str(cache_dir())).bad_keys
    done = [_run_command("cache", "clear", *bad)] if bad else []
    return "; ".join([*done, _run_command("cache", "prune")])


def _set_up_host(found: Finding) -> str:
    """Runs `setup` with the options of the finding's own fix; the user runs its other commands."""
    lines = found.remedy.commands
    own = next((line for line in lines if line.startswith(SETUP_HOST)), SETUP_HOST)
    said = _run_command(*own.split()[1:])
    rest = lines[lines.index(own) + 1 :] if own in lines else ()
    return said + "".join(f"; then run: {line}" for line in rest)


def _run_command(*arguments: str) -> str:
    # As a module: the script `qnnbridge` need not be on the PATH.
    command = [sys.executable, "-m", "qnnbridge_tools", *arguments]
    code = subprocess.run(command, check=False).returncode
    return f"ran qnnbridge {' '.join(arguments)}: " + ("done" if code == 0 else f"it ended with {code}")


FIXES: Final = (
    Fix(
        ("host.none", "host.only-emulated", "host.packages-missing", "host.python-too-old", "host.base-missing"),
        "Set up a host in an environment of its own (qnnbridge setup)?",
        _set_up_host,
        SETUP_HOST,
    ),
    Fix(("cache.damaged", "path.disk-full"), "Remove damaged and old entries of the cache?", _prune_cache),
    Fix(("state.quarantine",), "Let the models in quarantine try again?", _clear_quarantine),
)


def apply_fixes(report: Report, ask: Callable[[str], bool]) -> list[str]:
    """Lines about what was done, and about what was not."""
    lines = []
    left = list(report.findings)
    for fix in FIXES:
        found = [one for one in left if fix.mends(one)]
        if not found:
            continue
        # A finding that two repairs fit is mended by the first alone.
        left = [one for one in left if one not in found]
        reasons = [one.code for one in found]
        if not ask(fix.question):
            lines.append(f"not done ({', '.join(reasons)}): {fix.question}")
            continue
        try:
            lines.append(f"done ({', '.join(reasons)}): {fix.apply(found[0])}")
        except Exception as error:  # noqa: BLE001 - one fix that fails must not keep the others from being tried
            lines.append(f"failed ({', '.join(reasons)}): {error}")
    lines += [f"not mended by --fix ({code}): do what its fix says" for code in (one.code for one in left)]
    return lines


UNKNOWN = (
    "Nothing in this text is known to qnnbridge. That does not mean that it is harmless.\n"
    "Paste the whole message with the lines before it, or run the failing program with QNNBRIDGE_DEBUG=1;\n"
    "`qnnbridge doctor` examines this computer."
)


def explained(text: str) -> list[dict[str, Any]]:
    """Meanings, best first; empty if nothing is known."""
    # In square brackets, too: so a report prints its codes, and so they are copied.
    code = text.strip().strip("[]")
    if code in CATALOGUE:
        fix = "Run `qnnbridge doctor` on the computer concerned: it names the command."
        return [{"title": code, "cause": CATALOGUE[code].why, "fix": fix, "seen": "a finding of this doctor"}]
    from qnnbridge_tools.explanations import explain_text

    return [meaning.to_json() for meaning in explain_text(text)]


def explanation_text(meanings: list[dict[str, Any]]) -> str:
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
