"""The command lines of `demo`, `doctor`, `run`, `compile`, `bench`, `inspect`, `wrap`, `versions` and `top`.

Each function reads its options and hands over to the package of its name, which it imports only then: a command
module imports only typer and the standard library at its top.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import (
    AsJson,
    Buckets,
    Chip,
    Config,
    Constants,
    Dims,
    Fallback,
    HostPython,
    Html,
    Inputs,
    OnCpu,
    Overwrite,
    Provider,
    ProviderName,
    ProviderOptions,
    Shapes,
    SocModel,
    SocModels,
    SystemSdk,
    TargetModel,
    Timeout,
)
from qnnbridge_tools.top.view import SortOrder

LEAST_INTERVAL_S = 0.2


def demo(
    host_python: HostPython = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show a trained model at work on QNN, the CPU beside it.

    Tells which way up six lines of text are, computed by QNN in the host process, where and how fast. Ends
    with 0 only if QNN answered and every answer is right.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output
        from qnnbridge_tools.demo import report
        from qnnbridge_tools.demo.compute import compute

        if not as_json:
            report.print_question()
        outcome = compute(host_python=host_python, timeout_s=timeout)
        if as_json:
            output.print_json(report.document(outcome))
        else:
            report.print_outcome(outcome)
        raise typer.Exit(0 if outcome.ok else reporting.EXIT_FAILED)


def doctor(
    host_python: HostPython = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Examine this model on this host, too.")
    ] = None,
    dims: Dims = None,
    backend_path: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The provider option backend_path that your application uses."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a second: no hashing, no live probe.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds for a live probe.")] = 60.0,
    fix: Annotated[bool, typer.Option("--fix", help="Offer to mend what can be mended without harm.")] = False,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write what was found out, to be diagnosed elsewhere.")
    ] = None,
    from_snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Diagnose another computer's snapshot.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Explain a pasted message or code; - reads standard input.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with this machine, and how to mend it.

    Ends with 0 if all is well, 1 if something is degraded, 2 if the NPU cannot be used.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_tools.doctor.examine import DoctorOptions, perform
        from qnnbridge_tools.doctor.survey import SurveyOptions

        order = SurveyOptions(
            host_python=host_python,
            model=str(model) if model is not None else None,
            backend=backend_path,
            quick=quick,
            probe_timeout_s=timeout,
            dimensions=tuple(dims or ()),
        )
        request = DoctorOptions(order, snapshot, from_snapshot, explain, fix, as_json)
        raise typer.Exit(perform(request, lambda question: typer.confirm(question, err=True)))


def run(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    inputs: Inputs = None,
    archive: Annotated[
        Path | None, typer.Option("--inputs", hidden=True, help="The same as --input FILE.npz.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Make up the inputs that no file gives.")] = False,
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="For --random: the same seed gives the same values.")
    ] = 0,
    soc_model: SocModel = None,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
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
        import dataclasses

        from qnnbridge_tools import arguments, output, run_once
        from qnnbridge_tools.run_once import RunRequest, perform
        from qnnbridge_tools.sized import sized_model

        named, whole = arguments.read_one_set([*(inputs or ()), *([str(archive)] if archive is not None else [])])
        request = RunRequest(
            model=model,
            files=named,
            archive=whole,
            seed=seed if random else None,
            dimensions=arguments.read_dimensions(dims or ()),
            output=folder,
            providers=[f"{provider.name}ExecutionProvider"],
            provider_options=arguments.read_provider_options(provider_options or (), soc_model),
            fallback=fallback.value,
            repeat=repeat,
            timeout_s=arguments.read_timeout(timeout),
            host_python=host_python,
        )
        sizes = arguments.read_shapes(shapes or ()), request.dimensions, arguments.read_constants(constants or ())
        with sized_model(model, *sizes) as (sized, left):
            result = perform(dataclasses.replace(request, model=sized, dimensions=left))
        if as_json:
            output.print_json(run_once.document(request, result))
        else:
            run_once.print_result(request, result)


def compile_models(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="ONNX files; compiled ones with --adopt.")
    ],
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
    soc_models: SocModels = None,
    htp_arch: Annotated[int | None, typer.Option(metavar="N", help="The NPU's architecture: 73.")] = None,
    provider_options: ProviderOptions = None,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
    fallback: Annotated[
        OnCpu,
        Overwrite,
        typer.Option(help="What becomes of nodes that QNN does not take: they stay for the CPU, or an error."),
    ] = OnCpu.CPU,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="Seconds for each model; then the compiler is ended.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    adopt_models: Annotated[
        bool,
        typer.Option("--adopt", help="MODEL is compiled already: write its manifest, so that damage is found."),
    ] = False,
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
    buckets: Buckets = None,
    inputs: Inputs = None,
    host_python: HostPython = None,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Compile models for the NPU (EPContext), so that their sessions open in a fraction of the time."""
    with reporting.work(as_json=as_json):
        if adopt_models:
            from qnnbridge_tools.compile.adopt import adopt

            adopt(models, overwrite=overwrite, as_json=as_json)
            return
        import contextlib
        import dataclasses

        from qnnbridge_tools import arguments
        from qnnbridge_tools.compile.compiling import CompileRequest, default_output, perform
        from qnnbridge_tools.sized import sized_model

        request = CompileRequest(
            models=tuple(models),
            output=target,
            embed=embed,
            validate=validate,
            soc_models=tuple(soc_models or ()),
            htp_arch=htp_arch,
            provider_options=arguments.read_provider_options(provider_options or ()),
            dimensions=arguments.read_dimensions(dims or ()),
            buckets=tuple(arguments.read_buckets(buckets or ())),
            fallback=fallback.value,
            timeout_s=timeout,
            overwrite=overwrite,
            share_weights=share_weights,
            jobs=jobs,
            scheduler=scheduler,
            host_python=host_python,
            inputs=tuple(inputs or ()),
        )
        sizes = arguments.read_shapes(shapes or ()), request.dimensions, arguments.read_constants(constants or ())
        with contextlib.ExitStack() as copies:
            if shapes or constants:
                output = default_output(request)
                sized = [copies.enter_context(sized_model(model, *sizes)) for model in models]
                paths = tuple(path for path, _ in sized)
                request = dataclasses.replace(request, models=paths, dimensions=sized[0][1], output=output)
            failed = perform(request, as_json=as_json)
        if failed:
            raise typer.Exit(reporting.EXIT_FAILED)


def bench(
    model: Annotated[
        Path | None, typer.Option("--model", metavar="MODEL", help="An ONNX file in the place of our small ones.")
    ] = None,
    llm: Annotated[
        Path | None,
        typer.Option("--llm", metavar="FOLDER", help="Generate text with the model in it: first token, tokens/s."),
    ] = None,
    provider: Annotated[Provider, typer.Option(help="Execution provider for --model.")] = Provider.QNN,
    fallback: Fallback = OnCpu.ERROR,
    shapes: Shapes = None,
    dims: Dims = None,
    constants: Constants = None,
    inputs: Inputs = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and rounds: some seconds.")] = False,
    pin: Annotated[bool, typer.Option(help="Keep all processes on one CPU while calls are measured.")] = True,
    host_python: HostPython = None,
    as_json: AsJson = False,
    html: Html = None,
) -> None:
    """Measure calls, start-up and recovery, with the bridge and without."""
    with reporting.work(as_json=as_json):
        import dataclasses

        from qnnbridge_protocol.errors import OptionError
        from qnnbridge_tools import arguments, feeds, output
        from qnnbridge_tools.bench import report, work
        from qnnbridge_tools.sized import sized_model

        if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
            raise OptionError(f"{html} cannot be written: it is a folder, or lies in none.")

        def say(doing: str) -> None:
            if sys.stderr is not None and sys.stderr.isatty():
                print(f"... {doing}", file=sys.stderr, flush=True)

        if llm is not None:
            from qnnbridge_tools.generation import measuring

            given = {
                "--model": model is not None,
                "--html": html is not None,
                "--provider": provider is not Provider.QNN,
                "--shape": bool(shapes),
                "--dim": bool(dims),
                "--constant": bool(constants),
                "--input": bool(inputs),
                "--no-pin": not pin,
            }
            arguments.refuse_together("--llm", given)
            effort = measuring.QUICK if quick else measuring.THOROUGH
            paces = measuring.perform(llm, effort, fallback.value, host_python, say)
            if as_json:
                output.print_json(measuring.document(paces))
            else:
                measuring.print_measured(paces)
            return
        request = work.BenchRequest(
            model=model,
            providers=(f"{provider.name}ExecutionProvider",),
            fallback=fallback.value,
            dimensions=arguments.read_dimensions(dims or ()),
            effort=work.QUICK if quick else work.THOROUGH,
            pin=pin,
            host_python=host_python,
            inputs=feeds.load(*arguments.read_one_set(inputs or ())),
        )
        if inputs and model is None:
            raise OptionError("--input goes with --model: our own models have inputs of their own.")
        if model is None:
            measured = work.perform(request, say)
        else:
            sizes = (
                arguments.read_shapes(shapes or ()),
                request.dimensions,
                arguments.read_constants(constants or ()),
            )
            with sized_model(model, *sizes) as (sized, left):
                measured = work.perform(dataclasses.replace(request, model=sized, dimensions=left), say)
        if as_json:
            output.print_json(report.document(measured))
        else:
            report.print_measured(measured)
        if html is not None:
            report.write(measured, html)
            print(f"Written: {html}", file=sys.stderr)


def versions(
    system_sdk: SystemSdk = None,
    chip: Chip = None,
    python: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Python of the host, such as 3.13; else found.")
    ] = None,
    platform: Annotated[
        str | None, typer.Option(help="win_arm64, win_amd64, linux_x86_64 or linux_aarch64; else this one.")
    ] = None,
    ort: Annotated[
        str | None, typer.Option(metavar="VERSION", help="The onnxruntime that it shall work with; else any.")
    ] = None,
    working: Annotated[bool, typer.Option("--working", help="Only what works.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the releases of onnxruntime-qnn, and say which work here and why the others do not."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output
        from qnnbridge_tools.doctor import here
        from qnnbridge_tools.versions import view
        from qnnbridge_tools.versions.fitness import judge

        machine = here.machine_of(here.MachineOptions(system_sdk, chip, python, platform, ort))
        judged = judge(machine)
        shown = [one for one in judged if one.verdict != "refused"] if working else judged
        if as_json:
            output.print_json(view.document(machine, judged, shown))
        else:
            view.print_versions(machine, judged, shown)


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="S", min=LEAST_INTERVAL_S, help="Seconds between looks.")
    ] = 1.0,
    order: Annotated[
        SortOrder, typer.Option("--sort", help="What stands first. The key s changes it.")
    ] = SortOrder.RATE,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", min=1, help="Look so many times, then end. Default without a terminal: 1."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, once.")] = False,
) -> None:
    """Watch the daemon: clients, models, where they run, calls per second, latencies. q ends it."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools.arguments import check_seconds
        from qnnbridge_tools.top import live

        check_seconds("--interval", interval)
        live.watch(interval, order, rounds, as_json)


def inspect(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An ONNX file, a QNN context binary, or a folder with genai_config.json."
        ),
    ],
    soc_model: SocModel = None,
    load: Annotated[
        bool, typer.Option("--load", help="Load a folder's model in a host, to say where each stage runs.")
    ] = False,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Show what a model is made of, and whether a compiled one can run here, without loading it."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments

        if model.is_dir():
            from qnnbridge_tools.generation import folder_report

            arguments.refuse_together("A folder for text generation", {"--soc-model": soc_model is not None})
            facts = folder_report.gather(model, host_python=host_python, load=load)
            reporting.show(facts, folder_report.document, folder_report.print_facts, as_json=as_json)
            return
        from qnnbridge_tools import binaries, inspection

        arguments.refuse_together("A model file", {"--load": load and model.exists()})
        if binaries.is_binary(model):
            binary = binaries.gather(model, soc_model=soc_model, host_python=host_python)
            reporting.show(binary, binaries.document, binaries.print_facts, as_json=as_json)
            return
        found = inspection.gather(model, soc_model=soc_model, host_python=host_python)
        reporting.show(found, inspection.document, inspection.print_facts, as_json=as_json)


def wrap(
    binary: Annotated[Path, typer.Argument(metavar="BINARY", help="A QNN context binary: model.bin.")],
    target: TargetModel,
    graphs: Annotated[
        list[str] | None,
        typer.Option("--graph", metavar="NAME", help="Only this graph of the binary. May be repeated."),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="One model that runs all graphs, instead of one for each.")
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
    """Make an ONNX model around a context binary of AI Hub, QAIRT or QAI AppBuilder, for sessions to run."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import binaries

        done = binaries.wrap_binary(
            binary,
            target,
            graphs=graphs or (),
            together=together,
            float_io=float_io,
            host_python=host_python,
            overwrite=overwrite,
        )
        reporting.show(done, binaries.wrapping_document, binaries.print_wrapping, as_json=as_json)
