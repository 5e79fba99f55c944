"""The work of `qnnbridge compile`: compile one model, a bundle with shared weights, or a matrix of models and
chips. `--adopt` writes missing manifests.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.compatibility import HostTraits, examine
from qnnbridge_host.model.manifest import CompiledManifest, manifest_path, write_manifest
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import CompileFailed, OptionError
from qnnbridge_protocol.shell import model_command
from qnnbridge_protocol.specs import AFTER_OPTIMISATION
from qnnbridge_tools import arguments, output, reporting
from qnnbridge_tools.stages import ShownStages, ticking

if TYPE_CHECKING:
    from qnnbridge import CompileResult, Host
    from qnnbridge_protocol.model_records import Validation
    from qnnbridge_tools.compile.matrix import Cell, CellOutcome, SizeVariant
    from qnnbridge_tools.options import CompileRequest


# Default limit of parallel jobs: a compilation uses several processors, and gigabytes for a large model.
MOST_JOBS = 4


def default_output(request: CompileRequest) -> str:
    """Return the output path for models that are compiled from temporary copies: next to the original model."""
    if request.output is not None:
        return request.output
    if len(request.models) == 1 and len(request.soc_models) < 2:
        model = request.models[0]
        return str(model.with_name(f"{model.stem}_ctx.onnx"))
    raise OptionError("Several results with --shape or --constant need --output.", fix="Give --output a folder.")


def perform(request: CompileRequest) -> bool:
    """Compile and print the results. Return whether a compilation of a matrix failed."""
    options = _options(request)
    # Check before a host is started, e.g. that no model is already compiled and no two results have the same path.
    _refuse_early(request, options)
    if request.share_weights:
        _bundle(request, options)
        return False
    if len(request.models) == 1 and len(request.soc_models) < 2 and not request.buckets and not request.scheduler:
        _single(request, options)
        return False
    return _matrix(request, options)


def _refuse_early(request: CompileRequest, options: dict[str, Any]) -> None:
    """Raise the errors that can be found without a host: models that are already compiled, and invalid outputs."""
    from qnnbridge_host.model.scan import refuse_compiled
    from qnnbridge_os.outputs import place_of_several
    from qnnbridge_tools.compile.matrix import plan

    if request.output is not None:
        place_of_several(request.output)
    for model in request.models:
        refuse_compiled(model, "qnnbridge compile")
    if len(request.models) == 1:
        # Planning determines only names and paths, which needs no host.
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
    reporting.show(result, lambda made: made.to_json(), print_result, as_json=request.as_json)


def _bundle(request: CompileRequest, options: dict[str, Any]) -> None:
    from qnnbridge_tools.compile.matrix import compile_bundle

    if request.buckets:
        raise OptionError(
            "A bundle contains each model in one size, but --bucket defines several sizes.", fix="Omit --bucket."
        )
    if request.scheduler is not None:
        raise OptionError(
            "A bundle with shared weights is compiled as a single job, which a cluster cannot divide.",
            fix="Omit --scheduler.",
        )
    if len(request.soc_models) > 1:
        raise OptionError(
            "A bundle with shared weights is for one chip.",
            fix="Give one --soc-model, and run the command for each chip.",
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
            print_result(result)


def _matrix(request: CompileRequest, options: dict[str, Any]) -> bool:
    from qnnbridge_tools.compile.matrix import plan

    # Remove `host`, which is not an option of a job: a job must be picklable, and a cluster's jobs run in the
    # workers' hosts.
    host = options.pop("host", None)
    cells = plan(request.models, request.soc_models, request.output, _variants(request), **options)
    with ShownStages(f"{len(cells)} models", counted=len(cells)) as stages, ticking(stages):
        outcomes = _run(request, cells, stages, host)
    if request.as_json:
        output.print_json({"outcomes": [outcome.to_json() for outcome in outcomes]})
    else:
        print_outcomes(outcomes)
    return any(outcome.state == "failed" for outcome in outcomes)


def _run(request: CompileRequest, cells: list[Cell], stages: ShownStages, host: Host | None) -> list[CellOutcome]:
    from qnnbridge_tools.compile.matrix import run_here

    keywords: dict[str, Any] = {
        "validate": request.validate,
        "timeout_s": request.timeout,
        "overwrite": request.overwrite,
        "on_outcome": lambda outcome: stages.finished(outcome_text(outcome)),
    }
    if request.scheduler is None:
        # Use half of the processors, because one compilation uses several.
        jobs = request.jobs or max(1, min(MOST_JOBS, (os.cpu_count() or 2) // 2))
        return run_here(cells, jobs=jobs, host=host, **keywords)
    from qnnbridge_tools.compile.matrix import executor_of, run_on

    with executor_of(request.scheduler) as executor:
        return run_on(executor, cells, python=request.host_python, **keywords)


def _options(request: CompileRequest) -> dict[str, Any]:
    """Return the options that every kind of compilation uses."""
    # ONNX Runtime fixes free dimensions by name only; fixing an axis requires a changed copy of the model.
    if request.sizes.dims.by_axis:
        raise OptionError(
            "For compiling, free dimensions can be fixed by their names only.",
            fix="Fix the other dimensions first: qnnbridge optimize MODEL -o FIXED.onnx --dim INPUT:AXIS=SIZE.",
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
                "--input provides values for a single model of a single size, but several are to be compiled.",
                fix="Compile the models or sizes one by one, each with its own --input.",
            )
        arguments.refuse_together("--input", {"--no-validate": not request.validate})
        from qnnbridge_tools import feeds

        loaded = feeds.load(*arguments.read_one_set(request.inputs))
        options["inputs"] = {feed.name: feed.value for feed in loaded}
    if request.host_python is not None:
        from qnnbridge import Host

        # This host is never started: each compilation runs in a separate host with the settings of this host.
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
    """Return the suffix in the file names of one bucket."""
    # Names of dimensions may contain characters that are not allowed in file names.
    return "".join(f"_{re.sub(r'[^A-Za-z0-9]+', '-', name)}{size}" for name, size in sizes.items())


def _refuse_unknown_dimensions(request: CompileRequest) -> None:
    # Buckets are combinations of the same dimensions, so the first one contains all names.
    dimensions = Dimensions({**request.sizes.dims.by_name, **(request.buckets[0] if request.buckets else {})})
    twice = [name for name in request.sizes.dims.by_name if request.buckets and name in request.buckets[0]]
    if twice:
        raise OptionError(f'"{twice[0]}" is given by --dim and by --bucket.', fix="Give it once.")
    if not dimensions.by_name:
        return
    from qnnbridge_host.model.scan import scan_model

    scans = [scan_model(model, count_nodes=False) for model in request.models]
    if not any(scan.is_compiled for scan in scans):  # `refuse_compiled` reports them better
        arguments.refuse_unknown(scans, dimensions)


# --- results ----------------------------------------------------------------------------------------------

MIB = 1024 * 1024
_COMPILER = (("onnxruntime_qnn", "onnxruntime-qnn"), ("qnn_sdk", "QNN SDK"))


def print_result(result: CompileResult) -> None:
    placement = result.placement
    pairs = [
        ("model", result.path),
        ("binary", result.blob or "inside the model"),
        ("manifest", result.manifest),
        ("size", size_text(result.size_bytes)),
        ("for", f"soc_model {result.soc_model}" if result.soc_model else "the chip of the host"),
        ("nodes", reporting.placement_text(placement) if placement is not None else "not reported"),
        ("time", f"{output.seconds(result.compile_seconds)} to compile, {output.seconds(result.seconds)} in total"),
        ("with", _compiler_text(result)),
        ("validated", validation_text(result.validation)),
    ]
    output.print_pairs(f"Compiled {output.visible(result.source)}", pairs)
    for warning in result.warnings:
        print(f"Warning: {output.visible(warning)}", file=sys.stderr)


def validation_text(validation: Validation) -> str:
    if validation.skipped:
        return f"no: {validation.skipped}"
    cosine = "" if validation.cosine is None else f", cosine at least {validation.cosine:.5f}"
    count = len(validation.differences)
    worst = validation.worst
    if worst is None:
        return "not compared with the CPU: no output is numeric"
    values = "the output's range" if count == 1 else f'the range of output "{output.visible(worst.output)}"'
    unshown = sum(one.is_not_shown for one in validation.differences)
    shown = f" ({unshown} of them cannot be judged with these inputs)" if unshown else ""
    return (
        f"compared with the CPU, {count} output{'' if count == 1 else 's'}{shown}: "
        f"largest difference {worst.max_abs:.3g} ({output.percent(worst.max_rel)} of {values}){cosine}"
    )


def outcome_text(outcome: CellOutcome) -> str:
    """Return one line about a job of a matrix."""
    chip = f" for {outcome.soc_model}" if outcome.soc_model else ""
    more = outcome.error.message if outcome.error is not None else outcome.reason
    return f"{outcome.model}{chip} {outcome.state}" + (f": {more}" if more else "")


def print_outcomes(outcomes: Sequence[CellOutcome]) -> None:
    """Print the table of results, then the complete errors and the warnings."""
    headers = ("model", "chip", "state", f"nodes {AFTER_OPTIMISATION}", "size", "difference", "time", "file")
    output.print_table(headers, [_row(outcome) for outcome in outcomes])
    for outcome in outcomes:
        if outcome.error is not None:
            print(f"Error: {output.visible(outcome.model)}: {outcome.error.shown()}", file=sys.stderr)
        for warning in outcome.result.warnings if outcome.result is not None else ():
            print(f"Warning: {output.visible(outcome.model)}: {output.visible(warning)}", file=sys.stderr)


def size_text(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB else f"{size_bytes / 1024:.0f} KiB"


def _row(outcome: CellOutcome) -> tuple[str, ...]:
    result = outcome.result
    if result is None:
        path = outcome.path if outcome.state == "skipped" else ""
        return outcome.model, outcome.soc_model or "", outcome.state, "", "", "", "", path
    placed = result.placement
    nodes = f"{placed.qnn_nodes} QNN, {placed.cpu_nodes} CPU" if placed is not None and placed.known else "?"
    difference = "not validated" if result.validation.skipped else output.percent(result.validation.max_rel)
    chip = outcome.soc_model or result.soc_model or ""
    return (
        *(outcome.model, chip, outcome.state, nodes, size_text(result.size_bytes), difference),
        *(output.seconds(result.compile_seconds), result.path),
    )


def _compiler_text(result: CompileResult) -> str:
    shown = [f"{name} {result.versions[key]}" for key, name in _COMPILER if result.versions.get(key)]
    return ", ".join(shown) or "not reported"


# --- `--adopt` ------------------------------------------------------------------------------------------
# `--adopt` writes a manifest for a compiled model without one, so that later damage is detected.


def adopt(models: Sequence[Path], *, overwrite: bool, as_json: bool) -> None:
    """Write the manifests and print their paths. Raise the errors of `_files_of` before any manifest is written."""
    # Check all models first: no manifest is written if one of the models cannot have one.
    files = [_files_of(model, overwrite=overwrite) for model in models]
    made = [adopt_one(model, beside) for model, beside in zip(models, files, strict=True)]
    if as_json:
        output.print_json(
            {
                "adopted": [
                    {"path": manifest_path(model), **dataclasses.asdict(one)}
                    for model, one in zip(models, made, strict=True)
                ]
            }
        )
        return
    for model, one in zip(models, made, strict=True):
        names = ", ".join(record.name for record in one.files)
        print(output.visible(f"{manifest_path(model)}: records the present state of {names}."))


def adopt_one(model: Path, beside: Sequence[str]) -> CompiledManifest:
    """Write the manifest of a compiled model and of its files. Raise `CompileFailed` if this fails."""
    folder, name = os.path.split(os.path.abspath(model))
    try:
        return write_manifest(folder, name, beside, extra={"adopted": True})
    except OSError as error:
        raise CompileFailed(
            f"The manifest of {name} cannot be written.",
            cause=f"{error.strerror or error}.",
            fix="Check the permissions of the folder, and the disk.",
        ) from None


def _files_of(model: Path, *, overwrite: bool) -> tuple[str, ...]:
    """Return the names of the context binaries of an undamaged compiled model.

    Raises:
        OptionError: the model is not compiled, or already has a manifest.
        ContextUnusable: its files are damaged or do not belong together.
    """
    source = ModelSource.open(model)
    scan = source.scan
    if scan is None or not scan.is_compiled:
        raise OptionError(
            f"{model.name} is not a compiled model: only compiled models have a manifest.",
            fix=f"Compile it: {model_command('compile', model)}",
        )
    manifest = manifest_path(model)
    if os.path.exists(manifest) and not overwrite:
        raise OptionError(
            f"{model.name} already has a manifest: {manifest}.",
            fix="Keep the manifest: the files are compared with it before each load. --overwrite replaces it.",
        )
    # Do not compare with the old manifest, which is replaced only if the model is intact.
    examined = examine(model, scan, HostTraits(), by_manifest=False)
    # A damaged model must not get a manifest that declares it intact.
    if examined.broken is not None:
        raise examined.broken.error(scan.label, scan.path)
    # Only main nodes own a binary: a node with main_context 0 uses the binary of its main node.
    return tuple(dict.fromkeys(node.cache_path for node in scan.ep_contexts if node.owns_blob and node.cache_path))
