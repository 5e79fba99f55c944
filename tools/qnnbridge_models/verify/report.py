"""The result of `qnnbridge verify`: rows as they come, the report for a person, and the JSON document."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from qnnbridge_models.verify.verification import (
    Divergence,
    InputSetResult,
    OutputVerdict,
    TrapFound,
    Verification,
    numbers_text,
    worst_of,
)
from qnnbridge_tools import output, reporting

_MARKS = {
    "agrees": "AGREES",
    "differs": "DIFFERS",
    "not shown": "NOT SHOWN",
    "failed": "FAILED",
    "not compared": "NOT COMPARED",
}


class PrintedRows:
    """Prints rows as they come, in columns that are known beforehand.

    Args:
        names: of all sets of inputs.
        outputs: names.
    """

    HEADERS = ("inputs", "output", "result", "SNR dB", "off", "decisions", "max abs")

    def __init__(self, names: Sequence[str], outputs: Sequence[str]) -> None:
        texts = ([output.visible(name) for name in names], [output.visible(name) for name in outputs])
        # Rows are printed as they come: each column is as wide as the longest text that it may get.
        self._widths = [
            max(len("inputs"), *map(len, texts[0])) if texts[0] else len("inputs"),
            max(len("output"), *map(len, texts[1])) if texts[1] else len("output"),
            len("refused by both"),
            len("SNR dB"),
            len("100.00 %"),
            len("decisions"),
            len("max abs"),
        ]
        self._print(self.HEADERS)

    def __call__(self, row: InputSetResult) -> None:
        for line in _lines(row):
            self._print(line)

    def _print(self, cells: Sequence[str]) -> None:
        padded = (output.visible(cell).ljust(width) for cell, width in zip(cells, self._widths, strict=True))
        print("  ".join(padded).rstrip(), flush=True)


def print_result(result: Verification, *, rows_are_printed: bool = False) -> None:
    """The report for a person. rows_are_printed: the table is there already."""
    if rows_are_printed and result.rows:
        print()
    print(f"{_MARKS[result.verdict]}: {output.visible(result.source.name)}. {output.visible(result.reason)}")
    print()
    if result.rows and not rows_are_printed:
        output.print_table(PrintedRows.HEADERS, [line for row in result.rows for line in _lines(row)])
        print()
    _print_reasons(result)
    if result.error is not None:
        output.print_pairs("What QNN says", _error_pairs(result))
        print()
    _print_divergence(result)
    for trap in result.traps:
        output.print_pairs(f"Trap: {trap.name}", _trap_pairs(trap))
        print()
    output.print_pairs("Compared", _how_pairs(result))


def _lines(row: InputSetResult) -> list[list[str]]:
    if not row.outputs:
        return [[row.name, "", _status(row), "", "", "", ""]]
    lines = []
    for number, one in enumerate(row.outputs):
        numbers = one.numbers
        state = {"unknown": "not shown"}.get(numbers.state, numbers.state)
        extreme = " (extreme)" if one.differs and not row.counts else ""
        lines.append(
            [
                row.name if number == 0 else "",
                one.name,
                state + extreme,
                "-" if numbers.snr_db is None else f"{numbers.snr_db:.1f}",
                "-" if numbers.snr_db is None else f"{numbers.off:.2%}".replace("%", " %"),
                "-" if numbers.decisions is None else f"{numbers.decisions:.1%}".replace("%", " %"),
                "-" if numbers.snr_db is None else f"{numbers.max_abs:.3g}",
            ]
        )
    return lines


def _status(row: InputSetResult) -> str:
    return {"unchecked": "not checked", "refused": "refused by both"}.get(row.status, row.status)


def _print_reasons(result: Verification) -> None:
    pairs: list[tuple[str, str]] = []
    for row in result.rows:
        pairs += [(row.name, row.reason)] if row.reason else []
        pairs += [(row.name, f"{one.name}: {one.numbers.reason}") for one in row.outputs if one.numbers.reason]
    pairs += [("not shown", f"{one.name}: {one.reason}") for one in result.outputs if one.state == "unknown"]
    if pairs:
        output.print_pairs("Explained", pairs)
        print()


def _error_pairs(result: Verification) -> list[tuple[str, str]]:
    error = result.error
    assert error is not None
    pairs = [("message", error.message)]
    pairs += [("cause", error.cause)] if error.cause else []
    pairs += [("evidence", line) for line in error.evidence]
    pairs += [("fix", error.fix)] if error.fix else []
    return pairs


def _print_divergence(result: Verification) -> None:
    found = result.divergence
    if found is not None:
        output.print_pairs("Where it begins", divergence_pairs(found))
        print()
    elif result.not_bisected:
        output.print_pairs("Where it begins", [("unknown", result.not_bisected)])
        print()


def divergence_pairs(found: Divergence) -> list[tuple[str, str]]:
    place = f"{found.node} ({found.op}), node {found.number} of {found.of}"
    if not found.exact:
        place = f"among the {found.window} nodes that end with {place}; the time for the search was over"
    pairs = [("node", place), ("inputs", found.row)]
    if len(found.group) > 1:
        pairs.append(("with", f"its quantised group: {', '.join(found.group)}"))
    if found.difference is not None:
        pairs.append(("tensor", f"{found.tensor}: {numbers_text(found.difference)}"))
    if found.error:
        pairs.append(("QNN", found.error))
    if found.alone is not None:
        pairs.append(("alone", found.alone.words))
    if found.not_finalized:
        pairs.append(("no evidence", f"{found.not_finalized} cuts that QNN does not finalize"))
    pairs.append(("search", f"{found.sessions} sessions, {output.seconds(found.seconds)}"))
    return pairs


def _trap_pairs(trap: TrapFound) -> list[tuple[str, str]]:
    proof = [("proof", trap.proof)] if trap.proof else []
    return [("what", trap.words), ("seen", trap.evidence), *proof, ("do", trap.advice)]


def _how_pairs(result: Verification) -> list[tuple[str, str]]:
    pairs = reporting.placement_pairs(result.placement) if result.placement is not None else []
    if result.nodes is not None and result.placement is not None and result.placement.known:
        # As `analyze` counts: what was merged into a node on QNN is on QNN.
        on_cpu = result.placement.cpu_nodes
        pairs.insert(0, ("of the file", f"{max(0, result.nodes - on_cpu)} of {result.nodes} nodes on QNN"))
    computes = "half floats" if result.number_format == "fp16" else "quantised steps"
    pairs.append(("allowed", f"{result.limits} ({computes})"))
    if result.given:
        states = {"differs": "differs", "unknown": "not shown", "agrees": "agrees"}
        worst = worst_of(result.given)
        assert worst is not None
        pairs.append(("given alone", f"{states[worst.state]}: {worst.name}, {_verdict_numbers(worst)}"))
    if result.sizes:
        pairs.append(("sizes", ", ".join(f"{name}={size}" for name, size in result.sizes.items())))
    shown = ("onnxruntime", "onnxruntime-qnn", "qnn_sdk")
    pairs.append(("with", ", ".join(f"{n} {result.versions[n]}" for n in shown if n in result.versions) or "?"))
    pairs.append(("time", output.seconds(result.seconds)))
    return pairs


def _verdict_numbers(one: OutputVerdict) -> str:
    return numbers_text(one.worst) if one.worst is not None else one.reason


def document(result: Verification) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "verdict": result.verdict,
        "agrees": result.verdict == "agrees",
        "reason": result.reason,
        "number_format": result.number_format,
        "limits": result.limits,
        "sizes": dict(result.sizes),
        "snr_db": result.snr_db,
        "outputs": [one.document() for one in result.outputs],
        "given": [one.document() for one in result.given] or None,
        "rows": [_row_document(row) for row in result.rows],
        "first_divergence": dataclasses.asdict(result.divergence) if result.divergence else None,
        "not_bisected": result.not_bisected or None,
        "traps": [dataclasses.asdict(trap) for trap in result.traps],
        "placement": result.placement.to_wire() if result.placement else None,
        "nodes": result.nodes,
        "versions": dict(result.versions),
        "cure": dataclasses.asdict(result.cure) if result.cure else None,
        "error": result.error.to_wire() if result.error else None,
        "seconds": result.seconds,
    }


def _row_document(row: InputSetResult) -> dict[str, Any]:
    return {
        "inputs": row.name,
        "kind": row.kind,
        "counts": row.counts,
        "status": row.status,
        "reason": row.reason or None,
        "died": row.died,
        "kept": row.kept,
        "outputs": [{**one.numbers.to_wire(), "name": one.name, "differs": one.differs} for one in row.outputs],
        "traps": [trap.name for trap in row.traps],
    }
