"""The commands that work on a model: analyze, evaluate, fix, optimize, prepare, profile, quantize, verify.

Each command calls the tool's function with its options and prints the result. The tools are imported inside the
functions: they load numpy and partly onnx and onnxruntime, which would slow down `qnnbridge --help`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from qnnbridge_models.command_options import (
    EvaluateOptions,
    PrepareOptions,
    ProfileRequest,
    QuantizeOptions,
    VerifyCommand,
    settings_of_file,
)
from qnnbridge_os.outputs import OutputFile
from qnnbridge_tools import output, reporting
from qnnbridge_tools.command_line import command, command_again
from qnnbridge_tools.options import (
    AsJson,
    Check,
    Config,
    HostPython,
    Html,
    Overwrite,
    OverwriteFile,
    ProviderOptions,
    Seed,
    Sizes,
    SocModel,
    SourceModel,
    TargetModel,
    Timeout,
    sized,
)

if TYPE_CHECKING:
    from qnnbridge_models.quantize import QuantizeResult
    from qnnbridge_models.verify.verification import Verification


@command
def analyze(
    *,
    model: SourceModel,
    soc_model: SocModel = None,
    sizes: Sizes,
    html: Html = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use the offline rules only: no host, no QNN, under a second.")
    ] = False,
    provider_options: ProviderOptions,
    timeout: Timeout = None,
    host_python: HostPython = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """Report how much of a model runs on the NPU. Also show what splits it into parts, and how to fix that."""
    import gc

    from qnnbridge_models.analyze import analysis
    from qnnbridge_models.analyze.analyzer import analyze_model

    # Disable garbage collection, which takes a third of the time for 100,000 nodes. This is safe: the analysis
    # creates no reference cycles, and the process ends afterwards.
    gc.disable()
    # Check the output file first: otherwise an analysis of minutes could be lost because the picture cannot be
    # written.
    picture = OutputFile(html, overwrite=overwrite, inputs=[model]) if html is not None else None
    # Copy the model only to replace inputs by constants; the analysis accepts sizes directly.
    copied = sizes if sizes.constants else Sizes(dims=sizes.dims)
    with copied.of(model) as (on_copy, left):
        found = analyze_model(
            on_copy,
            shapes={} if sizes.constants else sizes.shapes,
            dims=left,
            soc_model=soc_model,
            offline=offline,
            host_python=host_python,
            provider_options=provider_options,
            timeout_s=timeout,
        )
    found = dataclasses.replace(found, path=model)
    if picture is not None:
        picture.write_text(analysis.picture_page(found))
    with output.reporting_beside(html):
        reporting.show(
            found,
            lambda found: analysis.document(found, html),
            lambda found: analysis.print_analysis(found, html),
            as_json=as_json,
        )


def _show_rewrites(wanted: bool) -> None:
    if wanted:
        from qnnbridge_host.rewrite.catalogue import REWRITES

        output.print_table(["rewrite", "what it does"], [[one.name, one.summary] for one in REWRITES])
        raise typer.Exit


@command
def fix(
    model: SourceModel,
    target: TargetModel,
    sizes: Sizes,
    only: Annotated[
        tuple[str, ...], typer.Option(metavar="REWRITE", help="Apply only this rewrite. May be repeated.")
    ] = (),
    skip: Annotated[
        tuple[str, ...], typer.Option(metavar="REWRITE", help="Skip this rewrite. May be repeated.")
    ] = (),
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare after each rewrite with the original on the CPU.")
    ] = True,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    _list: Annotated[
        bool, typer.Option("--list", callback=_show_rewrites, is_eager=True, help="List the rewrites and exit.")
    ] = False,
) -> None:
    """Rewrite a model so that QNN supports it. Fix its shapes, and replace wrong and unsupported operators."""
    from qnnbridge_host.cache.measured import right_on_this_npu
    from qnnbridge_host.machine import installed_versions
    from qnnbridge_host.rewrite.fixer import fix_model
    from qnnbridge_models.fix import document, print_result
    from qnnbridge_models.progress import ShownProgress

    with ShownProgress() as progress:
        result = fix_model(
            model,
            target,
            shapes=sizes.shapes,
            dims=sizes.dims,
            constants=sizes.constants,
            only=only,
            skip=skip,
            check=check,
            seed=seed,
            overwrite=overwrite,
            # Skip rewrites that this NPU does not need, unless the user requested rewrites by name.
            right_here=() if only else right_on_this_npu(installed_versions()),
            on_progress=progress,
        )
    with output.reporting_beside(target):
        reporting.show(result, document, print_result, as_json=as_json)


@command
def optimize(
    *,
    model: SourceModel,
    target: TargetModel,
    level: Annotated[
        Literal["basic", "extended", "layout", "all"],
        typer.Option(help="Optimisation level. Only basic suits QNN; the others are for the CPU provider."),
    ] = "basic",
    sizes: Sizes,
    if_compiled: Annotated[
        Literal["error", "skip"],
        typer.Option(help="Compiled model: report an error, or copy it unchanged."),
    ] = "error",
    check: Check = True,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Optimise a model's graph: fold constants, fuse and drop nodes."""
    from qnnbridge_models.optimization import document, optimize_model, print_result
    from qnnbridge_models.progress import ShownProgress
    from qnnbridge_protocol.errors import OptionError

    # Compare the paths that the user gave: the model that is optimised below may be a temporary copy.
    if os.path.exists(target) and model.exists() and target.samefile(model):
        raise OptionError("OUT is the same file as MODEL.", fix="Give another file: MODEL is never changed.")
    with ShownProgress() as progress, sizes.of(model) as (on_copy, left):
        result = optimize_model(
            on_copy,
            target,
            level=level,
            dims=left,
            if_compiled=if_compiled,
            check=check,
            seed=seed,
            overwrite=overwrite,
            on_progress=progress,
        )
    result = dataclasses.replace(result, source=model)
    with output.reporting_beside(target):
        reporting.show(result, document, print_result, as_json=as_json)


@command
def prepare(
    context: typer.Context,
    model: SourceModel,
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to create.")],
    options: PrepareOptions,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite, compile and verify a model for shipping. Quantise it if requested, and write a report."""
    from qnnbridge_models.prepare import preparation
    from qnnbridge_models.prepare.preparer import prepare_model

    options = dataclasses.replace(options, quantizing=settings_of_file(context))
    prepared = prepare_model(model, folder, options, preparation.on_step)
    reporting.show(prepared, preparation.document, preparation.print_result, as_json=as_json)
    if not prepared.ready:
        raise typer.Exit(reporting.EXIT_FAILED)


@command
def profile(request: ProfileRequest) -> None:
    """Show where a model's time goes. Measure loading, each part and operator on QNN, CPU nodes and transfers."""
    from qnnbridge_models.profiling import evaluate, page, recording, report
    from qnnbridge_models.progress import ShownProgress

    html, as_json = request.html, request.as_json
    # Check the output file before profiling, which may take minutes.
    charts = OutputFile(html, overwrite=request.overwrite, inputs=[request.model]) if html is not None else None
    with ShownProgress() as shown, sized(request) as on_copy:
        recorded = recording.record(on_copy, shown)
    result = evaluate.evaluate(dataclasses.replace(recorded, model=str(request.model)))
    if charts is not None:
        charts.write_text(page.page(result))
    with output.reporting_beside(html):
        reporting.show(
            result, report.document, lambda found: report.print_result(found, request.top), as_json=as_json
        )
        if html is not None and not as_json:
            print(f"\nCharts: {output.visible(html)}")


@command
def verify(
    model: SourceModel,
    given: VerifyCommand,
    html: Html = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """Compare QNN's results with the CPU's, also on extreme inputs."""
    from qnnbridge_models.progress import ShownProgress
    from qnnbridge_models.verify import verification
    from qnnbridge_models.verify.verifier import verify_model
    from qnnbridge_tools import page

    place = page.place_of(html, overwrite=overwrite, inputs=[model])
    title = f"Verification of {model.name}"

    def verified(bucket: Mapping[str, int]) -> Verification:
        with ShownProgress() as progress, given.sizes_with(bucket).of(model) as (on_copy, left):
            result = verify_model(
                on_copy,
                soc_model=given.soc_model,
                inputs=given.inputs,
                dims=left,
                how=given.how,
                on_progress=progress,
                # With --json, stdout is reserved for the document.
                on_rows=None if as_json else verification.PrintedRows,
            )
        result = dataclasses.replace(result, source=model)
        # With --bucket, one JSON document with all results is printed below.
        if not (bucket and as_json):
            reporting.show(result, verification.document, verification.print_result, as_json=as_json)
        return result

    with output.reporting_beside(html):
        if given.buckets:
            found = verification.verify_buckets(given.buckets, verified)
            page.write(place, title, lambda: verification.print_buckets(found))
            reporting.show(found, verification.buckets_document, verification.print_buckets, as_json=as_json)
            agrees = found.agrees
        else:
            result = verified({})
            page.write(place, title, lambda: verification.print_whole(result))
            agrees = result.verdict == "agrees"
    if not agrees:
        raise typer.Exit(reporting.EXIT_FAILED)


@command
def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A float ONNX file, not a compiled one.")],
    target: TargetModel,
    options: QuantizeOptions,
    context: typer.Context,
    html: Html = None,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Quantise a float model for QNN and report the loss of accuracy.

    Exit code 0: usable result; 1: an output is useless, or the target is missed.
    """
    from qnnbridge_models.progress import ShownProgress
    from qnnbridge_models.quantize.quantization import document, print_result
    from qnnbridge_models.quantize.quantizer import quantize_model
    from qnnbridge_tools import page

    place = page.place_of(html, overwrite=options.overwrite, inputs=[model], result=target)
    with ShownProgress() as progress:
        result = quantize_model(model, target, options, on_progress=progress, own_process=True)
    again = command_again(context, *result.better, "--overwrite") if result.better else ""

    def print_whole(found: QuantizeResult) -> None:
        print_result(found)
        if again:
            print(f"\nFor a better model: {again}")

    page.write(place, f"Quantisation of {model.name}", lambda: print_whole(result))
    with output.reporting_beside(target), output.reporting_beside(html):
        reporting.show(
            result, lambda found: {**document(found), "next_command": again or None}, print_whole, as_json=as_json
        )
    # Raise QNN's error after the report: the model is written, and its comparison on the CPU is valid.
    failed = result.qnn.error if result.qnn else None
    if failed is not None:
        if not as_json:
            raise failed
        raise typer.Exit(reporting.exit_code_of(failed))
    if not result.good_enough:
        raise typer.Exit(reporting.EXIT_FAILED)


@command
def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    options: EvaluateOptions,
    html: Html = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model over samples. Compare the CPU, QNN and quantised models in one table.

    With --calibration the model is also quantised with default settings. Exit code 1 if a row fails or is useless.
    """
    from qnnbridge_models.evaluate import document, evaluate_model, print_result
    from qnnbridge_models.progress import ShownProgress
    from qnnbridge_tools import page

    place = page.place_of(html, overwrite=overwrite, inputs=[model])
    with ShownProgress() as progress:
        result = evaluate_model(model, options, on_progress=progress)
    page.write(place, f"Evaluation of {model.name}", lambda: print_result(result))
    with output.reporting_beside(html):
        reporting.show(result, document, print_result, as_json=as_json)
    if not result.good:
        raise typer.Exit(reporting.EXIT_FAILED)
