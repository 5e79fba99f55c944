"""`evaluate_model`: the work of the command, for programs. All sessions are those of the host process."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_host.cache.work_folder import work_folder
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_host.model.chips import DEFAULT_SIMULATED_CHIP
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models.command_options import EvaluateOptions
from qnnbridge_models.evaluate.evaluation import EvaluatedRow, Evaluation
from qnnbridge_models.evaluate.labelled import LabelledSample, read_samples
from qnnbridge_models.evaluate.metric import Metric, load_metric
from qnnbridge_models.quantize.preparing import save
from qnnbridge_models.quantize.quantizer import quantize_model
from qnnbridge_models.quantize.samples import CalibrationInput
from qnnbridge_models.quantize_settings import QuantizeOptions
from qnnbridge_models.shared import progress
from qnnbridge_models.shared.accuracy import OutputAccuracy, measure
from qnnbridge_models.shared.progress import OnProgress
from qnnbridge_protocol.errors import BridgeError, OptionError, PlacementRefused
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.sessions import CPU, NO_FINDING, QNN, ProviderSession, SessionSettings, opened

if TYPE_CHECKING:
    from qnnbridge import Host

PROVIDERS = {"cpu": CPU, "qnn": QNN}
_CHIP_OPTIONS = ("soc_model", "htp_arch")


def evaluate_model(
    source: str | os.PathLike[str], options: EvaluateOptions, *, on_progress: OnProgress = progress.ignore
) -> Evaluation:
    """Runs a model and its quantised forms over samples, on the CPU and on QNN: one row each.

    A model that does not run somewhere is a row with its error.

    Args:
        source: path of the model.
        options: samples, what is expected of them, providers.
        on_progress: called with the stage and how far it is.

    Raises:
        OptionError: an option, a sample or the metric is wrong.
        NoSuchFile: a model is not there.
        HostStartFailed: there is no host.
    """
    from qnnbridge import Host

    begun = time.perf_counter()
    path = files.existing_model(Path(source))
    metric = load_metric(options.metric) if options.metric is not None else None
    dims = shapes.as_dimensions(options.dims)
    # Without counting nodes, which reads the whole graph.
    scan = scan_model(path, count_nodes=False)
    outputs = [node.name for node in scan.outputs]
    samples = read_samples(options.inputs, options.expected, _declared(scan.inputs, dims), outputs)
    with work_folder("evaluate") as folder, Host(options.host_python) as host:
        work = Path(folder)
        named = [(path.name, _sized(path, dims, work / "model.onnx"))]
        # They were made with fixed sizes, or take the same options as the original.
        for number, one in enumerate(options.quantized):
            there = files.existing_model(one)
            named.append((one.name, _sized(there, dims, work / f"quantized{number}.onnx", may_be_fixed=True)))
        if options.calibration:
            made = work / "made.onnx"
            wish = QuantizeOptions(calibration=options.calibration, large=True)
            quantize_model(named[0][1], made, wish, on_progress=on_progress, own_process=True)
            named.append(("quantised with the defaults", made))
        settings, chip = _settings(options, host)
        rows: list[EvaluatedRow] = []
        reference: list[list[Any]] | None = None
        for label, model in named:
            for provider in options.providers:
                on_progress(f"{label} on {provider.upper()}", 0, len(samples))
                row, values = _row(label, model, provider, samples, outputs, settings, host, metric, reference)
                # The first model on the CPU is what all others are compared with.
                reference = values if reference is None and provider == "cpu" else reference
                rows.append(row)
    return Evaluation(path, len(samples), tuple(rows), metric is not None, chip, time.perf_counter() - begun)


def _declared(inputs: Sequence[NodeInfo], dims: Dimensions) -> list[CalibrationInput]:
    return [
        CalibrationInput(
            node.name,
            node.type,
            tuple(dims.size_of(node.name, axis, size) for axis, size in enumerate(node.shape or ())),
        )
        for node in inputs
    ]


def _sized(path: Path, dims: Dimensions, target: Path, *, may_be_fixed: bool = False) -> Path:
    """The model with its free dimensions fixed; itself if there is nothing to fix."""
    if not dims.by_name and not dims.by_axis:
        return path
    model = graphs.load(path)
    if may_be_fixed and not shapes.free_dimensions(model.graph):
        return path
    if not shapes.fix(model, dims):
        return path
    graphs.load_weights(model, path.parent)
    return save(model, target)


def _settings(options: EvaluateOptions, host: Host) -> tuple[SessionSettings, str | None]:
    provider_options = dict(options.provider_options)
    chip = None
    # Without a chip the simulator computes floats in 32 bits, as no NPU does.
    if "qnn" in options.providers and host.info.simulator and not any(n in provider_options for n in _CHIP_OPTIONS):
        chip = provider_options["soc_model"] = str(DEFAULT_SIMULATED_CHIP)
    return SessionSettings(provider_options, {}, options.timeout_s), chip


def _row(
    label: str,
    model: Path,
    provider: str,
    samples: Sequence[LabelledSample],
    outputs: Sequence[str],
    settings: SessionSettings,
    host: Host,
    metric: Metric | None,
    reference: list[list[Any]] | None,
) -> tuple[EvaluatedRow, list[list[Any]] | None]:
    try:
        with _opened(host, model, PROVIDERS[provider], settings) as session:
            # By name: another tool may list the outputs in another order.
            missing = [name for name in outputs if name not in session.outputs]
            if missing:
                raise OptionError(f'{label} has no output "{missing[0]}", which the first model has.')
            placement = session.placement
            order = [session.outputs.index(name) for name in outputs]
            values, seconds = [], []
            for sample in samples:
                begun = time.perf_counter()
                one = session.values(sample.feeds)
                seconds.append(time.perf_counter() - begun)
                values.append([one[number] for number in order])
    except NO_FINDING:
        # These errors are not about the model: every further row would fail in the same way.
        raise
    except BridgeError as error:
        return EvaluatedRow(label, provider, error=error), None
    figures = metric(_by_name(outputs, values), [s.arrays for s in samples]) if metric is not None else {}
    return (
        EvaluatedRow(
            label,
            provider,
            placement,
            figures,
            _against_expected(outputs, samples, values),
            measure(outputs, reference, values) if reference is not None else (),
            # The median: the first call also pays for what is done once.
            float(np.median(seconds)),
        ),
        values,
    )


@contextlib.contextmanager
def _opened(host: Host, model: Path, provider: str, settings: SessionSettings) -> Iterator[ProviderSession]:
    """As a whole on QNN if possible: else ONNX Runtime leaves the edges of a quantised model to the CPU."""
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(opened(host, model, provider, settings, fallback="error"))
        except PlacementRefused:
            session = stack.enter_context(opened(host, model, provider, settings))
        yield session


def _by_name(outputs: Sequence[str], values: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(outputs, one, strict=True)) for one in values]


def _against_expected(
    outputs: Sequence[str], samples: Sequence[LabelledSample], values: Sequence[Sequence[Any]]
) -> tuple[OutputAccuracy, ...]:
    """Of the outputs of which every sample says what is expected."""
    return tuple(
        measure(
            [name],
            [[_typed(sample.expected[name], one[number])] for sample, one in zip(samples, values, strict=True)],
            [[one[number]] for one in values],
        )[0]
        for number, name in enumerate(outputs)
        if all(name in sample.expected for sample in samples)
    )


def _typed(expected: Any, found: Any) -> Any:
    """In the shape of the output, where only a batch of 1 is missing; in its type, where both are numbers."""
    array = np.asarray(expected)
    like = np.asarray(found)
    if array.shape != like.shape and array.size == like.size:
        array = array.reshape(like.shape)
    return array.astype(like.dtype) if array.dtype.kind in "fiu" and like.dtype.kind == "f" else array
