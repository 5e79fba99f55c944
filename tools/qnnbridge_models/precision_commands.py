"""The commands about precision: quantize, evaluate. The tools are imported inside the functions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_models.command_options import EvaluateOptions
from qnnbridge_models.quantize_settings import QuantizeOptions
from qnnbridge_tools import reporting
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson, Config, TargetModel


@command
def quantize(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A float ONNX file, not a compiled one.")],
    target: TargetModel,
    options: QuantizeOptions,
    _config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Quantise a float model for QNN and report the loss of accuracy.

    Exit code 0: usable result; 1: an output is useless, or the target is missed.
    """
    from qnnbridge_models.quantize.quantization import document, print_result
    from qnnbridge_models.quantize.quantizer import quantize_model
    from qnnbridge_models.shared.progress import ShownProgress

    with ShownProgress() as progress:
        result = quantize_model(model, target, options, on_progress=progress, own_process=True)
    reporting.show(result, document, print_result, as_json=as_json)
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
    as_json: AsJson = False,
) -> None:
    """Evaluate a model over samples, on the CPU, on QNN and quantised, in one table.

    With --calibration the model is quantised for it, with the defaults. Exit code 1 if a row fails or is useless.
    """
    from qnnbridge_models.evaluate.evaluation import document, print_result
    from qnnbridge_models.evaluate.evaluator import evaluate_model
    from qnnbridge_models.shared.progress import ShownProgress

    with ShownProgress() as progress:
        result = evaluate_model(model, options, on_progress=progress)
    reporting.show(result, document, print_result, as_json=as_json)
    if not result.good:
        raise typer.Exit(reporting.EXIT_FAILED)
