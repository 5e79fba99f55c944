"""The commands about precision: quantize, evaluate. Only typer is imported at the top, as in all of them."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import (
    AsJson,
    Calibration,
    Config,
    Dims,
    HostPython,
    Large,
    Overwrite,
    Provider,
    ProviderOptions,
    Seed,
    SocModel,
    TargetModel,
    Timeout,
)


class ActivationType(str, enum.Enum):
    UINT8 = "uint8"
    UINT16 = "uint16"
    INT8 = "int8"
    INT16 = "int16"


class WeightType(str, enum.Enum):
    UINT8 = "uint8"
    INT8 = "int8"
    INT4 = "int4"
    INT16 = "int16"


class Method(str, enum.Enum):
    MINMAX = "minmax"
    ENTROPY = "entropy"
    PERCENTILE = "percentile"


def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A float ONNX file, not a compiled one.")],
    target: TargetModel,
    calibration: Calibration = None,
    random: Annotated[
        int, typer.Option(min=0, metavar="N", help="Calibrate with N made-up samples: only to try things out.")
    ] = 0,
    seed: Seed = 0,
    held_out: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Samples kept for the comparison; default a fifth, at most 10."),
    ] = None,
    dims: Dims = None,
    activation_type: Annotated[
        ActivationType, typer.Option(help="Of everything that flows.")
    ] = ActivationType.UINT16,
    weight_type: Annotated[
        WeightType | None, typer.Option(help="Of constants. Default int8, or uint8 with --per-tensor.")
    ] = None,
    per_channel: Annotated[
        bool | None,
        typer.Option("--per-channel/--per-tensor", help="Scales of Conv weights. Default per channel."),
    ] = None,
    symmetric_activations: Annotated[
        bool, typer.Option("--symmetric-activations", help="Zero in the middle of each range.")
    ] = False,
    symmetric_weights: Annotated[
        bool | None,
        typer.Option("--symmetric-weights/--asymmetric-weights", help="Default: symmetric if the type has a sign."),
    ] = None,
    method: Annotated[Method, typer.Option(help="How ranges are found from the samples.")] = Method.MINMAX,
    percentile: Annotated[
        float, typer.Option(metavar="P", help="For --method percentile: how much of the values counts.")
    ] = 99.999,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="NODES", help="Leave float: a node, an operator, a pattern (*/stft/*). Repeatable."),
    ] = None,
    wide: Annotated[
        list[str] | None,
        typer.Option(metavar="NODES", help="16 bits for these, named as for --exclude. Repeatable."),
    ] = None,
    target_snr: Annotated[
        float | None,
        typer.Option(metavar="DB", help="Leave the worst layers in 16 bits or float until each output has DB."),
    ] = None,
    search_timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="For --target-snr: seconds, then the best so far is taken.")
    ] = 600.0,
    layer_report: Annotated[
        bool, typer.Option("--layer-report", help="Show what the quantisation of each layer costs.")
    ] = False,
    split_outputs: Annotated[
        bool,
        typer.Option(help="Quantise branches apart that one output joins and that differ in magnitude."),
    ] = True,
    check_qnn: Annotated[
        bool | None,
        typer.Option(
            "--check-qnn/--no-check-qnn",
            help="Also run the result on QNN: where its nodes run, what differs. Default: if there is a QNN here.",
        ),
    ] = None,
    soc_model: SocModel = None,
    provider_options: ProviderOptions = None,
    host_python: HostPython = None,
    timeout: Timeout = None,
    large: Large = False,
    overwrite: Overwrite = False,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Quantise a float model for QNN and report the loss of accuracy.

    Ends with 0 if the result is of use, 1 if an output is useless or the target is missed.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_models.quantize.qnn_check import QnnHostOptions
        from qnnbridge_models.quantize.quantizer import quantize_model
        from qnnbridge_models.quantize.result import document, print_result
        from qnnbridge_models.quantize.settings import QuantizeOptions, QuantizeSettings
        from qnnbridge_models.shared.progress import ShownProgress
        from qnnbridge_tools import arguments, output

        settings = QuantizeSettings(
            activation_type=activation_type.value,
            weight_type=weight_type.value if weight_type else None,
            per_channel=per_channel,
            symmetric_activations=symmetric_activations,
            symmetric_weights=symmetric_weights,
            method=method.value,
            percentile=percentile,
            exclude=tuple(exclude or ()),
            wide=tuple(wide or ()),
            split_outputs=split_outputs,
            target_snr=target_snr,
            search_timeout_s=search_timeout,
            layer_report=layer_report,
        )
        provider = arguments.read_provider_options(provider_options or ())
        if soc_model is not None:
            provider["soc_model"] = soc_model
        options = QuantizeOptions(
            calibration=tuple(calibration or ()),
            random=random,
            seed=seed,
            held_out=held_out,
            dims=arguments.read_dimensions(dims or ()),
            settings=settings,
            qnn=None if check_qnn is False else QnnHostOptions(provider, host_python, timeout, bool(check_qnn)),
            overwrite=overwrite,
            large=large,
        )
        with ShownProgress() as progress:
            result = quantize_model(model, target, options, on_progress=progress, own_process=True)
        if as_json:
            output.print_json(document(result))
        else:
            print_result(result)
        failed = result.qnn.error if result.qnn else None
        if failed is not None:
            if not as_json:
                raise failed
            raise typer.Exit(reporting.exit_code_of(failed))
        if not result.good_enough:
            raise typer.Exit(reporting.EXIT_FAILED)


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")],
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input", metavar="PATH", help="Samples: a folder of .npz or .npy files, or one. Repeatable."
        ),
    ] = None,
    expected: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Files of the same names, with expected outputs by name.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="FILE.py:FUNC", help="FUNC(outputs, samples) gives a number, or several.")
    ] = None,
    quantized: Annotated[
        list[Path] | None, typer.Option(metavar="Q.onnx", help="A quantised model to evaluate, too. Repeatable.")
    ] = None,
    calibration: Calibration = None,
    on: Annotated[list[Provider] | None, typer.Option(help="Where. Default both. Repeatable.")] = None,
    dims: Dims = None,
    soc_model: SocModel = None,
    provider_options: ProviderOptions = None,
    timeout: Timeout = None,
    host_python: HostPython = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model over samples, on the CPU, on QNN and quantised, in one table.

    With --calibration the model is quantised for it, with the defaults. Ends with 1 if a row fails or is useless.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_models.evaluate.evaluator import EvaluateOptions, evaluate_model
        from qnnbridge_models.evaluate.result import document, print_result
        from qnnbridge_models.shared.progress import ShownProgress
        from qnnbridge_tools import arguments, output

        provider = arguments.read_provider_options(provider_options or ())
        if soc_model is not None:
            provider["soc_model"] = soc_model
        options = EvaluateOptions(
            inputs=tuple(inputs or ()),
            expected=expected,
            metric=metric,
            quantized=tuple(quantized or ()),
            calibration=tuple(calibration or ()),
            providers=tuple(one.value for one in on) if on else ("cpu", "qnn"),
            dims=arguments.read_dimensions(dims or ()),
            provider_options=provider,
            timeout_s=arguments.read_timeout(timeout),
            host_python=host_python,
        )
        with ShownProgress() as progress:
            result = evaluate_model(model, options, on_progress=progress)
        if as_json:
            output.print_json(document(result))
        else:
            print_result(result)
        if not result.good:
            raise typer.Exit(reporting.EXIT_FAILED)
