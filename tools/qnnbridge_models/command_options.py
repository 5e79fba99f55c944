"""Options of `evaluate`, `prepare`, `profile`, `quantize` and `verify`, as read from the command line.

A table lists the combinations of types that QNN supports for quantised models. It was measured on the simulator
with real models, and agrees with one-operator tests. The default is the best combination that runs on every HTP
generation: for the worst output of six models, the cosine similarity was 0.999 with int8 weights per channel, but
0.52 to 0.69 with 8-bit weights per tensor.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import command_line
from qnnbridge_tools.command_line import APART, Read
from qnnbridge_tools.options import (
    AsJson,
    Buckets,
    Calibration,
    Constants,
    Dims,
    Extreme,
    HostPython,
    Html,
    Inputs,
    Large,
    Overwrite,
    OverwriteFile,
    ProviderOptions,
    QnnOptions,
    Seed,
    Shapes,
    Sizes,
    SocModel,
    SocModels,
    SomeDims,
    Timeout,
)

ActivationType = Literal["uint8", "uint16", "int8", "int16"]
WeightType = Literal["uint8", "int8", "int4", "int16"]
Method = Literal["minmax", "entropy", "percentile"]

# For each activation type, the weight types that both Conv and MatMul support. Single operators support more types
# (see the tables of `analyze.predict`).
_RUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "uint8": ("uint8", "int8", "int4"),
    "uint16": ("uint8", "int8", "int4", "int16"),
    "int8": ("int8",),
    "int16": ("int8", "int4"),
}
# Names in onnxruntime's enumerations.
_ORT_TYPES: Final[Mapping[str, str]] = {
    "uint8": "QUInt8",
    "uint16": "QUInt16",
    "int8": "QInt8",
    "int16": "QInt16",
    "int4": "QInt4",
}
_ORT_METHODS: Final[Mapping[str, str]] = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
# Largest target in dB that an option accepts. QNN computes in float16, which cannot reach this SNR.
MOST_TARGET_DB: Final = 80.0


@dataclasses.dataclass(frozen=True, slots=True)
class QnnHostOptions:
    """Settings for running a model on QNN.

    Args:
        provider_options: options of QNN. If they select no chip, the simulator uses SoC 60, because without a chip
            it computes differently from any NPU.
        python: interpreter of the host.
        timeout_s: time limit in seconds for each call.
        required: if true, missing QNN is an error; otherwise a note in the report.
    """

    provider_options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str | None = None
    timeout_s: float | None = None
    required: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeSettings:
    """Number types, ranges and precision of a quantised model; `resolved` replaces None by a default."""

    activation_type: Annotated[ActivationType, typer.Option(help="Number type of activations.")] = "uint16"
    weight_type: Annotated[
        WeightType | None,
        typer.Option(help="Number type of weights. Default int8, or uint8 with --per-tensor."),
    ] = None
    per_channel: Annotated[
        bool | None,
        typer.Option(
            "--per-channel/--per-tensor", help="Scales of Conv weights: one per channel (default), or per tensor."
        ),
    ] = None
    symmetric_activations: Annotated[
        bool, typer.Option("--symmetric-activations", help="Symmetric ranges of activations, around zero.")
    ] = False
    symmetric_weights: Annotated[
        bool | None,
        typer.Option(
            "--symmetric-weights/--asymmetric-weights",
            help="Symmetric ranges of weights, around zero. Default: only for signed types.",
        ),
    ] = None
    method: Annotated[
        Method,
        typer.Option(help="Calibration method: how to compute ranges from the samples."),
    ] = "minmax"
    percentile: Annotated[
        float,
        typer.Option(
            min=50, max=100, metavar="P", help="For --method percentile: percentage of values inside the range."
        ),
    ] = 99.999
    exclude: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NODES", help="Keep in float: a node, an operator, a pattern (*/stft/*). Repeatable."),
    ] = ()
    wide: Annotated[
        tuple[str, ...],
        typer.Option(metavar="NODES", help="Use 16 bits for these nodes (as for --exclude). Repeatable."),
    ] = ()
    target_snr: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=MOST_TARGET_DB,
            metavar="DB",
            help="Keep the worst layers in 16 bits or float until each output reaches DB.",
        ),
    ] = None
    search_timeout_s: Annotated[
        float,
        typer.Option(
            "--search-timeout",
            min=0,
            metavar="S",
            help="For --target-snr: stop the search after S seconds and use the best result so far.",
        ),
    ] = 600.0
    layer_report: Annotated[
        bool, typer.Option("--layer-report", help="Report the accuracy loss of each quantised layer.")
    ] = False
    split_outputs: Annotated[
        bool,
        typer.Option(help="If an output joins branches of different magnitude, quantise each branch separately."),
    ] = True

    @property
    def resolved(self) -> ResolvedSettings:
        """Settings with all defaults filled in: scales are per channel if the weight type supports it.

        Raise `OptionError` for combinations that QNN cannot run.
        """
        _one_of("activation type", self.activation_type, ActivationType)
        _one_of("method", self.method, Method)
        weight_type = self.weight_type
        if weight_type is None:
            weight_type = "uint8" if self.per_channel is False and self.activation_type.startswith("u") else "int8"
        _one_of("weight type", weight_type, WeightType)
        if weight_type not in _RUNS[self.activation_type]:
            raise OptionError(
                f"QNN cannot run {self.activation_type} activations with {weight_type} weights.",
                cause=f"Tests showed that QNN refuses Conv or MatMul with these types. With {self.activation_type} "
                f"activations, QNN supports {', '.join(_RUNS[self.activation_type])} weights.",
                fix="Omit both types to use the defaults, or choose a supported weight type.",
            )
        signed = not weight_type.startswith("u")
        self._refuse_scales(weight_type, signed)
        if not 50 <= self.percentile <= 100:
            raise OptionError(
                f"{self.percentile} is not a valid percentile.",
                fix="Give a value between 50 and 100; values from 99.9 to 99.999 are usual.",
            )
        if self.target_snr is not None and not 0 < self.target_snr <= MOST_TARGET_DB:
            raise OptionError(
                f"{self.target_snr:g} dB is not a valid target.",
                fix=f"Give a value between 0 and {MOST_TARGET_DB:g}; 30 is an error of 3 %, 40 of 1 %.",
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
                "Weights of type uint8 cannot be quantised per channel: QNN requires symmetric signed weights.",
                fix="Use --weight-type int8, or --per-tensor.",
            )
        if self.per_channel is False and weight_type == "int4":
            raise OptionError(
                "QNN cannot run Conv with int4 weights that have one scale for the whole tensor.",
                fix="Omit --per-tensor.",
            )
        if self.symmetric_weights is False and signed:
            raise OptionError(
                f"Weights of type {weight_type} must be symmetric for QNN.",
                fix="Use --weight-type uint8 for asymmetric weights.",
            )


@dataclasses.dataclass(frozen=True, slots=True)
class ResolvedSettings:
    """Types and ranges of `QuantizeSettings` with all defaults filled in.

    Args:
        matrix_type: type of the weights of MatMul and Gemm.
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
                f"This onnxruntime cannot quantise to {name}.", fix="Update onnxruntime, or use an 8-bit type."
            )
        return found

    def ort_method(self) -> Any:
        from onnxruntime.quantization import CalibrationMethod

        return getattr(CalibrationMethod, _ORT_METHODS[self.method])

    @property
    def wide_activation(self) -> str | None:
        """16-bit activation type to use for selected nodes; None if activations already have 16 bits."""
        return {"uint8": "uint16", "int8": "int16"}.get(self.activation_type)

    @property
    def wide_weight(self) -> str | None:
        """16-bit weight type to use for selected nodes; None if not supported, or if weights already have 16
        bits.
        """
        # QNN supports int16 weights only with uint16 activations.
        return "int16" if self.activation_type == "uint16" and self.weight_type != "int16" else None


@dataclasses.dataclass(frozen=True, slots=True)
class QnnCheckCommand:
    """Options for the check on QNN.

    Args:
        check_qnn: None means that the model is checked only if QNN is available.
    """

    check_qnn: Annotated[
        bool | None,
        typer.Option(
            "--check-qnn/--no-check-qnn",
            help="Also run the result on QNN: report placement and differences. Default: if QNN is available.",
        ),
    ] = None
    provider_options: QnnOptions = dataclasses.field(default_factory=dict)
    host_python: HostPython = None
    timeout: Timeout = None

    def options(self) -> QnnHostOptions | None:
        if self.check_qnn is False:
            return None
        # If the option is not given (None), a missing QNN only causes a note, unless the user chose the host.
        required = bool(self.check_qnn) or self.host_python is not None
        return QnnHostOptions(self.provider_options, self.host_python, self.timeout, required)


@dataclasses.dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """Parsed options of `quantize`.

    Args:
        calibration: folders and files with samples, see `samples`.
        settings: types, ranges and precision.
        qnn: settings for checking the result on QNN; None for no check.
    """

    calibration: Calibration = ()
    random: Annotated[
        int, typer.Option(min=0, metavar="N", help="Calibrate with N random samples: for a first try only.")
    ] = 0
    seed: Seed = 0
    held_out: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Samples held out for the comparison. Default: a fifth, at most 10."),
    ] = None
    dims: SomeDims = None
    settings: QuantizeSettings = dataclasses.field(default_factory=QuantizeSettings)
    qnn: Annotated[QnnHostOptions | None, Read(QnnCheckCommand.options, QnnCheckCommand)] = None
    large: Large = False
    overwrite: Overwrite = False


def settings_of_file(context: Any) -> QuantizeSettings:
    """Return the settings from the table `[quantize]` in another command's --config file.

    Keys for other options (samples, output) are ignored. Raise `OptionError` for values of a wrong type.
    """
    table, _ = command_line.table_of(context, "quantize")
    given: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(QuantizeSettings).items():
        # The field's name ends with its unit; the option's name does not.
        key = name.removesuffix("_s").replace("_", "-")
        if key not in table:
            continue
        value, kinds = table[key], _kinds(hint)
        if tuple in kinds:
            value = tuple(str(one) for one in value) if isinstance(value, list) else (str(value),)
        elif float in kinds and type(value) is int:
            # Accept an integer for a float: TOML users write 60 instead of 60.0.
            value = float(value)
        # Compare exact types: in Python True is an int, but here it is not a number.
        if type(value) not in kinds:
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise OptionError(f'[quantize] "{key}" is {value!r:.60}.', fix=f"Give a value of type {wanted}.")
        given[name] = value
    return QuantizeSettings(**given)


def _kinds(hint: Any) -> list[type]:
    """Return the types that a field with this annotation accepts in a file."""
    if typing.get_origin(hint) is tuple:
        return [tuple]
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return [str]
    # TOML has no null: a missing key means None.
    return [kind for part in parts for kind in _kinds(part) if kind is not type(None)] if parts else [hint]


def type_warnings(settings: ResolvedSettings) -> list[str]:
    warnings: list[str] = []
    if settings.activation_type in ("int8", "int16"):
        warnings.append(
            f"QNN supports fewer operators with {settings.activation_type} activations than with uint8 and uint16 "
            "activations; nodes that QNN does not support run on the CPU."
        )
    if settings.weight_type == "int16":
        warnings.append("int16 weights run only on V73 and newer chips (Snapdragon X and later).")
    return warnings


def _one_of(what: str, value: str, kind: Any) -> None:
    # The command line already refuses other values, but programs can pass any string.
    allowed = typing.get_args(kind)
    if value not in allowed:
        raise OptionError(f'"{value}" is not a valid {what}.', fix=f"Give one of {', '.join(allowed)}.")


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """Options of `evaluate`.

    Args:
        provider_options: options of QNN; if they select no chip, the simulator uses SoC 60.
    """

    inputs: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--input", metavar="PATH", help="Samples: an .npz or .npy file, or a folder of them. Repeatable."
        ),
    ] = ()
    expected: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Expected outputs by name, in files named like the inputs.")
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNC", help="FUNC(outputs, samples) returns a number, or several."),
    ] = None
    quantized: Annotated[
        tuple[Path, ...], typer.Option(metavar="Q.onnx", help="A quantised model to evaluate as well. Repeatable.")
    ] = ()
    calibration: Calibration = ()
    providers: Annotated[
        tuple[Literal["qnn", "cpu"], ...],
        typer.Option("--on", help="Where to evaluate. Default: both. Repeatable."),
    ] = ("cpu", "qnn")
    dims: SomeDims = None
    provider_options: QnnOptions = dataclasses.field(default_factory=dict)
    timeout_s: Timeout = None
    host_python: HostPython = None


@dataclasses.dataclass(frozen=True, slots=True)
class PrepareOptions:
    """Options of `prepare`.

    Args:
        buckets: sizes of free dimensions; a model is created, compiled and verified for each bucket.
        quantizing: settings for `quantize`.
        inputs: real inputs for the verification.
    """

    soc_models: SocModels = ()
    shapes: Shapes = dataclasses.field(default_factory=dict)
    dims: Dims = dataclasses.field(default_factory=Dimensions)
    buckets: Buckets = ()
    constants: Constants = dataclasses.field(default_factory=dict)
    skip: Annotated[
        tuple[str, ...], typer.Option(metavar="REWRITE", help="Skip this rewrite. May be repeated.")
    ] = ()
    quantize: Annotated[bool, typer.Option("--quantize", help="Quantise the model; needs --calibration.")] = False
    # `prepare` has no options for these settings: they come from the table [quantize] of the --config file.
    quantizing: QuantizeSettings = dataclasses.field(default_factory=QuantizeSettings, metadata=APART)
    calibration: Calibration = ()
    inputs: Inputs = ()
    extreme: Extreme = True
    seed: Seed = 0
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=0, metavar="S", help="Time limit in seconds of each compilation and each other call."
        ),
    ] = 1800.0
    host_python: HostPython = None
    large: Large = False
    package: Annotated[
        bool,
        typer.Option("--package", help="Write manifest.json as the manifest of an ONNX Runtime model package."),
    ] = False


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileRequest:
    """Options of `profile`."""

    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file; it may be compiled.")]
    level: Annotated[
        # Omit QNN's level optrace: it adds no row to the profile, and QNN writes an extra file into the host's
        # working folder.
        Literal["basic", "detailed"],
        typer.Option(help="basic: times of each part on QNN; detailed: also cycles of each operator."),
    ] = "detailed"
    runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Run N times; the first run is reported separately.")
    ] = 10
    soc_model: SocModel = None
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    inputs: Inputs = ()
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many operators and parts to list.")] = 15
    html: Html = None
    overwrite: OverwriteFile = False
    timeout: Timeout = None
    host_python: HostPython = None
    as_json: AsJson = False


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Settings of `verify_model`, without the chip, the inputs and the sizes."""

    extreme: Extreme = True
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Also count differences for inputs with NaN, infinity or values beyond the float16 range.",
        ),
    ] = False
    bisect: Annotated[bool, typer.Option("--bisect/--no-bisect", help="Look for the first node that differs.")] = (
        True
    )
    bisect_s: Annotated[
        float, typer.Option("--bisect-timeout", min=0, metavar="S", help="Seconds for the search of --bisect.")
    ] = 60.0
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Resume an interrupted verification.")] = True
    seed: Seed = 0
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="S", help="Seconds for each call of the host.")
    ] = 300.0
    host_python: HostPython = None


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyCommand:
    """All options of `verify`."""

    soc_model: SocModel = None
    inputs: Inputs = ()
    shapes: Shapes = dataclasses.field(default_factory=dict)
    dims: Dims = dataclasses.field(default_factory=Dimensions)
    buckets: Buckets = ()
    constants: Constants = dataclasses.field(default_factory=dict)
    how: VerifyOptions = dataclasses.field(default_factory=VerifyOptions)

    def sizes_with(self, bucket: Mapping[str, int]) -> Sizes:
        return Sizes(self.shapes, Dimensions.of({**self.dims.by_name, **bucket}), self.constants)
