"""Records of a request: `Creation` describes the session to create, `WorkOrder` the task for a worker process.

The module also checks the model for known faults. It imports little, because every session imports it. Thread-safe.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge_protocol.errors import ModelQuarantined
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.model.genai_folder import GenaiFolder
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.client import StopSignal
    from qnnbridge_host.request.in_flight import Request
    from qnnbridge_protocol.model_records import CacheSettings, EntryFault, ProgressStage
    from qnnbridge_protocol.specs import SessionSpec


def _no_events(_event: dict[str, Any]) -> None:
    """Discard events: the default `emit` of a `WorkOrder`."""


class WorkOrder(NamedTuple):
    """Task for a worker process: the command that starts the worker, the model, the request and its limits.

    Attributes:
        command: the argv that starts the worker.
        stop: the request's stop signal.
        model: the model, for its label and fingerprint in progress and crash reports.
        request: id of the serving host's request, which marks the worker's lines on stderr.
        deadline: time by `time.monotonic`.
        budget_s: seconds from the arrival of the request to the deadline.
        limits: maximum sizes of the messages that the worker may send.
        patient: whether the worker runs with low priority, because no caller waits for its result.
        emit: sends an event about the request to the application.
    """

    command: tuple[str, ...]
    stop: StopSignal
    model: ModelSource | GenaiFolder
    request: int = 0
    deadline: float | None = None
    budget_s: float | None = None
    limits: Limits = Limits()
    patient: bool = False
    emit: Callable[[dict[str, Any]], None] = _no_events

    @property
    def left_s(self) -> float | None:
        """Seconds until the deadline, at least 0; ``None`` without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, stage: ProgressStage, seconds: float) -> None:
        """Report the stage and its duration so far to the application."""
        self.emit({"event": "progress", "stage": stage, "seconds": seconds, "label": self.model.label})


class Creation(NamedTuple):
    """The parsed request of a `session.create`.

    Attributes:
        request: the received request.
        enter: function that reports to the application that a native step begins.
        order: the task for worker processes.
        spec: the session's description.
        source: the model.
        folder: folder of the external files of a model given as bytes.
        settings: the cache's settings.
        initializers: the values of ``spec.value_names``.
        dynamic: dynamic options of the execution provider.
        seed: seed of random operators.
        quarantined: fingerprints of models and entries that the application refuses to load.
        faults: cache entries that have crashed a host, as observed by the application.
    """

    request: Request
    enter: Callable[[str], None]
    order: WorkOrder
    spec: SessionSpec
    source: ModelSource
    folder: str
    settings: CacheSettings | None = None
    initializers: tuple[Any, ...] = ()
    dynamic: Mapping[str, str] = {}
    seed: int | None = None
    quarantined: frozenset[str] = frozenset()
    faults: Sequence[EntryFault] = ()

    @property
    def by_name(self) -> dict[str, Any]:
        """Values of the initializers by name."""
        return dict(zip(self.spec.value_names, self.initializers, strict=True))

    def of_copy(self, source: ModelSource, spec: SessionSpec) -> Creation:
        """Return this creation with a copy of the model instead of the model."""
        return self._replace(source=source, spec=spec, order=self.order._replace(model=source))


# --- the command of a worker -----------------------------------------------------------------------------


def default_command(argv: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the command line of a worker: this host's options without ``--worker``, and this process as parent.

    argv: default: `sys.orig_argv`.
    """
    # Use `sys.orig_argv`: it also contains the interpreter's own options (-I, -X), which `sys.argv` lacks.
    given = list(sys.orig_argv if argv is None else argv)
    command: list[str] = []
    while given:
        word = given.pop(0)
        name, separator, _ = word.partition("=")
        if name == "--worker":
            if not separator:
                del given[:1]
        elif name == "--parent":
            if not separator:
                del given[:1]
            # The worker belongs to this host, not to the application.
            command += ["--parent", str(os.getpid())]
        else:
            command.append(word)
    if argv is None and sys.executable:
        command[0] = sys.executable  # the name on the command line may be relative
    return tuple(command)


def worker_command(text: str | None) -> tuple[str, ...]:
    """Return the command line of a worker. text: value of the option ``--worker``, a JSON list; ``None`` if the
    option was not given."""
    if text is None:
        return default_command()
    return (*(str(word) for word in json.loads(text)), "--parent", str(os.getpid()))


# --- known faults of a model -----------------------------------------------------------------------------


def refuse_quarantined(source: ModelSource, quarantined: frozenset[str]) -> None:
    """Raise `ModelQuarantined` if the model's fingerprint is in quarantine."""
    if source.fingerprint in quarantined:
        identity = source.identity
        raise ModelQuarantined(
            f"The model {source.label} is in quarantine.",
            details={
                "fingerprint": source.fingerprint,
                "label": source.label,
                "compiled": identity.compiled,
                "files": [list(file) for file in identity.files],
            },
        )


def known_faults(
    source: ModelSource,
    spec: SessionSpec,
    machine: str,
    versions: Mapping[str, str],
    soc_model: str | None = None,
) -> str:
    """Return a warning about operators of a model that QNN is known to compute wrong; "" if it has none.

    Args:
        source: the model.
        spec: the session's description.
        machine: the host's architecture, such as "ARM64".
        versions: versions of the host's packages and QNN.
        soc_model: the chip, if it is known.
    """
    from qnnbridge_host.cache.measured import rows_of_session
    from qnnbridge_host.model.known_wrong import find_for_session, warning_of

    simulator = machine != "ARM64"
    here = rows_of_session(spec, versions, simulator=simulator, soc_model=soc_model)
    found = find_for_session(source, spec, versions, simulator=simulator, soc_model=soc_model, rows=here.rows)
    return warning_of(source.label, found, spec.in_commands(source.path), here.evidence(simulator))
