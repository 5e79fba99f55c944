"""The commands that work on a model: analyze, fix, optimize, prepare, profile, verify.

Each reads its options, calls the tool's function and shows the result. The tools are imported inside the functions:
they load numpy, and some onnx and onnxruntime, which `qnnbridge --help` must not.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import (
    AsJson,
    Buckets,
    Calibration,
    Check,
    Config,
    Constants,
    Dims,
    Extreme,
    HostPython,
    Html,
    Inputs,
    Large,
    Overwrite,
    ProviderOptions,
    Seed,
    Shapes,
    SocModel,
    SocModels,
    SourceModel,
    TargetModel,
    Timeout,
)

if TYPE_CHECKING:
    from qnnbridge_models.verify.result import Verification


def analyze(
    model: SourceModel,
    soc_model: SocModel = None,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
    html: Html = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask the rules only: no host, no QNN, under a second.")
    ] = False,
    provider_options: ProviderOptions = None,
    timeout: Timeout = None,
    host_python: HostPython = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing FILE.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell how much of a model runs on the NPU, what cuts it into pieces, and what to do about it."""
    with reporting.work(as_json=as_json):
        import gc

        from qnnbridge_models.analyze import picture, report
        from qnnbridge_models.analyze.analyzer import analyze_model
        from qnnbridge_tools import arguments
        from qnnbridge_tools.sized import sized_model

        # A third of the time for 100,000 nodes, for nothing: there are no circles, and the process ends.
        gc.disable()
        if html is not None:
            picture.refuse(html, model, overwrite=overwrite)
        sizes, given = arguments.read_shapes(shapes or ()), arguments.read_constants(constants or ())
        # Sizes alone need no copy of the model.
        with sized_model(model, sizes if given else {}, arguments.read_dimensions(dims or ()), given) as (
            sized,
            left,
        ):
            found = analyze_model(
                sized,
                shapes={} if given else sizes,
                dims=left,
                soc_model=soc_model,
                offline=offline,
                host_python=host_python,
                provider_options=arguments.read_provider_options(provider_options or ()),
                timeout_s=timeout,
            )
        found = dataclasses.replace(found, path=model)
        if html is not None:
            picture.write(found, html)
        reporting.show(
            found,
            lambda found: report.document(found, html),
            lambda found: report.print_analysis(found, html),
            as_json=as_json,
        )


def _show_rewrites(wanted: bool) -> None:
    if wanted:
        from qnnbridge_host.rewrite.rewrites import REWRITES
        from qnnbridge_tools import output

        output.print_table(["rewrite", "what it does"], [[one.name, one.summary] for one in REWRITES])
        raise typer.Exit


def fix(
    model: SourceModel,
    target: TargetModel,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="REWRITE", help="Do this one alone. May be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="REWRITE", help="Leave this one out. May be repeated.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare after each rewrite with the original on the CPU.")
    ] = True,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    _list: Annotated[
        bool, typer.Option("--list", callback=_show_rewrites, is_eager=True, help="Show the rewrites, and exit.")
    ] = False,
) -> None:
    """Rewrite a model so that QNN takes it: fixed shapes, known traps, operators that QNN lacks."""
    with reporting.work(as_json=as_json):
        from qnnbridge_host.rewrite.fixer import fix_model
        from qnnbridge_models.fix.report import document, print_result
        from qnnbridge_models.shared.progress import ShownProgress
        from qnnbridge_tools import arguments

        with ShownProgress() as progress:
            result = fix_model(
                model,
                target,
                shapes=arguments.read_shapes(shapes or ()),
                dims=arguments.read_dimensions(dims or ()),
                constants=arguments.read_constants(constants or ()),
                only=only or (),
                skip=skip or (),
                check=check,
                seed=seed,
                overwrite=overwrite,
                on_progress=progress,
            )
        reporting.show(result, document, print_result, as_json=as_json)


class OptimizeLevel(str, enum.Enum):
    BASIC = "basic"
    EXTENDED = "extended"
    LAYOUT = "layout"
    ALL = "all"


class IfCompiled(str, enum.Enum):
    ERROR = "error"
    SKIP = "skip"


def optimize(
    model: SourceModel,
    target: TargetModel,
    level: Annotated[
        OptimizeLevel,
        typer.Option(help="How far to go. Only basic is for QNN; the others are for the CPU provider."),
    ] = OptimizeLevel.BASIC,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
    if_compiled: Annotated[
        IfCompiled, typer.Option(help="What to do with a compiled model: an error, or copy it unchanged.")
    ] = IfCompiled.ERROR,
    check: Check = True,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Optimise a model's graph offline: fold constants, fuse and drop nodes."""
    with reporting.work(as_json=as_json):
        from qnnbridge_models.optimization import document, optimize_model, print_result
        from qnnbridge_models.shared.progress import ShownProgress
        from qnnbridge_protocol.errors import OptionError
        from qnnbridge_tools import arguments
        from qnnbridge_tools.sized import sized_model

        if target.exists() and model.exists() and target.samefile(model):
            raise OptionError("OUT is MODEL itself.", fix="Give another file: the original is never changed.")
        sizes = arguments.read_shapes(shapes or ()), arguments.read_dimensions(dims or ())
        copy = sized_model(model, *sizes, arguments.read_constants(constants or ()))
        with ShownProgress() as progress, copy as (sized, left):
            result = optimize_model(
                sized,
                target,
                level=level.value,
                dims=left,
                if_compiled="skip" if if_compiled is IfCompiled.SKIP else "error",
                check=check,
                seed=seed,
                overwrite=overwrite,
                on_progress=progress,
            )
        result = dataclasses.replace(result, source=model)
        reporting.show(result, document, print_result, as_json=as_json)


def prepare(
    context: typer.Context,
    model: SourceModel,
    folder: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to make.")],
    soc_models: SocModels = None,
    shapes: Shapes = None,
    dims: Dims = None,
    buckets: Buckets = None,
    constants: Constants = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="REWRITE", help="Leave this rewrite out. May be repeated.")
    ] = None,
    quantize: Annotated[bool, typer.Option("--quantize", help="Quantise it; needs --calibration.")] = False,
    calibration: Calibration = None,
    inputs: Inputs = None,
    extreme: Extreme = True,
    seed: Seed = 0,
    provider_options: ProviderOptions = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds to compile for one chip, and for each other call.")
    ] = 1800.0,
    host_python: HostPython = None,
    large: Large = False,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a folder to ship of a model: fixed, quantised if wished, compiled, verified, with a report."""
    with reporting.work(as_json=as_json):
        from qnnbridge_models.prepare import report
        from qnnbridge_models.prepare.preparer import prepare_model
        from qnnbridge_models.prepare.result import PrepareOptions
        from qnnbridge_models.quantize.settings import settings_of_file
        from qnnbridge_tools import arguments

        options = PrepareOptions(
            shapes=arguments.read_shapes(shapes or ()),
            dims=arguments.read_dimensions(dims or ()),
            buckets=tuple(arguments.read_buckets(buckets or ())),
            constants=arguments.read_constants(constants or ()),
            skip=tuple(skip or ()),
            quantize=quantize,
            quantizing=settings_of_file(context),
            calibration=tuple(calibration or ()),
            soc_models=tuple(soc_models or ()),
            provider_options=arguments.read_provider_options(provider_options or ()),
            inputs=tuple(inputs or ()),
            extreme=extreme,
            seed=seed,
            timeout_s=timeout,
            host_python=host_python,
            large=large,
        )
        prepared = prepare_model(model, folder, options, report.on_step)
        reporting.show(prepared, report.document, report.print_result, as_json=as_json)
        if not prepared.ready:
            raise typer.Exit(reporting.EXIT_FAILED)


class ProfileLevel(str, enum.Enum):
    BASIC = "basic"
    DETAILED = "detailed"


def profile(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file; a compiled one works, too.")],
    level: Annotated[
        ProfileLevel, typer.Option(help="basic: times of each part on QNN; detailed: cycles of each operator, too.")
    ] = ProfileLevel.DETAILED,
    runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Run N times; the first run is reported by itself.")
    ] = 10,
    soc_model: SocModel = None,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
    inputs: Inputs = None,
    provider_options: ProviderOptions = None,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="How many operators and parts to list.")] = 15,
    html: Html = None,
    timeout: Timeout = None,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Show where the time goes: loading, each part and operator on QNN, the CPU, transfers, the bridge."""
    with reporting.work(as_json=as_json):
        from qnnbridge_models.profiling import evaluate, page, recording, report
        from qnnbridge_models.shared.progress import ShownProgress
        from qnnbridge_tools import arguments
        from qnnbridge_tools.sized import sized_model

        files, archive = arguments.read_one_set(inputs or ())
        sizes = arguments.read_shapes(shapes or ()), arguments.read_dimensions(dims or ())
        request = recording.ProfileRequest(
            model=model,
            level=level.value,
            runs=runs,
            files=files,
            archive=archive,
            dimensions=sizes[1],
            provider_options=arguments.read_provider_options(provider_options or (), soc_model),
            timeout_s=arguments.read_timeout(timeout),
            host_python=host_python,
        )
        if html is not None:
            page.check_place(html)
        copy = sized_model(model, *sizes, arguments.read_constants(constants or ()))
        with ShownProgress() as shown, copy as (sized, left):
            recorded = recording.record(dataclasses.replace(request, model=sized, dimensions=left), shown)
        recorded = dataclasses.replace(recorded, model=str(model))
        result = evaluate.evaluate(recorded)
        if html is not None:
            page.write(result, html)
        reporting.show(result, report.document, lambda found: report.print_result(found, top), as_json=as_json)
        if html is not None and not as_json:
            print(f"\nCharts: {html}")


def verify(
    model: SourceModel,
    soc_model: SocModel = None,
    inputs: Inputs = None,
    shapes: Shapes = None,
    dims: Dims = None,
    buckets: Buckets = None,
    constants: Constants = None,
    extreme: Extreme = True,
    strict: Annotated[
        bool, typer.Option("--strict", help="Let NaN, infinity and what half floats cannot hold count, too.")
    ] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect/--no-bisect", help="Look for the first node that differs.")
    ] = True,
    bisect_timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds for looking for that node.")
    ] = 60.0,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on where an interrupted verification was stopped.")
    ] = True,
    seed: Seed = 0,
    provider_options: ProviderOptions = None,
    timeout: Annotated[float, typer.Option(min=0, metavar="S", help="Seconds for each call of the host.")] = 300.0,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Hold QNN's numbers against the CPU's, on ordinary and on extreme inputs."""
    with reporting.work(as_json=as_json):
        from qnnbridge_models.shared.progress import ShownProgress
        from qnnbridge_models.verify.report import PrintedRows, document, print_result
        from qnnbridge_models.verify.verifier import VerifyOptions, verify_model
        from qnnbridge_tools import arguments
        from qnnbridge_tools.sized import sized_model

        how = VerifyOptions(seed, extreme, strict, bisect, bisect_timeout, timeout, host_python, resume)

        def verified(bucket: Mapping[str, int]) -> Verification:
            named = [*(dims or ()), *(f"{name}={size}" for name, size in bucket.items())]
            sizes = arguments.read_shapes(shapes or ()), arguments.read_dimensions(named)
            copy = sized_model(model, *sizes, arguments.read_constants(constants or ()))
            with ShownProgress() as progress, copy as (sized, left):
                result = verify_model(
                    sized,
                    soc_model=soc_model,
                    inputs=inputs or (),
                    dims=left,
                    provider_options=arguments.read_provider_options(provider_options or ()),
                    how=how,
                    on_progress=progress,
                    on_rows=None if as_json else PrintedRows,
                )
            result = dataclasses.replace(result, source=model)
            if not (bucket and as_json):
                reporting.show(
                    result, document, lambda found: print_result(found, rows_are_printed=True), as_json=as_json
                )
            return result

        if buckets:
            from qnnbridge_models.verify import several_sizes

            found = several_sizes.verify_buckets(arguments.read_buckets(buckets), verified)
            reporting.show(found, several_sizes.document, several_sizes.print_buckets, as_json=as_json)
            agrees = found.agrees
        else:
            agrees = verified({}).verdict == "agrees"
        if not agrees:
            raise typer.Exit(reporting.EXIT_FAILED)
