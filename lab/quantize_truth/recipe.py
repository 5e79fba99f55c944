"""The quantisation recipe of ONNX Runtime's documentation for QNN, written by hand without code of this project."""

from __future__ import annotations

import contextlib
import io
import logging
from pathlib import Path
from typing import Any


def quantize(model: Path, target: Path, samples: list[dict[str, Any]], bits: int) -> str:
    """Quantise the model with activations of `bits` bits. Return the error text, or "" on success."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType
    from onnxruntime.quantization import quantize as ort_quantize
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

    class Reader(CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            self._left = iter(samples)

        def get_next(self) -> Any:
            return next(self._left, None)

    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            prepared = target.with_suffix(".pre.onnx")
            source = prepared if qnn_preprocess_model(model, prepared) else model
            kind = QuantType.QUInt16 if bits == 16 else QuantType.QUInt8
            config = get_qnn_qdq_config(source, Reader(), activation_type=kind, weight_type=QuantType.QUInt8)
            ort_quantize(source, target, config)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    finally:
        logging.disable(logging.NOTSET)
    return ""


def leaves_weights_float(model: Path) -> bool:
    """Return whether weights are still float: the recipe does not quantise weights in Constant nodes."""
    import onnx

    graph = onnx.load(str(model)).graph
    small = {onnx.TensorProto.UINT8, onnx.TensorProto.INT8}
    return not any(tensor.data_type in small and len(tensor.dims) > 1 for tensor in graph.initializer)
