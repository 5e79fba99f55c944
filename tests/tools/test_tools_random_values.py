"""Made-up inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qnnbridge_protocol.elements import LAYOUTS, ElementType
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.tensors import Typed
from qnnbridge_tools.arguments import read_dimensions
from qnnbridge_tools.feeds import full_shape, random_value

FLOATS_OF_ML_DTYPES = [
    element
    for element in ElementType
    if not LAYOUTS[element].named and element.name.startswith(("FLOAT", "BFLOAT"))
]


def made(type_text: str, shape: tuple[int, ...] = (2, 50), seed: int = 0) -> Any:
    return random_value("x", type_text, shape, np.random.default_rng(seed))


@pytest.mark.parametrize("element", list(ElementType), ids=lambda element: element.name)
def test_every_element_type_can_be_made_up_and_depends_on_the_seed_only(element: ElementType) -> None:
    first, again, other = (made(f"tensor({element.text})", seed=seed) for seed in (1, 1, 2))
    assert first.shape == (2, 50)
    if isinstance(first, Typed):
        assert first.element_type is element
        first, again, other = first.data, again.data, other.data
    assert first.dtype == LAYOUTS[element].storage
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("type_text", ["tensor(float)", "tensor(double)", "tensor(float16)"])
def test_floats_are_between_zero_and_one(type_text: str) -> None:
    value = made(type_text)
    assert value.min() >= 0
    assert value.max() <= 1
    assert value.std() > 0.1


@pytest.mark.parametrize("element", FLOATS_OF_ML_DTYPES, ids=lambda element: element.name)
def test_small_floats_are_between_zero_and_one(element: ElementType) -> None:
    pytest.importorskip("ml_dtypes")
    numbers = made(f"tensor({element.text})").numpy().astype(np.float64)
    assert numbers.min() >= 0
    assert 0 < numbers.max() <= 1


@pytest.mark.parametrize("type_text", ["tensor(int64)", "tensor(int32)", "tensor(uint16)"])
def test_wide_integers_are_zero_or_one_because_they_are_mostly_indices(type_text: str) -> None:
    assert set(made(type_text).ravel().tolist()) == {0, 1}


def test_bytes_use_their_whole_range() -> None:
    assert made("tensor(int8)", (10_000,)).min() == -128
    assert made("tensor(uint8)", (10_000,)).max() == 255


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_can_be_made_up(shape: tuple[int, ...]) -> None:
    for type_text in ("tensor(float)", "tensor(string)", "tensor(int4)", "tensor(bfloat16)", "tensor(complex64)"):
        assert made(type_text, shape).shape == shape


@pytest.mark.parametrize("type_text", ["seq(tensor(float))", "map(int64,tensor(float))", "optional(tensor(float))"])
def test_what_is_not_a_tensor_is_refused_with_a_way_out(type_text: str) -> None:
    with pytest.raises(OptionError, match="cannot be made up") as caught:
        made(type_text)
    assert "InferenceSession" in str(caught.value.fix)


def test_a_shape_that_fits_no_memory_is_refused() -> None:
    with pytest.raises(OptionError, match="does not fit in memory"):
        made("tensor(float)", (2**20, 2**20, 2**10))


def test_free_dimensions_are_filled_from_the_command_line() -> None:
    assert full_shape("x", ["batch", 3, None], read_dimensions(["batch=2", "x:2=5"])) == (2, 3, 5)


def test_a_free_dimension_without_a_size_is_an_error_that_says_what_to_add() -> None:
    with pytest.raises(OptionError) as caught:
        full_shape("x", ["batch", 3, None, "batch", -1], read_dimensions([]))
    assert caught.value.fix == '--dim "batch=SIZE" --dim "x:2=SIZE" --dim "x:4=SIZE"'


def test_an_input_without_a_shape_needs_a_file() -> None:
    with pytest.raises(OptionError, match="no declared shape"):
        full_shape("x", None, read_dimensions([]))
