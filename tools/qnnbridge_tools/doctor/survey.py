"""Asks a computer everything that the checks need to know, and gives it as `facts.Facts`.

A part that fails leaves its defaults and a line in ``unknown``: a computer on which something is broken is the
normal case here.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Final, TypeVar

from qnnbridge_protocol import __version__
from qnnbridge_tools.doctor.facts import (
    Computer,
    DaemonFacts,
    Driver,
    EngineFacts,
    ExaminedModel,
    Facts,
    HostFacts,
    Interpreter,
    Packages,
    ProbeResult,
    PythonReport,
    SavedState,
)
from qnnbridge_tools.doctor.machine import Machine, ProbeRequest, paths_of
from qnnbridge_tools.doctor.subjects import (
    computer,
    driver,
    engine,
    environment,
    host,
    interpreters,
    packages,
    sdk,
    state,
)
from qnnbridge_tools.doctor.subjects.environment import survey_vc_runtime
from qnnbridge_tools.doctor.subjects.model import survey_model

T = TypeVar("T")
PROBE_TIMEOUT_S: Final = 60.0
_NOBODY: Final = PythonReport("", "0.0", "", "", "", "", "", ())


@dataclasses.dataclass(frozen=True, slots=True)
class SurveyOptions:
    """Options of a survey. quick: no hashing, no live probe. backend: the application's backend_path."""

    host_python: str | None = None
    model: str | None = None
    backend: str | None = None
    quick: bool = False
    probe_timeout_s: float = PROBE_TIMEOUT_S
    dimensions: tuple[str, ...] = ()


class _Parts:
    """Does the parts of a survey one by one and notes those that fail."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def do(self, name: str, part: Callable[[], T], otherwise: T) -> T:
        try:
            return part()
        except Exception as error:  # noqa: BLE001 - whatever is broken there, the other parts are still worth knowing
            self.unknown.append(f"{name}: {type(error).__name__}: {error}")
            return otherwise


def survey(machine: Machine, order: SurveyOptions) -> Facts:
    parts, complete = _Parts(), not order.quick
    running = parts.do("running interpreter", machine.running, _NOBODY)
    # Before the rest: the driver's name for the NPU helps to recognise the chip, its folder to recognise foreign
    # files.
    driven = parts.do("driver", lambda: driver.survey_driver(machine), Driver("unknown"))
    nothing: tuple[Interpreter, ...] = ()
    found = parts.do("interpreters", lambda: interpreters.survey_interpreters(machine), nothing)
    hosted = parts.do(
        "host", lambda: host.survey_host(machine, order.host_python, found, complete=complete), HostFacts()
    )
    # Where both sides are one environment, its libraries are looked at once.
    own = hosted.packages if hosted.answer and _sees_the_same(machine, running, hosted.answer) else None
    # Not hashed below: what the application imports itself is not what QNN runs from.
    application = own or parts.do(
        "packages", lambda: packages.survey_packages(machine, running, complete=False), Packages()
    )
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
        computer=parts.do(
            "computer", lambda: computer.survey_computer(machine, driven), Computer(machine.system, machine.machine)
        ),
        application=running,
        application_machine=parts.do("process", lambda: _machine_of(machine, running), ""),
        application_packages=application,
        host=hosted,
        driver=driven,
        interpreters=found,
        environment=parts.do("environment", lambda: environment.survey_environment(machine), {}),
        unknown_variables=parts.do("variables", lambda: environment.survey_unknown_variables(machine), ()),
        unusable_values=parts.do("values", lambda: environment.survey_unusable_values(machine), ()),
        sdks=parts.do("SDKs", lambda: sdk.survey_sdks(machine), ()),
        engine=parts.do("source of QNN", lambda: engine.survey_engine(machine, hosted), EngineFacts()),
        foreign=parts.do("search paths", lambda: sdk.survey_foreign(machine, folders), ()),
        places=parts.do("folders", lambda: environment.survey_places(machine, hosted.answer, home), ()),
        state=parts.do("state", lambda: state.survey_state(machine), SavedState()),
        daemon=parts.do("daemon", machine.daemon, DaemonFacts()),
        missing_vc_runtime=_vc_runtime(parts, machine, hosted),
        backend=parts.do("backend_path", lambda: sdk.survey_backend(machine, order.backend), None),
        # A snapshot says whether hashes were compared: without them a library that looks whole may be changed.
        complete=complete,
    )
    # Last: these take the longest, and need all that was found before.
    probe = parts.do("probe", lambda: _probe(machine, facts, order), None)
    model = parts.do("model", lambda: _model(machine, facts, order), None)
    return dataclasses.replace(facts, probe=probe, model=model, unknown=tuple(parts.unknown))


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
    names = {"win32": "x86", "win-amd64": "x64", "win-arm64": "ARM64"}
    # Not from `platform.machine`: under emulation it depends on the version of Python.
    if running.platform in names:
        return names[running.platform]
    file = machine.library(running.executable, version=False)
    return file.machine if file else running.platform.rpartition("-")[2]


def _vc_runtime(parts: _Parts, machine: Machine, hosted: HostFacts) -> tuple[str, ...]:
    answer = hosted.answer
    return parts.do("C++ runtime", lambda: survey_vc_runtime(machine, answer), ()) if answer is not None else ()


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


def _model(machine: Machine, facts: Facts, order: SurveyOptions) -> ExaminedModel | None:
    if order.model is None:
        return None
    model = survey_model(machine, order.model, facts)
    skipped = _why_no_probe(facts, order)
    # A model that is known to fail is not run: the probe would only report the same, later and in other words.
    if skipped or model.problem or not model.exists or model.layout or model.verdict == "cannot run here":
        return model
    result = machine.probe(ProbeRequest(facts.host.path, order.model, order.probe_timeout_s, order.dimensions))
    return dataclasses.replace(model, probe=result)
