"""`qnnbridge analyze`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


def analyze(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file, not a compiled one.")],
    soc_model: Annotated[
        str | None,
        typer.Option(metavar="CHIP", help="Chip to judge for, a number or a name: 60, SC8480XP."),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="INPUT=1,3,48,192", help="Take an input to have these sizes; ? leaves one."
        ),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option(
            "--dim", metavar="NAME=SIZE", help="Take a free dimension to be this large; INPUT:AXIS=SIZE, too."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a picture of the graph, one file for a browser.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask the rules only: no host, no QNN, under a second.")
    ] = False,
    provider_options: Annotated[
        list[str] | None, typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of the provider.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S", help="Seconds for QNN's answer.")] = None,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing FILE.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Tell how much of a model runs on the NPU, what cuts it into pieces, and what to do about it."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.analyze import document, picture, report
        from qnnbridge_tools.models.analyze.analyzer import analyze_model
        from qnnbridge_tools.models.fix import sizes

        if html is not None:
            picture.refuse(html, model, overwrite=overwrite)
        found = analyze_model(
            model,
            shapes=sizes.read_shapes(shapes or ()),
            dims=arguments.read_dimensions(dims or ()),
            soc_model=soc_model,
            offline=offline,
            host_python=host_python,
            provider_options=arguments.read_provider_options(provider_options or ()),
            timeout_s=timeout,
        )
        if html is not None:
            picture.write(found, html)
        if as_json:
            output.print_json(document.document(found, html))
        else:
            report.print_analysis(found, html)
