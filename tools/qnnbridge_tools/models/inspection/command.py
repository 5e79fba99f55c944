"""`qnnbridge inspect`: the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


def inspect(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, compiled for QNN or not.")],
    soc_model: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="Chip that the simulator stands for, a number or a name: 88, SC8480XP."),
    ] = None,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show what a model is made of, and whether a compiled one can run here, without loading it."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output
        from qnnbridge_tools.models.inspection import document, facts, report

        found = facts.gather(model, soc_model=soc_model, host_python=host_python)
        if as_json:
            output.print_json(document.document(found))
        else:
            report.print_facts(found)
