"""`qnnbridge explain`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from qnnbridge_tools.cli import app


def explain(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["explain", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("3221226505", "STATUS_STACK_BUFFER_OVERRUN"),
        ("0xC0000409", "STATUS_STACK_BUFFER_OVERRUN"),
        ("-1073740791", "STATUS_STACK_BUFFER_OVERRUN"),
        ("-11", "SIGSEGV"),
        ("-6", "SIGABRT"),
        ("SIGBUS", "SIGBUS"),
    ],
)
def test_a_code_is_explained_with_its_name_and_a_fix(code: str, name: str) -> None:
    exit_code, told = explain(code)
    assert exit_code == 0
    assert name in told
    assert "Fix:" in told


def test_127_is_explained_in_all_its_meanings() -> None:
    exit_code, told = explain("127")
    assert exit_code == 0
    assert "Git Bash" in told
    assert "WinError 127" in told
    assert "not found" in told


def test_several_codes_are_explained_one_after_the_other() -> None:
    exit_code, told = explain("-11", "-1073740791", "--json")
    assert exit_code == 0
    assert [explanation["number"] for explanation in json.loads(told)["explanations"]] == [-11, -1073740791]


def test_what_is_no_code_is_refused_with_an_example() -> None:
    exit_code, told = explain("banana")
    assert exit_code == 2
    assert "is no exit code" in told
    assert "Fix:" in told
