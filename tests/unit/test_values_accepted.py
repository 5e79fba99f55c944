"""Values that a caller may pass as a tensor (text in many forms, lists of a declared type), and refused ones."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from qnnbridge_protocol import errors
from qnnbridge_protocol.values import Encoder, decode, equal_bits, from_ort_type


def trip(value: Any, declared: str | None = None) -> Any:
    encoder = Encoder()
    descriptor = encoder.add(value, from_ort_type(declared) if declared else None)
    return decode(descriptor, encoder.buffers)


# --- strings


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "é", "", "日本", "\U0001f600", "nul\0inside"], object),
        np.array([["ab", "c"], ["", "d"]], object).T,
        np.array("scalar", object),
        np.empty((0, 3), object),
        np.empty((2, 0), "U4"),
        np.array(["ü", "v"], ">U3"),
        np.array([b"abc", "ü".encode(), b""]),
    ],
    ids=["unicode", "transposed", "0-d", "empty", "empty-U", "big-endian-U", "bytes"],
)
def test_strings_arrive_as_object_arrays_of_str(array: np.ndarray[Any, Any]) -> None:
    back = trip(array)
    expected = [t.decode() if isinstance(t, bytes) else t for t in array.reshape(-1).tolist()]
    assert back.dtype == object
    assert back.shape == array.shape
    assert back.reshape(-1).tolist() == expected
    assert all(type(text) is str for text in back.reshape(-1))


@pytest.mark.skipif(
    not hasattr(np.dtypes, "StringDType") if hasattr(np, "dtypes") else True,
    reason="needs StringDType, which numpy 1 does not have",
)
def test_variable_width_strings_of_numpy_can_be_sent() -> None:
    array = np.array(["a", "longer than the short form"], np.dtypes.StringDType())
    assert trip(array).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.array(["a", None], object), "Element 1 .* NoneType"),
        (np.array([1, 2], object), "Element 0 .* int"),
        (np.array([b"a"], object), "Element 0 .* bytes"),
        (np.array(["ok", "\ud800"], object), "Element 1 .* UTF-8"),
        (np.array(["\udcff"]), "Element 0 .* UTF-8"),
        (np.array([b"\xff"]), "UTF-8"),
        (np.array([0x110000], np.uint32).view("<U1"), "not valid Unicode"),
    ],
    ids=["none", "int", "bytes", "surrogate", "U-surrogate", "latin-bytes", "beyond-unicode"],
)
def test_values_that_are_not_text_are_refused(array: np.ndarray[Any, Any], word: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=word):
        Encoder().add(array)


def test_text_too_long_for_the_offsets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qnnbridge_protocol.tensors.MAX_TEXT_BYTES", 5)
    assert trip(np.array(["abc", "de"], object)).tolist() == ["abc", "de"]
    with pytest.raises(errors.InvalidArgument, match="at most 5"):
        Encoder().add(np.array(["abc", "dé"], object))


# --- declared types


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        ([1, 2, 3], "tensor(float)", np.array([1, 2, 3], np.float32)),
        ([[1, 2], [3, 4]], "tensor(int8)", np.array([[1, 2], [3, 4]], np.int8)),
        ([1.5, 2], "tensor(int64)", np.array([1, 2], np.int64)),
        ([1, 0, 5], "tensor(bool)", np.array([True, False, True])),
        (["1.5"], "tensor(float)", np.array([1.5], np.float32)),
        ([], "tensor(float)", np.array([], np.float32)),
        (2, "tensor(double)", np.array(2.0)),
        ("text", "tensor(string)", np.array("text", object)),
        (["a", "b"], "tensor(string)", np.array(["a", "b"], object)),
        ([1.0], "optional(tensor(float16))", np.array([1], np.float16)),
        ([np.float32(1), 2], "tensor(float)", np.array([1, 2], np.float32)),
    ],
)
def test_lists_become_tensors_of_the_declared_type(value: Any, declared: str, expected: Any) -> None:
    assert equal_bits(trip(value, declared), expected)


def test_lists_become_sequences_if_a_sequence_is_declared() -> None:
    back = trip([[1.0], [2.0, 3.0]], "optional(seq(tensor(float)))")
    assert equal_bits(back, [np.array([1], np.float32), np.array([2, 3], np.float32)])
    assert trip(None, "optional(seq(tensor(float)))") is None


@pytest.mark.parametrize("declared", ["tensor(float)", "seq(tensor(float))", "tensor(string)", "tensor(bfloat16)"])
def test_an_array_of_another_type_is_not_converted(declared: str) -> None:
    assert trip(np.array([1.0]), declared).dtype == np.float64


def test_lists_become_bfloat16_with_ml_dtypes_and_are_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ml_dtypes")
    assert trip([1.0, -2.0], "tensor(bfloat16)").data.tolist() == [0x3F80, 0xC000]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(errors.InvalidArgument, match="bfloat16") as caught:
        trip([1.0], "tensor(bfloat16)")
    assert "ml_dtypes" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        ([[1], [2, 3]], "tensor(float)"),
        (["x"], "tensor(float)"),
        ([2**70], "tensor(int64)"),
        ([{"a": 1}], "tensor(float)"),
        ([1, 2], "tensor(string)"),
        (b"bytes", None),
        (1.5, None),
        ("text", None),
        ([1.0], None),
        (object(), None),
        (object(), "tensor(float)"),
        ({1, 2}, "tensor(float)"),
        (np.array(["2024"], "M8[Y]"), None),
        (np.zeros(1, [("a", "f4")]), None),
    ],
)
def test_a_value_without_an_onnx_type_is_refused_with_a_fix(value: Any, declared: str | None) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        trip(value, declared)
    assert caught.value.fix
