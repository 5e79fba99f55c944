"""The result of `qnnbridge verify` for a person and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from qnnbridge_tools import output, where
from qnnbridge_tools.model_work.checking import difference_text
from qnnbridge_tools.model_work.comparing import OutputDifference
from qnnbridge_tools.verify.result import CaseResult, Trap, Verification

_WORDS = {
    "agrees": "agrees",
    "differs": "DIFFERS",
    "qnn-fails": "QNN FAILS",
    "cpu-fails": "only the CPU refuses it",
    "both-fail": "refused by both",
}


def print_result(result: Verification) -> None:
    if result.cases:
        output.print_table(
            ["inputs", "result", "output", "cosine", "largest difference", "relative"],
            [row for case in result.cases for row in _rows(case)],
        )
        print()
    if result.traps:
        output.print_pairs("Silent traps that hit", [pair for trap in result.traps for pair in _trap_pairs(trap)])
        print()
    pairs = [("model", str(result.path)), ("chip", result.chip)]
    pairs += [("input", f"{name} {output.shape_text(shape)}") for name, shape in result.sizes.items()]
    if result.placement is not None:
        pairs += where.placement_pairs(result.placement)
    pairs.append(("verdict", verdict(result)))
    if result.error is not None and result.error.cause:
        pairs.append(("because", result.error.cause))
    pairs += _culprit_pairs(result)
    pairs.append(("time", output.seconds(result.seconds)))
    output.print_pairs("Verified", pairs)


def verdict(result: Verification) -> str:
    if result.error is not None:
        return f"no session on QNN can be made: {result.error.message}"
    extremes = [
        case for case in result.cases if case.kind == "extreme" and case.status not in ("agrees", "both-fail")
    ]
    text = "QNN computes what the CPU computes" if result.agrees else "QNN computes something else than the CPU"
    if result.agrees and not any(case.kind != "extreme" for case in result.cases):
        text = "nothing but extreme inputs was compared"
    return text + (f"; not so for {len(extremes)} extreme inputs" if extremes and result.agrees else "")


def _rows(case: CaseResult) -> list[list[str]]:
    if not case.outputs:
        reason = case.error.message if case.error is not None else ""
        return [[case.name, _WORDS[case.status], reason[:60], "", "", ""]]
    rows = []
    for number, one in enumerate(case.outputs):
        head = [case.name, _WORDS[case.status]] if number == 0 else ["", ""]
        rows.append([*head, one.name, *_numbers(one)])
    return rows


def _numbers(one: OutputDifference) -> list[str]:
    if one.mismatch is not None:
        return [one.mismatch, "", ""]
    cosine = "" if one.cosine is None else f"{one.cosine:.6f}"
    different = f", {one.different} unequal" if one.different else ""
    return [cosine, f"{one.max_abs:.3g}{different}", f"{one.max_relative:.2g}" if one.kind == "float" else ""]


def _trap_pairs(trap: Trap) -> list[tuple[str, str]]:
    return [(trap.name, trap.what), ("", f"What to do: {trap.fix}")]


def _culprit_pairs(result: Verification) -> list[tuple[str, str]]:
    found = result.culprit
    if found is None:
        return []
    pairs = [("first wrong", f"{found.name} ({found.op}), with {found.case}, found in {found.tried} sessions")]
    pairs.append(("", difference_text(found.difference)))
    if found.alone is not None:
        pairs.append(("on its own", difference_text(found.alone)))
    return pairs


def document(result: Verification) -> dict[str, Any]:
    found = result.culprit
    return {
        "model": str(result.path),
        "chip": result.chip,
        "agrees": result.agrees,
        "verdict": verdict(result),
        "tolerance": dataclasses.asdict(result.tolerance) if result.tolerance else None,
        "inputs": {name: list(shape or ()) for name, shape in result.sizes.items()},
        "placement": result.placement.to_wire() if result.placement is not None else None,
        "simulator": result.simulator,
        "cases": [
            {
                "name": case.name,
                "kind": case.kind,
                "status": case.status,
                "outputs": [one.document() for one in case.outputs],
                "traps": [trap.name for trap in case.traps],
                "error": case.error.to_wire() if case.error is not None else None,
            }
            for case in result.cases
        ],
        "traps": [dataclasses.asdict(trap) for trap in result.traps],
        "first_wrong": None
        if found is None
        else {
            "case": found.case,
            "node": found.name,
            "op": found.op,
            "difference": found.difference.document(),
            "alone": found.alone.document() if found.alone is not None else None,
            "sessions": found.tried,
            "trap": found.trap.name if found.trap is not None else None,
        },
        "error": result.error.to_wire() if result.error is not None else None,
        "seconds": result.seconds,
    }
