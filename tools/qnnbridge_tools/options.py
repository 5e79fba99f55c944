"""Options that several commands share, each declared once, and the records of options of single commands.

There are records for `doctor`, `run`, `compile`, `bench`, `versions` and `setup`. An option is an annotated type,
for fields of records and for parameters of commands; `command_line` converts the given text into its value. This
module imports neither numpy nor the bridge, so that `qnnbridge --help` stays quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import typer

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import Read, load_config

R = TypeVar("R")

SourceModel = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")]
TargetModel = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace an existing FILE.")]

_DIM = typer.Option("--dim", metavar="NAME=SIZE", help="Set a free dimension, by name or as INPUT:AXIS=SIZE.")
Dims = Annotated[Dimensions, _DIM, Read(arguments.read_dimensions)]
# --dim of commands whose sessions accept sizes only by name.
NamedDims = Annotated[
    Dimensions,
    typer.Option("--dim", metavar="NAME=SIZE", help="Set a free dimension, by its name."),
    Read(arguments.read_dimensions),
]
# Unparsed values of --dim, because the doctor's own records do not use `Dimensions`.
DimWords = Annotated[tuple[str, ...], _DIM]
# Values of --dim in records that programs also create, with a mapping of sizes or None.
SomeDims = Annotated[Mapping[str, int] | Dimensions | None, _DIM, Read(arguments.read_dimensions)]
Shapes = Annotated[
    Mapping[str, Sequence[int | None]],
    typer.Option(
        "--shape", metavar="INPUT=1,3,48,192", help="All sizes of one input; ? keeps the size of an axis."
    ),
    Read(arguments.read_shapes),
]
Constants = Annotated[
    Mapping[str, Any],
    typer.Option(
        "--constant",
        metavar="INPUT=VALUE",
        help="Make an input a constant: a number, or several as INPUT=480,640.",
    ),
    Read(arguments.read_constants),
]
SocModel = Annotated[
    str | None,
    typer.Option("--soc-model", metavar="CHIP", help="Target chip, a number or a name: 60, SC8480XP."),
]
SocModels = Annotated[
    tuple[str, ...],
    typer.Option(
        "--soc-model", metavar="CHIP", help="Target chip, a number or a name: 60, SC8480XP. May be repeated."
    ),
]

SystemSdk = Annotated[
    str | None,
    typer.Option(metavar="VERSION", help="QNN version of the NPU driver, such as 2.40. Default: detected."),
]
Chip = Annotated[
    str | None, typer.Option(metavar="CHIP", help='V73, or a chip such as "X Elite". Default: detected.')
]

Inputs = Annotated[
    tuple[str, ...],
    typer.Option(
        "--input",
        metavar="FILE",
        help="Real inputs: FILE.npz with one array per input, or NAME=FILE.npy. May be repeated.",
    ),
]
Calibration = Annotated[
    tuple[Path, ...],
    typer.Option(
        "--calibration",
        metavar="PATH",
        help="Samples: a folder of .npz or .npy files, or one file. May be repeated.",
    ),
]
Check = Annotated[
    bool, typer.Option("--check/--no-check", help="Compare with the original on made-up inputs, on the CPU.")
]
Extreme = Annotated[
    bool, typer.Option("--extreme/--no-extreme", help="Also try NaN, infinity, large and negative numbers.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the made-up inputs.")]

ProviderName = Annotated[Literal["qnn", "cpu"], typer.Option("--provider", help="Execution provider.")]
Fallback = Annotated[
    Literal["error", "cpu"],
    typer.Option("--fallback", help="error: refuse nodes that QNN cannot run; cpu: run them on the CPU."),
]
AllowNative = Annotated[
    tuple[str, ...],
    typer.Option(
        "--allow-native",
        metavar="NAME",
        help="Option of genai_config.json that may load native code or write files. May be repeated.",
    ),
]
ProviderOptions = Annotated[
    Mapping[str, str],
    typer.Option(
        "--provider-option",
        metavar="KEY=VALUE",
        help="Option of the provider: htp_performance_mode=burst. May be repeated.",
    ),
    Read(arguments.read_provider_options),
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0, metavar="S", help="Seconds for each call."),
    Read(arguments.read_timeout, float | None),
]
HostPython = Annotated[
    str | None, typer.Option("--host-python", metavar="PYTHON", help="Python interpreter of the host.")
]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        callback=load_config,
        # The option is eager, so that click calls its callback before it reads the other options, whose defaults
        # the file sets.
        is_eager=True,
        help="Read options from a file, by the same names. The command line takes precedence.",
    ),
]
Buckets = Annotated[
    Sequence[Mapping[str, int]],
    typer.Option(
        "--bucket",
        "--buckets",
        metavar="NAME=16,32",
        help="Sizes of a dimension; one result for each. May be repeated.",
    ),
    Read(arguments.read_buckets),
]
Large = Annotated[
    bool, typer.Option("--large", help="Allow models of more than 60,000 nodes, which take minutes to hours.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page; - writes it to stdout."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclasses.dataclass(frozen=True, slots=True)
class ChipOptions:
    """`--soc-model` and `--provider-option`, which are merged into one set of options."""

    soc_model: SocModel = None
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)

    def together(self) -> dict[str, str]:
        return arguments.with_chip(self.provider_options, self.soc_model)


QnnOptions = Annotated[Mapping[str, str], Read(ChipOptions.together, ChipOptions)]


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and constants that a command sets for a model."""

    shapes: Shapes = dataclasses.field(default_factory=dict)
    dims: Dims = dataclasses.field(default_factory=Dimensions)
    constants: Constants = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def of(self, model: Path) -> Iterator[tuple[Path, Dimensions]]:
        """Yield the model to use, and the sizes that a session must still set. A temporary copy is deleted
        afterwards.

        Raises:
            OptionError: a size or a constant does not fit the model.
            CompiledModelRefused: the model is compiled.
            BridgeError: the package onnx is missing.
        """
        # The models of a prepared folder have fixed sizes; the given sizes choose among them.
        by_axis = bool(self.dims.by_axis) and not model.is_dir()
        if not self.shapes and not self.constants and not by_axis:
            yield model, self.dims
            return
        # Sessions accept sizes by name (`--dim`). Everything else needs a copy of the model, and the package onnx.
        from qnnbridge_host.cache.files import work_folder
        from qnnbridge_host.rewrite.fixer import fix_model

        with work_folder("sized") as folder:
            # Reports show a model by its file name, so the copy has the same name.
            copy = Path(folder) / model.name
            fix_model(
                model,
                copy,
                shapes=self.shapes,
                dims=self.dims,
                constants=self.constants,
                only=("fixed-shapes",),
                check=False,
            )
            # The sizes are fixed in the copy, so the session does not set any.
            yield copy, Dimensions()


@contextlib.contextmanager
def sized(request: R) -> Iterator[R]:
    """Yield the request. If its sizes need a copy of the model, the yielded request contains this copy."""
    given: Any = request
    with given.sizes.of(given.model) as (model, left):
        yield dataclasses.replace(given, model=model, sizes=Sizes(dims=left))


class SortOrder(enum.Enum):
    """The sorted column of `top`: the greatest first, but texts in ascending order."""

    RATE = "rate"
    CALLS = "calls"
    LATENCY = "latency"
    ERRORS = "errors"
    MEMORY = "memory"
    NAME = "name"

    @property
    def next(self) -> SortOrder:
        orders = list(SortOrder)
        return orders[(orders.index(self) + 1) % len(orders)]


# --- records of options ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorCommand:
    """Options of `doctor`. The doctor's own records do not need typer, which an examined interpreter may lack."""

    host_python: HostPython = None
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Also examine this model on this host.")] = None
    dims: DimWords = ()
    backend_path: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The provider option backend_path that your application uses."),
    ] = None
    quick: Annotated[
        bool, typer.Option("--quick", help="Take less than a second: skip hashing and the live probe.")
    ] = False
    numbers: Annotated[
        bool,
        typer.Option(
            "--numbers",
            help="Also measure which operators of the known-wrong table are wrong on this NPU (takes a minute).",
        ),
    ] = False
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds for a live probe.")] = 60.0
    fix: Annotated[bool, typer.Option("--fix", help="Offer the fixes that cannot do harm.")] = False
    snapshot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the collected facts, for diagnosis on another computer."),
    ] = None
    overwrite: OverwriteFile = False
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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing output files.")] = False
    provider: ProviderName = "qnn"
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    fallback: Fallback = "error"
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Run N times.")] = 1
    timeout: Timeout = None
    host_python: HostPython = None
    as_json: AsJson = False

    @property
    def session_options(self) -> Mapping[str, str]:
        """Options of the execution provider, including the chip from `--soc-model`."""
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
            help="The .onnx file to write, or a folder; by default NAME_ctx.onnx next to the model.",
        ),
    ] = None
    embed: Annotated[
        bool, typer.Option("--embed", help="Put the context binary into the .onnx file, not into a separate one.")
    ] = False
    validate: Annotated[
        bool,
        typer.Option(
            "--validate/--no-validate", help="Run the result and compare it with the CPU before it is kept."
        ),
    ] = True
    soc_models: SocModels = ()
    htp_arch: Annotated[
        int | None, typer.Option(min=1, max=999, metavar="N", help="The NPU's architecture: 73.")
    ] = None
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    fallback: Annotated[
        Literal["error", "cpu"],
        typer.Option(help="error: refuse nodes that QNN does not accept; cpu: leave them to the CPU."),
    ] = "cpu"
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Seconds per model, after which the compiler is ended.")
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
    # This field only declares --config, whose callback sets the defaults of all other options.
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
            "--llm",
            metavar="FOLDER",
            help="Measure text generation with the model in FOLDER: first token, tokens/s.",
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
    overwrite: OverwriteFile = False


@dataclasses.dataclass(frozen=True, slots=True)
class MachineOptions:
    """The computer that `versions` assesses; ``None`` for values to detect."""

    system_sdk: SystemSdk = None
    chip: Chip = None
    python: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Python of the host, such as 3.13. Default: detected.")
    ] = None
    platform: Annotated[
        str | None, typer.Option(help="win_arm64, win_amd64, linux_x86_64 or linux_aarch64. Default: this one.")
    ] = None
    ort: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Version of onnxruntime that a release must support. Default: any."),
    ] = None


@dataclasses.dataclass(frozen=True, slots=True)
class SetupOptions:
    """Options of `setup`; ``None`` for absent options."""

    python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON",
            help="Interpreter: a path, a tag of the py launcher, or a version (3.13). Default: the best.",
        ),
    ] = None
    version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Version of onnxruntime-qnn. Default: the newest that works here."),
    ] = None
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder of the new environment.")
    ] = None
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="Wheel, sdist or checkout of qnnbridge; or a folder with all downloads."
        ),
    ] = None
    system_sdk: SystemSdk = None
    chip: Chip = None
    write_config: Annotated[
        bool, typer.Option("--config/--no-config", help="Enter the new host in the configuration file.")
    ] = True
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing environment or setting.")] = False
    force: Annotated[
        bool, typer.Option("--force", help="Install the release of --version even if it does not fit.")
    ] = False
    engine: Annotated[
        Literal["wheel", "windowsml", "folder"],
        typer.Option("--engine", help="Source of QNN: onnxruntime-qnn, or the catalogue of Windows."),
    ] = "wheel"
    ep_path: Annotated[
        Path | None, typer.Option("--ep-path", metavar="PATH", help="Folder (or file) of your own QNN provider.")
    ] = None
    download: Annotated[
        bool, typer.Option("--download", help="With --engine windowsml: have Windows download its provider.")
    ] = False


# Only given options are passed on: the daemon has its own defaults.


@dataclasses.dataclass(frozen=True, slots=True)
class DaemonOptions:
    """The given options of a daemon; ``None`` for absent options."""

    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter of the NPU host that the daemon runs.")
    ] = None
    idle_exit: Annotated[
        float | None,
        typer.Option(metavar="S", min=0, help="Exit after this many seconds without a client. Default: never."),
    ] = None
    idle_unload: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0, help="Unload a model after this many seconds without a call; 0: never. Default 600."
        ),
    ] = None
    slots: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of calls in the NPU host at once. Default 4."),
    ] = None
    max_sessions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of open sessions per client. Default 64.")
    ] = None
    max_queued: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of waiting calls per client. Default 256."),
    ] = None
    max_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Maximum memory of a client's calls and shared arrays (500M, 4G). Default 2G."
        ),
    ] = None
    max_kv_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Maximum memory of a client's KV caches. Default 8G."),
    ] = None
    recycle_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Replace the NPU host when it uses this much memory. Default: never."),
    ] = None
    recycle_sessions: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Replace an NPU host after this many new sessions. Default: never."),
    ] = None

    def checked_words(self) -> list[str]:
        """Check the given interpreter, then return the daemon's arguments (`words`).

        Raises:
            HostNotFound: the interpreter cannot run the host. Without this check, only the first session would
                report it.
        """
        if self.python is not None:
            from qnnbridge._launch import find_host

            find_host(self.python)
        return self.words()

    def words(self) -> list[str]:
        """Return the daemon's arguments, with absolute paths, because the daemon has a different working folder.

        Raises:
            OptionError: a size is invalid.
        """
        from qnnbridge._daemon.discovery import from_anywhere

        given: dict[str, Any] = dataclasses.asdict(self)
        given["python"] = None if self.python is None else from_anywhere(self.python)
        for name in _SIZES:
            given[name] = None if given[name] is None else arguments.read_size(_option(name), given[name])
        return [
            word
            for name, value in given.items()
            if value is not None
            for word in (_option(name), f"{value:g}" if isinstance(value, float) else str(value))
        ]


_SIZES: Final = ("max_bytes", "max_kv_bytes", "recycle_bytes")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
