"""`qnnbridge prepare`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


def prepare(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")],
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to make.")],
    soc_models: Annotated[
        list[str] | None,
        typer.Option("--soc-model", metavar="CHIP", help="A chip to compile for: 60, SC8480XP. May be repeated."),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="INPUT=1,3,48,192", help="All sizes of one input; ? leaves one as it is."),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Fix a free dimension; INPUT:AXIS=SIZE works, too."),
    ] = None,
    constants: Annotated[
        list[str] | None,
        typer.Option(
            "--constant", metavar="INPUT=VALUE", help="Make an input a constant, a sampling rate for one."
        ),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="REWRITE", help="Leave this rewrite out. May be repeated.")
    ] = None,
    quantize: Annotated[bool, typer.Option("--quantize", help="Quantise it; needs --calibration.")] = False,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Samples: a folder of .npz or .npy files, or one file. May be repeated."),
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", metavar="FILE.npz", help="Real inputs to verify with. May be repeated."),
    ] = None,
    extreme: Annotated[
        bool, typer.Option("--extreme/--no-extreme", help="Verify on NaN, infinity, large numbers, too.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the made-up inputs.")] = 0,
    provider_options: Annotated[
        list[str] | None, typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of QNN.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds to compile for one chip, and for each other call.")
    ] = 1800.0,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a folder to ship of a model: fixed, quantised if wished, compiled, verified, with a report."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.fix import sizes
        from qnnbridge_tools.models.prepare import report
        from qnnbridge_tools.models.prepare.preparer import prepare_model
        from qnnbridge_tools.models.prepare.result import Wish

        wish = Wish(
            shapes=sizes.read_shapes(shapes or ()),
            dims=arguments.read_dimensions(dims or ()),
            constants=sizes.read_constants(constants or ()),
            skip=tuple(skip or ()),
            quantize=quantize,
            calibration=tuple(calibration or ()),
            soc_models=tuple(soc_models or ()),
            provider_options=arguments.read_provider_options(provider_options or ()),
            inputs=tuple(inputs or ()),
            extreme=extreme,
            seed=seed,
            timeout_s=timeout,
            host_python=host_python,
        )
        prepared = prepare_model(model, folder, wish, report.on_step)
        if as_json:
            output.print_json(report.document(prepared))
        else:
            report.print_result(prepared)
        if not prepared.ready:
            raise typer.Exit(reporting.EXIT_FAILED)
