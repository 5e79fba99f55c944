"""The work behind `qnnbridge compile`: one model, a bundle with shared weights, or a matrix of models and chips."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qnnbridge_host.graph.dimensions import Dimensions
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import arguments, output
from qnnbridge_tools.compile import report
from qnnbridge_tools.compile.report import ShownStages, ticking

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge_tools.command_options import CompileRequest
    from qnnbridge_tools.compile.matrix import Cell, CellOutcome, SizeVariant

# By default at a time: a compilation uses several processors, and gigabytes for a large model.
MOST_JOBS = 4


def default_output(request: CompileRequest) -> str:
    """Where the result goes if copies of the models are compiled, which lie elsewhere."""
    if request.output is not None:
        return request.output
    if len(request.models) == 1 and len(request.soc_models) < 2:
        model = request.models[0]
        return str(model.with_name(f"{model.stem}_ctx.onnx"))
    raise OptionError("--shape and --constant need --output for several results.", fix="Give --output a folder.")


def perform(request: CompileRequest) -> bool:
    """Does it and prints what came of it. Whether something failed that did not end all of it."""
    options = _options(request)
    # A model that is compiled already, or two results in one file, must not cost a start of the host.
    _refuse_early(request, options)
    if request.share_weights:
        _bundle(request, options)
        return False
    if len(request.models) == 1 and len(request.soc_models) < 2 and not request.buckets and not request.scheduler:
        _single(request, options)
        return False
    return _matrix(request, options)


def _refuse_early(request: CompileRequest, options: dict[str, Any]) -> None:
    """What can be said without a host: models that are compiled already, and outputs that cannot be."""
    from qnnbridge_host.model.scan import refuse_compiled
    from qnnbridge_tools.compile.matrix import plan

    for model in request.models:
        refuse_compiled(model, "qnnbridge compile")
    if len(request.models) == 1:
        # Planning only: the host takes no part in names and places.
        without_host = {name: value for name, value in options.items() if name != "host"}
        plan(request.models, request.soc_models, request.output, _variants(request), **without_host)


def _single(request: CompileRequest, options: dict[str, Any]) -> None:
    import qnnbridge

    with ShownStages(request.models[0].name) as stages:
        result = qnnbridge.compile(
            request.models[0],
            request.output,
            soc_model=request.soc_models[0] if request.soc_models else None,
            validate=request.validate,
            timeout=request.timeout,
            overwrite=request.overwrite,
            on_progress=stages,
            **options,
        )
    if request.as_json:
        output.print_json(result.to_json())
    else:
        report.print_result(result)


def _bundle(request: CompileRequest, options: dict[str, Any]) -> None:
    from qnnbridge_tools.compile.matrix import compile_bundle

    if request.buckets:
        raise OptionError("A bundle with shared weights has one size of each model.", fix="Leave --bucket out.")
    if request.scheduler is not None:
        raise OptionError("A bundle with shared weights is one job.", fix="Leave --scheduler out.")
    if len(request.soc_models) > 1:
        raise OptionError(
            "A bundle with shared weights is for one chip.", fix="Give one --soc-model, and call it for each."
        )
    if request.soc_models:
        options = {**options, "soc_model": request.soc_models[0]}
    with ShownStages(f"{len(request.models)} models") as stages:
        results = compile_bundle(
            request.models,
            request.output,
            validate=request.validate,
            timeout=request.timeout,
            overwrite=request.overwrite,
            on_progress=stages,
            **options,
        )
    if request.as_json:
        output.print_json({"bundle": [result.to_json() for result in results]})
    else:
        for result in results:
            report.print_result(result)


def _matrix(request: CompileRequest, options: dict[str, Any]) -> bool:
    from qnnbridge_tools.compile.matrix import plan

    host = options.pop("host", None)
    cells = plan(request.models, request.soc_models, request.output, _variants(request), **options)
    with ShownStages(f"{len(cells)} models", counted=len(cells)) as stages, ticking(stages):
        outcomes = _run(request, cells, stages, host)
    if request.as_json:
        output.print_json({"outcomes": [outcome.to_json() for outcome in outcomes]})
    else:
        report.print_outcomes(outcomes)
    return any(outcome.state == "failed" for outcome in outcomes)


def _run(request: CompileRequest, cells: list[Cell], stages: ShownStages, host: Host | None) -> list[CellOutcome]:
    from qnnbridge_tools.compile.matrix import run_here

    def note_outcome(outcome: CellOutcome) -> None:
        stages.finished(report.outcome_text(outcome))

    keywords: dict[str, Any] = {
        "validate": request.validate,
        "timeout_s": request.timeout,
        "overwrite": request.overwrite,
        "on_outcome": note_outcome,
    }
    if request.scheduler is None:
        # Half of the processors: one compilation uses several.
        jobs = request.jobs or max(1, min(MOST_JOBS, (os.cpu_count() or 2) // 2))
        return run_here(cells, jobs=jobs, host=host, **keywords)
    from qnnbridge_tools.compile.cluster import executor_of, run_on

    with executor_of(request.scheduler) as executor:
        return run_on(executor, cells, python=request.host_python, **keywords)


def _options(request: CompileRequest) -> dict[str, Any]:
    """The options of every kind of compilation."""
    if request.sizes.dims.by_axis:
        raise OptionError(
            "A model is compiled with its free dimensions fixed by their names only.",
            fix="Fix the others first: qnnbridge optimize MODEL -o FIXED.onnx --dim INPUT:AXIS=SIZE.",
        )
    _refuse_unknown_dimensions(request)
    options: dict[str, Any] = {
        "embed": request.embed,
        "htp_arch": request.htp_arch,
        "provider_options": request.provider_options,
        "fallback": request.fallback,
        "sess_options": arguments.session_options(request.sizes.dims),
    }
    if request.inputs:
        if len(request.models) > 1 or request.buckets:
            raise OptionError(
                "--input is for one model of one size.",
                fix="Compile the models or sizes one by one, each with its own.",
            )
        arguments.refuse_together("--input", {"--no-validate": not request.validate})
        from qnnbridge_tools import feeds

        loaded = feeds.load(*arguments.read_one_set(request.inputs))
        options["inputs"] = {feed.name: feed.value for feed in loaded}
    if request.host_python is not None:
        from qnnbridge import Host

        options["host"] = Host(python=request.host_python)
    return options


def _variants(request: CompileRequest) -> list[SizeVariant]:
    from qnnbridge_tools.compile.matrix import SizeVariant

    return [
        SizeVariant(
            ", ".join(f"{name}={size}" for name, size in sizes.items()),
            variant_tag(sizes),
            arguments.session_options(Dimensions({**request.sizes.dims.by_name, **sizes})),
        )
        for sizes in request.buckets
    ]


def variant_tag(sizes: Mapping[str, int]) -> str:
    """What files of one bucket have in their names."""
    # Other characters of a dimension's name may not be allowed in a file's.
    return "".join(f"_{re.sub(r'[^A-Za-z0-9]+', '-', name)}{size}" for name, size in sizes.items())


def _refuse_unknown_dimensions(request: CompileRequest) -> None:
    dimensions = Dimensions({**request.sizes.dims.by_name, **(request.buckets[0] if request.buckets else {})})
    twice = [name for name in request.sizes.dims.by_name if request.buckets and name in request.buckets[0]]
    if twice:
        raise OptionError(f'"{twice[0]}" is given by --dim and by --bucket.', fix="Give it once.")
    if not dimensions.by_name:
        return
    from qnnbridge_host.model.scan import scan_model

    scans = [scan_model(model, count_nodes=False) for model in request.models]
    if not any(scan.is_compiled for scan in scans):  # those have errors of their own
        arguments.refuse_unknown(scans, dimensions)
