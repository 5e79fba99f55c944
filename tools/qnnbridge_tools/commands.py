"""The command lines of `demo`, `doctor`, `run`, `compile`, `bench`, `inspect`, `wrap`, `versions` and `top`.

Each function receives its options as records and imports the package of the same name when the command runs: a
command module imports only typer and the standard library at its top.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from qnnbridge_os.outputs import OutputFile
from qnnbridge_protocol.visible import visible
from qnnbridge_tools import output, reporting
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import (
    AsJson,
    BenchRequest,
    CompileRequest,
    DoctorCommand,
    HostPython,
    Html,
    MachineOptions,
    Overwrite,
    OverwriteFile,
    RunRequest,
    SocModel,
    SortOrder,
    TargetModel,
    Timeout,
    sized,
)
from qnnbridge_tools.stages import waiting

LEAST_INTERVAL_S = 0.2


@command
def demo(host_python: HostPython = None, timeout: Timeout = None, as_json: AsJson = False) -> None:
    """Run a trained model on QNN, and on the CPU for comparison.

    The model detects which way up six lines of text are. The report shows the answers, where they were computed and
    how fast. Exit code 0 only if QNN answered and every answer is right.
    """
    from qnnbridge_tools import demo as showing

    if not as_json:
        showing.print_question()
    with waiting("running", "the model"):
        outcome = showing.compute(host_python=host_python, timeout_s=timeout)
    reporting.show(outcome, showing.document, showing.print_outcome, as_json=as_json)
    raise typer.Exit(0 if outcome.ok else reporting.EXIT_FAILED)


@command
def doctor(given: DoctorCommand) -> None:
    """Diagnose this machine and print the fixes.

    Exit code 0: all is well; 1: something is degraded; 2: the NPU cannot be used.
    """
    from qnnbridge_tools.doctor.examine import DoctorOptions, SurveyOptions, perform

    interpreter, model, backend = given.host_python, given.model, given.backend_path
    order = SurveyOptions(interpreter, model, backend, given.quick, given.numbers, given.timeout, given.dims)
    request = DoctorOptions(
        order, given.snapshot, given.overwrite, given.from_snapshot, given.explain, given.fix, given.as_json
    )
    # Ask on stderr, because stdout may be one JSON document.
    raise typer.Exit(perform(request, lambda question: typer.confirm(question, err=True)))


@command
def run(request: RunRequest) -> None:
    """Run an ONNX model. Show its outputs, placement and times."""
    from qnnbridge_tools import run_once

    with sized(request) as on_copy, waiting("running", request.model.name):
        result = run_once.perform(on_copy)
    reporting.show(
        result,
        lambda found: run_once.document(request, found),
        lambda found: run_once.print_result(request, found),
        as_json=request.as_json,
    )


@command
def compile_models(request: CompileRequest) -> None:
    """Compile models for the NPU (EPContext). Their sessions open in a fraction of the time."""
    if request.adopt:
        from qnnbridge_tools.compile.compiling import adopt

        adopt(request.models, overwrite=request.overwrite, as_json=request.as_json)
        return
    from qnnbridge_tools.compile.compiling import default_output, perform

    # Keep the copies with fixed shapes until the last one is compiled.
    with contextlib.ExitStack() as copies:
        if request.sizes.shapes or request.sizes.constants:
            place = default_output(request)
            ready = [copies.enter_context(request.sizes.of(model)) for model in request.models]
            left = dataclasses.replace(request.sizes, dims=ready[0][1])
            paths = tuple(path for path, _ in ready)
            request = dataclasses.replace(request, models=paths, sizes=left, output=place)
        failed = perform(request)
    if failed:
        raise typer.Exit(reporting.EXIT_FAILED)


@command
def bench(request: BenchRequest) -> None:
    """Measure calls, start-up and recovery. Compare them with and without the bridge."""
    html, as_json, model = request.html, request.as_json, request.model
    place = OutputFile(html, overwrite=request.overwrite) if html is not None else None

    def say(doing: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"... {visible(doing)}", file=sys.stderr, flush=True)

    if request.llm is not None:
        from qnnbridge_tools import arguments
        from qnnbridge_tools.generation import measuring

        given = {
            "--model": model is not None,
            "--html": html is not None,
            "--provider": request.provider != "qnn",
            "--shape": bool(request.sizes.shapes),
            "--dim": bool(request.sizes.dims.by_name),
            "--constant": bool(request.sizes.constants),
            "--input": bool(request.inputs),
            "--no-pin": not request.pin,
        }
        arguments.refuse_together("--llm", given)
        effort = measuring.QUICK if request.quick else measuring.THOROUGH
        paces = measuring.perform(request.llm, effort, request.fallback, request.host_python, say)
        reporting.show(paces, measuring.document, measuring.print_measured, as_json=as_json)
        return
    from qnnbridge_tools.bench import report, work

    with sized(request) if model is not None else contextlib.nullcontext(request) as on_copy:
        measured = work.perform(on_copy, say)
    with output.reporting_beside(html):
        reporting.show(measured, report.document, report.print_measured, as_json=as_json)
    if place is not None:
        place.write_text(report.page(measured))
        print(f"Written: {visible(html)}", file=sys.stderr)


@command
def versions(
    given: MachineOptions,
    working: Annotated[bool, typer.Option("--working", help="List only releases that work here.")] = False,
    html: Html = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """List the releases of onnxruntime-qnn, and which work here. Explain why others do not."""
    from qnnbridge_tools import output, page
    from qnnbridge_tools.setup_host import this_machine
    from qnnbridge_tools.versions import view
    from qnnbridge_tools.versions.fitness import judge

    place = page.place_of(html, overwrite=overwrite)
    machine = this_machine.machine_of(given)
    judged = judge(machine)
    shown = [one for one in judged if one.verdict != "refused"] if working else judged
    page.write(place, "Releases of onnxruntime-qnn", lambda: view.print_versions(machine, judged, shown))
    with output.reporting_beside(html):
        if as_json:
            output.print_json(view.document(machine, judged, shown))
        else:
            view.print_versions(machine, judged, shown)


@command
def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="S", min=LEAST_INTERVAL_S, help="Seconds between updates.")
    ] = 1.0,
    order: Annotated[SortOrder, typer.Option("--sort", help="Sort order. The key s changes it.")] = SortOrder.RATE,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", min=1, help="End after this many updates. Default without a terminal: 1."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, once.")] = False,
) -> None:
    """Watch the daemon: clients, models, calls per second, latencies. q ends it."""
    from qnnbridge_tools.top import watch

    watch(interval, order, rounds, as_json)


@command
def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="An ONNX file, a QNN context binary, or a folder (from `prepare`, or with genai_config.json).",
        ),
    ],
    soc_model: SocModel = None,
    load: Annotated[
        bool, typer.Option("--load", help="Load the folder's model in a host to report where each stage runs.")
    ] = False,
    host_python: HostPython = None,
    html: Html = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a model. For a compiled model also whether it can run here, without loading it."""
    from qnnbridge_tools import arguments, binaries, inspection, page, prepared_folders

    place = page.place_of(html, overwrite=overwrite, inputs=[model])

    def show(found: Any, document: Callable[[Any], dict[str, Any]], text: Callable[[Any], None]) -> None:
        page.write(place, f"Inspection of {model.name}", lambda: text(found))
        with output.reporting_beside(html):
            reporting.show(found, document, text, as_json=as_json)

    if prepared_folders.is_prepared(model):
        arguments.refuse_together("A prepared folder", {"--load": load})
        folder = prepared_folders.gather(model, soc_model=soc_model, host_python=host_python)
        show(folder, prepared_folders.document, prepared_folders.print_facts)
        return
    if model.is_dir():
        arguments.refuse_together("A folder for text generation", {"--soc-model": soc_model is not None})
        facts = inspection.gather_folder(model, host_python=host_python, load=load)
        show(facts, inspection.folder_document, inspection.print_folder)
        return
    arguments.refuse_together("A model file", {"--load": load and model.exists()})
    # Check the contents, because a context binary can have any suffix.
    if binaries.is_binary(model):
        binary = binaries.gather(model, soc_model=soc_model, host_python=host_python)
        show(binary, binaries.document, binaries.print_facts)
        return
    found = inspection.gather(model, soc_model=soc_model, host_python=host_python)
    show(found, inspection.document, inspection.print_facts)


@command
def wrap(
    binary: Annotated[Path, typer.Argument(metavar="BINARY", help="A QNN context binary: model.bin.")],
    target: TargetModel,
    graphs: Annotated[
        tuple[str, ...],
        typer.Option("--graph", metavar="NAME", help="Wrap only this graph of the binary. May be repeated."),
    ] = (),
    together: Annotated[
        bool, typer.Option("--together", help="Write one model for all graphs, instead of one for each graph.")
    ] = False,
    float_io: Annotated[
        bool,
        typer.Option(
            "--float-io", help="Inputs and outputs are float32; the CPU converts to QNN's types and back."
        ),
    ] = False,
    host_python: HostPython = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Make an ONNX model around a context binary. Sessions then run models of AI Hub, QAIRT or QAI AppBuilder."""
    from qnnbridge_tools import binaries

    done = binaries.wrap_binary(
        binary,
        target,
        graphs=graphs,
        together=together,
        float_io=float_io,
        host_python=host_python,
        overwrite=overwrite,
    )
    reporting.show(done, binaries.wrapping_document, binaries.print_wrapping, as_json=as_json)
