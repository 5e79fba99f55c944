"""Settings of the quantizer: types, calibration method, the combinations that QNN takes, options worth trying.

The table is measured on the simulator with real models, and agrees with one-operator tests. The default is the best
that runs on every HTP generation: over six models the worst cosine of an output was 0.999 with int8 weights per
channel, and 0.52 to 0.69 with 8-bit weights per tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.graph import graphs
from qnnbridge_host.numerics.comparing import OutputComparison
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.models.quantize.qnn_check import QnnCheck
from qnnbridge_tools.models.quantize.samples import SampleSets

ACTIVATION_TYPES: Final = ("uint8", "uint16", "int8", "int16")
WEIGHT_TYPES: Final = ("uint8", "int8", "int4", "int16")
METHODS: Final = ("minmax", "entropy", "percentile")

# Activation type -> weight types.
_RUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "uint8": ("uint8", "int8", "int4"),
    "uint16": ("uint8", "int8", "int4", "int16"),
    "int8": ("int8",),
    "int16": ("int8", "int4"),
}
_ORT_TYPES: Final[Mapping[str, str]] = {
    "uint8": "QUInt8",
    "uint16": "QUInt16",
    "int8": "QInt8",
    "int16": "QInt16",
    "int4": "QInt4",
}
_ORT_METHODS: Final[Mapping[str, str]] = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}

# Below this, results of classifiers and detectors begin to change.
POOR_COSINE = 0.99
QNN_DIFFERS = 0.99


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """All defaults are resolved; make it with `resolve`, which refuses what QNN cannot run.

    Args:
        per_channel: a scale for each output channel of Conv and ConvTranspose weights.
        symmetric_activations, symmetric_weights: zero in the middle.
        percentile: of the values that count, for that method.
    """

    activation_type: str
    weight_type: str
    per_channel: bool
    symmetric_activations: bool
    symmetric_weights: bool
    method: str
    percentile: float

    @property
    def needs_wide_opset(self) -> bool:
        """QuantizeLinear of ONNX itself has these types from opset 21 on."""
        return "16" in self.activation_type + self.weight_type or "4" in self.weight_type

    def ort_type(self, name: str) -> Any:
        from onnxruntime.quantization import QuantType

        found = getattr(QuantType, _ORT_TYPES[name], None)
        if found is None:
            raise OptionError(
                f"This onnxruntime cannot quantise to {name}.", fix="Update it, or use an 8-bit type."
            )
        return found

    def ort_method(self) -> Any:
        from onnxruntime.quantization import CalibrationMethod

        return getattr(CalibrationMethod, _ORT_METHODS[self.method])

    def document(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def resolve(
    *,
    activation_type: str = "uint16",
    weight_type: str | None = None,
    per_channel: bool | None = None,
    symmetric_activations: bool = False,
    symmetric_weights: bool | None = None,
    method: str = "minmax",
    percentile: float = 99.999,
) -> QuantizeSettings:
    """Fills in what is not said: per channel wherever the weight type can be."""
    _one_of("activation type", activation_type, ACTIVATION_TYPES)
    _one_of("method", method, METHODS)
    if weight_type is None:
        weight_type = "uint8" if per_channel is False and activation_type.startswith("u") else "int8"
    _one_of("weight type", weight_type, WEIGHT_TYPES)
    if weight_type not in _RUNS[activation_type]:
        raise OptionError(
            f"QNN cannot run {activation_type} activations with {weight_type} weights.",
            cause=f"Measured: it refuses Conv or MatMul of such a model. With {activation_type} activations it "
            f"takes {', '.join(_RUNS[activation_type])}.",
            fix="Leave both types away for the defaults, or choose from that list.",
        )
    signed = not weight_type.startswith("u")
    if per_channel and not signed:
        raise OptionError(
            "Weights of type uint8 cannot be quantised per channel: QNN wants symmetric signed ones there.",
            fix="--weight-type int8, or --per-tensor.",
        )
    if per_channel is False and weight_type == "int4":
        raise OptionError(
            "QNN cannot run Conv with int4 weights that have one scale for the whole tensor.",
            fix="Leave --per-tensor away.",
        )
    if symmetric_weights is False and signed:
        raise OptionError(
            f"Weights of type {weight_type} must be symmetric for QNN.",
            fix="Use --weight-type uint8 for asymmetric.",
        )
    if not 50 <= percentile <= 100:
        raise OptionError(
            f"{percentile} is no sensible percentile.", fix="Between 50 and 100, mostly 99.9 to 99.999."
        )
    return QuantizeSettings(
        activation_type,
        weight_type,
        signed if per_channel is None else per_channel,
        symmetric_activations,
        signed if symmetric_weights is None else symmetric_weights,
        method,
        percentile,
    )


def type_warnings(settings: QuantizeSettings) -> list[str]:
    told: list[str] = []
    if settings.activation_type in ("int8", "int16"):
        told.append(
            f"{settings.activation_type} activations: QNN has fewer operators for them than for uint8 and uint16, "
            "so nodes may stay on the CPU."
        )
    if settings.weight_type == "int16":
        told.append("int16 weights run on V73 and newer only (Snapdragon X and later).")
    return told


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f'There is no {what} "{value}".', fix=f"One of {', '.join(allowed)}.")


def result_warnings(
    settings: QuantizeSettings,
    outputs: Sequence[OutputComparison],
    model: Any,
    samples: SampleSets,
    qnn: QnnCheck | None,
) -> list[str]:
    told: list[str] = []
    for output in outputs:
        if output.cosine is not None and output.cosine < POOR_COSINE:
            told.append(
                f'Output "{output.name}" is far from the float model (cosine {output.cosine:.3f}). '
                f"Try {', '.join(to_try(settings, len(samples.calibration)))}."
            )
        elif output.mismatch or output.different:
            what = output.mismatch or f"{output.different} of {output.elements} elements are different"
            told.append(f'Output "{output.name}": {what}.')
    if not samples.held_out:
        told.append("Compared on the calibration samples themselves, so the true difference may be larger.")
    inside = _nodes_inside(model)
    if inside:
        told.append(f"{inside} nodes inside of If, Loop or Scan stay float: the quantizer does not go there.")
    if qnn is not None:
        told += _qnn_warnings(qnn)
    return told


def to_try(settings: QuantizeSettings, samples: int) -> list[str]:
    """Options that may help, the most promising first."""
    tries: list[str] = []
    if settings.activation_type in ("uint8", "int8", "int16"):
        tries.append("--activation-type uint16")
    if settings.weight_type == "int4":
        tries.append("--weight-type int8")
    elif not settings.per_channel:
        tries.append("--weight-type int8 --per-channel")
    elif settings.weight_type == "int8" and settings.activation_type == "uint16":
        tries.append("--weight-type int16 (V73 and newer)")
    if settings.method == "minmax":
        tries.append("--method percentile (a few extreme values widen the ranges)")
    tries.append("more samples" if samples < 100 else "samples that are closer to what will come")
    return tries


def _qnn_warnings(qnn: QnnCheck) -> list[str]:
    if qnn.error is not None or qnn.placement is None:
        return []  # shown as the error that it is
    told = []
    if not qnn.all_on_qnn:
        cause = (qnn.placement.cause or "the reason is unknown").rstrip(".")
        told.append(f"{qnn.placement.cpu_nodes} nodes are left on the CPU: {cause}.")
    told += [
        f'Output "{output.name}": QNN computes something else than the CPU does from the same quantised model '
        f"(cosine {output.cosine:.3f})."
        for output in qnn.against_cpu
        if output.cosine is not None and output.cosine < QNN_DIFFERS
    ]
    return told


def _nodes_inside(model: Any) -> int:
    return sum(len(graph.node) for graph in graphs.subgraphs(model.graph)) - len(model.graph.node)
