"""The options of `doctor`, `run`, `compile`, `bench` and `versions`: each record is what the command line reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from qnnbridge_tools import arguments
from qnnbridge_tools.options import (
    AsJson,
    Buckets,
    Chip,
    Config,
    DimWords,
    Fallback,
    HostPython,
    Html,
    Inputs,
    ProviderName,
    ProviderOptions,
    Sizes,
    SocModel,
    SocModels,
    SystemSdk,
    Timeout,
)


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorCommand:
    """The doctor's own records do without typer, which an interpreter that it examines may lack."""

    host_python: HostPython = None
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Also examine this model on this host.")] = None
    dims: DimWords = ()
    backend_path: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The provider option backend_path that your application uses."),
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="Under a second: no hashing, no live probe.")] = False
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds for a live probe.")] = 60.0
    fix: Annotated[bool, typer.Option("--fix", help="Offer the fixes that cannot do harm.")] = False
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the collected facts, for diagnosis on another computer."),
    ] = None
    from_snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Diagnose another computer's snapshot.")
    ] = None
    explain: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Explain a pasted message or code; - reads standard input.")
    ] = None
    as_json: AsJson = False


@dataclasses.dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of `run`."""

    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]
    inputs: Inputs = ()
    archive: Annotated[str | None, typer.Option("--inputs", hidden=True, help="The same as --input FILE.npz.")] = (
        None
    )
    random: Annotated[bool, typer.Option("--random", help="Use random values for inputs without a file.")] = False
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="For --random: the same seed gives the same values.")
    ] = 0
    soc_model: SocModel = None
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Write the outputs to this folder as .npy files.")
    ] = None
    provider: ProviderName = "qnn"
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    fallback: Fallback = "error"
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Run N times.")] = 1
    timeout: Timeout = None
    host_python: HostPython = None
    as_json: AsJson = False

    @property
    def session_options(self) -> Mapping[str, str]:
        """Of the provider, `--soc-model` among them."""
        return arguments.with_chip(self.provider_options, self.soc_model)


@dataclasses.dataclass(frozen=True, slots=True)
class CompileRequest:
    """The options of `compile`."""

    models: Annotated[
        tuple[Path, ...], typer.Argument(metavar="MODEL...", help="ONNX files; compiled ones with --adopt.")
    ]
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="The .onnx file to write, or a folder; by default NAME_ctx.onnx beside the model.",
        ),
    ] = None
    embed: Annotated[
        bool, typer.Option("--embed", help="Put the context binary into the .onnx file, not beside it.")
    ] = False
    validate: Annotated[
        bool,
        typer.Option(
            "--validate/--no-validate", help="Run the result and compare it with the CPU before it is kept."
        ),
    ] = True
    soc_models: SocModels = ()
    htp_arch: Annotated[int | None, typer.Option(metavar="N", help="The NPU's architecture: 73.")] = None
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    fallback: Annotated[
        Literal["error", "cpu"],
        typer.Option(help="Nodes that QNN does not accept: leave them to the CPU, or an error."),
    ] = "cpu"
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Seconds per model; the compiler is ended after that.")
    ] = None
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")] = False
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="MODEL is already compiled: write its manifest, so that damage is detected."),
    ] = False
    share_weights: Annotated[
        bool, typer.Option("--share-weights", help="Keep the weights of all models in one context binary.")
    ] = False
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of models compiled at a time.")] = (
        None
    )
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Compile on the Dask cluster of this scheduler: tcp://HOST:8786."),
    ] = None
    buckets: Buckets = ()
    inputs: Inputs = ()
    host_python: HostPython = None
    _config: Config = None
    as_json: AsJson = False


@dataclasses.dataclass(frozen=True, slots=True)
class BenchRequest:
    """The options of `bench`."""

    model: Annotated[
        Path | None,
        typer.Option("--model", metavar="MODEL", help="An ONNX file instead of the bundled small models."),
    ] = None
    llm: Annotated[
        Path | None,
        typer.Option(
            "--llm", metavar="FOLDER", help="Measure text generation with the model in it: first token, tokens/s."
        ),
    ] = None
    provider: Annotated[Literal["qnn", "cpu"], typer.Option(help="Execution provider for --model.")] = "qnn"
    fallback: Fallback = "error"
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    inputs: Inputs = ()
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds; takes some seconds.")] = False
    pin: Annotated[bool, typer.Option(help="Keep all processes on one CPU while calls are measured.")] = True
    host_python: HostPython = None
    as_json: AsJson = False
    html: Html = None


@dataclasses.dataclass(frozen=True, slots=True)
class MachineOptions:
    """The computer that `versions` judges for; ``None`` for what is to be found."""

    system_sdk: SystemSdk = None
    chip: Chip = None
    python: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Python of the host, such as 3.13. Default: detected.")
    ] = None
    platform: Annotated[
        str | None, typer.Option(help="win_arm64, win_amd64, linux_x86_64 or linux_aarch64. Default: this one.")
    ] = None
    ort: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The onnxruntime that it has to work with. Default: any.")
    ] = None
