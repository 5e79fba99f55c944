"""`python -m lab.sweep [--seconds N] [--out FILE] [FAMILY ...]`: run cases on QNN and the CPU and report
differences.

Families: see `lab/sweep/generator.py`; `node` and `node-constants` are the node tests of onnx. Each result is a
line of FILE; a run skips the cases that FILE already contains. `--python` is an interpreter with another
onnxruntime-qnn. `--report` runs no cases and only shows which results in FILE the table of known-wrong operators
explains.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from lab.sweep import report
from lab.sweep.driver import Results, Worker, run_cases
from lab.sweep.generator import FAMILIES, generated
from lab.sweep.node_tests import node_tests
from qnnbridge_host.model.known_wrong import table
from qnnbridge_host.numerics.cases import Case

_NODE_SETS = ("node", "node-constants")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.sweep", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=[])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--cases", type=int, default=0, help="maximum number of cases per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--soc", default="60")
    parser.add_argument("--out", type=Path, default=Path("sweep.jsonl"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--report", action="store_true")
    parser.add_argument(
        "--examples", action="store_true", help="run the examples of the table of known-wrong operators instead"
    )
    parser.add_argument("--used", action="store_true", help="fill QNN's memory with large numbers before each run")
    chosen = parser.parse_args()
    unknown = set(chosen.families) - {*FAMILIES, *_NODE_SETS}
    if unknown:
        parser.error(f"no such family: {', '.join(sorted(unknown))}")
    if chosen.examples:
        return examples(chosen)
    if not chosen.report:
        sweep(chosen)
    print(report.text_of(report.read(chosen.out)))
    return 0


def examples(chosen: argparse.Namespace) -> int:
    """Run the example of each row of the table, with and without the row's rewrite; print the results."""
    worker = Worker(chosen.python, chosen.soc, used=chosen.used)
    worker.start()
    found: dict[str, dict[str, str]] = {}
    for row in table():
        case = Case.from_words(row.example)
        found[row.name] = {"as it is": worker.run(case)["status"]}
        if row.rewrite:
            found[row.name]["cured"] = worker.run(case, row.rewrite)["status"]
    worker.close()
    print(json.dumps({"versions": worker.versions, "rows": found}, indent=1))
    return 0


def sweep(chosen: argparse.Namespace) -> None:
    """Run the cases whose results FILE does not contain yet, until the time is over."""
    done = {line["case"]["id"] for line in report.read(chosen.out)} if chosen.out.exists() else set()
    begun, cpu_before = time.monotonic(), _cpu_seconds()
    labels: dict[int, str] = {}

    def waiting() -> Iterator[Case]:
        for label, case in _labelled(chosen):
            key = f"{label}/{chosen.soc}/{chosen.python if chosen.python != sys.executable else ''}"
            if key not in done:
                labels[id(case)] = key
                yield case

    with chosen.out.open("a") as file:

        def store(case: Case, result: Results) -> None:
            words = {"id": labels.pop(id(case)), "soc": chosen.soc, **case.to_words()}
            file.write(json.dumps({"case": words, "result": result}) + "\n")
            file.flush()

        versions = run_cases(
            waiting(),
            store,
            soc=chosen.soc,
            python=chosen.python,
            processes=chosen.processes,
            deadline=begun + chosen.seconds,
            used=chosen.used,
        )
        spent = {"seconds": round(time.monotonic() - begun), "cpu_seconds": round(_cpu_seconds() - cpu_before)}
        file.write(json.dumps({"run": {**versions, **spent, "seed": chosen.seed}}) + "\n")


def _cpu_seconds() -> float:
    """Return the processor time of the ended child processes."""
    spent = os.times()
    return spent.children_user + spent.children_system


def _labelled(chosen: argparse.Namespace) -> Iterator[tuple[str, Case]]:
    families = chosen.families or [*_NODE_SETS, *FAMILIES]
    for name in families:
        if name in _NODE_SETS:
            for test, case in node_tests(name == "node-constants"):
                yield f"{name}/{test}", case
    made = [name for name in families if name in FAMILIES]
    number = 0
    while made and (not chosen.cases or number < chosen.cases):
        for name in made:
            try:
                yield f"{name}/{chosen.seed}/{number}", generated(name, number, chosen.seed)
            except (ValueError, IndexError):
                continue
        number += 1


if __name__ == "__main__":
    raise SystemExit(main())
