"""The commands of docs/tutorial.md are executed exactly as written, and so are the programs of the other pages."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from tests import needs
from tests.tools import tutorial

pytest.importorskip("onnxruntime_qnn")
pytest.importorskip("huggingface_hub")

pytestmark = [pytest.mark.simulator, pytest.mark.process, needs.linux, pytest.mark.timeout(600)]


def test_the_tutorial_shows_what_its_commands_print(tmp_path: Path) -> None:
    page = tutorial.PAGE.read_text("utf-8")
    steps = list(tutorial.done(page, tmp_path / "maria"))
    assert len(steps) >= 8
    for command, shown, printed in steps:
        expected, found = tutorial.comparable(shown), tutorial.comparable(printed)
        difference = "\n".join(
            difflib.unified_diff(expected.splitlines(), found.splitlines(), "page", "now", lineterm="")
        )
        assert expected == found, f"$ {command}\n{difference}\nrun: python -m tests.tools.tutorial"


def test_the_comparison_of_outputs_notices_another_count_of_nodes() -> None:
    said = "181 nodes on QNN, loaded in 0.3 s, 2.7.0"
    assert tutorial.comparable(said) == tutorial.comparable("181 nodes on QNN, loaded  in 12.9 s, 2.8.1")
    assert tutorial.comparable(said) != tutorial.comparable("180 nodes on QNN, loaded in 0.3 s, 2.7.0")
    assert (
        tutorial.comparable("in 612 ms") == tutorial.comparable("in 1.02 s") == tutorial.comparable("in 1 min 2 s")
    )
