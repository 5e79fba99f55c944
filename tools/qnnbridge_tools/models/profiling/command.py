"""`qnnbridge profile`: the command line."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_tools import reporting

if TYPE_CHECKING:
    from qnnbridge_tools import arguments


class Level(str, enum.Enum):
    BASIC = "basic"
    DETAILED = "detailed"


def profile(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file; a compiled one works, too.")],
    level: Annotated[
        Level, typer.Option(help="basic: times of each part on QNN; detailed: cycles of each operator, too.")
    ] = Level.DETAILED,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Run N times; the first run is told apart.")] = 10,
    soc_model: Annotated[
        str | None, typer.Option("--soc-model", metavar="X", help="The chip to compile for: 60, SC8380XP.")
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=N", help="Fix a free dimension; INPUT:AXIS=N works, too."),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="FILE.npz", help="Inputs: an archive, or NAME=FILE.npy. The rest is made up."
        ),
    ] = None,
    provider_options: Annotated[
        list[str] | None,
        typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of QNN: htp_performance_mode=burst."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many operators and parts to list.")] = 15,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the charts into one web page, too.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="S", help="Seconds for each call.")] = None,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show where the time goes: loading, each part and operator on QNN, the CPU, transfers, the bridge."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.profiling import document, evaluate, page, recording, report
        from qnnbridge_tools.models.shared.progress import ShownProgress

        options = arguments.read_provider_options(provider_options or ())
        if soc_model is not None:
            options["soc_model"] = soc_model
        files, archive = _inputs(inputs or ())
        request = recording.Request(
            model=model,
            level=level.value,
            runs=runs,
            files=files,
            archive=archive,
            dimensions=arguments.read_dimensions(dims or ()),
            provider_options=options,
            timeout_s=arguments.read_timeout(timeout),
            host_python=host_python,
        )
        if html is not None:
            page.check_place(html)
        with ShownProgress() as shown:
            recorded = recording.record(request, shown)
        result = evaluate.evaluate(recorded)
        if html is not None:
            page.write(result, html)
        if as_json:
            output.print_json(document.document(result))
        else:
            report.print_result(result, top)
            if html is not None:
                print(f"\nCharts: {html}")


def _inputs(texts: list[str] | tuple[()]) -> tuple[list[arguments.InputFile], Path | None]:
    """Files for single inputs, and the archive, of which there may be one."""
    from qnnbridge_protocol.errors import OptionError
    from qnnbridge_tools import arguments

    archives = [
        text for text in texts if text.lower().endswith(".npz") and ("=" not in text or Path(text).exists())
    ]
    if len(archives) > 1:
        raise OptionError("--input names two archives.", fix="Put all inputs into one .npz file.")
    files = arguments.read_inputs(text for text in texts if text not in archives)
    return files, Path(archives[0]) if archives else None
