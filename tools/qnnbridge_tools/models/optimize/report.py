"""The result of `qnnbridge optimize` for a person and as JSON."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools import output
from qnnbridge_tools.models.optimize.result import OptimizeResult
from qnnbridge_tools.models.shared.checking import Check, difference_text


def print_result(result: OptimizeResult) -> None:
    if not result.passed_through:
        output.print_table(["operator", "before", "after"], _op_rows(result))
        print()
    pairs = [("model", str(result.source)), ("written", str(result.files[0]))]
    pairs += [("", str(path)) for path in result.files[1:]]
    pairs.append(("size", f"{result.bytes_before:,} -> {result.bytes_after:,} bytes"))
    if not result.passed_through:
        pairs += [("level", result.level), ("time", output.seconds(result.seconds))]
        pairs += [("check", line) for line in check_lines(result.check)]
    pairs += [("note", change) for change in result.changes]
    pairs += [("warning", warning) for warning in result.warnings]
    output.print_pairs("Passed through" if result.passed_through else "Optimised", pairs)


def check_lines(check: Check | None) -> list[str]:
    if check is None:
        return ["none: --no-check"]
    if not check.compared:
        return [f"nothing could be compared: {check.reason}"]
    sizes = ", ".join(f"{name}={size}" for name, size in check.sizes.items())
    head = f"agrees with the original on {check.samples} made-up inputs, on the CPU" + (
        f" ({sizes})" if sizes else ""
    )
    return [head, *(difference_text(output) for output in check.outputs)]


def document(result: OptimizeResult) -> dict[str, Any]:
    return {
        "model": str(result.source),
        "files": [str(path) for path in result.files],
        "passed_through": result.passed_through,
        "level": result.level,
        "nodes_before": dict(result.nodes_before),
        "nodes_after": dict(result.nodes_after),
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "check": result.check.document() if result.check else None,
        "notes": list(result.changes),
        "warnings": list(result.warnings),
        "seconds": result.seconds,
    }


def _op_rows(result: OptimizeResult) -> list[list[str]]:
    ops = list(dict.fromkeys([*result.nodes_before, *result.nodes_after]))
    rows = [[op, str(result.nodes_before.get(op, 0)), str(result.nodes_after.get(op, 0))] for op in ops]
    return [*rows, ["all", str(sum(result.nodes_before.values())), str(sum(result.nodes_after.values()))]]
