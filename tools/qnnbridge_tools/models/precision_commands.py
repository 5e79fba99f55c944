"""The command about precision: quantize. Only typer is imported at the top, as in all command modules."""

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
    Overwrite,
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
    overwrite: Overwrite = False,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Quantise a float model for QNN, and tell what is left of its numbers.

    Ends with 0 if the result is of use, 1 if an output is useless or the target is missed.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.quantize.qnn_check import QnnHostOptions
        from qnnbridge_tools.models.quantize.quantizer import quantize_model
        from qnnbridge_tools.models.quantize.result import document, print_result
        from qnnbridge_tools.models.quantize.settings import QuantizeOptions, QuantizeSettings
        from qnnbridge_tools.models.shared.progress import ShownProgress

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
