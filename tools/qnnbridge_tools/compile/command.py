"""`qnnbridge compile`: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import OnCpu


def compile_models(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="ONNX files, not compiled ones.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="The .onnx file to write, or a folder; by default NAME_ctx.onnx beside the model.",
        ),
    ] = None,
    embed: Annotated[
        bool, typer.Option("--embed", help="Put the context binary into the .onnx file, not beside it.")
    ] = False,
    validate: Annotated[
        bool,
        typer.Option(
            "--validate/--no-validate", help="Run the result and compare it with the CPU before it is kept."
        ),
    ] = True,
    soc_models: Annotated[
        list[str] | None,
        typer.Option(
            "--soc-model", metavar="X", help="The chip: 60, SC8380XP. Several times: each to its own file."
        ),
    ] = None,
    htp_arch: Annotated[int | None, typer.Option(metavar="N", help="The NPU's architecture: 73.")] = None,
    provider_options: Annotated[
        list[str] | None, typer.Option("--provider-option", metavar="KEY=VALUE", help="Option of QNN.")
    ] = None,
    dims: Annotated[
        list[str] | None, typer.Option("--dim", metavar="NAME=SIZE", help="Fix a free dimension by its name.")
    ] = None,
    fallback: Annotated[
        OnCpu,
        typer.Option(help="What becomes of nodes that QNN does not take: they stay for the CPU, or an error."),
    ] = OnCpu.CPU,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Seconds for each model; then the compiler is ended.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    share_weights: Annotated[
        bool, typer.Option("--share-weights", help="Keep the weights of all models in one context binary.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many to compile at a time, if there are several.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Compile on the Dask cluster of this scheduler: tcp://HOST:8786."),
    ] = None,
    host_python: Annotated[str | None, typer.Option(metavar="PYTHON", help="Interpreter of the host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Compile models for the NPU (EPContext), so that their sessions open in a fraction of the time."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments
        from qnnbridge_tools.compile.compiling import CompileRequest, perform

        failed = perform(
            CompileRequest(
                models=tuple(models),
                output=target,
                embed=embed,
                validate=validate,
                soc_models=tuple(soc_models or ()),
                htp_arch=htp_arch,
                provider_options=arguments.read_provider_options(provider_options or ()),
                dimensions=arguments.read_dimensions(dims or ()),
                fallback=fallback.value,
                timeout_s=timeout,
                overwrite=overwrite,
                share_weights=share_weights,
                jobs=jobs,
                scheduler=scheduler,
                host_python=host_python,
            ),
            as_json=as_json,
        )
        if failed:
            raise typer.Exit(reporting.EXIT_FAILED)
