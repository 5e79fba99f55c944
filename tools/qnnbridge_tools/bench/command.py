"""`qnnbridge bench`: what the bridge costs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import AsJson, Dims, Fallback, HostPython, OnCpu, Provider


def bench(
    model: Annotated[
        Path | None, typer.Option("--model", metavar="MODEL", help="An ONNX file in the place of our small ones.")
    ] = None,
    provider: Annotated[Provider, typer.Option(help="Execution provider for --model.")] = Provider.QNN,
    fallback: Fallback = OnCpu.ERROR,
    dims: Dims = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds: some seconds.")] = False,
    pin: Annotated[bool, typer.Option(help="Keep all processes on one CPU while calls are measured.")] = True,
    host_python: HostPython = None,
    as_json: AsJson = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the result there, with a chart.")
    ] = None,
) -> None:
    """Measure calls, start-up and recovery, with the bridge and without."""
    with reporting.work(as_json=as_json):
        from qnnbridge_protocol.errors import OptionError
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.bench import report, work

        if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
            raise OptionError(f"{html} cannot be written: it is a folder, or lies in none.")
        request = work.BenchRequest(
            model=model,
            providers=(f"{provider.name}ExecutionProvider",),
            fallback=fallback.value,
            dimensions=arguments.read_dimensions(dims or ()),
            effort=work.QUICK if quick else work.THOROUGH,
            pin=pin,
            host_python=host_python,
        )

        def say(doing: str) -> None:
            if sys.stderr is not None and sys.stderr.isatty():
                print(f"... {doing}", file=sys.stderr, flush=True)

        measured = work.perform(request, say)
        if as_json:
            output.print_json(report.document(measured))
        else:
            report.print_measured(measured)
        if html is not None:
            report.write(measured, html)
            print(f"Written: {html}", file=sys.stderr)
