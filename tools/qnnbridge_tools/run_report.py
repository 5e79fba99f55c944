"""The result of `qnnbridge run` as text for a person and as a JSON document."""

from __future__ import annotations

from typing import Any

from qnnbridge_tools import output, version, where
from qnnbridge_tools.run_once import Request, Result
from qnnbridge_tools.summary import Summary, summarize


def print_result(request: Request, result: Result) -> None:
    print("Inputs")
    output.print_table(
        ["name", "type", "shape", "source"],
        [
            [given.feed.name, given.type, _shape(summarize(given.feed.value)), given.feed.source]
            for given in result.inputs
        ],
    )
    print()
    print("Outputs")
    headers = ["name", "type", "shape", "min", "max", "mean"]
    rows: list[list[str]] = []
    for name, value in result.outputs.items():
        told = summarize(value)
        row = [name, told.kind, _shape(told), *told.numbers_text()]
        rows.append(row)
    if result.files:
        headers.append("file")
        rows = [[*row, str(result.files[row[0]])] for row in rows]
    output.print_table(headers, rows)
    print()
    output.print_pairs("Where it ran", [*where.placement_pairs(result.placement), *where.sides_pairs(result.host)])
    print()
    output.print_pairs("How long it took", _time_pairs(result))


def document(request: Request, result: Result) -> dict[str, Any]:
    return {
        "model": str(request.model),
        "inputs": [
            {
                "name": given.feed.name,
                "type": given.type,
                "source": given.feed.source,
                **_summary_document(summarize(given.feed.value)),
            }
            for given in result.inputs
        ],
        "outputs": [
            {
                "name": name,
                "type": result.output_types[name],
                "file": str(result.files[name]) if name in result.files else None,
                **_summary_document(summarize(value)),
            }
            for name, value in result.outputs.items()
        ],
        "providers": result.used_providers,
        "placement": result.placement.to_wire(),
        "host": version.host_document(result.host),
        "application": version.application_document(),
        "times": {
            "host_startup_seconds": result.host.startup_seconds,
            "host_ready_seconds": result.ready_s,
            "create_seconds": result.create_s,
            "runs": len(result.runs_s),
            "first_run_seconds": result.runs_s[0],
            "later_median_seconds": result.later_median_s,
            "later_p95_seconds": result.later_p95_s,
        },
    }


def _shape(told: Summary) -> str:
    return "-" if told.shape is None else output.shape_text(told.shape)


def _summary_document(told: Summary) -> dict[str, Any]:
    return {
        "dtype": told.kind,
        "shape": told.shape,
        "min": told.least,
        "max": told.greatest,
        "mean": told.mean,
        "not_finite": told.not_finite,
    }


def _time_pairs(result: Result) -> list[tuple[str, str]]:
    pairs = [
        ("host start-up", where.startup_text(result.host, result.ready_s)),
        ("create", output.seconds(result.create_s)),
        ("first run", output.seconds(result.runs_s[0])),
    ]
    if result.later_median_s is not None and result.later_p95_s is not None:
        median, p95 = output.seconds(result.later_median_s), output.seconds(result.later_p95_s)
        pairs.append((f"{len(result.runs_s) - 1} more", f"median {median}, 95th percentile {p95}"))
    return pairs
