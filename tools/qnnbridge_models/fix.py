"""`qnnbridge fix`: rewrite a model so that QNN supports it, check that the results stay the same, and report the
changes.

>>> from qnnbridge_models.fix import fix_model
>>> fix_model("model.onnx", "fixed.onnx", shapes={"x": [1, 3, 48, 192]}).steps[0].changes
"""

from __future__ import annotations

from typing import Any

from qnnbridge_host.numerics.comparing import check_lines
from qnnbridge_host.rewrite.catalogue import REWRITES
from qnnbridge_host.rewrite.fixer import FixResult, RewriteStep, fix_model
from qnnbridge_tools import output

__all__ = ["REWRITES", "FixResult", "RewriteStep", "document", "fix_model", "print_result"]

# Maximum number of changes to print per rewrite; a large model may have thousands. --json contains all.
_SHOWN_CHANGES = 6


def print_result(result: FixResult) -> None:
    for step in result.steps:
        output.print_pairs(step.rewrite if step.kept else f"{step.rewrite} (undone)", _step_pairs(step))
        print()
    pairs = output.written_pairs(result.source, result.files)
    pairs += [("input", f"{name} {output.shape_text(shape)}") for name, shape in result.shapes.items()]
    before, after = sum(result.nodes_before.values()), sum(result.nodes_after.values())
    pairs += [("nodes", f"{before} -> {after}"), ("time", output.seconds(result.seconds))]
    if not result.steps:
        pairs.append(("note", "no rewrite was necessary"))
    pairs += [("warning", warning) for warning in result.warnings]
    output.print_pairs("Fixed", pairs)


def _step_pairs(step: RewriteStep) -> list[tuple[str, str]]:
    shown = list(step.changes[:_SHOWN_CHANGES])
    if len(step.changes) > _SHOWN_CHANGES:
        shown.append(f"and {len(step.changes) - _SHOWN_CHANGES} more")
    pairs = [("done" if number == 0 else "", text) for number, text in enumerate(shown)]
    pairs += [("check" if number == 0 else "", text) for number, text in enumerate(check_lines(step.check))]
    if step.reason:
        pairs.append(("because", step.reason))
    return pairs


def document(result: FixResult) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "files": [str(path) for path in result.files],
        "inputs": {name: list(shape) if shape is not None else None for name, shape in result.shapes.items()},
        "steps": [
            {
                "rewrite": step.rewrite,
                "kept": step.kept,
                "changes": list(step.changes),
                "check": step.check.document() if step.check else None,
                "reason": step.reason or None,
            }
            for step in result.steps
        ],
        "nodes_before": dict(result.nodes_before),
        "nodes_after": dict(result.nodes_after),
        "warnings": list(result.warnings),
        "seconds": result.seconds,
    }
