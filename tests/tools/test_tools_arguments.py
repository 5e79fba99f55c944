"""The NAME=VALUE forms of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.arguments import (
    Dimensions,
    InputFile,
    read_dimensions,
    read_inputs,
    read_provider_options,
    read_timeout,
)


def test_an_input_is_a_name_and_a_file() -> None:
    assert read_inputs(["x=a.npy", "y:0=dir/b=c.npy"]) == [
        InputFile("x", Path("a.npy")),
        InputFile("y:0", Path("dir/b=c.npy")),
    ]


def test_a_key_after_an_archive_names_one_of_its_arrays() -> None:
    assert read_inputs(["x=all.NPZ:first:0"]) == [InputFile("x", Path("all.NPZ"), "first:0")]


def test_the_colon_of_a_windows_drive_is_not_a_key() -> None:
    assert read_inputs([r"x=C:\data\a.npy"]) == [InputFile("x", Path(r"C:\data\a.npy"))]
    assert read_inputs([r"x=C:\data\a.npz:k"]) == [InputFile("x", Path(r"C:\data\a.npz"), "k")]


@pytest.mark.parametrize("text", ["x", "=a.npy", "x=", ""])
def test_an_input_of_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_inputs([text])
    assert caught.value.fix is not None
    assert "x=image.npy" in caught.value.fix


def test_an_input_that_is_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="twice"):
        read_inputs(["x=a.npy", "x=b.npy"])


def test_a_free_dimension_is_sized_by_its_name_or_by_input_and_axis() -> None:
    dimensions = read_dimensions(["batch=2", "x:1=48", "?=7"])
    assert dimensions.size_of("x", 0, "batch") == 2
    assert dimensions.size_of("x", 1, None) == 48
    assert dimensions.size_of("y", 1, None) is None
    assert dimensions.size_of("y", 3, "?") == 7
    assert dimensions.size_of("y", 3, "other") is None


def test_a_fixed_dimension_stays_what_it_is_and_minus_one_is_not_fixed() -> None:
    dimensions = read_dimensions(["x:0=9"])
    assert dimensions.size_of("x", 0, 3) == 3
    assert dimensions.size_of("x", 0, -1) == 9
    assert Dimensions().size_of("x", 0, -1) is None


@pytest.mark.parametrize("text", ["batch", "batch=", "batch=0", "batch=-1", "batch=1.5", "=3", "batch=two"])
def test_a_dimension_without_a_size_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="--dim"):
        read_dimensions([text])


def test_provider_options_keep_equals_signs_and_empty_values() -> None:
    assert read_provider_options(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


def test_contradicting_provider_options_are_refused() -> None:
    with pytest.raises(OptionError, match="two values"):
        read_provider_options(["soc_model=60", "soc_model=43"])
    assert read_provider_options(["soc_model=60", "soc_model=60"]) == {"soc_model": "60"}


@pytest.mark.parametrize("text", ["soc_model", "=60"])
def test_a_provider_option_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="KEY=VALUE"):
        read_provider_options([text])


def test_a_time_is_more_than_nothing() -> None:
    assert read_timeout(None) is None
    assert read_timeout(0.5) == 0.5
    for nothing in (0.0, float("nan")):
        with pytest.raises(OptionError, match="leaves no time"):
            read_timeout(nothing)
