"""Run ONNX's node tests twice with the CPU provider: in this process, and through the bridge.

Both runs agree if they return the same values, bit for bit, with the same dtypes and structure, or raise errors of
the same class with the same text. Some tests are changed, so that more of them can be compared:

- Both sides refuse models of an IR version or opset that the installed ONNX Runtime does not support yet. Such models
  are compared unchanged, and again with the newest supported version.
- ``run`` of ONNX Runtime refuses arrays of types that numpy lacks (bfloat16, float8, below a byte), though
  it computes with them. Then the direct side passes and takes the same bits with `OrtValue`. The bridge
  takes and returns such arrays in ``run``.
- ONNX ships some scalars as ``numpy.float32`` and the like, which ``run`` refuses; they are passed as arrays
  without dimensions.

`python -m tests.conformance.backend_suite [NAME ...]` prints what differs.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from qnnbridge_protocol.values import ElementType, Typed, equal_bits

CPU = ["CPUExecutionProvider"]
# Element types that numpy lacks, and the numpy types that hold their bits.
WITHOUT_NUMPY = {
    TensorProto.BFLOAT16: np.uint16,
    TensorProto.FLOAT8E4M3FN: np.uint8,
    TensorProto.FLOAT8E4M3FNUZ: np.uint8,
    TensorProto.FLOAT8E5M2: np.uint8,
    TensorProto.FLOAT8E5M2FNUZ: np.uint8,
    TensorProto.FLOAT8E8M0: np.uint8,
}

BELOW_A_BYTE = (TensorProto.INT4, TensorProto.UINT4, TensorProto.INT2, TensorProto.UINT2, TensorProto.FLOAT4E2M1)
REFUSED_FOR_NUMPY = ("can't be converted to MLDataType", "No corresponding Numpy type")
REFUSED_FOR_IR_VERSION = re.compile(r"max supported IR version: (\d+)")
REFUSED_FOR_OPSET = re.compile(r"Current official support for domain ai.onnx is till opset (\d+)")


@dataclasses.dataclass
class Outcome:
    """Outcome of a run: outputs, or an error."""

    outputs: list[Any] | None = None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"{type(self.error).__name__}: {str(self.error)[:300]}"
        return str([getattr(o, "dtype", type(o).__name__) for o in self.outputs or []])


def cases() -> list[Any]:
    """Return all node tests of the installed onnx."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they overflow and divide by zero deliberately
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def feeds_of(case: Any) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each data set, as an application would pass them."""
    names = [node.name for node in case.model.graph.input]
    for inputs, _ in case.data_sets or []:
        yield dict(zip(names, map(plain, inputs), strict=False))


def plain(value: Any) -> Any:
    """Convert a protobuf value to numpy arrays, lists and ``None``. Scalars become arrays."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


# --- the two sides ---------------------------------------------------------------------------------------


def direct(model: bytes, feeds: Mapping[str, Any]) -> Outcome:
    """Run the model with ONNX Runtime in this process."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4

    def run() -> list[Any]:
        session = onnxruntime.InferenceSession(model, options, providers=CPU)
        try:
            return list(session.run(None, feeds))
        except RuntimeError as error:
            if not any(text in str(error) for text in REFUSED_FOR_NUMPY):
                raise
        bound = {name: ort_value(array) for name, array in feeds.items()}
        return [numpy_of(value) for value in session.run_with_ort_values(None, bound)]

    return attempt(run)


def ort_value(array: Any) -> onnxruntime.OrtValue:
    """Return the bits of `array` with their ONNX type, since ONNX Runtime does not support dtypes of ml_dtypes."""
    element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    if element_type in BELOW_A_BYTE:
        # numpy cannot represent several elements per byte, so they are written into memory of ONNX Runtime.
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element_type, "cpu", 0)
        packed = numpy_helper.from_array(array).raw_data
        ctypes.memmove(value.data_ptr(), packed, len(packed))
        return value
    if element_type in WITHOUT_NUMPY:
        raw = array.view(WITHOUT_NUMPY[element_type])
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, element_type)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def numpy_of(value: onnxruntime.OrtValue) -> Any:
    """Return the output as a numpy array, or its raw bits with the ONNX type if numpy lacks the type."""
    try:
        return value.numpy()
    except RuntimeError as error:
        if not any(text in str(error) for text in REFUSED_FOR_NUMPY):
            raise
    element_type = value.element_type()
    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    raw = np.frombuffer(bits, WITHOUT_NUMPY.get(element_type, np.uint8))
    return Typed(raw, ElementType(element_type), tuple(value.shape()))


def bridged(host: qnnbridge.Host, model: bytes, feeds: Mapping[str, Any]) -> Outcome:
    """Run the model through the bridge."""
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


# --- the comparison --------------------------------------------------------------------------------------


def same(one: Outcome, two: Outcome) -> bool:
    """Return whether both outcomes are equal: values bit for bit, dtypes and structure, or class and text of the
    error.
    """
    if one.error is not None:
        return isinstance(two.error, type(one.error)) and str(one.error) in str(two.error)
    return two.outputs is not None and equal_bits(bare(one.outputs), bare(two.outputs))


def bare(value: Any) -> Any:
    """Return the error's text without the prefixes that either side adds."""
    if isinstance(value, list):
        return [bare(item) for item in value]
    if isinstance(value, np.generic):
        return np.asarray(value)
    return value


@dataclasses.dataclass
class Tally:
    """Counts of the comparison.

    Args:
        cases: number of node tests of onnx that were run.
    """

    cases: int = 0
    values: int = 0
    errors: int = 0
    different: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"onnx {onnx.__version__}, {self.cases} node tests: {self.values} runs gave equal values, "
            f"{self.errors} equal errors, {len(self.different)} differed"
        )


def compare(host: qnnbridge.Host, names: list[str] | None = None, stride: int = 1) -> Tally:
    """Run all node tests, or the named ones, on both sides. stride: run only every n-th test."""
    tally = Tally()
    for case in cases()[::stride]:
        if names and case.name not in names:
            continue
        tally.cases += 1
        for feeds in feeds_of(case):
            model: onnx.ModelProto | None = case.model
            while model is not None:
                model = known_version(model, compare_run(tally, host, case.name, model, feeds).error)
    return tally


def known_version(model: onnx.ModelProto, refusal: Exception | None) -> onnx.ModelProto | None:
    """Return a copy with a version that ONNX Runtime supports, if `refusal` is about the version."""
    older = onnx.ModelProto()
    older.CopyFrom(model)
    if found := REFUSED_FOR_IR_VERSION.search(str(refusal)):
        older.ir_version = int(found[1])
    elif found := REFUSED_FOR_OPSET.search(str(refusal)):
        for opset in older.opset_import:
            if opset.domain in ("", "ai.onnx"):
                opset.version = int(found[1])
    return older if found else None


def compare_run(
    tally: Tally, host: qnnbridge.Host, name: str, model: onnx.ModelProto, feeds: Mapping[str, Any]
) -> Outcome:
    """Run one model on both sides and count the result. Return the outcome of the direct side."""
    data = model.SerializeToString()
    one, two = direct(data, feeds), bridged(host, data, feeds)
    if not same(one, two):
        opset = model.opset_import[0].version
        tally.different.append(f"{name} (opset {opset})\n  direct:  {one}\n  bridged: {two}")
    elif one.error is None:
        tally.values += 1
    else:
        tally.errors += 1
    return one


if __name__ == "__main__":
    with qnnbridge.Host() as the_host:
        result = compare(the_host, sys.argv[1:] or None)
    print(*result.different, result, sep="\n")
