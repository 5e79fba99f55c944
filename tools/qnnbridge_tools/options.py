"""The options that several commands take, each declared once with its name, metavar and help.

Command modules use them as the types of their parameters: `dims: Dims = None`. Imports only typer, so that
`qnnbridge --help` stays quick.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools.config_file import load_config


class Provider(str, enum.Enum):
    QNN = "qnn"
    CPU = "cpu"


class OnCpu(str, enum.Enum):
    ERROR = "error"
    CPU = "cpu"


SourceModel = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")]
TargetModel = Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")]

Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=SIZE", help="Fix a free dimension; INPUT:AXIS=SIZE works, too."),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="INPUT=1,3,48,192", help="All sizes of one input; ? leaves one as it is."),
]
Constants = Annotated[
    list[str] | None,
    typer.Option("--constant", metavar="INPUT=VALUE", help="Make an input a constant, a sampling rate for one."),
]
SocModel = Annotated[
    str | None,
    typer.Option("--soc-model", metavar="CHIP", help="Chip to work for, a number or a name: 60, SC8480XP."),
]
SocModels = Annotated[
    list[str] | None,
    typer.Option(
        "--soc-model", metavar="CHIP", help="Chip to work for, a number or a name: 60, SC8480XP. May be repeated."
    ),
]

SystemSdk = Annotated[
    str | None, typer.Option(metavar="VERSION", help="QNN version of the NPU driver, such as 2.40; else found.")
]
Chip = Annotated[str | None, typer.Option(metavar="CHIP", help='V73, or a chip such as "X Elite"; else found.')]

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        metavar="FILE",
        help="Real inputs: FILE.npz, an array for each by its name, or NAME=FILE.npy. May be repeated.",
    ),
]
Calibration = Annotated[
    list[Path] | None,
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
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Of the made-up inputs.")]

ProviderName = Annotated[Provider, typer.Option("--provider", help="Execution provider.")]
Fallback = Annotated[
    OnCpu, typer.Option("--fallback", help="What becomes of nodes that QNN cannot run: an error, or the CPU.")
]
ProviderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--provider-option",
        metavar="KEY=VALUE",
        help="Option of the provider: htp_performance_mode=burst. May be repeated.",
    ),
]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, metavar="S", help="Seconds for each call.")]
HostPython = Annotated[str | None, typer.Option("--host-python", metavar="PYTHON", help="Interpreter of the host.")]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        callback=load_config,
        is_eager=True,
        help="Options from a file, under the same names; the command line goes before.",
    ),
]
Buckets = Annotated[
    list[str] | None,
    typer.Option(
        "--bucket",
        "--buckets",
        metavar="NAME=16,32",
        help="One result for each of these sizes of a dimension. May be repeated.",
    ),
]
Large = Annotated[
    bool, typer.Option("--large", help="Go on with more than 60,000 nodes, which takes minutes to hours.")
]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write one web page with pictures, for a browser."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
