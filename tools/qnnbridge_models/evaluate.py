"""`qnnbridge evaluate`: run a model and its quantised versions on CPU and QNN, and compare the results with
expected outputs, or compute a metric.

All sessions run in the host process.

>>> from qnnbridge_models.evaluate import EvaluateOptions, evaluate_model
>>> evaluate_model("model.onnx", EvaluateOptions(inputs=(Path("samples"),), metric="metrics.py:accuracy")).rows
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import numbers
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.graph import files, graphs, shapes
from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.scan import scan_model
from qnnbridge_models import progress
from qnnbridge_models.accuracy import OutputAccuracy, Verdict, lowest_snr, measure, worst
from qnnbridge_models.command_options import EvaluateOptions, QuantizeOptions
from qnnbridge_models.progress import OnProgress
from qnnbridge_models.quantize.qnn_check import with_simulated_chip
from qnnbridge_models.quantize.quantization import decibel
from qnnbridge_models.quantize.quantizer import quantize_model
from qnnbridge_models.quantize.samples import SUFFIXES, list_files, load
from qnnbridge_os.missing import why_missing
from qnnbridge_protocol.errors import BridgeError, OptionError, PlacementRefused
from qnnbridge_protocol.specs import AFTER_OPTIMISATION, NodeInfo, Placement
from qnnbridge_tools import feeds as readers
from qnnbridge_tools import output
from qnnbridge_tools.arguments import InputFile
from qnnbridge_tools.sessions import CPU, NO_FINDING, QNN, ProviderSession, SessionSettings, opened

if TYPE_CHECKING:
    from qnnbridge import Host


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """Result of one model on one provider.

    Args:
        model: label of the model in the report.
        provider: where it ran: "cpu" or "qnn".
        placement: where the nodes run; None if the model does not run, see `error`.
        metrics: results of the user's metric.
        against_expected: accuracy of the outputs for which the samples contain expected values.
        against_cpu: accuracy against the first model on the CPU; empty for the first model on the CPU itself, and
            if that model did not run.
        seconds: median duration of a call, including the transfer to and from the host.
        error: why the model does not run.
    """

    model: str
    provider: str
    placement: Placement | None = None
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    against_expected: tuple[OutputAccuracy, ...] = ()
    against_cpu: tuple[OutputAccuracy, ...] = ()
    seconds: float = 0.0
    error: BridgeError | None = None

    @property
    def verdict(self) -> Verdict | None:
        """Verdict against the expected outputs, or else against the first model on the CPU; None if there is
        neither.
        """
        outputs = self.against_expected or self.against_cpu
        return worst(one.verdict for one in outputs) if outputs else None

    def document(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "provider": self.provider,
            "placement": self.placement.to_wire() if self.placement else None,
            "metrics": dict(self.metrics),
            "verdict": self.verdict,
            "against_expected": [one.document() for one in self.against_expected],
            "against_cpu": [one.document() for one in self.against_cpu],
            "seconds": self.seconds,
            "error": self.error.to_wire() if self.error else None,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of a model and its quantised versions over samples.

    Args:
        chip: the simulator's default chip; None if the user selected a chip or QNN was not simulated.
    """

    source: Path
    samples: int
    rows: tuple[EvaluatedRow, ...]
    has_metric: bool
    chip: str | None
    seconds: float

    @property
    def good(self) -> bool:
        """True if every row ran and none is useless."""
        return all(row.error is None and row.verdict != "useless" for row in self.rows)


def document(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "model": str(evaluation.source),
        "samples": evaluation.samples,
        "rows": [row.document() for row in evaluation.rows],
        "soc_model": evaluation.chip,
        "good": evaluation.good,
        "seconds": evaluation.seconds,
    }


def print_result(evaluation: Evaluation) -> None:
    rows = evaluation.rows
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    expects = any(row.against_expected for row in rows)
    headers = [
        "model",
        "on",
        f"nodes {AFTER_OPTIMISATION}",
        *metrics,
        *(["SNR, expected"] if expects else []),
        "SNR, float on CPU",
    ]
    headers += ["largest error", "decisions", "call", "verdict"]
    print(f"{evaluation.samples} samples")
    output.print_table(headers, [_row(row, metrics, expects) for row in rows])
    for row in rows:
        if row.error is not None:
            print(f"\n{output.visible(row.model)} on {row.provider.upper()}: {row.error.shown()}")
    if evaluation.chip is not None:
        print(f"\nQNN ran in its simulator, for SoC {evaluation.chip}. These times do not apply to an NPU.")


def _row(row: EvaluatedRow, metrics: Sequence[str], expects: bool) -> list[str]:
    if row.placement is None:
        return [row.model, row.provider.upper(), "does not run", *["-"] * (len(metrics) + expects + 4), "failed"]
    outputs = row.against_expected or row.against_cpu
    errors = [one.whole.judged.max_abs for one in outputs]
    decisions = [one.whole.judged.decisions for one in outputs if one.whole.judged.decisions is not None]
    return [
        row.model,
        row.provider.upper(),
        f"{row.placement.qnn_nodes} QNN, {row.placement.cpu_nodes} CPU" if row.placement.known else "-",
        *(f"{row.metrics[name]:.4g}" if name in row.metrics else "-" for name in metrics),
        *([_worst_db(row.against_expected)] if expects else []),
        _worst_db(row.against_cpu),
        f"{max(errors):.4g}" if errors else "-",
        f"{100 * min(decisions):.4g} % same" if decisions else "-",
        output.seconds(row.seconds),
        row.verdict or "-",
    ]


def _worst_db(outputs: Sequence[OutputAccuracy]) -> str:
    return decibel(lowest_snr(outputs)) if outputs else "-"


# --- samples: inputs, expected outputs and labels, from .npz and .npy files -------------------------------

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledSample:
    """One sample with its expected outputs.

    Args:
        feeds: the inputs.
        expected: expected outputs by name; may be empty.
        arrays: all arrays of the sample's files by name, for the user's metric.
    """

    feeds: Arrays
    expected: Arrays
    arrays: Arrays


def read_samples(
    sources: Sequence[Path], expected: Path | None, inputs: Sequence[NodeInfo], outputs: Sequence[str]
) -> list[LabelledSample]:
    """Read all samples from files and folders.

    Args:
        sources: files and folders with inputs.
        expected: folder that contains, for each input file, a file of the same name with the outputs by name; an
            .npy file contains a single output.
        inputs: the model's inputs.
        outputs: names of the model's outputs.

    Raises:
        OptionError: a file is missing, cannot be read, or does not fit the model.
    """
    if not sources:
        raise OptionError(
            "There are no inputs to evaluate with.",
            fix="Give --input FOLDER with .npz files that contain an array for each input by its name.",
        )
    if expected is not None and not expected.is_dir():
        raise OptionError(f"The folder {expected} with expected outputs does not exist.", **why_missing(expected))
    names = {one.name for one in inputs}
    found = []
    for file in list_files(sources):
        samples, _ = load([file], inputs)
        extras = _extras(file, names, len(samples))
        if expected is not None:
            wanted = _expected_of(file, expected, outputs, len(samples))
            # Values from --expected override an array of the same name in the input file.
            extras = [{**extra, **one} for extra, one in zip(extras, wanted, strict=True)]
        for feeds, extra in zip(samples, extras, strict=True):
            # An array with an output's name is its expected value, even without --expected.
            mine = {name: value for name, value in extra.items() if name in outputs}
            found.append(LabelledSample(feeds, mine, {**feeds, **extra}))
    return found


def _extras(file: Path, inputs: set[str], count: int) -> list[dict[str, Any]]:
    """Return an input file's arrays that are not model inputs (expected values, labels), for each sample."""
    if file.suffix.lower() != ".npz":
        return [{} for _ in range(count)]
    arrays = {feed.name: np.asarray(feed.value) for feed in readers.load([], file) if feed.name not in inputs}
    return _of_each(arrays, file, count)


def _expected_of(file: Path, folder: Path, outputs: Sequence[str], count: int) -> list[dict[str, Any]]:
    for suffix in SUFFIXES:
        path = folder / f"{file.stem}{suffix}"
        if not path.is_file():
            continue
        if suffix == ".npz":
            arrays = {feed.name: np.asarray(feed.value) for feed in readers.load([], path)}
        elif len(outputs) == 1:
            arrays = {outputs[0]: np.asarray(readers.load([InputFile(outputs[0], path)], None)[0].value)}
        else:
            raise OptionError(
                f"{path} contains one array, but the model has {len(outputs)} outputs: {', '.join(outputs)}.",
                fix="Save the expected outputs as an .npz file with the outputs' names as keys.",
            )
        if not set(arrays) & set(outputs):
            raise OptionError(
                f"{path} contains no output of the model.",
                cause=f"It contains {', '.join(arrays) or 'nothing'}.",
                fix=f"Save the expected outputs by name. The model's outputs are {', '.join(outputs)}.",
            )
        return _of_each(arrays, path, count)
    raise OptionError(
        f"{folder} contains no expected outputs for {file.name}.",
        fix=f"Save the expected outputs as {folder / file.stem}.npz.",
    )


def _of_each(arrays: Mapping[str, Any], file: Path, count: int) -> list[dict[str, Any]]:
    """Split arrays stacked along axis 0 into one dictionary for each sample."""
    if count == 1:
        return [dict(arrays)]
    for name, value in arrays.items():
        if value.shape[:1] != (count,):
            raise OptionError(
                f'{file} contains {count} samples, but "{name}" has the shape {value.shape}.',
                fix="Stack the same number of samples of each array along axis 0, or save a file for each sample.",
            )
    return [{name: value[number] for name, value in arrays.items()} for number in range(count)]


# --- the user's metric: a function in a Python file --------------------------------------------------------
#
# `def accuracy(outputs, samples)` gets two lists with a dictionary of arrays for each sample: the model's outputs
# by name, and all arrays of the sample's files. The function returns a number, or a dictionary of numbers by name.

Metric = Callable[[Sequence[Arrays], Sequence[Arrays]], Mapping[str, float]]

_FORM = "Give --metric FILE.py:FUNC, with def FUNC(outputs, samples) that returns a number, or a dict of numbers."


def load_metric(text: str) -> Metric:
    """Load a metric given as `metrics.py:accuracy`; the default function name is `metric`. Raise `OptionError`."""
    file, colon, name = text.rpartition(":")
    # Ignore a colon that does not follow a .py file, for example after a drive letter: C:\metrics.py.
    if not colon or not file.endswith(".py"):
        file, name = text, "metric"
    path = Path(file)
    if not path.is_file():
        raise OptionError(f"The file {path} with the metric does not exist.", **why_missing(path, _FORM))
    spec = importlib.util.spec_from_file_location(f"qnnbridge_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} is not a Python file.", fix=_FORM)
    module = importlib.util.module_from_spec(spec)
    # Register the module, because dataclasses look up their module in `sys.modules`.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(f"{path} cannot be imported.", error, path) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{path} has no function {name}.", fix=_FORM)

    def metric(outputs: Sequence[Arrays], samples: Sequence[Arrays]) -> Mapping[str, float]:
        try:
            value = function(outputs, samples)
        except Exception as error:
            raise _failed(f"The metric {name} failed.", error, path) from error
        return _figures(value, name)

    return metric


def _figures(value: Any, name: str) -> dict[str, float]:
    named = value if isinstance(value, Mapping) else {name: value}
    try:
        return {str(key): _figure(one) for key, one in named.items()}
    except (TypeError, ValueError):
        raise OptionError(f"The metric {name} returned {value!r:.80}, not a number.", fix=_FORM) from None


def _figure(value: Any) -> float:
    # Accept Python numbers, and scalar arrays of numpy and other libraries.
    if isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():
        return float(value)
    raise TypeError


def _failed(message: str, error: Exception, path: Path) -> OptionError:
    """Return an error that contains the failing line of the user's file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" (line {lines[-1]} of {path.name})" if lines else ""
    return OptionError(message, cause=f"{type(error).__name__}: {error}{place}", fix=_FORM)


# --- evaluation --------------------------------------------------------------------------------------------

PROVIDERS = {"cpu": CPU, "qnn": QNN}
# Maximum number of samples that run again on the CPU to measure the duration of a call.
_MOST_TIMED = 10


def evaluate_model(
    source: str | os.PathLike[str], options: EvaluateOptions, *, on_progress: OnProgress = progress.ignore
) -> Evaluation:
    """Run a model and its quantised versions over samples, on the CPU and on QNN; return a row for each run.

    If a model does not run on a provider, the row contains the error.

    Args:
        source: path of the model.
        options: samples, expected outputs, providers.
        on_progress: called with the stage and its progress.

    Raises:
        OptionError: an option, a sample or the metric is wrong.
        NoSuchFile: a model does not exist.
        HostStartFailed: the host cannot be started.
    """
    from qnnbridge import Host

    begun = time.perf_counter()
    path = files.existing_model(Path(source))
    metric = load_metric(options.metric) if options.metric is not None else None
    dims = shapes.as_dimensions(options.dims)
    # Skip counting nodes, which would require reading the whole graph.
    scan = scan_model(path, count_nodes=False)
    outputs = [node.name for node in scan.outputs]
    samples = read_samples(options.inputs, options.expected, _declared(scan.inputs, dims), outputs)
    with work_folder("evaluate") as folder, Host(options.host_python) as host:
        work = Path(folder)
        named = [(path.name, _sized(path, dims, work / "model"))]
        # Fix the free dimensions of quantised models to the same sizes as those of the original model.
        for number, one in enumerate(options.quantized):
            there = files.existing_model(one)
            named.append((one.name, _sized(there, dims, work / f"quantized{number}", may_be_fixed=True)))
        if options.calibration:
            made = work / "made.onnx"
            quantize_options = QuantizeOptions(calibration=options.calibration, large=True)
            quantize_model(named[0][1], made, quantize_options, on_progress=on_progress, own_process=True)
            named.append(("quantised with the defaults", made))
        simulated = "qnn" in options.providers and bool(host.info.simulator)
        provider_options, chip = with_simulated_chip(options.provider_options, simulated)
        settings = SessionSettings(provider_options, {}, options.timeout_s)
        rows: list[EvaluatedRow] = []
        reference: list[list[Any]] | None = None
        for label, model in named:
            # Evaluate on the CPU first, regardless of the order of the options, because other results are compared
            # with the CPU's.
            for provider in sorted(options.providers):
                on_progress(f"{label} on {provider.upper()}", 0, len(samples))
                row, values = _evaluated(
                    label, model, provider, samples, outputs, settings, host, metric, reference
                )
                # Compare all other models with the first model on the CPU.
                if provider == "cpu":
                    reference = reference or values
                rows.append(row)
    return Evaluation(path, len(samples), tuple(rows), metric is not None, chip, time.perf_counter() - begun)


def _declared(inputs: Sequence[NodeInfo], dims: Dimensions) -> list[NodeInfo]:
    return [
        node
        if node.shape is None
        else dataclasses.replace(
            node, shape=tuple(dims.size_of(node.name, axis, size) for axis, size in enumerate(node.shape))
        )
        for node in inputs
    ]


def _sized(path: Path, dims: Dimensions, folder: Path, *, may_be_fixed: bool = False) -> Path:
    """Return a copy of the model with fixed dimensions, or the original path if no dimension is free."""
    if not dims.by_name and not dims.by_axis:
        return path
    model = graphs.load(path)
    if may_be_fixed and not shapes.free_dimensions(model.graph):
        return path
    if not shapes.fix(model, dims):
        return path
    return files.changed_copy(model, path, scan_model(path, count_nodes=False).external_files, folder)


def _evaluated(
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
            # Look up outputs by name, because tools may change their order.
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
        if provider == "cpu":
            seconds = _as_applications(host, model, settings, samples) or seconds
    except NO_FINDING:
        # Raise errors that are not caused by the model, because all further rows would fail as well.
        raise
    except BridgeError as error:
        return EvaluatedRow(label, provider, error=error), None
    figures: Mapping[str, float] = {}
    if metric is not None:
        named = [dict(zip(outputs, one, strict=True)) for one in values]
        figures = metric(named, [sample.arrays for sample in samples])
    return (
        EvaluatedRow(
            label,
            provider,
            placement,
            figures,
            _against_expected(outputs, samples, values),
            measure(outputs, reference, values) if reference is not None else (),
            # Use the median, which the one-time work of the first call does not affect.
            float(np.median(seconds)),
        ),
        values,
    )


def _as_applications(
    host: Host, model: Path, settings: SessionSettings, samples: Sequence[LabelledSample]
) -> list[float]:
    """Return the duration of CPU calls in a session with ONNX Runtime's default optimisation.

    The compared values come from a session without optimisation, which is up to three times slower.
    """
    seconds = []
    try:
        with opened(host, model, CPU, settings, level="all") as session:
            for sample in samples[:_MOST_TIMED]:
                begun = time.perf_counter()
                session.values(sample.feeds)
                seconds.append(time.perf_counter() - begun)
    except NO_FINDING:
        raise
    except BridgeError:
        return []
    return seconds


@contextlib.contextmanager
def _opened(host: Host, model: Path, provider: str, settings: SessionSettings) -> Iterator[ProviderSession]:
    """Open a session, if possible without a fallback: with a fallback, ONNX Runtime leaves Quantize and Dequantize
    nodes at the model's edges on the CPU.
    """
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(opened(host, model, provider, settings, fallback="error"))
        except PlacementRefused:
            session = stack.enter_context(opened(host, model, provider, settings))
        yield session


def _against_expected(
    outputs: Sequence[str], samples: Sequence[LabelledSample], values: Sequence[Sequence[Any]]
) -> tuple[OutputAccuracy, ...]:
    """Return the accuracy of the outputs for which every sample contains an expected value."""
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
    """Return the expected value in the output's type and, if the number of elements fits, in its shape."""
    array = np.asarray(expected)
    like = np.asarray(found)
    if array.shape != like.shape and array.size == like.size:
        array = array.reshape(like.shape)
    # Convert to the output's type: numpy stores Python numbers as float64, but most outputs are float32.
    return array.astype(like.dtype) if array.dtype.kind in "fiu" and like.dtype.kind == "f" else array
