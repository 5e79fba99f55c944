"""The options that several commands take, each declared once with its name, metavar and help.

They are the types of fields in records of options, and of parameters of commands: `command_line` makes the
values of what was written. Imports neither numpy nor the bridge, so that `qnnbridge --help` stays quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_tools import arguments
from qnnbridge_tools.command_line import Read
from qnnbridge_tools.config_file import load_config

R = TypeVar("R")

SourceModel = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")]
TargetModel = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")]

_DIM = typer.Option("--dim", metavar="NAME=SIZE", help="Set a free dimension, by name or as INPUT:AXIS=SIZE.")
Dims = Annotated[Dimensions, _DIM, Read(arguments.read_dimensions)]
DimWords = Annotated[tuple[str, ...], _DIM]
# For records that programs make, too.
SomeDims = Annotated[Mapping[str, int] | Dimensions | None, _DIM, Read(arguments.read_dimensions)]
Shapes = Annotated[
    Mapping[str, Sequence[int | None]],
    typer.Option("--shape", metavar="INPUT=1,3,48,192", help="All sizes of one input; ? leaves one unchanged."),
    Read(arguments.read_shapes),
]
Constants = Annotated[
    Mapping[str, float],
    typer.Option("--constant", metavar="INPUT=VALUE", help="Make an input a constant, such as a sampling rate."),
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
    typer.Option("--fallback", help="Nodes that QNN cannot run: an error, or the CPU."),
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
    typer.Option("--html", metavar="FILE", help="Also write the report as one HTML page."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@dataclasses.dataclass(frozen=True, slots=True)
class ChipOptions:
    """`--soc-model` and `--provider-option`, which belong together."""

    soc_model: SocModel = None
    provider_options: ProviderOptions = dataclasses.field(default_factory=dict)

    def together(self) -> dict[str, str]:
        return arguments.with_chip(self.provider_options, self.soc_model)


QnnOptions = Annotated[Mapping[str, str], Read(ChipOptions.together, ChipOptions)]


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and constants that a command gives a model."""

    shapes: Shapes = dataclasses.field(default_factory=dict)
    dims: Dims = dataclasses.field(default_factory=Dimensions)
    constants: Constants = dataclasses.field(default_factory=dict)

    def of(self, model: Path) -> contextlib.AbstractContextManager[tuple[Path, Dimensions]]:
        """`sized.sized_model` with these."""
        from qnnbridge_tools.sized import sized_model

        return sized_model(model, self.shapes, self.dims, self.constants)


@contextlib.contextmanager
def sized(request: R) -> Iterator[R]:
    """A request whose model is a copy of these sizes, where a copy is needed. The rest is for the session."""
    given: Any = request
    with given.sizes.of(given.model) as (model, left):
        yield dataclasses.replace(given, model=model, sizes=Sizes(dims=left))
