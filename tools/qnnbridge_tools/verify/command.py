"""`qnnbridge verify`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


def verify(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")],
    soc_model: Annotated[
        str | None, typer.Option(metavar="CHIP", help="Chip to run for, a number or a name: 60, SC8480XP.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input from a file; FILE.npz:KEY works, too."),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option("--inputs", metavar="FILE.npz", help="Inputs from the arrays of an archive.")
    ] = None,
    random: Annotated[int, typer.Option(min=0, metavar="N", help="Sets of made-up inputs.")] = 3,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the made-up inputs.")] = 0,
    extreme: Annotated[
        bool, typer.Option("--extreme/--no-extreme", help="NaN, infinity, large, tiny, negative, beyond 32 bits.")
    ] = True,
    search: Annotated[
        bool, typer.Option("--search/--no-search", help="Look for the first node whose result differs.")
    ] = True,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="INPUT=1,3,48,192", help="All sizes of one input; ? leaves one as it is."),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a free dimension; INPUT:AXIS=SIZE works, too."),
    ] = None,
    least_cosine: Annotated[float, typer.Option(metavar="C", help="Below this an output differs.")] = 0.99,
    most_relative: Annotated[
        float, typer.Option(metavar="R", help="Above this part of the largest value an output differs.")
    ] = 0.05,
    rounding: Annotated[float, typer.Option(metavar="D", help="Differences up to this are rounding.")] = 0.004,
    provider_options: Annotated[
        list[str] | None, typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of the provider.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S", help="Seconds for each call.")] = None,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compare QNN with the CPU, output by output; find the first node that differs, and name known traps."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.fix import sizes
        from qnnbridge_tools.verify import report
        from qnnbridge_tools.verify.verifier import verify_model

        result = verify_model(
            model,
            inputs=arguments.read_inputs(inputs or ()),
            archive=archive,
            random=random,
            extreme=extreme,
            search=search,
            seed=seed,
            shapes=sizes.read_shapes(shapes or ()),
            dims=arguments.read_dimensions(dims or ()),
            soc_model=soc_model,
            provider_options=arguments.read_provider_options(provider_options or ()),
            host_python=host_python,
            timeout_s=timeout,
            least_cosine=least_cosine,
            most_relative=most_relative,
            rounding=rounding,
        )
        if as_json:
            output.print_json(report.document(result))
        else:
            report.print_result(result)
        if not result.agrees:
            raise typer.Exit(reporting.EXIT_FAILED)
