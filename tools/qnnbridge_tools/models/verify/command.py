"""`qnnbridge verify`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


def verify(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")],
    soc_model: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="Chip to compute for, a number or a name: 60, SC8480XP."),
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", metavar="FILE.npz", help="Real inputs, an array for each by its name. May be repeated."
        ),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Size of a free dimension; INPUT:AXIS=SIZE works, too."),
    ] = None,
    extreme: Annotated[
        bool, typer.Option("--extreme/--no-extreme", help="Also try NaN, infinity, large and negative numbers.")
    ] = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Let NaN, infinity and what half floats cannot hold count, too.")
    ] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect/--no-bisect", help="Look for the first node that differs.")
    ] = True,
    bisect_timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds for looking for that node.")
    ] = 60.0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the made-up inputs.")] = 0,
    provider_options: Annotated[
        list[str] | None, typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of QNN.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds for each call of the host.")] = 300.0,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Hold QNN's numbers against the CPU's, on ordinary and on extreme inputs."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.shared.progress import ShownProgress
        from qnnbridge_tools.models.verify import report
        from qnnbridge_tools.models.verify.verifier import How, verify_model

        with ShownProgress() as progress:
            result = verify_model(
                model,
                soc_model=soc_model,
                inputs=inputs or (),
                dims=arguments.read_dimensions(dims or ()),
                provider_options=arguments.read_provider_options(provider_options or ()),
                how=How(seed, extreme, strict, bisect, bisect_timeout, timeout, host_python),
                on_progress=progress,
            )
        if as_json:
            output.print_json(report.document(result))
        else:
            report.print_result(result)
        if result.verdict != "agrees":
            raise typer.Exit(reporting.EXIT_FAILED)
