"""`qnnbridge evaluate`: a model against samples with expected outputs or a metric, on CPU and QNN, and quantised.

All sessions are those of the host process.

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
    """One model on one provider.

    Args:
        provider: "cpu" or "qnn".
        placement: None if it does not run; `error` says why.
        metrics: what the user's metric gave.
        against_expected: of the outputs of which something is expected.
        against_cpu: against the first model on the CPU; empty for that one itself, and if it did not run.
        seconds: the median of a call, with the way to the host and back.
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
        """Against what is expected, else against the first model on the CPU; None if there is neither."""
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
    """A model and its quantised forms over samples. chip: stood for one on the simulator, if none was named."""

    source: Path
    samples: int
    rows: tuple[EvaluatedRow, ...]
    has_metric: bool
    chip: str | None
    seconds: float

    @property
    def good(self) -> bool:
        """Every row ran, and none is useless."""
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
        print(f"\nQNN is the simulator, for SoC {evaluation.chip}. Its times say nothing of an NPU.")


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


# --- samples: inputs, expected outputs and labels, out of .npz and .npy files -----------------------------

Arrays = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class LabelledSample:
    """One sample.

    Args:
        feeds: the inputs.
        expected: of outputs by name; empty if nothing is expected.
        arrays: everything in its files by name, for a metric.
    """

    feeds: Arrays
    expected: Arrays
    arrays: Arrays


def read_samples(
    sources: Sequence[Path], expected: Path | None, inputs: Sequence[NodeInfo], outputs: Sequence[str]
) -> list[LabelledSample]:
    """All samples of files and folders.

    Args:
        expected: a folder with files of the same names, which hold outputs by name; an .npy file is for one output.

    Raises:
        OptionError: a file is missing, cannot be read, or does not fit the model.
    """
    if not sources:
        raise OptionError(
            "No inputs to evaluate with.",
            fix="--input FOLDER with .npz files, an array for each input by its name.",
        )
    if expected is not None and not expected.is_dir():
        raise OptionError(f"There is no folder {expected} with expected outputs.")
    names = {one.name for one in inputs}
    found = []
    for file in list_files(sources):
        samples, _ = load([file], inputs)
        extras = _extras(file, names, len(samples))
        if expected is not None:
            wanted = _expected_of(file, expected, outputs, len(samples))
            # What --expected says goes before an array of the same name in the file of the inputs.
            extras = [{**extra, **one} for extra, one in zip(extras, wanted, strict=True)]
        for feeds, extra in zip(samples, extras, strict=True):
            # Arrays with the name of an output are what is expected, also without --expected.
            mine = {name: value for name, value in extra.items() if name in outputs}
            found.append(LabelledSample(feeds, mine, {**feeds, **extra}))
    return found


def _extras(file: Path, inputs: set[str], count: int) -> list[dict[str, Any]]:
    """What a file holds besides the inputs, for each of the samples in it."""
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
                f"{path} holds one array, and the model has {len(outputs)} outputs: {', '.join(outputs)}.",
                fix="Save them as an .npz file with the outputs' names as keys.",
            )
        if not set(arrays) & set(outputs):
            raise OptionError(
                f"{path} has no output of the model: {', '.join(arrays) or 'nothing'}.",
                fix=f"The model's outputs are {', '.join(outputs)}.",
            )
        return _of_each(arrays, path, count)
    raise OptionError(
        f"{folder} has no expected outputs for {file.name}.", fix=f"Save them as {folder / file.stem}.npz."
    )


def _of_each(arrays: Mapping[str, Any], file: Path, count: int) -> list[dict[str, Any]]:
    """Stacked along axis 0, as the inputs are."""
    if count == 1:
        return [dict(arrays)]
    for name, value in arrays.items():
        if value.shape[:1] != (count,):
            raise OptionError(
                f'{file} holds {count} samples, and "{name}" has the shape {value.shape}.',
                fix="Stack the same number of everything along axis 0, or save a file for each sample.",
            )
    return [{name: value[number] for name, value in arrays.items()} for number in range(count)]


# --- the user's metric: a function in a Python file --------------------------------------------------------
#
# `def accuracy(outputs, samples)` gets two lists of dicts of arrays, one of each sample: what the model gave, by
# names of outputs, and all that the sample's files hold. It gives a number, or a dict of numbers by name.

Metric = Callable[[Sequence[Arrays], Sequence[Arrays]], Mapping[str, float]]

_FORM = "--metric FILE.py:FUNCTION, with def FUNCTION(outputs, samples): return a number, or a dict of numbers."


def load_metric(text: str) -> Metric:
    """`metrics.py:accuracy`; without a name the function is `metric`. Raises `OptionError`."""
    file, colon, name = text.rpartition(":")
    # The colon of a drive separates no function: C:\metrics.py.
    if not colon or not file.endswith(".py"):
        file, name = text, "metric"
    path = Path(file)
    if not path.is_file():
        raise OptionError(f"There is no file {path} with a metric.", fix=_FORM)
    spec = importlib.util.spec_from_file_location(f"qnnbridge_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path} is no Python file.", fix=_FORM)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up there.
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
        raise OptionError(f"The metric {name} gave {value!r:.80}, which is no number.", fix=_FORM) from None


def _figure(value: Any) -> float:
    # Numbers of Python, and arrays of numpy and others with one number.
    if isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():
        return float(value)
    raise TypeError


def _failed(message: str, error: Exception, path: Path) -> OptionError:
    """With the line of the user's file, which is what has to change."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    place = f" (line {lines[-1]} of {path.name})" if lines else ""
    return OptionError(message, cause=f"{type(error).__name__}: {error}{place}", fix=_FORM)


# --- the work ----------------------------------------------------------------------------------------------

PROVIDERS = {"cpu": CPU, "qnn": QNN}
# Samples that are run a second time on the CPU, for the time of a call.
_MOST_TIMED = 10


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
        named = [(path.name, _sized(path, dims, work / "model"))]
        # They were made with fixed sizes, or take the same options as the original.
        for number, one in enumerate(options.quantized):
            there = files.existing_model(one)
            named.append((one.name, _sized(there, dims, work / f"quantized{number}", may_be_fixed=True)))
        if options.calibration:
            made = work / "made.onnx"
            wish = QuantizeOptions(calibration=options.calibration, large=True)
            quantize_model(named[0][1], made, wish, on_progress=on_progress, own_process=True)
            named.append(("quantised with the defaults", made))
        simulated = "qnn" in options.providers and bool(host.info.simulator)
        provider_options, chip = with_simulated_chip(options.provider_options, simulated)
        settings = SessionSettings(provider_options, {}, options.timeout_s)
        rows: list[EvaluatedRow] = []
        reference: list[list[Any]] | None = None
        for label, model in named:
            # The CPU first, in whatever order they are asked for.
            for provider in sorted(options.providers):
                on_progress(f"{label} on {provider.upper()}", 0, len(samples))
                row, values = _evaluated(
                    label, model, provider, samples, outputs, settings, host, metric, reference
                )
                # The first model on the CPU is what all others are compared with.
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
    """The model with its free dimensions fixed; itself if there is nothing to fix."""
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
        if provider == "cpu":
            seconds = _as_applications(host, model, settings, samples) or seconds
    except NO_FINDING:
        # These errors are not about the model: every further row would fail in the same way.
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
            # The median: the first call also pays for what is done once.
            float(np.median(seconds)),
        ),
        values,
    )


def _as_applications(
    host: Host, model: Path, settings: SessionSettings, samples: Sequence[LabelledSample]
) -> list[float]:
    """Return how long calls on the CPU take in a session as applications make it.

    The values are those of a session that is not optimised, which takes up to three times as long.
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
    """As a whole on QNN if possible: else ONNX Runtime leaves the edges of a quantised model to the CPU."""
    with contextlib.ExitStack() as stack:
        try:
            session = stack.enter_context(opened(host, model, provider, settings, fallback="error"))
        except PlacementRefused:
            session = stack.enter_context(opened(host, model, provider, settings))
        yield session


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
    # numpy makes float64 of plain numbers, and most outputs are float32.
    return array.astype(like.dtype) if array.dtype.kind in "fiu" and like.dtype.kind == "f" else array
