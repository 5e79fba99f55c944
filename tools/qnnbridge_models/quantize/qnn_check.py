"""The comparison of a quantised model with the float one, on the CPU and on the host's QNN."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_host.graph import graphs
from qnnbridge_host.model.chips import DEFAULT_SIMULATED_CHIP
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.accuracy import FloatResults, OutputAccuracy, Verdict, lowest_snr, worst
from qnnbridge_models.command_options import QnnHostOptions
from qnnbridge_models.progress import OnProgress, phase
from qnnbridge_protocol.errors import (
    BridgeError,
    HostStartFailed,
    ModelError,
    OrtError,
    PlacementRefused,
    ProviderUnavailable,
)
from qnnbridge_protocol.specs import Placement

if TYPE_CHECKING:
    from qnnbridge import Host

# Either of them names a chip.
_CHIP_OPTIONS = ("soc_model", "htp_arch")
# Outputs that are kept, and the largest model that is looked for among those that ran.
_MOST_KNOWN_BYTES = 1 << 28
# Samples at once on the simulator, which computes each in one thread; an NPU computes one after the other.
_AT_ONCE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCheck:
    """The quantised model on QNN: where its nodes run, and how its results differ.

    Args:
        placement: None if no session could be made; `error` says why.
        against_float, against_cpu: of QNN's results against the float model and against the quantised one on the
            CPU.
        absent: there is no QNN at hand, which was not required; the reason.
        chip: that stood for one on the simulator; None if it was named.
    """

    placement: Placement | None = None
    against_float: tuple[OutputAccuracy, ...] = ()
    against_cpu: tuple[OutputAccuracy, ...] = ()
    error: BridgeError | None = None
    absent: str | None = None
    chip: str | None = None

    @property
    def all_on_qnn(self) -> bool:
        """No node was left on the CPU."""
        found = self.placement
        return found is not None and found.known and not found.cpu_nodes and not found.other_nodes

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


# Asked with the placement and the outputs of the first samples.
Enough = Callable[[Placement, list[list[Any]]], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """What came of a model. outputs: by contents of the sample."""

    placement: Placement
    outputs: Mapping[bytes, list[Any]]

    @property
    def size(self) -> int:
        return sum(np.asarray(value).nbytes for values in self.outputs.values() for value in values)


def _contents_of_model(model: Path, names: Sequence[str]) -> bytes:
    """What stands for a model, with its weights, and outputs of it; empty of a large one. Metadata and domains that
    nothing uses, which the written file has otherwise than the candidate, compute nothing."""
    data = model.with_name(f"{model.name}.data")
    # Nothing stands for a large model: all of it would be read again for each look.
    if model.stat().st_size > _MOST_KNOWN_BYTES or data.exists():
        return b""
    loaded = graphs.load(model)
    del loaded.metadata_props[:]
    graphs.trim_opsets(loaded)
    return hashlib.blake2b(repr(list(names)).encode() + loaded.SerializeToString(deterministic=True)).digest()


def _contents_of_sample(feeds: Feeds) -> bytes:
    """What stands for a sample, which is arrays of numbers."""
    found = hashlib.blake2b()
    for name, value in sorted(feeds.items()):
        array = np.ascontiguousarray(value)
        found.update(f"{name} {array.dtype} {array.shape} ".encode())
        found.update(array.tobytes())
    return found.digest()


def with_simulated_chip(options: Mapping[str, str], simulated: bool) -> tuple[dict[str, str], str | None]:
    """The options of the provider with a chip, and that chip where it stands in for one that was not named."""
    if not simulated or any(name in options for name in _CHIP_OPTIONS):
        return dict(options), None
    # Without a chip the simulator computes floats in 32 bits, as no NPU does, and takes five to eight times as
    # long.
    chip = str(DEFAULT_SIMULATED_CHIP)
    return {**options, "soc_model": chip}, chip


class QnnRunner:
    """A host with QNN in it. Made by `opened_qnn`."""

    def __init__(self, host: Host, options: QnnHostOptions) -> None:
        self._host = host
        self._timeout_s = options.timeout_s
        self._known: dict[bytes, _Known] = {}
        self._at_once = min(_AT_ONCE, os.cpu_count() or 1) if host.info.simulator else 1
        self._provider_options, self.chip = with_simulated_chip(options.provider_options, bool(host.info.simulator))

    def run(
        self, model: Path, samples: Sequence[Feeds], names: Sequence[str], enough: Enough = lambda *_: False
    ) -> tuple[Placement, list[list[Any]]]:
        """Where the nodes ran, and the outputs of each sample; of a model and samples that ran before, without
        running them. Raises what making the session and running raise.

        enough: whether these outputs of the first samples will do.
        """
        key = _contents_of_model(model, names)
        keys = [_contents_of_sample(feeds) for feeds in samples]
        known = self._known.get(key) if key else None
        if known is not None and all(one in known.outputs for one in keys):
            outputs: list[list[Any]] = []
            for one in keys:
                outputs.append(known.outputs[one])
                if enough(known.placement, outputs):
                    break
            return known.placement, outputs
        with phase("on QNN"):
            placement, outputs = self._placed(model, samples, names, enough)
        if key:
            # Not strict: `enough` may have ended the runs before the last sample.
            self._keep(key, _Known(placement, dict(zip(keys, outputs, strict=False))))
        return placement, outputs

    def _keep(self, key: bytes, known: _Known) -> None:
        # Put in anew, it is the last of the dictionary: the first, which is dropped, is the oldest.
        self._known.pop(key, None)
        self._known[key] = known
        while sum(one.size for one in self._known.values()) > _MOST_KNOWN_BYTES:
            del self._known[next(iter(self._known))]

    def _placed(
        self, model: Path, samples: Sequence[Feeds], names: Sequence[str], enough: Enough
    ) -> tuple[Placement, list[list[Any]]]:
        from qnnbridge import CpuFallbackWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)  # the placement says it
            # As a whole first: with a fallback ONNX Runtime leaves the edges of a quantised model to the CPU.
            try:
                return self._run(model, samples, names, enough, strict=True)
            except PlacementRefused:
                return self._run(model, samples, names, enough, strict=False)

    def _run(
        self, model: Path, samples: Sequence[Feeds], names: Sequence[str], enough: Enough, *, strict: bool
    ) -> tuple[Placement, list[list[Any]]]:
        from qnnbridge import InferenceSession

        with InferenceSession(
            str(model),
            providers=["QNNExecutionProvider"],
            provider_options=[dict(self._provider_options)],
            host=self._host,
            timeout=self._timeout_s,
            fallback="error" if strict else "cpu",
            # A candidate is run once: its compiled form would only fill the cache.
            cache=False,
            verify=False,  # the check compares all samples itself
            fix=False,  # the quantised model as it is written
        ) as session:
            placement = session.placement
            outputs: list[list[Any]] = []
            with ThreadPoolExecutor(self._at_once) as pool:
                for first in range(0, len(samples), self._at_once):
                    # Read in this thread: `FileSamples` keeps the last file, and serves one thread at a time.
                    some = [samples[number] for number in range(len(samples))[first : first + self._at_once]]
                    for found in pool.map(lambda feeds: list(session.run(list(names), dict(feeds))), some):
                        outputs.append(found)
                        # Asked in the order of the samples, so that the choice does not depend on the number of
                        # threads.
                        if enough(placement, outputs):
                            return placement, outputs
            return placement, outputs

    def check(self, model: Path, reference: FloatResults, on_cpu: Sequence[Sequence[Any]]) -> QnnCheck:
        """Runs and compares. on_cpu: what the quantised model gives there."""
        try:
            placement, found = self.run(model, reference.samples, reference.names)
        except BridgeError as error:
            return QnnCheck(error=error, chip=self.chip)
        return QnnCheck(
            placement,
            reference.measured(found),
            dataclasses.replace(reference, expected=on_cpu).measured(found),
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
            # None: the host has no QNN, neither a simulator nor an NPU.
            if host.info.simulator is None:
                raise ProviderUnavailable(
                    "The host has no QNN.",
                    cause=f"{host.info.executable} lacks onnxruntime-qnn.",
                    fix="qnnbridge setup makes a host that has it.",
                )
            runner = QnnRunner(host, options)
        except (HostStartFailed, ProviderUnavailable) as error:
            # Models are also quantised on build machines, where no host is set up.
            yield QnnCheck(error=error) if options.required else QnnCheck(absent=error.message)
            return
        # Outside of the `try`: errors of the caller's block come out of this `yield`, and are not about the start.
        yield runner


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """A quantised model against the float one, on the CPU and on QNN if that was wanted."""

    outputs: tuple[OutputAccuracy, ...]
    qnn: QnnCheck | None

    @property
    def lowest(self) -> dict[str, float]:
        """The SNR of the worst output by place, where it has one."""
        there = self.qnn.against_float if self.qnn is not None else ()
        found = {"the CPU": lowest_snr(self.outputs), "QNN": lowest_snr(there)}
        return {where: snr for where, snr in found.items() if snr is not None}

    @property
    def verdicts(self) -> list[Verdict]:
        there = self.qnn.verdict if self.qnn is not None else None
        return [worst(one.verdict for one in self.outputs), *([] if there is None else [there])]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparer:
    """Compares quantised models with the float one over the same samples.

    Args:
        qnn: runs them there; the check that says why it cannot; None if none is wanted.
    """

    reference: FloatResults
    qnn: QnnRunner | QnnCheck | None
    on_progress: OnProgress

    def compare(self, model: Path) -> Comparison:
        """Raises `ModelError` if the model does not run on the CPU."""
        self.on_progress("comparing", 0, 0)
        try:
            # As the file says: optimised for the CPU, quantised operators saturate on processors without VNNI.
            found = self.reference.on_cpu(model)
        except OrtError as error:
            raise ModelError(
                "onnxruntime's quantizer wrote a model that does not run. Nothing was written.",
                cause=error.cause,
                fix="Try --per-tensor or 8-bit types; or export the model again with a newer opset (17 to 21).",
            ) from None
        check = self.qnn
        if isinstance(check, QnnRunner):
            self.on_progress("running on QNN", 0, 0)
            check = check.check(model, self.reference, found)
        return Comparison(self.reference.measured(found), check)
