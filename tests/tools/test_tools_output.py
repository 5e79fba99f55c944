"""Printed output."""

from __future__ import annotations

import json
import math

import pytest

from qnnbridge_tools import output


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.00005, "50 us"),
        (0.0412, "41.2 ms"),
        (0.9, "900 ms"),
        (1.234, "1.23 s"),
        (62.31, "62.3 s"),
        (191.4, "191 s"),
    ],
)
def test_durations_have_a_suitable_unit(duration_s: float, text: str) -> None:
    assert output.seconds(duration_s) == text


@pytest.mark.parametrize(
    ("shape", "text"), [((1, 3, 48), "1x3x48"), ((), "scalar"), (("n", None), "nx?"), (None, "any shape")]
)
def test_shapes_are_short(shape: tuple[int | str | None, ...] | None, text: str) -> None:
    assert output.shape_text(shape) == text


def test_control_characters_in_a_model_never_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name"], [["\x1b]0;owned\x07ä\n"]])
    output.print_pairs("Title", [("\x1b[2J", "\u202e")])
    printed = capsys.readouterr().out
    assert r"\x1b]0;owned\x07ä\n" in printed
    assert r"\u202e" in printed
    assert "\x1b" not in printed


def test_piped_tables_are_aligned_text_without_spaces_at_line_ends(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", "shape"], [["a long name", "1"], ["b", ""]])
    assert capsys.readouterr().out == "name         shape\na long name  1\nb\n"


def test_json_is_ascii_and_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"ü": [math.nan, math.inf, 1.5, None, True, {"a": (1, 2)}]})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert json.loads(printed) == {"ü": ["nan", "inf", 1.5, None, True, {"a": [1, 2]}]}
