"""Compare a quantised model with the float model, on the CPU and on the host's QNN."""

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

# Options that select a chip.
_CHIP_OPTIONS = ("soc_model", "htp_arch")
# Maximum total size in bytes of the cached outputs, and maximum size of a model whose outputs are cached.
_MOST_KNOWN_BYTES = 1 << 28
# Number of samples run in parallel on the simulator, which uses one thread per sample. An NPU runs samples one
# after the other.
_AT_ONCE = 4


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCheck:
    """Result of running the quantised model on QNN: where its nodes run, and how its outputs differ.

    Args:
        placement: where the nodes run; None if no session could be created, see `error`.
        against_float: accuracy of QNN's results against the float model.
        against_cpu: accuracy of QNN's results against the quantised model on the CPU.
        error: why the model did not run on QNN.
        absent: why QNN is not available, if the check was optional.
        chip: the simulator's default chip; None if the user selected a chip or QNN is not simulated.
    """

    placement: Placement | None = None
    against_float: tuple[OutputAccuracy, ...] = ()
    against_cpu: tuple[OutputAccuracy, ...] = ()
    error: BridgeError | None = None
    absent: str | None = None
    chip: str | None = None

    @property
    def all_on_qnn(self) -> bool:
        """True if QNN runs all nodes."""
        found = self.placement
        return found is not None and found.known and not found.cpu_nodes and not found.other_nodes

    @property
    def verdict(self) -> Verdict | None:
        """Verdict of the worst output; None if nothing ran."""
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


# Callback `enough(placement, outputs of the samples so far)`: returns true if the remaining samples need not run.
Enough = Callable[[Placement, list[list[Any]]], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """Cached result of a model: its placement, and its outputs for each sample, by the sample's hash."""

    placement: Placement
    outputs: Mapping[bytes, list[Any]]

    @property
    def size(self) -> int:
        return sum(np.asarray(value).nbytes for values in self.outputs.values() for value in values)


def _contents_of_model(model: Path, names: Sequence[str]) -> bytes:
    """Return a hash of a model, its weights and the output names; empty for a large model.

    Metadata and unused domains are excluded: they do not affect results, but differ between a candidate and the
    final file.
    """
    data = model.with_name(f"{model.name}.data")
    # Large models are not hashed: the whole file would have to be read for each lookup.
    if model.stat().st_size > _MOST_KNOWN_BYTES or data.exists():
        return b""
    loaded = graphs.load(model)
    del loaded.metadata_props[:]
    graphs.trim_opsets(loaded)
    return hashlib.blake2b(repr(list(names)).encode() + loaded.SerializeToString(deterministic=True)).digest()


def _contents_of_sample(feeds: Feeds) -> bytes:
    """Return a hash of a sample of numeric arrays."""
    found = hashlib.blake2b()
    for name, value in sorted(feeds.items()):
        array = np.ascontiguousarray(value)
        found.update(f"{name} {array.dtype} {array.shape} ".encode())
        found.update(array.tobytes())
    return found.digest()


def with_simulated_chip(options: Mapping[str, str], simulated: bool) -> tuple[dict[str, str], str | None]:
    """Return (provider options with a chip, default chip that was added for the simulator or None)."""
    if not simulated or any(name in options for name in _CHIP_OPTIONS):
        return dict(options), None
    # Without a chip, the simulator computes floats in full precision, unlike any NPU, and takes five to eight times
    # as long.
    chip = str(DEFAULT_SIMULATED_CHIP)
    return {**options, "soc_model": chip}, chip


class QnnRunner:
    """Runs models on a host with QNN. Created by `opened_qnn`."""

    def __init__(self, host: Host, options: QnnHostOptions) -> None:
        self._host = host
        self._timeout_s = options.timeout_s
        self._known: dict[bytes, _Known] = {}
        self._at_once = min(_AT_ONCE, os.cpu_count() or 1) if host.info.simulator else 1
        self._provider_options, self.chip = with_simulated_chip(options.provider_options, bool(host.info.simulator))

    def run(
        self, model: Path, samples: Sequence[Feeds], names: Sequence[str], enough: Enough = lambda *_: False
    ) -> tuple[Placement, list[list[Any]]]:
        """Return where the nodes ran, and the outputs of each sample. Results of earlier runs are reused.

        Raise the errors of creating and running the session.

        Args:
            model: path of the model.
            samples: inputs.
            names: outputs to compute.
            enough: called after each sample; no more samples are run once it returns true.
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
            # There may be fewer outputs than samples, because `enough` may have ended the runs early.
            self._keep(key, _Known(placement, dict(zip(keys, outputs, strict=False))))
        return placement, outputs

    def _keep(self, key: bytes, known: _Known) -> None:
        # Insert at the end: the first entry is the oldest and is dropped first.
        self._known.pop(key, None)
        self._known[key] = known
        while sum(one.size for one in self._known.values()) > _MOST_KNOWN_BYTES:
            del self._known[next(iter(self._known))]

    def _placed(
        self, model: Path, samples: Sequence[Feeds], names: Sequence[str], enough: Enough
    ) -> tuple[Placement, list[list[Any]]]:
        from qnnbridge import CpuFallbackWarning

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)  # the placement reports nodes on the CPU
            # Try to run the whole model on QNN first: with a fallback, ONNX Runtime leaves Quantize and Dequantize
            # nodes at the model's edges on the CPU.
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
            # A candidate runs only once, so caching its compiled model would only fill the cache.
            cache=False,
            verify=False,  # the caller compares all samples
            fix=False,  # Run the quantised model exactly as it is written.
        ) as session:
            placement = session.placement
            outputs: list[list[Any]] = []
            with ThreadPoolExecutor(self._at_once) as pool:
                for first in range(0, len(samples), self._at_once):
                    # Read samples in this thread, because `FileSamples` caches the last file and is not
                    # thread-safe.
                    some = [samples[number] for number in range(len(samples))[first : first + self._at_once]]
                    for found in pool.map(lambda feeds: list(session.run(list(names), dict(feeds))), some):
                        outputs.append(found)
                        # Call `enough` in the order of the samples, so that its result does not depend on the
                        # number of threads.
                        if enough(placement, outputs):
                            return placement, outputs
            return placement, outputs

    def check(self, model: Path, reference: FloatResults, on_cpu: Sequence[Sequence[Any]]) -> QnnCheck:
        """Run a model on QNN and compare its results.

        Args:
            model: path of the quantised model.
            reference: samples, and results of the float model.
            on_cpu: results of the quantised model on the CPU.
        """
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
    """Yield a `QnnRunner`, a `QnnCheck` with the reason why QNN is not available, or None if `options` is None."""
    if options is None:
        yield None
        return
    from qnnbridge import Host

    with contextlib.ExitStack() as stack:
        try:
            host = stack.enter_context(Host(python=options.python))
            # None means that the host has neither a QNN simulator nor an NPU.
            if host.info.simulator is None:
                raise ProviderUnavailable(
                    "QNN is not available in the host.",
                    cause=f"{host.info.executable} lacks onnxruntime-qnn.",
                    fix="Run qnnbridge setup, which creates a host with QNN.",
                )
            runner = QnnRunner(host, options)
        except (HostStartFailed, ProviderUnavailable) as error:
            # Only note a missing host unless the check is required: models are also quantised on build machines
            # without a host.
            yield QnnCheck(error=error) if options.required else QnnCheck(absent=error.message)
            return
        # Yield outside of the `try`: errors raised in the caller's `with` block are not start errors.
        yield runner


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Accuracy of a quantised model against the float model, on the CPU and, if requested, on QNN."""

    outputs: tuple[OutputAccuracy, ...]
    qnn: QnnCheck | None

    @property
    def lowest(self) -> dict[str, float]:
        """SNR of the worst output, by processor ("the CPU", "QNN"); processors without an SNR are omitted."""
        there = self.qnn.against_float if self.qnn is not None else ()
        found = {"the CPU": lowest_snr(self.outputs), "QNN": lowest_snr(there)}
        return {where: snr for where, snr in found.items() if snr is not None}

    @property
    def verdicts(self) -> list[Verdict]:
        there = self.qnn.verdict if self.qnn is not None else None
        return [worst(one.verdict for one in self.outputs), *([] if there is None else [there])]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparer:
    """Compare quantised models with the float model over the same samples.

    Args:
        reference: samples, and results of the float model.
        qnn: runner, or a `QnnCheck` with the reason why QNN is not available, or None if no QNN check is requested.
        on_progress: called with the current stage.
    """

    reference: FloatResults
    qnn: QnnRunner | QnnCheck | None
    on_progress: OnProgress

    def compare(self, model: Path) -> Comparison:
        """Compare a model on the CPU and on QNN. Raise `ModelError` if it does not run on the CPU."""
        self.on_progress("comparing", 0, 0)
        try:
            # Run without ONNX Runtime's optimisations: optimised quantised operators saturate on processors without
            # VNNI.
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
