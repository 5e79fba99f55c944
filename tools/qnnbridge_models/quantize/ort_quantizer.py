"""Runs onnxruntime's QNN quantizer on a prepared model, and keeps it from printing and logging.

The quantizer prints to stdout and logs on the root logger. Only output of the calling thread is kept back; other
threads of an application are not touched.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import graphs
from qnnbridge_host.graph.model_index import ModelIndex
from qnnbridge_host.numerics.sampling import Feeds
from qnnbridge_models.command_options import ResolvedSettings
from qnnbridge_models.progress import OnProgress, phase
from qnnbridge_models.quantize.faithful import faithful, name_apart, rename
from qnnbridge_models.quantize.quick_lookups import FloatModel, KnownWeights, quick
from qnnbridge_models.quantize.samples import SampleSets
from qnnbridge_protocol.errors import BridgeError, ModelError

# --- ranges --------------------------------------------------------------------------------------------------
#
# The ranges of the float model's tensors are measured so that samples can be left out of them again: the samples
# that are held out for the comparison are measured with the others. Without them the model is compared, and with
# them it is written.

CALIBRATING = "calibrating"
# Of 16-bit activations. A speech detector that was calibrated with 190 samples had 24 dB in one ten of 60 others,
# and 48 to 69 in the rest: a sound was louder than all before.
_HEADROOM = 1.5
# Numbers of samples, in the order in which they were measured.
Numbers = frozenset[int]


class ExtremesBySample:
    """The lowest and the highest value of each tensor in each sample.

    Args:
        ends: of each sample, by tensor.
        limited: tensors that end at the limits of a Clip. The quantizer takes the Clip away, so their ranges do its
            work.
    """

    # Any samples can be left out, and the ranges can be widened.
    by_sample = True

    def __init__(
        self,
        ends: Sequence[Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]],
        limited: frozenset[str] = frozenset(),
    ) -> None:
        self._count, self._limited = len(ends), limited
        self._lows = {name: np.stack([one[name][0] for one in ends]) for name in ends[0]}
        self._highs = {name: np.stack([one[name][1] for one in ends]) for name in ends[0]}

    def of(self, left_out: Numbers, widened: bool) -> Any:
        """The quantizer's `TensorsData`, without these samples."""
        from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

        kept = [number for number in range(self._count) if number not in left_out]
        ends = {}
        for name, lows in self._lows.items():
            # fmin and fmax pass over NaN: a tensor that is NaN in one sample keeps the range of the others.
            low, high = np.fmin.reduce(lows[kept]), np.fmax.reduce(self._highs[name][kept])
            wide = widened and name not in self._limited
            ends[name] = (_widened(low), _widened(high)) if wide else (low, high)
        return TensorsData(CalibrationMethod.MinMax, ends)


def _widened(end: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Not beyond the largest number of the type, which would become infinite.
    most = np.finfo(end.dtype).max / _HEADROOM
    return np.asarray(np.clip(end, -most, most) * _HEADROOM, end.dtype)


class ThresholdRanges:
    """Of histograms, which cannot be taken apart: without the held-out samples, and of all.

    Args:
        held_out: the numbers of these samples.
    """

    by_sample = False

    def __init__(self, kept: Any, held_out: Numbers, every: Any) -> None:
        self._found = {held_out: kept, frozenset(): every}

    def of(self, left_out: Numbers, widened: bool) -> Any:
        if widened:
            raise ValueError("histograms are not widened")
        return self._found[left_out]


MeasuredRanges = ExtremesBySample | ThresholdRanges


class CalibrationReader:
    """The quantizer's `CalibrationDataReader`: samples one after the other, and how many are done."""

    def __init__(self, samples: Sequence[Feeds], on_progress: OnProgress) -> None:
        self._samples = samples
        self._on_progress = on_progress
        self._next, self._end = 0, len(samples)

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._next, self._end = start_index, min(end_index, len(self._samples))

    def get_next(self) -> Feeds | None:
        self._on_progress(CALIBRATING, self._next, len(self._samples))
        if self._next >= self._end:
            return None
        self._next += 1
        return self._samples[self._next - 1]


def extremes(calibrator: Any, reader: CalibrationReader, limited: frozenset[str]) -> MeasuredRanges:
    """Runs all samples through onnxruntime's MinMaxCalibrater, which merges what it finds, one by one."""
    ends = []
    for number in range(len(reader)):
        reader.set_range(number, number + 1)
        # Otherwise the calibrater merges the sample with those before.
        calibrator.calibrate_tensors_range = None
        calibrator.collect_data(reader)
        found = calibrator.compute_data()
        ends.append({name: found[name].range_value for name in found})
    return ExtremesBySample(ends, limited)


def thresholds(calibrator: Any, reader: CalibrationReader, held_out: Numbers) -> MeasuredRanges:
    """Runs all samples through a calibrator of histograms, which keeps every tensor of what it is given at once."""
    kept = None
    for number in range(len(reader)):
        # The held-out samples come last (`SampleSets.every`): until the first of them the histograms are without
        # them.
        if number in held_out and kept is None:
            kept = calibrator.compute_data()
        reader.set_range(number, number + 1)
        calibrator.collect_data(reader)
    every = calibrator.compute_data()
    return ThresholdRanges(every if kept is None else kept, held_out, every)


_PER_CHANNEL_OPS = ("Conv", "ConvTranspose")
# Operators whose second input is the weight.
WEIGHTED_OPS = (*_PER_CHANNEL_OPS, "MatMul", "Gemm")
# The float model with the ends of its tensors as further outputs, which onnxruntime's calibrator writes.
_AUGMENTED = "augmented.onnx"
# The quantizer's settings for single tensors.
Overrides = dict[str, list[dict[str, Any]]]


class Quiet:
    """A context manager; `messages` are the warnings that were logged meanwhile."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._handler = _Collector(self.messages, threading.get_ident())

    def __enter__(self) -> Quiet:
        # With a handler in place logging.warning() does not set up one of its own, for good.
        logging.getLogger().addHandler(self._handler)
        self._silenced = sys.stdout = _Silenced(sys.stdout, threading.get_ident())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Another thread may have silenced itself since, and goes on: its stream holds this one.
        self._silenced.thread = None
        while isinstance(sys.stdout, _Silenced) and sys.stdout.thread is None:
            sys.stdout = sys.stdout.real
        logging.getLogger().removeHandler(self._handler)


class _Collector(logging.Handler):
    def __init__(self, messages: list[str], thread: int) -> None:
        super().__init__(logging.WARNING)
        self._messages = messages
        self._thread = thread

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self._messages.append(record.getMessage())


# Standard output belongs to the report, and with --json to one document.
class _Silenced:
    def __init__(self, real: Any, thread: int) -> None:
        self.real = real
        self.thread: int | None = thread

    def write(self, text: str) -> int:
        written: int = len(text) if threading.get_ident() == self.thread else self.real.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """The nodes and tensors of a model that are not quantised as the rest is.

    Args:
        float_nodes: stay float.
        wide_tensors: activations of 16 bits.
        wide_weights: nodes whose weights get 16 bits.
    """

    float_nodes: frozenset[str] = frozenset()
    wide_tensors: frozenset[str] = frozenset()
    wide_weights: frozenset[str] = frozenset()

    def joined(self, other: Precision) -> Precision:
        return Precision(
            self.float_nodes | other.float_nodes,
            self.wide_tensors | other.wide_tensors,
            self.wide_weights | other.wide_weights,
        )


# Without slots: `cached_property` keeps its value in the object's `__dict__`.
@dataclasses.dataclass(frozen=True)
class CalibratedModel:
    """A float model whose ranges are measured: writes quantised models of it, each in a fraction of that time.

    Two that are equal write the same.

    Args:
        model: the float model.
        measured: the ranges by samples.
        left_out: numbers of the samples that do not count.
        widened: the ranges leave room for samples beyond these.
        float_biases: biases stay float32.
    """

    model: FloatModel
    measured: MeasuredRanges
    settings: ResolvedSettings
    left_out: Numbers = frozenset()
    widened: bool = False
    float_biases: bool = False

    @property
    def path(self) -> Path:
        return self.model.path

    @property
    def by_sample(self) -> bool:
        return self.measured.by_sample

    @functools.cached_property
    def _ranges(self) -> Any:
        return self.measured.of(self.left_out, self.widened)

    def without(self, samples: Numbers) -> CalibratedModel:
        """Calibrated with all samples but these."""
        return dataclasses.replace(self, left_out=samples)

    def with_headroom(self) -> CalibratedModel | None:
        """The same with wider ranges: 16 bits have steps to spare, and what is beyond its range is cut off."""
        if not self.by_sample or self.settings.activation_type not in ("uint16", "int16"):
            return None
        return dataclasses.replace(self, widened=True)

    def magnitude(self, tensor: str) -> float | None:
        """The largest magnitude that the samples gave a tensor; None if it is not known."""
        import numpy as np

        try:
            return float(np.abs(np.concatenate([np.ravel(end) for end in self._ranges[tensor].range_value])).max())
        except (KeyError, AttributeError, TypeError, ValueError):
            return None

    def write(self, target: Path, precision: Precision | None = None) -> Path:
        """Writes the quantised model at `target`, its weights beside it if they are large. Raises `ModelError`."""
        import numpy as np

        precision = precision or Precision()
        with phase("quantizing"), Quiet(), np.errstate(all="ignore"):
            try:
                config, quantizer = self._quantized(precision)
                # The weights of an earlier candidate must not stay beside a model that has none.
                target.unlink(missing_ok=True)
                # And onnx writes behind what is in a data file already.
                target.with_name(f"{target.name}.data").unlink(missing_ok=True)
                quantizer.model.save_model_to_file(os.fspath(target), config.use_external_data_format)
            except MemoryError:
                # No fault of the model: it is not reported as one.
                raise
            except Exception as error:  # the quantizer raises KeyError, StopIteration, ValueError ...
                raise _failed(error) from error
        return target

    def _quantized(self, precision: Precision) -> tuple[Any, Any]:
        """The configuration, and the quantizer when it is done."""
        from onnxruntime.quantization.calibrate import TensorsData
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        names = self.model.clashing

        def made(settings: ResolvedSettings) -> tuple[Any, Any]:
            # Not onnxruntime's `quantize_static`, which measures the ranges again for each model that it writes.
            config = _config(self.model, None, settings, precision)
            model, options = self.model.inferred(), config.extra_options
            rename(model, names)
            given = options["TensorQuantOverrides"]
            options["TensorQuantOverrides"] = {names.get(name, name): one for name, one in given.items()}
            options["QuantizeBias"] = not self.float_biases
            # A copy: the quantizer changes single ranges, for what this precision quantises.
            own = {names.get(name, name): one for name, one in self._ranges.items()}
            quantizer = faithful(QDQQuantizer)(
                model,
                config.per_channel,
                config.reduce_range,
                config.weight_type,
                config.activation_type,
                TensorsData(self._ranges.calibration_method, own),
                [],
                sorted(precision.float_nodes),
                config.op_types_to_quantize,
                config.extra_options,
            )
            with quick(quantizer, self.model):
                quantizer.quantize_model()
            rename(quantizer.model.model, {new: old for old, new in names.items()})
            name_apart(quantizer.model.model, (node.name for node in self.model.outline.graph.node))
            return config, quantizer

        try:
            return made(self.settings)
        except ValueError as error:
            # onnxruntime 1.32 compares an array of scales with one number, for a weight with a scale per channel
            # that a Reshape reads as well (Magika's model).
            if not self.settings.per_channel or "truth value of an array" not in str(error):
                raise
            return made(dataclasses.replace(self.settings, per_channel=False))


def calibrate(
    model: Path,
    samples: SampleSets,
    settings: ResolvedSettings,
    work: Path,
    on_progress: OnProgress,
    known: KnownWeights,
) -> CalibratedModel:
    """Measures the range of every tensor of the float model; those held out do not count. Raises `ModelError`."""
    import numpy as np
    from onnxruntime.quantization import create_calibrator

    reader = CalibrationReader(samples.every, on_progress)
    float_model = FloatModel(model, known)
    with phase("calibrating"), Quiet(), np.errstate(all="ignore"):
        try:
            config = _config(float_model, reader, settings, Precision())
            options = {"percentile": settings.percentile} if settings.method == "percentile" else {}
            calibrator = create_calibrator(
                model,
                config.op_types_to_quantize,
                augmented_model_path=os.fspath(work / _AUGMENTED),
                calibrate_method=config.calibrate_method,
                use_external_data_format=config.use_external_data_format,
                extra_options=options,
            )
            # Its own session is as this one, but for threads that spin.
            calibrator.infer_session = cpu.open_session(work / _AUGMENTED, "the model with its tensors' ends")
            if settings.method == "minmax":
                measured = extremes(calibrator, reader, _limited(float_model))
            else:
                measured = thresholds(calibrator, reader, samples.held_numbers)
        except BridgeError:
            raise  # a sample that cannot be read
        except MemoryError:
            raise
        except Exception as error:  # as above
            raise _failed(error) from error
    return CalibratedModel(float_model, measured, settings, samples.held_numbers)


def _limited(model: FloatModel) -> frozenset[str]:
    return frozenset(name for node in model.outline.graph.node if node.op_type == "Clip" for name in node.output)


def weights_quantised(model: Path) -> bool:
    """Whether any weight of a quantised model is one: the quantizer leaves those of Constant nodes in float."""
    index = ModelIndex(graphs.load(model))
    makers = (index.maker(node.input[1]) for node in index.protos if node.op_type in WEIGHTED_OPS)
    return any(
        maker is not None and maker.op_type == "DequantizeLinear" and maker.input[0] in index.weights
        for maker in makers
    )


def _config(
    model: FloatModel, reader: CalibrationReader | None, settings: ResolvedSettings, precision: Precision
) -> Any:
    from onnxruntime.quantization.execution_providers import qnn

    loaded = model.outline
    overrides = _norm_overrides(loaded, settings) | _matrix_overrides(loaded, settings)
    overrides |= _wide_overrides(loaded, settings, precision)
    overrides = _softmax_overrides(loaded, settings) | overrides

    def made(per_channel: bool) -> Any:
        return qnn.get_qnn_qdq_config(
            loaded,
            reader,
            calibrate_method=settings.ort_method(),
            activation_type=settings.ort_type(settings.activation_type),
            weight_type=settings.ort_type(settings.weight_type),
            per_channel=per_channel,
            init_overrides=overrides or None,
            # Tensors of 8 and of 16 bits meet: the quantizer then puts conversions between them.
            add_qtype_converts=bool(precision.wide_tensors),
            activation_symmetric=settings.symmetric_activations,
            weight_symmetric=settings.symmetric_weights,
        )

    try:
        return made(settings.per_channel)
    except ValueError as error:
        # onnxruntime up to 1.23 does not take the option for a model that has a LayerNormalization as well.
        if not settings.per_channel or "per_channel" not in str(error):
            raise
        # The option is then given tensor by tensor.
        overrides = _conv_overrides(loaded, settings) | overrides
        return made(False)


def _wide_overrides(model: Any, settings: ResolvedSettings, precision: Precision) -> Overrides:
    found: Overrides = {}
    if settings.wide_activation is not None:
        kind = settings.ort_type(settings.wide_activation)
        found |= {name: [{"quant_type": kind}] for name in sorted(precision.wide_tensors)}
    if settings.wide_weight is not None and precision.wide_weights:
        kind = settings.ort_type(settings.wide_weight)
        for name, node in _weight_readers(model, WEIGHTED_OPS):
            if node.name in precision.wide_weights:
                one: dict[str, Any] = {"quant_type": kind, "symmetric": True}
                if settings.per_channel and node.op_type in _PER_CHANNEL_OPS:
                    one["axis"] = int(node.op_type == "ConvTranspose")
                found[name] = [one]
    return found


def _failed(error: Exception) -> ModelError:
    text = str(error)
    cause = f"{type(error).__name__}: {text[:1000]}"
    fix = "Keep the operator that it fails on in float (--exclude), or export the model again with opset 17 to 21."
    if "scale issue" in text:
        cause += ". Some tensor inside of the model is NaN or infinite for the calibration samples."
        fix = "Look for samples that make it so; a division by zero, or a mask of infinity that is multiplied."
    return ModelError("onnxruntime's quantizer failed on this model.", cause=cause, fix=fix)


def _norm_overrides(model: Any, settings: ResolvedSettings) -> Overrides:
    """LayerNormalization wants its scale in uint8 where activations are unsigned: QNN takes no other type."""
    if not settings.activation_type.startswith("u"):
        return {}
    kind = settings.ort_type("uint8")
    return {
        name: [{"quant_type": kind, "symmetric": False}]
        for name, _ in _weight_readers(model, ("LayerNormalization",))
    }


def _softmax_overrides(model: Any, settings: ResolvedSettings) -> Overrides:
    """Softmax in int8 is right on QNN with a range from 0 only: with one around 0 it has -16 dB."""
    if not settings.symmetric_activations or settings.activation_type != "int8":
        return {}
    kind = settings.ort_type("int8")
    return {
        name: [{"quant_type": kind, "symmetric": False}]
        for node in model.graph.node
        if node.op_type == "Softmax"
        for name in node.output
    }


def _matrix_overrides(model: Any, settings: ResolvedSettings) -> Overrides:
    if settings.matrix_type == settings.weight_type:
        return {}
    kind = settings.ort_type(settings.matrix_type)
    return {
        name: [{"quant_type": kind, "symmetric": False}] for name, _ in _weight_readers(model, ("MatMul", "Gemm"))
    }


def _conv_overrides(model: Any, settings: ResolvedSettings) -> Overrides:
    """The option per channel, tensor by tensor: output channels are axis 0 of Conv's weights, 1 of the other's."""
    kind = settings.ort_type(settings.weight_type)
    return {
        name: [{"quant_type": kind, "symmetric": settings.symmetric_weights, "axis": int(node.op_type != "Conv")}]
        for name, node in _weight_readers(model, _PER_CHANNEL_OPS)
    }


def _weight_readers(model: Any, ops: Sequence[str]) -> list[tuple[str, Any]]:
    """The constant second inputs of these operators, each once, and a node that reads it."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {
        node.input[1]: node
        for node in model.graph.node
        if node.op_type in ops and len(node.input) > 1 and node.input[1] in constants
    }
    return sorted(found.items(), key=lambda item: item[0])
