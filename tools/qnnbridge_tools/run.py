"""`qnnbridge run`: runs a model once or several times and tells what came out, where and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import (
    AsJson,
    Dims,
    Fallback,
    HostPython,
    OnCpu,
    Provider,
    ProviderName,
    ProviderOptions,
    Timeout,
)


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=FILE.npy", help="An input from a file; FILE.npz:KEY works, too."),
    ] = None,
    archive: Annotated[
        Path | None, typer.Option("--inputs", metavar="FILE.npz", help="Inputs from the arrays of an archive.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Make up the inputs that no file gives.")] = False,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="For --random: the same seed gives the same values.")
    ] = 0,
    dims: Dims = None,
    folder: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Write the outputs there as .npy files.")
    ] = None,
    provider: ProviderName = Provider.QNN,
    provider_options: ProviderOptions = None,
    fallback: Fallback = OnCpu.ERROR,
    repeat: Annotated[int, typer.Option(min=1, metavar="N", help="Run N times.")] = 1,
    timeout: Timeout = None,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Run an ONNX model: outputs, placement, times."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output, run_once
        from qnnbridge_tools.run_once import RunRequest, perform

        request = RunRequest(
            model=model,
            files=arguments.read_inputs(inputs or ()),
            archive=archive,
            seed=seed if random else None,
            dimensions=arguments.read_dimensions(dims or ()),
            output=folder,
            providers=[f"{provider.name}ExecutionProvider"],
            provider_options=arguments.read_provider_options(provider_options or ()),
            fallback=fallback.value,
            repeat=repeat,
            timeout_s=arguments.read_timeout(timeout),
            host_python=host_python,
        )
        result = perform(request)
        if as_json:
            output.print_json(run_once.document(request, result))
        else:
            run_once.print_result(request, result)
