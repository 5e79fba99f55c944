"""Runs a quantised model on the host's QNN and tells where its nodes ran and how much the results differ."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.numerics.comparing import OutputComparison, compare
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_protocol.errors import BridgeError, PlacementRefused
from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge import Host


@dataclasses.dataclass(frozen=True, slots=True)
class QnnHostOptions:
    """Access to QNN: options of the provider, interpreter of the host, seconds for each call."""

    provider_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str | None = None
    timeout_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCheck:
    """The quantised model on QNN: where its nodes run, and how its results differ.

    Args:
        placement: None if no session could be made; `error` says why.
        all_on_qnn: no node was left on the CPU.
        against_float, against_cpu: of QNN's results against the float model and against the quantised one on the
            CPU.
    """

    placement: Placement | None = None
    all_on_qnn: bool = False
    against_float: tuple[OutputComparison, ...] = ()
    against_cpu: tuple[OutputComparison, ...] = ()
    error: BridgeError | None = None

    def document(self) -> dict[str, Any]:
        return {
            "placement": self.placement.to_wire() if self.placement else None,
            "all_on_qnn": self.all_on_qnn,
            "against_float": [output.document() for output in self.against_float],
            "against_cpu": [output.document() for output in self.against_cpu],
            "error": self.error.to_wire() if self.error else None,
        }


def check_on_qnn(
    model: Path,
    samples: Sequence[Feeds],
    names: Sequence[str],
    expected: Sequence[Sequence[Any]],
    on_cpu: Sequence[Sequence[Any]],
    settings: QnnHostOptions,
) -> QnnCheck:
    """Runs a quantised model on the host's QNN.

    Args:
        expected, on_cpu: outputs of the float model and of the quantised one on the CPU, for each sample.
    """
    from qnnbridge import CpuFallbackWarning, Host

    try:
        with warnings.catch_warnings(), Host(python=settings.python) as host:
            warnings.simplefilter("ignore", CpuFallbackWarning)  # the placement tells
            try:
                placement, found = _run(model, samples, names, settings, host, strict=True)
            except PlacementRefused:
                placement, found = _run(model, samples, names, settings, host, strict=False)
    except BridgeError as error:
        return QnnCheck(error=error)
    return QnnCheck(
        placement,
        placement.known and not placement.cpu_nodes and not placement.other_nodes,
        compare(names, expected, found),
        compare(names, on_cpu, found),
    )


def _run(
    model: Path,
    samples: Sequence[Feeds],
    names: Sequence[str],
    settings: QnnHostOptions,
    host: Host,
    *,
    strict: bool,
) -> tuple[Placement, list[list[Any]]]:
    from qnnbridge import InferenceSession

    with InferenceSession(
        str(model),
        providers=["QNNExecutionProvider"],
        provider_options=[dict(settings.provider_options)],
        host=host,
        timeout=settings.timeout_s,
        fallback="error" if strict else "cpu",
    ) as session:
        return session.placement, [list(session.run(list(names), dict(feeds))) for feeds in samples]
