"""Run onnxruntime's QNN quantizer on a prepared model, and suppress its output.

The quantizer prints to stdout and logs to the root logger. Only output of the calling thread is suppressed; other
threads of the application are not affected.
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
# The ranges of the float model's tensors are stored for each sample, so that samples can be left out later.
# Held-out samples are measured as well: the ranges of the compared model exclude them, and the ranges of the final
# model include them.

CALIBRATING = "calibrating"
# Factor that widens the ranges of 16-bit activations. A speech detector calibrated with 190 samples had 48 to 69 dB
# in five of six groups of ten other samples, and 24 dB in the sixth, which contained a sound louder than all
# calibration samples.
_HEADROOM = 1.5
# Set of samples, by their numbers in the order of measurement.
Numbers = frozenset[int]


class ExtremesBySample:
    """Lowest and highest value of each tensor in each sample.

    Args:
        ends: (lowest, highest) value by tensor, for each sample.
        limited: outputs of Clip nodes. Their ranges are never widened: the quantizer removes the Clip, and only the
            range limits the values.
    """

    # With a range for each sample, any sample can be left out, and the ranges can be widened.
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
        """Return the quantizer's `TensorsData` without the samples in `left_out`."""
        from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData

        kept = [number for number in range(self._count) if number not in left_out]
        ends = {}
        for name, lows in self._lows.items():
            # fmin and fmax ignore NaN: a tensor that is NaN in one sample keeps the range of the other samples.
            low, high = np.fmin.reduce(lows[kept]), np.fmax.reduce(self._highs[name][kept])
            wide = widened and name not in self._limited
            ends[name] = (_widened(low), _widened(high)) if wide else (low, high)
        return TensorsData(CalibrationMethod.MinMax, ends)


def _widened(end: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # Stay below the largest finite number of the type: a larger bound would become infinite.
    most = np.finfo(end.dtype).max / _HEADROOM
    return np.asarray(np.clip(end, -most, most) * _HEADROOM, end.dtype)


class ThresholdRanges:
    """Ranges computed from histograms. A histogram cannot be split by sample, so there are two sets of ranges:
    without the held-out samples, and with all samples.

    Args:
        kept: ranges without the held-out samples.
        held_out: numbers of the held-out samples.
        every: ranges of all samples.
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
    """The quantizer's `CalibrationDataReader`: returns samples one by one and reports progress."""

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
    """Measure each sample separately with onnxruntime's MinMaxCalibrater, which merges the samples of a call."""
    ends = []
    for number in range(len(reader)):
        reader.set_range(number, number + 1)
        # Reset the range, so that the calibrater does not merge this sample with the previous ones.
        calibrator.calibrate_tensors_range = None
        calibrator.collect_data(reader)
        found = calibrator.compute_data()
        ends.append({name: found[name].range_value for name in found})
    return ExtremesBySample(ends, limited)


def thresholds(calibrator: Any, reader: CalibrationReader, held_out: Numbers) -> MeasuredRanges:
    """Run the samples through a histogram calibrator, one per call, because it keeps all tensors of a call in
    memory.
    """
    kept = None
    for number in range(len(reader)):
        # The held-out samples come last (`SampleSets.every`). So when the first held-out sample is reached, the
        # histograms contain exactly the other samples.
        if number in held_out and kept is None:
            kept = calibrator.compute_data()
        reader.set_range(number, number + 1)
        calibrator.collect_data(reader)
    every = calibrator.compute_data()
    return ThresholdRanges(every if kept is None else kept, held_out, every)


_PER_CHANNEL_OPS = ("Conv", "ConvTranspose")
# Operators whose second input is the weight.
WEIGHTED_OPS = (*_PER_CHANNEL_OPS, "MatMul", "Gemm")
# File name of the float model with the lowest and highest values of its tensors as additional outputs;
# onnxruntime's calibrator writes this file.
_AUGMENTED = "augmented.onnx"
# The quantizer's settings for individual tensors.
Overrides = dict[str, list[dict[str, Any]]]


class Quiet:
    """Context manager that suppresses the quantizer's output; `messages` collects the warnings logged meanwhile."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._handler = _Collector(self.messages, threading.get_ident())

    def __enter__(self) -> Quiet:
        # Without a handler on the root logger, logging.warning() would install one permanently.
        logging.getLogger().addHandler(self._handler)
        self._silenced = sys.stdout = _Silenced(sys.stdout, threading.get_ident())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Another thread may have wrapped this stream in a second one. Unwrap sys.stdout from the outside, up to the
        # first stream whose context has not ended.
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


# Stream that drops the output of one thread: standard output must contain only the report.
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
    """Nodes and tensors of a model that are quantised differently from the rest.

    Args:
        float_nodes: nodes that stay float.
        wide_tensors: activations with 16 bits.
        wide_weights: nodes whose weights have 16 bits.
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


# This class has no slots, because `cached_property` stores its value in the object's `__dict__`.
@dataclasses.dataclass(frozen=True)
class CalibratedModel:
    """A float model with measured ranges. Quantised models are written from it without measuring again.

    Two equal objects write identical models.

    Args:
        model: the float model.
        measured: ranges by sample.
        settings: types and options of the quantizer.
        left_out: numbers of the samples whose ranges are ignored.
        widened: whether to widen the ranges, to leave room for samples with larger values.
        float_biases: keep biases in float32.
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
        """Return a copy calibrated with all samples except these."""
        return dataclasses.replace(self, left_out=samples)

    def with_headroom(self) -> CalibratedModel | None:
        """Return a copy with wider ranges; None with 8-bit activations, or without ranges for each sample.

        Wider ranges prevent clipping of larger values, and cost 16-bit activations little precision.
        """
        if not self.by_sample or self.settings.activation_type not in ("uint16", "int16"):
            return None
        return dataclasses.replace(self, widened=True)

    def magnitude(self, tensor: str) -> float | None:
        """Return the largest absolute value of a tensor over the samples; None if unknown."""
        import numpy as np

        try:
            return float(np.abs(np.concatenate([np.ravel(end) for end in self._ranges[tensor].range_value])).max())
        except (KeyError, AttributeError, TypeError, ValueError):
            return None

    def write(self, target: Path, precision: Precision | None = None) -> Path:
        """Write the quantised model to `target`, and large weights to a file next to it. Raise `ModelError`."""
        import numpy as np

        precision = precision or Precision()
        with phase("quantizing"), Quiet(), np.errstate(all="ignore"):
            try:
                config, quantizer = self._quantized(precision)
                # Remove the earlier candidate's weights file: the new model may have none.
                target.unlink(missing_ok=True)
                target.with_name(f"{target.name}.data").unlink(missing_ok=True)
                quantizer.model.save_model_to_file(os.fspath(target), config.use_external_data_format)
            except MemoryError:
                # Do not report a lack of memory as an error of the model.
                raise
            except Exception as error:  # The quantizer raises KeyError, StopIteration, ValueError and others.
                raise _failed(error) from error
        return target

    def _quantized(self, precision: Precision) -> tuple[Any, Any]:
        """Return (configuration, quantizer after its run)."""
        from onnxruntime.quantization.calibrate import TensorsData
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

        names = self.model.clashing

        def made(settings: ResolvedSettings) -> tuple[Any, Any]:
            # Call the quantizer directly: `quantize_static` would measure the ranges again for each model.
            config = _config(self.model, None, settings, precision)
            model, options = self.model.inferred(), config.extra_options
            rename(model, names)
            given = options["TensorQuantOverrides"]
            options["TensorQuantOverrides"] = {names.get(name, name): one for name, one in given.items()}
            options["QuantizeBias"] = not self.float_biases
            # Pass a copy of the ranges: the quantizer changes them, and the changes depend on the precision.
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
            # Try again with scales per tensor: onnxruntime 1.32 fails if a Reshape also reads a weight with a scale
            # per channel (Magika's model), because it compares the array of scales with a number.
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
    """Measure the range of every tensor of the float model, without the held-out samples. Raise `ModelError`."""
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
            # Replace the calibrator's session, whose threads would spin while they wait.
            calibrator.infer_session = cpu.open_session(work / _AUGMENTED, "the model with its tensors' ends")
            if settings.method == "minmax":
                measured = extremes(calibrator, reader, _limited(float_model))
            else:
                measured = thresholds(calibrator, reader, samples.held_numbers)
        except BridgeError:
            raise  # a sample cannot be read
        except MemoryError:
            raise
        except Exception as error:  # The quantizer raises many exception types, see `write`.
            raise _failed(error) from error
    return CalibratedModel(float_model, measured, settings, samples.held_numbers)


def _limited(model: FloatModel) -> frozenset[str]:
    return frozenset(name for node in model.outline.graph.node if node.op_type == "Clip" for name in node.output)


def weights_quantised(model: Path) -> bool:
    """Return whether any weight is quantised. The quantizer does not quantise weights that come from Constant
    nodes.
    """
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
            # The quantizer must insert conversions between 8-bit and 16-bit tensors.
            add_qtype_converts=bool(precision.wide_tensors),
            activation_symmetric=settings.symmetric_activations,
            weight_symmetric=settings.symmetric_weights,
        )

    try:
        return made(settings.per_channel)
    except ValueError as error:
        # onnxruntime up to 1.23 rejects per_channel for a model that contains a LayerNormalization.
        if not settings.per_channel or "per_channel" not in str(error):
            raise
        # Request scales per channel for each Conv weight instead of for the whole model.
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
    fix = (
        "Keep the operator that the quantizer fails on in float (--exclude), or export the model again with "
        "opset 17 to 21."
    )
    if "scale issue" in text:
        cause += ". A tensor inside the model is NaN or infinite for the calibration samples."
        fix = (
            "Find the samples that cause it. Usual causes are a division by zero, or a product with an infinite "
            "mask."
        )
    return ModelError("onnxruntime's quantizer failed on this model.", cause=cause, fix=fix)


def _norm_overrides(model: Any, settings: ResolvedSettings) -> Overrides:
    """Return overrides that make LayerNormalization scales uint8 if activations are unsigned: QNN supports no other
    type.
    """
    if not settings.activation_type.startswith("u"):
        return {}
    kind = settings.ort_type("uint8")
    return {
        name: [{"quant_type": kind, "symmetric": False}]
        for name, _ in _weight_readers(model, ("LayerNormalization",))
    }


def _softmax_overrides(model: Any, settings: ResolvedSettings) -> Overrides:
    """Return overrides that make the range of an int8 Softmax start at 0: QNN computes a Softmax with a symmetric
    range wrong.
    """
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
    """Return the per-channel override of each weight: output channels are axis 0 for Conv, axis 1 for
    ConvTranspose.
    """
    kind = settings.ort_type(settings.weight_type)
    return {
        name: [{"quant_type": kind, "symmetric": settings.symmetric_weights, "axis": int(node.op_type != "Conv")}]
        for name, node in _weight_readers(model, _PER_CHANNEL_OPS)
    }


def _weight_readers(model: Any, ops: Sequence[str]) -> list[tuple[str, Any]]:
    """Return each constant second input of these operators once, paired with a node that reads it."""
    constants = {tensor.name for tensor in model.graph.initializer}
    found = {
        node.input[1]: node
        for node in model.graph.node
        if node.op_type in ops and len(node.input) > 1 and node.input[1] in constants
    }
    return sorted(found.items(), key=lambda item: item[0])
