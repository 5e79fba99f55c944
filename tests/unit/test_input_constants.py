"""Constants for inputs: accepted values, their form on the wire, and the resulting tensors."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgpack
import numpy as np
import pytest

from qnnbridge_protocol.errors import OptionError, ProtocolDesync
from qnnbridge_protocol.input_constants import MOST_NUMBERS, plain, shown, text_of
from qnnbridge_protocol.input_tensors import array_of, options_text, resolved
from qnnbridge_protocol.specs import FixSpec, SessionSpec
from qnnbridge_tools.arguments import read_constants

TYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
    "uint64": np.uint64,
    "bool": np.bool_,
}


def spec(constants: dict[str, Any]) -> SessionSpec:
    return SessionSpec("m.onnx", fix=FixSpec(constants))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (16000, 16000.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        ((480, 640), [480.0, 640.0]),
        (np.array([[1, 2], [3, 4]], np.int32), [[1.0, 2.0], [3.0, 4.0]]),
        (np.array(7), 7.0),
        ([], []),
        # No float has this value.
        (2**53 + 1, 2**53 + 1),
        ([2**63 - 1, 2], [2**63 - 1, 2.0]),
    ],
)
def test_numbers_and_tensors_are_transferred_exactly(given: Any, expected: Any) -> None:
    assert plain(given) == expected
    header = msgpack.unpackb(msgpack.packb(spec({"c": given}).to_wire()))
    again = SessionSpec.from_wire(header)
    assert again.fix is not None
    assert again.fix.constants == {"c": expected}
    assert repr(again.fix.constants) == repr({"c": expected})


@pytest.mark.parametrize(
    "given",
    ["16000", None, [1, "2"], [[1, 2], [3]], [1, [2]], {"a": 1}, 1j, np.array(["a"]), 2**70 + 1, 10**400],
)
def test_other_kinds_of_constants_are_refused(given: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        plain(given)
    with pytest.raises((TypeError, ValueError)):
        FixSpec({"c": given})


def test_the_size_is_limited_on_the_wire_too() -> None:
    plain(np.zeros(MOST_NUMBERS))
    for many in (np.zeros(MOST_NUMBERS + 1), [0] * (MOST_NUMBERS + 1), np.zeros((2, MOST_NUMBERS))):
        with pytest.raises(ValueError, match="at most"):
            plain(many)
    deep: Any = 0
    for _ in range(12):
        deep = [deep]
    for constants in ({"a": [0] * MOST_NUMBERS, "b": [0]}, {"a": deep}, {"a": [[1], [2, 3]]}, {"a": "text"}):
        with pytest.raises((TypeError, ValueError)):
            FixSpec(constants)
        with pytest.raises(ProtocolDesync):
            SessionSpec.from_wire({"model_path": "m", "fix": {"constants": constants}})


def test_numbers_keep_the_hashes_of_earlier_releases_and_each_vector_has_its_own() -> None:
    # Computed with 0.2.0, where constants were single numbers.
    assert spec({"sr": 16000}).options_hash == "4faf656d13dd7496"
    assert spec({"a": True, "b": 0.5}).options_hash == "42e3bd70e3a796c2"
    vectors = ([480, 640], [640, 480], [480], [[480, 640]], 480, [480, 640, 0], [2**53, 0], [2**53 + 1, 0])
    assert len({spec({"c": one}).options_hash for one in vectors}) == len(vectors)
    assert spec({"c": [480, 640]}).options_hash == spec({"c": np.array([480, 640])}).options_hash


@pytest.mark.parametrize("seed", range(20))
def test_the_option_in_a_message_is_parsed_into_the_same_tensor(seed: int) -> None:
    """Format any tensor of any type and parse it again: the input determines its dimensions."""
    rng = np.random.default_rng(seed)
    for text, dtype in TYPES.items():
        shape = tuple(int(size) for size in rng.integers(1, 4, rng.integers(0, 4)))
        if dtype is np.bool_:
            value = rng.integers(0, 2, shape).astype(bool)
        elif np.issubdtype(dtype, np.integer):
            bounds = np.iinfo(dtype)
            value = rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
        else:
            value = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)).astype(dtype)
        given = plain(value)
        for constant in (given, read_constants([f"c={text_of(given)}"])["c"]):
            made = array_of(constant, "c", f"tensor({text})", value.shape)
            assert made.dtype == value.dtype
            np.testing.assert_array_equal(made, value, strict=True)


def test_a_number_fills_an_input_and_a_list_of_one_is_a_vector_or_a_scalar() -> None:
    np.testing.assert_array_equal(array_of(3.0, "c", "tensor(int64)", [2, 2]), np.full((2, 2), 3, np.int64))
    assert array_of(3.0, "c", "tensor(int64)", []).shape == ()
    assert array_of([3.0], "c", "tensor(int64)", []).shape == ()
    assert array_of(3.0, "c", "tensor(int64)", [1]).shape == (1,)
    assert array_of([], "c", "tensor(float)", [0, 3]).shape == (0, 3)
    assert np.isinf(array_of(float("inf"), "c", "tensor(float)", [1])).all()


@pytest.mark.parametrize(
    ("constant", "type_text", "shape", "named"),
    [
        ([1.0, 2.0, 3.0], "float", [2], "has the shape 3, and the input has the shape 2"),
        ([1.0, 2.0], "float", [], "is a single number"),
        ([[1.0, 2.0]], "float", [2, 1], "has the shape 1x2"),
        ([[1.0, 2.0]], "float", [2], "has the shape 1x2"),
        (1.5, "int64", [1], "1.5"),
        ([1.0, 300.0], "uint8", [2], "300"),
        (-1.0, "uint8", [1], "-1"),
        (float("nan"), "int32", [1], "nan"),
        (float("inf"), "int64", [1], "inf"),
        (2.0**63, "int64", [1], "9.2"),
        (2**63, "int64", [1], "9223372036854775808"),
        (2.0, "bool", [1], "true or false"),
        (1e6, "float16", [1], "1000000"),
        (1e39, "float", [1], "1e+39"),
        (1.0, "string", [1], "cannot become a constant"),
    ],
)
def test_the_error_for_a_constant_that_does_not_fit_names_the_input(
    constant: Any, type_text: str, shape: list[int], named: str
) -> None:
    with pytest.raises(OptionError) as refused:
        array_of(constant, "size", f"tensor({type_text})", shape)
    assert named in f"{refused.value.message} {refused.value.fix}"
    assert "size" in refused.value.message
    assert refused.value.fix


def test_inputs_that_are_not_tensors_are_refused() -> None:
    for kind in ("seq(tensor(float))", "sequence_type", "optional(tensor(float))", "sparse_tensor(float)"):
        with pytest.raises(OptionError, match="cannot become a constant"):
            array_of(1.0, "c", kind, [1])


def test_free_dimensions_get_the_sizes_of_a_constant_with_as_many_dimensions() -> None:
    dims = ("n", 2)
    assert resolved([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dims, {}) == [3, 2]
    assert resolved([1.0, 2.0], dims, {}) == [1, 2]
    assert resolved(1.0, dims, {"n": 4}) == [4, 2]
    assert resolved(1.0, None, {}) == []


def test_commands_accept_numbers_and_vectors() -> None:
    read = read_constants(["n=5", "size=480,640", "on=true", "mask=true,false", "big=9007199254740993", "a=b=1e-3"])
    assert read == {
        "n": 5.0,
        "size": [480.0, 640.0],
        "on": 1.0,
        "mask": [1.0, 0.0],
        "big": 9007199254740993,
        "a=b": 1e-3,
    }
    json.dumps(read)
    for wrong in (["size=480,"], ["size="], ["=1"], ["size"], ["n=1", "n=2"], ["n=1,yes"]):
        with pytest.raises(OptionError, match="--constant"):
            read_constants(wrong)


def test_messages_show_a_few_numbers_and_commands_all() -> None:
    many = [float(number) for number in range(100)]
    assert shown(many) == "0,1,2,3,4,5,6,7,... (92 more)"
    assert options_text({"a": many}).count(",") == 99
    assert options_text({"sr": 16000.0, "size": [480.0, 0.5]}) == " --constant sr=16000 --constant size=480,0.5"
    assert all(text_of(one) == str(one) for one in itertools.chain([2**53 + 1], [2**64 - 1]))
