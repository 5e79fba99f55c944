"""Runs quantised models on the host's QNN and reports where their nodes ran and how much the results differ."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.model.chips import DEFAULT_SIMULATED_CHIP
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.shared.accuracy import ColumnGroups, OutputAccuracy, Verdict, measure, worst
from qnnbridge_protocol.errors import BridgeError, HostStartFailed, PlacementRefused, ProviderUnavailable
from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge import Host

# Either of them names a chip.
_CHIP_OPTIONS = ("soc_model", "htp_arch")


@dataclasses.dataclass(frozen=True, slots=True)
class QnnHostOptions:
    """Access to QNN.

    Args:
        provider_options: of QNN. On the simulator SoC 60 stands in where they name no chip: without one it computes
            otherwise than any NPU.
        python: interpreter of the host.
        timeout_s: for each call.
        required: a machine without QNN is an error, not a remark.
    """

    provider_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str | None = None
    timeout_s: float | None = None
    required: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCheck:
    """The quantised model on QNN: where its nodes run, and how its results differ.

    Args:
        placement: None if no session could be made; `error` says why.
        all_on_qnn: no node was left on the CPU.
        against_float, against_cpu: of QNN's results against the float model and against the quantised one on the
            CPU.
        absent: there is no QNN at hand, which was not required; the reason.
        chip: that stood for one on the simulator; None if it was named.
    """

    placement: Placement | None = None
    all_on_qnn: bool = False
    against_float: tuple[OutputAccuracy, ...] = ()
    against_cpu: tuple[OutputAccuracy, ...] = ()
    error: BridgeError | None = None
    absent: str | None = None
    chip: str | None = None

    @property
    def verdict(self) -> Verdict | None:
        """None if nothing ran."""
        return worst(output.verdict for output in self.against_float) if self.placement is not None else None

    def document(self) -> dict[str, Any]:
        return {
            "placement": self.placement.to_wire() if self.placement else None,
            "all_on_qnn": self.all_on_qnn,
            "verdict": self.verdict,
            "against_float": [output.document() for output in self.against_float],
            "against_cpu": [output.document() for output in self.against_cpu],
            "error": self.error.to_wire() if self.error else None,
            "absent": self.absent,
            "soc_model": self.chip,
        }


class QnnRunner:
    """A host with QNN in it. Made by `opened_qnn`."""

    def __init__(self, host: Host, options: QnnHostOptions) -> None:
        self._host = host
        self._timeout_s = options.timeout_s
        self._provider_options = dict(options.provider_options)
        self.chip: str | None = None
        if host.info.simulator and not any(name in self._provider_options for name in _CHIP_OPTIONS):
            self.chip = str(DEFAULT_SIMULATED_CHIP)
            self._provider_options["soc_model"] = self.chip

    def run(self, model: Path, samples: Sequence[Feeds], names: Sequence[str]) -> tuple[Placement, list[list[Any]]]:
        """Where the nodes ran, and the outputs of each sample. Raises what making the session and running raise."""
        from qnnbridge import CpuFallbackWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)  # the placement says it
            try:
                return self._run(model, samples, names, strict=True)
            except PlacementRefused:
                return self._run(model, samples, names, strict=False)

    def _run(
        self, model: Path, samples: Sequence[Feeds], names: Sequence[str], *, strict: bool
    ) -> tuple[Placement, list[list[Any]]]:
        from qnnbridge import InferenceSession

        with InferenceSession(
            str(model),
            providers=["QNNExecutionProvider"],
            provider_options=[dict(self._provider_options)],
            host=self._host,
            timeout=self._timeout_s,
            fallback="error" if strict else "cpu",
            cache=False,
            verify=False,  # the check compares all samples itself
            fix=False,  # the quantised model as it is written
        ) as session:
            return session.placement, [list(session.run(list(names), dict(feeds))) for feeds in samples]

    def check(
        self,
        model: Path,
        samples: Sequence[Feeds],
        names: Sequence[str],
        expected: Sequence[Sequence[Any]],
        on_cpu: Sequence[Sequence[Any]],
        groups: ColumnGroups,
    ) -> QnnCheck:
        """Runs and compares. expected, on_cpu: outputs of the float model, and of the quantised one on the CPU."""
        try:
            placement, found = self.run(model, samples, names)
        except BridgeError as error:
            return QnnCheck(error=error, chip=self.chip)
        return QnnCheck(
            placement,
            placement.known and not placement.cpu_nodes and not placement.other_nodes,
            measure(names, expected, found, groups),
            measure(names, on_cpu, found, groups),
            chip=self.chip,
        )


@contextlib.contextmanager
def opened_qnn(options: QnnHostOptions | None) -> Iterator[QnnRunner | QnnCheck | None]:
    """A runner; the check that says why there is none; None if none is wanted."""
    if options is None:
        yield None
        return
    from qnnbridge import Host

    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(Host(python=options.python))
            if host.info.simulator is None:
                raise ProviderUnavailable(
                    "The host has no QNN.",
                    cause=f"{host.info.executable} lacks onnxruntime-qnn.",
                    fix="qnnbridge setup-host makes a host that has it.",
                )
            runner = QnnRunner(host, options)
        except (HostStartFailed, ProviderUnavailable) as error:
            yield QnnCheck(error=error) if options.required else QnnCheck(absent=error.message)
            return
        yield runner
