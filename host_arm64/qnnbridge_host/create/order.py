"""What flows down from a `session.create`: the creation itself, and the order for what is done in workers.

Also what is known against its model. Light, since every session imports it. Any thread.
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
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.client import StopSignal
    from qnnbridge_host.request.in_flight import Request
    from qnnbridge_protocol.model_records import CacheSettings, EntryFault, NumbersReport, ProgressStage
    from qnnbridge_protocol.specs import SessionSpec


def _no_events(_event: dict[str, Any]) -> None:
    """Of an order whose progress nobody sees."""


class WorkOrder(NamedTuple):
    """Work on a model, with its owner and limits.

    command: the argv that starts a host, which works. request: id of the serving host's request, which marks the
    worker's lines on stderr. label, fingerprint: of the model, for progress and the report of a death. deadline: on
    `time.monotonic`. budget_s: the time to the deadline when the request arrived. patient: nothing waits for it, so
    it gives way to everything else. emit: sends an event about the request to the application.
    """

    command: tuple[str, ...]
    stop: StopSignal
    request: int = 0
    label: str = ""
    fingerprint: str = ""
    deadline: float | None = None
    budget_s: float | None = None
    limits: Limits = Limits()
    patient: bool = False
    emit: Callable[[dict[str, Any]], None] = _no_events

    @property
    def left_s(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def progress(self, stage: ProgressStage, seconds: float) -> None:
        """Show the application how far it is."""
        self.emit({"event": "progress", "stage": stage, "seconds": seconds, "label": self.label})


class Creation(NamedTuple):
    """A `session.create` in the host's terms.

    enter: declares a native step. folder: of the files of a model given as bytes. settings: of the cache. faults:
    of its entries. watched: known faults stop it with `NeedsRewrite`.
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
    watched: bool = False

    @property
    def by_name(self) -> dict[str, Any]:
        return dict(zip(self.spec.value_names, self.initializers, strict=True))

    def of_copy(self, source: ModelSource, spec: SessionSpec) -> Creation:
        """The same session from a copy of its model."""
        order = self.order._replace(label=source.label, fingerprint=source.fingerprint)
        return self._replace(source=source, spec=spec, order=order)


# --- the command of a worker -----------------------------------------------------------------------------


def default_command(argv: Sequence[str] | None = None) -> tuple[str, ...]:
    """The command line that started this host, for a worker of the same kind."""
    # With the interpreter's own options (-I, -X), which `sys.argv` lacks.
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
    """The command of a worker. text: the value of the option ``--worker``, a JSON list, if it was given."""
    if text is None:
        return default_command()
    return (*(str(word) for word in json.loads(text)), "--parent", str(os.getpid()))


# --- what is known against a model -----------------------------------------------------------------------


def refuse_quarantined(source: ModelSource, quarantined: frozenset[str]) -> None:
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


class NeedsRewrite(Exception):
    """QNN computes operators of the model wrong, and these rewrites cure them. The session is made from a copy."""

    def __init__(self, rewrites: Sequence[str]) -> None:
        super().__init__(", ".join(rewrites))
        self.rewrites = tuple(rewrites)


class NeedsParting(NeedsRewrite):
    """An earlier session's numbers differ from the CPU's, and parted gates may cure that.

    report: of the model as it is. note: key of the record that parting does not help.
    """

    def __init__(self, rewrite: str, report: NumbersReport, note: str) -> None:
        super().__init__([rewrite])
        self.report = report
        self.note = note


def known_faults(
    source: ModelSource,
    spec: SessionSpec,
    machine: str,
    versions: Mapping[str, str],
    soc_model: str | None = None,
) -> str:
    """Return what is known against a model on QNN, in sentences; "" for nothing.

    Args:
        machine: of the host. versions: of its packages and QNN.
        soc_model: the chip, if it is known.
    """
    from qnnbridge_host.cache.measured import rows_of_session
    from qnnbridge_host.model.known_wrong import find_for_session, warning_of

    simulator = machine != "ARM64"
    here = rows_of_session(spec, versions, simulator=simulator, soc_model=soc_model)
    found = find_for_session(source, spec, versions, simulator=simulator, soc_model=soc_model, rows=here.rows)
    return warning_of(source.label, found, source.path, here.evidence(simulator))


def curing_rewrites(creation: Creation, machine: str, versions: Mapping[str, str]) -> tuple[str, ...]:
    """The rewrites for what `known_faults` finds, and for 64-bit floats at the edges of the model.

    None unless the creation is watched, and a rewrite cures it.
    """
    if not creation.watched:
        return ()
    from qnnbridge_host.cache.measured import rows_of_session
    from qnnbridge_host.model.double_edges import REWRITE, double_edges
    from qnnbridge_host.model.known_wrong import computes_on_htp, find_for_session

    simulator = machine != "ARM64"
    here = rows_of_session(creation.spec, versions, simulator=simulator)
    found = find_for_session(creation.source, creation.spec, versions, simulator=simulator, rows=here.rows)
    cures = (one.fault for one in found if one.fault.rewrite)
    # A session that refuses the CPU would not be made of such a copy.
    allowed = (fault.rewrite for fault in cures if not fault.on_cpu or creation.spec.fallback != "error")
    edges = (REWRITE,) if computes_on_htp(creation.spec) and double_edges(creation.source).bare else ()
    return (*dict.fromkeys(allowed), *edges)
