"""What `qnnbridge prepare` prints: a line for each step while it works, a summary at the end, or one document."""

from __future__ import annotations

import sys
from typing import Any

from qnnbridge_tools import output
from qnnbridge_tools.models.prepare import shipping
from qnnbridge_tools.models.prepare.result import Prepared, StepResult

_WORDS = {"done": "done in", "kept": "done before, kept", "failed": "FAILED after", "skipped": "skipped"}


def on_step(result: StepResult | None, title: str) -> None:
    """On stderr."""
    print(f"{title} ..." if result is None else f"{title}: {_state(result)}", file=sys.stderr, flush=True)


def _state(step: StepResult) -> str:
    words = _WORDS[step.state]
    if step.state in ("done", "failed"):
        words += f" {output.seconds(step.seconds)}"
    return f"{words}: {output.visible(step.problem)}" if step.problem else words


def print_result(prepared: Prepared) -> None:
    print(output.visible(prepared.verdict))
    print()
    told = shipping.summary(prepared)
    output.print_table(
        ["chip", "nodes", "verified", "cosine", "compiled"],
        [
            [
                chip["name"],
                f"{chip['qnn_nodes']} QNN, {chip['cpu_nodes']} CPU" if chip["qnn_nodes"] is not None else "-",
                chip["verified"],
                f"{chip['cosine']:.5f}" if chip["cosine"] is not None else "-",
                chip["compiled"] or "-",
            ]
            for chip in told["chips"]
        ],
    )
    print()
    pairs = [("folder", str(prepared.folder)), ("report", str(prepared.folder / shipping.REPORT))]
    pairs += [("manifest", str(prepared.folder / shipping.MANIFEST)), ("time", output.seconds(prepared.seconds))]
    pairs += [("note", note) for note in prepared.notes]
    output.print_pairs("Prepared", pairs)


def document(prepared: Prepared) -> dict[str, Any]:
    return {
        **shipping.summary(prepared),
        "folder": str(prepared.folder),
        "steps": [
            {
                "step": step.name,
                "soc_model": step.chip,
                "state": step.state,
                "problem": step.problem or None,
                "files": list(step.files),
                "seconds": step.seconds,
                "told": dict(step.told),
            }
            for step in prepared.steps
        ],
        "seconds": prepared.seconds,
    }
