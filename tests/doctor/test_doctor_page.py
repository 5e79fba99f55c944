"""docs/doctor.md matches the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from scripts.makers.page_tables import findings_table, with_tables

from qnnbridge_tools.cli import app
from qnnbridge_tools.doctor.findings import CATALOGUE, SCHEMA, Severity

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "doctor.md").read_text("utf-8")


def test_the_table_of_findings_equals_the_catalogue() -> None:
    assert with_tables(PAGE) == PAGE, "renew it: python -m scripts.makers.page_tables docs/doctor.md"
    assert findings_table().count("\n| `") == len(CATALOGUE)


def test_the_page_lists_every_option_and_no_other() -> None:
    command = typer.main.get_command(app).commands["doctor"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts} - {"--help"}
    text = PAGE.split("## Findings")[0]
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text)) == options


@pytest.mark.process
def test_both_command_lines_have_the_same_options() -> None:
    """Compare the `qnnbridge` command with the one that needs only the standard library."""
    command = typer.main.get_command(app).commands["doctor"]  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in parameter.opts}
    printed = subprocess.run(
        [sys.executable, "-m", "qnnbridge_tools", "doctor", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", printed)) == options | {"--help"}


@pytest.mark.parametrize("severity", Severity)
def test_the_exit_codes_are_the_severities(severity: Severity) -> None:
    assert re.search(rf"^\| {int(severity)} \| {severity.name.lower()}: ", PAGE, re.MULTILINE)


def test_the_schema_has_the_version_number_of_the_documents() -> None:
    schema = json.loads((DOCS / "doctor.schema.json").read_text("utf-8"))
    assert schema["properties"]["schema"]["const"] == SCHEMA
