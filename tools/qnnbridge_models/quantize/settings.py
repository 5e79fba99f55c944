"""Settings of the quantizer: types, ranges, precision of single layers, and the combinations that QNN takes.

The table is measured on the simulator with real models, and agrees with one-operator tests. The default is the best
that runs on every HTP generation: over six models the worst cosine of an output was 0.999 with int8 weights per
channel, and 0.52 to 0.69 with 8-bit weights per tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_models.quantize.qnn_check import QnnHostOptions
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import config_file

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
# More than float16 has.
MOST_TARGET_DB: Final = 80.0


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """Number types, ranges and precision of a quantised model; None is decided by `resolved`.

    Args:
        activation_type: of everything that flows.
        weight_type: of constants; default int8, or uint8 per tensor.
        per_channel: a scale for each output channel of Conv and ConvTranspose weights; default wherever the weight
            type can be.
        symmetric_activations: zero in the middle of each range.
        symmetric_weights: the same for weights; default if the type has a sign.
        method: how ranges are found: "minmax", "entropy" or "percentile".
        percentile: of the values that count, for that method.
        exclude: nodes that stay float: names, operators, or patterns of names (`/stft/*`).
        wide: nodes that get 16 bits, named alike.
        split_outputs: branches of different magnitudes that one output joins are quantised apart.
        target_snr: the layers that cost most get 16 bits or stay float until every output has this many dB.
        search_timeout_s: for that search; then the best found so far is taken.
        layer_report: measure what each layer costs by itself, also without a target.
    """

    activation_type: str = "uint16"
    weight_type: str | None = None
    per_channel: bool | None = None
    symmetric_activations: bool = False
    symmetric_weights: bool | None = None
    method: str = "minmax"
    percentile: float = 99.999
    exclude: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    split_outputs: bool = True
    target_snr: float | None = None
    search_timeout_s: float = 600.0
    layer_report: bool = False

    @property
    def resolved(self) -> ResolvedSettings:
        """Every default decided: per channel wherever the weight type can be. Raises `OptionError` for combinations
        that QNN cannot run."""
        _one_of("activation type", self.activation_type, ACTIVATION_TYPES)
        _one_of("method", self.method, METHODS)
        weight_type = self.weight_type
        if weight_type is None:
            weight_type = "uint8" if self.per_channel is False and self.activation_type.startswith("u") else "int8"
        _one_of("weight type", weight_type, WEIGHT_TYPES)
        _refuse_types(self.activation_type, weight_type)
        signed = not weight_type.startswith("u")
        self._refuse_scales(weight_type, signed)
        if not 50 <= self.percentile <= 100:
            raise OptionError(
                f"{self.percentile} is no sensible percentile.", fix="Between 50 and 100, mostly 99.9 to 99.999."
            )
        if self.target_snr is not None and not 0 < self.target_snr <= MOST_TARGET_DB:
            raise OptionError(
                f"{self.target_snr:g} dB is no sensible target.",
                fix=f"Between 0 and {MOST_TARGET_DB:g}; 30 is an error of 3 %, 40 of 1 %.",
            )
        return ResolvedSettings(
            self.activation_type,
            weight_type,
            signed if self.per_channel is None else self.per_channel,
            self.symmetric_activations,
            signed if self.symmetric_weights is None else self.symmetric_weights,
            self.method,
            self.percentile,
            weight_type,
        )

    def _refuse_scales(self, weight_type: str, signed: bool) -> None:
        if self.per_channel and not signed:
            raise OptionError(
                "Weights of type uint8 cannot be quantised per channel: QNN wants symmetric signed ones there.",
                fix="--weight-type int8, or --per-tensor.",
            )
        if self.per_channel is False and weight_type == "int4":
            raise OptionError(
                "QNN cannot run Conv with int4 weights that have one scale for the whole tensor.",
                fix="Leave --per-tensor away.",
            )
        if self.symmetric_weights is False and signed:
            raise OptionError(
                f"Weights of type {weight_type} must be symmetric for QNN.",
                fix="Use --weight-type uint8 for asymmetric.",
            )


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """The types and ranges of `QuantizeSettings`, every default decided.

    Args:
        matrix_type: of the weights of MatMul and Gemm.
    """

    activation_type: str
    weight_type: str
    per_channel: bool
    symmetric_activations: bool
    symmetric_weights: bool
    method: str
    percentile: float
    matrix_type: str

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

    @property
    def wide_activation(self) -> str | None:
        """The activation type of 16 bits beside this one; None if it has 16 bits."""
        return {"uint8": "uint16", "int8": "int16"}.get(self.activation_type)

    @property
    def wide_weight(self) -> str | None:
        """The weight type of 16 bits beside these activations; None if there is none, or it has 16 bits."""
        return "int16" if self.activation_type == "uint16" and self.weight_type != "int16" else None


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """The command line, read.

    Args:
        calibration: folders and files of samples, see `samples`.
        random: number of made-up samples to use instead, which are for trying things out only.
        seed: of the made-up samples.
        held_out: number of samples that are kept for the comparison; default a fifth, at most 10.
        dims: sizes of free dimensions.
        settings: types, ranges and precision.
        qnn: access to QNN, on which the result is checked; None for no check.
        overwrite: replace an existing target.
        large: also a model of more than 60,000 nodes, which takes minutes to hours.
    """

    calibration: tuple[Path, ...] = ()
    random: int = 0
    seed: int = 0
    held_out: int | None = None
    dims: Mapping[str, int] | Dimensions | None = None
    settings: QuantizeSettings = dataclasses.field(default_factory=QuantizeSettings)
    qnn: QnnHostOptions | None = None
    overwrite: bool = False
    large: bool = False


def settings_of_file(context: Any) -> QuantizeSettings:
    """The settings in the table `[quantize]` of the file that another command was given with --config.

    Raises `OptionError` for values of another kind. Keys that are no settings (samples, the output) are left out.
    """
    table, _ = config_file.table_of(context, "quantize")
    given: dict[str, Any] = {}
    for field in dataclasses.fields(QuantizeSettings):
        key = field.name.removesuffix("_s").replace("_", "-")
        if key not in table:
            continue
        value = table[key]
        several = str(field.type).startswith("tuple")
        if several:
            value = tuple(str(one) for one in value) if isinstance(value, list) else (str(value),)
        elif "float" in str(field.type) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        kind = type(value).__name__
        if kind not in str(field.type):
            raise OptionError(f'[quantize] "{key}" is {value!r:.60}.', fix=f"It wants {field.type}.")
        given[field.name] = value
    return QuantizeSettings(**given)


def _refuse_types(activation_type: str, weight_type: str) -> None:
    if weight_type not in _RUNS[activation_type]:
        raise OptionError(
            f"QNN cannot run {activation_type} activations with {weight_type} weights.",
            cause=f"Measured: it refuses Conv or MatMul of such a model. With {activation_type} activations it "
            f"takes {', '.join(_RUNS[activation_type])}.",
            fix="Leave both types away for the defaults, or choose from that list.",
        )


def type_warnings(settings: ResolvedSettings) -> list[str]:
    warnings: list[str] = []
    if settings.activation_type in ("int8", "int16"):
        warnings.append(
            f"{settings.activation_type} activations: QNN has fewer operators for them than for uint8 and uint16, "
            "so nodes may stay on the CPU."
        )
    if settings.weight_type == "int16":
        warnings.append("int16 weights run on V73 and newer only (Snapdragon X and later).")
    return warnings


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f'There is no {what} "{value}".', fix=f"One of {', '.join(allowed)}.")
