"""The cells of the notebooks in examples/ run, one after another in one namespace, as a kernel runs them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn")

pytestmark = [pytest.mark.simulator, pytest.mark.process]

NOTEBOOK = Path(__file__).parents[2] / "examples" / "text_direction.ipynb"


def code_cells() -> list[str]:
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def run(cells: list[str]) -> tuple[dict[str, Any], list[Any]]:
    """Run the cells. Return their names, and the value of each last expression, which a notebook shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, source in enumerate(cells):
        tree = ast.parse(source, f"cell {number}")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            # IPython asks an object for its representations in the same way.
            shown.append(value._repr_html_() if hasattr(value, "_repr_html_") else repr(value))
    return names, shown


def test_every_cell_runs_and_prints_what_the_text_around_it_describes(capsys: pytest.CaptureFixture[str]) -> None:
    cells = code_cells()
    names, shown = run(cells)
    assert names["right"] == len(names["lines"]) == 6
    assert "6 of 6 are right" in capsys.readouterr().out
    assert names["report"].state == "agrees"
    assert type(names["refused"]).__name__ == "PlacementRefused"
    assert "batch" in str(names["refused"])
    assert any("QNN" in text for text in shown)


def test_the_notebook_is_stored_without_outputs() -> None:
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in document["cells"])
