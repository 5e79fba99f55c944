"""`qnnbridge quantize`: the command line."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting


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
    target: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="Where to write the result.")],
    calibration: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Samples: a folder of .npz or .npy files, or one file. May be repeated."),
    ] = None,
    random: Annotated[
        int, typer.Option(min=0, metavar="N", help="Calibrate with N made-up samples: only to try things out.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of the made-up samples.")] = 0,
    held_out: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Samples kept for the comparison; default a fifth, at most 10."),
    ] = None,
    dims: Annotated[
        list[str] | None,
        typer.Option("--dim", metavar="NAME=SIZE", help="Fix a free dimension; INPUT:AXIS=SIZE works, too."),
    ] = None,
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
    check_qnn: Annotated[
        bool, typer.Option("--check-qnn", help="Also run the result on QNN: where its nodes run, what differs.")
    ] = False,
    provider_options: Annotated[
        list[str] | None,
        typer.Option("--provider-option", metavar="KEY=VALUE", help="For --check-qnn: option of the provider."),
    ] = None,
    host_python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="For --check-qnn: interpreter of the host.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="S", help="For --check-qnn: seconds a call.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Quantise a float model for QNN, and compare it with the original."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import arguments, output
        from qnnbridge_tools.models.quantize import report
        from qnnbridge_tools.models.quantize.qnn_check import HostSettings
        from qnnbridge_tools.models.quantize.quantizer import quantize_model
        from qnnbridge_tools.models.shared.progress import ShownProgress

        host = HostSettings(arguments.read_provider_options(provider_options or ()), host_python, timeout)
        with ShownProgress() as progress:
            result = quantize_model(
                model,
                target,
                calibration or (),
                random=random,
                seed=seed,
                held_out=held_out,
                dims=arguments.read_dimensions(dims or ()),
                activation_type=activation_type.value,
                weight_type=weight_type.value if weight_type else None,
                per_channel=per_channel,
                symmetric_activations=symmetric_activations,
                symmetric_weights=symmetric_weights,
                method=method.value,
                percentile=percentile,
                check_qnn=host if check_qnn else None,
                overwrite=overwrite,
                on_progress=progress,
                own_process=True,
            )
        failed = result.qnn.error if result.qnn else None
        if as_json:
            output.print_json(report.document(result))
        else:
            report.print_result(result)
        if failed is not None:
            if not as_json:
                raise failed
            raise typer.Exit(reporting.exit_code_of(failed))
