"""Asks a computer everything that the checks need to know: `facts.Facts`, and the snapshot of them in a file.

A part that fails leaves its defaults and a line in ``unknown``: a computer on which something is broken is the
normal case here.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.field_types import read_document
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
from qnnbridge_tools.doctor.subjects import computer, environment, host, interpreters, packages, qnn
from qnnbridge_tools.doctor.subjects.model import survey_model

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
    found = part("interpreters", nothing, interpreters.survey_interpreters, machine)
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
        document = json.loads(path.read_text("utf-8"))
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
