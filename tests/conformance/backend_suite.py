"""ONNX's own node tests, each run twice with the CPU provider: directly in this process, and through the bridge.

`python -m tests.conformance.backend_suite [NAME ...]` prints what differs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

import qnnbridge
from qnnbridge_protocol.values import ElementType, Typed, equal_bits

CPU = ["CPUExecutionProvider"]
RAW_TYPES = (
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.FLOAT8E4M3FN,
    onnx.TensorProto.FLOAT8E4M3FNUZ,
    onnx.TensorProto.FLOAT8E5M2,
    onnx.TensorProto.FLOAT8E5M2FNUZ,
    onnx.TensorProto.INT4,
    onnx.TensorProto.UINT4,
)


@dataclasses.dataclass
class Outcome:
    """What a run gave: outputs, or an error."""

    outputs: list[Any] | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"{type(self.error).__name__}: {str(self.error)[:200]}"
        return str([getattr(o, "dtype", type(o).__name__) for o in self.outputs or []])


def cases() -> list[Any]:
    """All node tests of the installed onnx."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they overflow and divide by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def feeds_of(case: Any) -> Iterator[dict[str, Any]]:
    """The inputs of each data set, as an application would pass them."""
    names = [node.name for node in case.model.graph.input]
    for inputs, _ in case.data_sets or []:
        yield dict(zip(names, (plain(value) for value in inputs)))


def plain(value: Any) -> Any:
    """Protobuf values as numpy arrays, lists and ``None``."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return value


def direct(model: bytes, feeds: dict[str, Any]) -> Outcome:
    """In this process.

    ``run`` refuses arrays of the types that numpy lacks (bfloat16, float8, four bits), though ONNX Runtime computes
    with them; the way to do so is `OrtValue`. The bridge takes such arrays in ``run``.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4

    def run() -> list[Any]:
        session = onnxruntime.InferenceSession(model, options, providers=CPU)
        if any(getattr(value, "dtype", np.dtype(bool)).kind == "V" for value in feeds.values()):
            bound = {name: ort_value(value) for name, value in feeds.items()}
            return [numpy_of(value) for value in session.run_with_ort_values(None, bound)]
        return list(session.run(None, feeds))

    return attempt(run)


def ort_value(array: Any) -> onnxruntime.OrtValue:
    """The bits of `array` under their ONNX type; ONNX Runtime knows no dtype of ml_dtypes."""
    if array.dtype.kind != "V":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    if array.dtype.name in ("int4", "uint4"):
        # Two elements in a byte; numpy has no shape for that, so it is written into memory of ONNX Runtime.
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element_type, "cpu", 0)
        packed = numpy_helper.from_array(array).raw_data
        ctypes.memmove(value.data_ptr(), packed, len(packed))
        return value
    raw = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element_type)


def numpy_of(value: onnxruntime.OrtValue) -> Any:
    """The output as numpy, or its raw bits under the ONNX type where ONNX Runtime has no numpy type."""
    element_type = value.element_type()
    if element_type not in RAW_TYPES:
        return value.numpy()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    dtype = np.uint16 if element_type == onnx.TensorProto.BFLOAT16 else np.uint8
    return Typed(np.frombuffer(bits, dtype), ElementType(element_type), tuple(value.shape()))


def bridged(host: qnnbridge.Host, model: bytes, feeds: dict[str, Any]) -> Outcome:
    options = qnnbridge.SessionOptions()
    options.log_severity_level = 4

    def run() -> list[Any]:
        with qnnbridge.InferenceSession(model, options, providers=CPU, host=host) as session:
            return session.run(None, feeds)

    return attempt(run)


def attempt(run: Callable[[], list[Any]]) -> Outcome:
    try:
        return Outcome(run())
    except Exception as error:
        return Outcome(error=error)


def same(one: Outcome, two: Outcome) -> bool:
    """Same values bit for bit, dtypes and structure; or the same class of error."""
    if one.error is not None:
        return isinstance(two.error, type(one.error))
    return two.outputs is not None and equal_bits(bare(one.outputs), bare(two.outputs))


def bare(value: Any) -> Any:
    """Without the wrappers of either side."""
    if isinstance(value, list):
        return [bare(item) for item in value]
    if isinstance(value, np.generic):
        return np.asarray(value)
    return value


@dataclasses.dataclass
class Tally:
    """How many runs agreed: with values, with errors; and what differed."""

    values: int = 0
    errors: int = 0
    different: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"onnx {onnx.__version__} node tests: {self.values} gave equal values, {self.errors} equal errors, "
            f"{len(self.different)} differed"
        )


def compare(host: qnnbridge.Host, names: list[str] | None = None) -> Tally:
    tally = Tally()
    for case in cases():
        if names and case.name not in names:
            continue
        model = case.model.SerializeToString()
        for feeds in feeds_of(case):
            one, two = direct(model, feeds), bridged(host, model, feeds)
            if not same(one, two):
                tally.different.append(f"{case.name}\n  direct:  {one}\n  bridged: {two}")
            elif one.error is None:
                tally.values += 1
            else:
                tally.errors += 1
    return tally


if __name__ == "__main__":
    with qnnbridge.Host() as host:
        result = compare(host, sys.argv[1:] or None)
    print(*result.different, result, sep="\n")
