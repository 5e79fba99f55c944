"""Compare benchmark results, target by target: ``python -m lab.bench.compare BEFORE.json AFTER.json [...]``.

With more than two results, the last one is compared with the medians of the others. The exit code is 1 if a target
that was met before is missed, or a ratio is worse by more than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench.compare", description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.15, help="changes up to this fraction are noise")
    parser.add_argument("--medians", action="store_true", help="only show the medians of all results")
    options = parser.parse_args()
    documents = [json.loads(path.read_text()) for path in options.results]
    if options.medians:
        print_medians(documents)
        return 0
    if len(documents) < 2:
        parser.error("give two results, or --medians")
    lines, worse = compare(documents[:-1], documents[-1], options.tolerance)
    print("\n".join(lines))
    return 1 if worse else 0


def compare(before: Sequence[dict[str, Any]], after: dict[str, Any], tolerance: float) -> tuple[list[str], bool]:
    """Return a line for each target that both results contain, and whether any ratio is worse."""
    old = medians(before)
    lines, bad = [], False
    for target in after["targets"]:
        name, new = target["name"], target["value"]
        was = old.get(name)
        if was is None or new is None:
            continue
        sign = 1 if target["more"] else -1
        change = sign * (new - was) / abs(was) if was else 0.0
        verdict = "same"
        if change < -tolerance or (fits(target, was) and not fits(target, new)):
            verdict, bad = "WORSE", True
        elif change > tolerance:
            verdict = "better"
        lines.append(f"{verdict:<7} {name}: {was:.3g} -> {new:.3g} {target['unit']} ({change:+.0%})")
    return lines, bad


def fits(target: dict[str, Any], value: float) -> bool:
    """Return whether the value meets the target's "must"."""
    return bool(value >= target["must"] if target["more"] else value <= target["must"])


def medians(documents: Sequence[dict[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for document in documents:
        for target in document["targets"]:
            if target["value"] is not None:
                values.setdefault(target["name"], []).append(target["value"])
    return {name: statistics.median(taken) for name, taken in values.items()}


def print_medians(documents: Sequence[dict[str, Any]]) -> None:
    """Print the medians as a table in Markdown."""
    found = medians(documents)
    print("| goal | must | aim | measured | unit |\n|---|---|---|---|---|")
    for target in documents[-1]["targets"]:
        value = found.get(target["name"])
        text = "-" if value is None else f"{value:.3g}"
        print(f"| {target['name']} | {target['must']:g} | {target['aim']:g} | {text} | {target['unit']} |")


if __name__ == "__main__":
    sys.exit(main())
