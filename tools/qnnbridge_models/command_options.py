"""The options of `evaluate`, `prepare`, `profile` and `verify`: each record is what the command line reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_models.quantize_settings import QuantizeSettings
from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import APART
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


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluateOptions:
    """The options of `evaluate`. provider_options: of QNN; on the simulator SoC 60 stands in where they name no
    chip."""

    inputs: Annotated[
        tuple[Path, ...],
        typer.Option(
            "--input", metavar="PATH", help="Samples: a folder of .npz or .npy files, or one. Repeatable."
        ),
    ] = ()
    expected: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Files of the same names, with expected outputs by name.")
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
    """The options of `prepare`.

    Args:
        buckets: sizes of free dimensions; a model is made, compiled and verified for each of these.
        quantizing: types and precision, with `quantize`.
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
    quantize: Annotated[bool, typer.Option("--quantize", help="Quantise it; needs --calibration.")] = False
    quantizing: QuantizeSettings = dataclasses.field(default_factory=QuantizeSettings, metadata=APART)
    calibration: Calibration = ()
    inputs: Inputs = ()
    extreme: Extreme = True
    seed: Seed = 0
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", min=0, metavar="S", help="Seconds to compile for one chip, and for each other call."
        ),
    ] = 1800.0
    host_python: HostPython = None
    large: Large = False


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The options of `profile`."""

    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file; a compiled one works, too.")]
    level: Annotated[
        Literal["basic", "detailed"],
        typer.Option(help="basic: times of each part on QNN; detailed: cycles of each operator, too."),
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
    timeout: Timeout = None
    host_python: HostPython = None
    as_json: AsJson = False

    @property
    def session_options(self) -> Mapping[str, str]:
        """Of the provider, `--soc-model` among them."""
        return arguments.with_chip(self.provider_options, self.soc_model)


@dataclasses.dataclass(frozen=True, slots=True)
class VerifyOptions:
    """How to verify."""

    extreme: Extreme = True
    strict: Annotated[
        bool, typer.Option("--strict", help="Also count NaN, infinity and values beyond half floats.")
    ] = False
    bisect: Annotated[bool, typer.Option("--bisect/--no-bisect", help="Look for the first node that differs.")] = (
        True
    )
    bisect_s: Annotated[
        float, typer.Option("--bisect-timeout", min=0, metavar="S", help="Seconds for the search for that node.")
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
