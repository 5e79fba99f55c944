"""Summarise the results of a sweep, and show which wrong results the table of known-wrong operators explains."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.sweep.cases import float_model, quantised_model
from qnnbridge_host.model import known_wrong
from qnnbridge_host.model.known_wrong import KnownWrong
from qnnbridge_host.numerics.cases import Case, feeds_of

Line = Mapping[str, Any]
# Hexagon architecture (V73) of the chip that a sweep uses by default.
ARCH = 73
# ONNX element types of a tensor that is or may be a float: 0 (not inferred) and 1 (float).
_MAYBE_FLOAT = (0, 1)


def read(path: Path) -> list[Line]:
    """Return the results of the cases in a sweep's file, without the lines that describe runs of the program."""
    return [line for line in map(json.loads, path.read_text().splitlines()) if "case" in line]


def spent(path: Path) -> tuple[int, int]:
    """Return elapsed seconds and processor seconds of all runs in a file."""
    runs = [line["run"] for line in map(json.loads, path.read_text().splitlines()) if "run" in line]
    return sum(run["seconds"] for run in runs), sum(run["cpu_seconds"] for run in runs)


def explained(case: Case, arch: int = ARCH) -> tuple[KnownWrong, ...]:
    """Return the rows of the known-wrong table that match the case's model. The model is built but not run."""
    return known_wrong.find_in_model(model_to_read(case).SerializeToString(), arch=arch)


def model_to_read(case: Case) -> Any:
    """Return the case's model. In a quantised model only the ranges of the inputs are right; all other
    ranges are -1 to 1."""
    if not case.form.startswith("qdq"):
        return float_model(case)
    results = float_model(case, every_output=True).graph.output
    ranges = {one.name: (-1.0, 1.0) for one in results if one.type.tensor_type.elem_type in _MAYBE_FLOAT}
    for name, one in feeds_of(case).items():
        ranges[name] = (float(one.min(initial=0)), float(one.max(initial=0)))
    return quantised_model(case, ranges)


def tally(lines: Sequence[Line]) -> dict[str, Counter[str]]:
    """Return counts of right, wrong and died cases for each matching row, and for "" (no row)."""
    found: dict[str, Counter[str]] = {"": Counter()}
    for line in lines:
        status = line["result"]["status"]
        if status not in ("right", "wrong", "died"):
            continue
        try:
            rows = {one.fault.name for one in explained(Case.from_words(line["case"]))} or {""}
        except (ValueError, TypeError):
            continue
        for name in rows:
            found.setdefault(name, Counter())[status] += 1
    return found


def text_of(lines: Sequence[Line]) -> str:
    """Return a text with counts by operator, then by row of the table."""
    counts: dict[str, Counter[str]] = {}
    for line in lines:
        counts.setdefault(line["case"]["nodes"][-1][0], Counter())[line["result"]["status"]] += 1
    total = sum(counts.values(), Counter[str]())
    rows = [f"{name}: {dict(found)}" for name, found in sorted(counts.items())]
    rows += [f"all: {dict(total)}", "", "by row of the table of known-wrong operators:"]
    return "\n".join(rows + [f"{name or '(none)'}: {dict(found)}" for name, found in sorted(tally(lines).items())])


def recorded(lines: Sequence[Line], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the table's rows, each with the numbers of compared and of wrong cases, the worst error and the
    smallest wrong example."""
    matching: dict[str, list[Line]] = {}
    for line in lines:
        if line["result"]["status"] in ("right", "wrong") and not line["result"].get("why"):
            for one in explained(Case.from_words(line["case"])):
                matching.setdefault(one.fault.name, []).append(line)
    made = []
    for row in rows:
        mine = matching.get(row["name"], [])
        wrong = [line for line in mine if line["result"]["status"] == "wrong"]
        row = {**row, "tried": len(mine), "wrong": len(wrong)}
        if wrong:
            row["snr"] = min(line["result"]["snr"] for line in wrong)
            row["largest"] = max(min(line["result"]["max_abs"], LARGEST) for line in wrong)
            plain = [line for line in wrong if line["case"]["form"] == "float"] or wrong
            row["example"] = min((line["case"] for line in plain), key=_weight)
            row["example"] = {key: value for key, value in row["example"].items() if key not in ("id", "soc")}
        made.append(row)
    return made


# QNN returns an infinite half float as this number.
LARGEST = 131008.0


def _weight(words: Mapping[str, Any]) -> int:
    return len(words["nodes"]) * 10**6 + sum(math.prod(tensor[0]) for tensor in words["tensors"].values())
