"""`qnnbridge fix`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


def _show_list(wanted: bool) -> None:
    if wanted:
        from qnnbridge_tools import output
        from qnnbridge_tools.models.fix.rewrites import REWRITES

        output.print_table(["rewrite", "what it does"], [[one.name, one.summary] for one in REWRITES])
        raise typer.Exit


def fix(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")],
    target: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")],
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
    only: Annotated[
        list[str] | None, typer.Option(metavar="REWRITE", help="Do this one alone. May be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="REWRITE", help="Leave this one out. May be repeated.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare after each rewrite with the original on the CPU.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the made-up inputs.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    _list: Annotated[
        bool, typer.Option("--list", callback=_show_list, is_eager=True, help="Show the rewrites, and exit.")
    ] = False,
) -> None:
    """Rewrite a model so that QNN takes it: fixed shapes, known traps, operators that QNN lacks."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.fix import report, sizes
        from qnnbridge_tools.models.fix.fixer import fix_model

        result = fix_model(
            model,
            target,
            shapes=sizes.read_shapes(shapes or ()),
            dims=arguments.read_dimensions(dims or ()),
            constants=sizes.read_constants(constants or ()),
            only=only or (),
            skip=skip or (),
            check=check,
            seed=seed,
            overwrite=overwrite,
        )
        if as_json:
            output.print_json(report.document(result))
        else:
            report.print_result(result)
