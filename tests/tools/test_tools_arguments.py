"""`NAME=VALUE` arguments, and `--dim` of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from qnnbridge_host.graph.shapes import Dimensions
from qnnbridge_host.model.collector import ModelScan
from qnnbridge_protocol.errors import BridgeError, OptionError, PlacementRefused
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.arguments import (
    InputFile,
    in_options,
    read_dimensions,
    read_inputs,
    read_provider_options,
    read_timeout,
    refuse_unknown,
    session_options,
    use_options_in_fix,
)


def test_an_input_is_given_as_a_name_and_a_file() -> None:
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
def test_an_input_in_another_format_is_refused_with_an_example(text: str) -> None:
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


def test_a_fixed_dimension_keeps_its_size_and_minus_one_counts_as_free() -> None:
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


def test_a_timeout_must_be_above_zero() -> None:
    assert read_timeout(None) is None
    assert read_timeout(0.5) == 0.5
    for nothing in (0.0, float("nan")):
        with pytest.raises(OptionError, match="is not above 0"):
            read_timeout(nothing)


MODEL = ModelScan(
    1, inputs=(NodeInfo("x", "tensor(float)", ("N", None, -1, 3)), NodeInfo("s", "tensor(float)", None))
)
FIXED = ModelScan(1, inputs=(NodeInfo("x", "tensor(float)", (2, 3)),))


def test_a_dimension_is_called_by_its_name_in_the_file_or_by_input_and_axis() -> None:
    refuse_unknown((MODEL,), read_dimensions(["N=1", "x:0=1", "x:1=2", "x:2=3"]))
    refuse_unknown((FIXED, MODEL), read_dimensions(["N=1"]))
    with pytest.raises(OptionError, match='no free dimension "x:3"') as caught:
        refuse_unknown((MODEL,), read_dimensions(["x:3=3"]))
    assert caught.value.cause == "Its free dimensions: N, x:1, x:2."
    with pytest.raises(OptionError, match='no free dimension "N"') as caught:
        refuse_unknown((FIXED,), read_dimensions(["N=1"]))
    assert caught.value.fix == "Omit --dim."


def test_a_model_that_cannot_be_scanned_is_not_checked_for_unknown_dimensions() -> None:
    refuse_unknown((ModelScan(1, "ort"),), read_dimensions(["N=1"]))


def test_a_model_without_dimensions_needs_no_options() -> None:
    assert session_options(read_dimensions([])) is None
    options = session_options(read_dimensions(["N=1"]))
    assert options is not None
    assert options.to_spec_parts()["free_dimensions_by_name"] == {"N": 1}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            "Fix the dimensions: add_free_dimension_override_by_name('N', SIZE), "
            "add_free_dimension_override_by_name(\"a 'b'\", SIZE), or export the model with fixed shapes. "
            "To run unsupported nodes on the CPU, create the session with fallback='cpu'.",
            "Fix the dimensions: --dim N=SIZE --dim \"a 'b'=SIZE\", or export the model with fixed shapes. "
            "To run unsupported nodes on the CPU, add --fallback cpu.",
        ),
        (
            "Export the model with fixed shapes (named dimensions can be fixed in the session options: "
            "add_free_dimension_override_by_name('N', SIZE)).",
            "Export the model with fixed shapes (named dimensions can be fixed: --dim N=SIZE).",
        ),
        (None, None),
    ],
    ids=["all have names", "some have names", "no fix"],
)
def test_a_fix_for_python_code_becomes_one_for_the_command_line(said: str | None, shown: str | None) -> None:
    refused = PlacementRefused("No node.", fix=said)
    in_options(refused)
    assert refused.fix == shown


@pytest.mark.parametrize(
    ("options", "said", "shown"),
    [
        (
            ["--fallback"],
            "To try rewrites, create the session with fix=True, or run once: qnnbridge fix m.onnx -o f.onnx. Or "
            "create the session with fallback='cpu'.",
            "To try rewrites, run: qnnbridge fix m.onnx -o f.onnx. Or add --fallback cpu.",
        ),
        (
            [],
            "Create the session with fix=True, or run: qnnbridge fix m.onnx. Create the session with fallback='cpu'.",
            "Run: qnnbridge fix m.onnx. Create the session with fallback='cpu'.",
        ),
        (
            ["--fallback"],
            "To try rewrites, create the session with fix={'constants': {'sr': 16000.0}}, or run once: qnnbridge fix.",
            "To try rewrites, run: qnnbridge fix.",
        ),
        (["--fallback"], 'Create the session with fallback="cpu", which', "Add --fallback cpu, which"),
        (
            ["--fallback"],
            "Change these nodes, or allow fallback='cpu'.",
            "Change these nodes, or add --fallback cpu.",
        ),
        (["--dim"], "Set add_free_dimension_override_by_name('N', SIZE).", "Set --dim N=SIZE."),
    ],
)
def test_advice_of_a_command_is_in_its_options(options: list[str], said: str, shown: str) -> None:
    error = BridgeError("Failed.", fix=said)
    use_options_in_fix(error, options)
    assert error.fix == shown
