"""Numbers that are told of outputs."""

from __future__ import annotations

import numpy as np
import pytest

from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.tensors import Sparse, Typed
from qnnbridge_tools.run_once import TensorSummary, summarize


def test_least_greatest_and_mean_are_of_the_finite_elements() -> None:
    value = np.array([1, 2, np.nan, 6, -np.inf], dtype=np.float32)
    assert summarize(value) == TensorSummary("float32", (5,), 1.0, 6.0, 3.0, not_finite=2)
    assert summarize(value).numbers_text() == ("1", "6", "3 (2 NaN or infinite)")


def test_the_mean_of_many_halves_does_not_overflow() -> None:
    assert summarize(np.full(10_000, 60_000, np.float16)).mean == pytest.approx(60_000)


def test_large_integers_keep_their_bounds() -> None:
    told = summarize(np.array([-(2**62), 2**62], np.int64))
    assert (told.least, told.greatest) == (-(2.0**62), 2.0**62)


@pytest.mark.parametrize(
    ("value", "kind", "shape"),
    [
        (np.zeros((2, 0), np.float32), "float32", (2, 0)),
        (np.array(["a"], dtype=object), "string", (1,)),
        (np.full(2, np.nan), "float64", (2,)),
        ([np.zeros(1)], "sequence of 1", None),
        ({1: 2.0}, "map of 1", None),
        (None, "empty optional", None),
        (Sparse(np.zeros(0, np.float32), (2, 2), "coo", (np.zeros(0, np.int64),)), "sparse coo", (2, 2)),
    ],
)
def test_where_there_are_no_numbers_only_kind_and_shape_are_told(
    value: object, kind: str, shape: tuple[int, ...] | None
) -> None:
    told = summarize(value)
    assert (told.kind, told.shape, told.least, told.mean) == (kind, shape, None, None)


def test_types_beyond_numpy_are_told_by_their_onnx_name() -> None:
    pytest.importorskip("ml_dtypes")
    one_and_two = Typed(np.array([0x3F80, 0x4000], np.uint16), ElementType.BFLOAT16, (2,))
    assert summarize(one_and_two) == TensorSummary("bfloat16", (2,), 1.0, 2.0, 1.5)
    minus_one_and_seven = Typed(np.array([0x7F], np.uint8), ElementType.INT4, (2,))
    assert summarize(minus_one_and_seven) == TensorSummary("int4", (2,), -1.0, 7.0, 3.0)


def test_complex_numbers_are_told_by_their_size() -> None:
    assert summarize(np.array([3 + 4j], np.complex64)) == TensorSummary("complex64", (1,), 5.0, 5.0, 5.0)
