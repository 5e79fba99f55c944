"""`qnnbridge optimize`: the command line."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


class Level(str, enum.Enum):
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


class IfCompiled(str, enum.Enum):
    ERROR = "error"
    SKIP = "skip"


def optimize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")],
    target: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")],
    level: Annotated[
        Level, typer.Option(help="How far to go. Only basic is for QNN; the others are for the CPU provider.")
    ] = Level.BASIC,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Fix a free dimension; INPUT:AXIS=SIZE works, too."),
    ] = None,
    if_compiled: Annotated[
        IfCompiled, typer.Option(help="What to do with a compiled model: an error, or copy it unchanged.")
    ] = IfCompiled.ERROR,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare the result with the original on made-up inputs.")
    ] = True,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the made-up inputs.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Optimise a model's graph offline: fold constants, fuse and drop nodes."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.optimize import report
        from qnnbridge_tools.models.optimize.optimizer import optimize_model

        result = optimize_model(
            model,
            target,
            level=level.value,
            dims=arguments.read_dimensions(dims or ()),
            if_compiled="skip" if if_compiled is IfCompiled.SKIP else "error",
            check=check,
            seed=seed,
            overwrite=overwrite,
        )
        if as_json:
            output.print_json(report.document(result))
        else:
            report.print_result(result)
