"""docs/versions.md: its tables are generated from the data file and up to date."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from scripts.makers.page_tables import RELEASES_MARKS, releases_tables, with_tables, write
from typer import Typer
from typer.main import get_command
from typer.testing import CliRunner

from qnnbridge_host.model.releases import load_releases
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.cli import app
from qnnbridge_tools.versions.fitness import platform_of_release

BEGIN, END = RELEASES_MARKS
PAGE = Path(__file__).parents[2] / "docs" / "versions.md"


def test_the_page_has_the_tables_of_the_data() -> None:
    text = PAGE.read_text("utf-8")
    assert with_tables(text) == text, "run: python -m scripts.makers.page_tables docs/versions.md"


def test_the_page_of_options_has_the_table_of_the_libraries() -> None:
    text = PAGE.with_name("qnn-options.md").read_text("utf-8")
    assert with_tables(text) == text, "run: python -m scripts.makers.page_tables docs/qnn-options.md"


def test_every_release_has_a_line_in_the_table_of_its_platform() -> None:
    parts = dict(part.split("\n", 1) for part in releases_tables().split("### ")[1:])
    for release in load_releases():
        rows = [
            line
            for line in parts[platform_of_release(release)].splitlines()
            if line.startswith(f"| {release.version} |")
        ]
        assert len(rows) == 1
        assert ", ".join(f"V{version}" for version in release.stubs) in rows[0]
    widths = {line.count("|") for part in parts.values() for line in part.splitlines() if line.startswith("|")}
    assert widths == {9, 6, 4}


def test_only_the_text_between_the_marks_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{BEGIN}\nwhat was there before\n{END}\nbelow\n", "utf-8")
    writer = Typer()
    writer.command()(write)
    assert CliRunner().invoke(writer, [str(page)]).exit_code == 0
    text = page.read_text("utf-8")
    assert text.startswith(f"above\n{BEGIN}\n")
    assert text.endswith(f"{END}\nbelow\n")
    assert "what was there before" not in text
    assert releases_tables() in text


def test_a_page_without_marks_for_the_table_is_refused() -> None:
    with pytest.raises(OptionError, match="no marks for the table"):
        with_tables("nothing here")


@pytest.mark.parametrize("command", ["versions", "setup-host"])
def test_the_page_of_a_command_lists_every_option_and_no_other(command: str) -> None:
    text = PAGE.with_name(f"{command}.md").read_text("utf-8")
    commands: Any = get_command(app)
    options = {name for one in commands.commands[command].params for name in one.opts if name.startswith("--")}
    # For a switch the page shows the name that is not the default.
    options = {"--no-config" if name == "--config" else name for name in options} - {"--help"}
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `--")]
    assert {name for row in rows for name in re.findall(r"--[a-z-]+", row)} == options
