"""What `qnnbridge exec --report` prints: the records of all processes of the program, summed up by model."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Any


@dataclasses.dataclass
class Line:
    """One model, however many processes and sessions it had."""

    model: str
    where: str
    cause: str | None
    sessions: int = 0
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclasses.dataclass
class Summary:
    lines: list[Line]
    crashes: int
    retried_calls: int
    processes: int


def read_records(folder: str) -> Summary:
    """Of every process that wrote one; a file that is cut off (its process was killed) is left out."""
    lines: dict[tuple[str, str], Line] = {}
    crashes = retried = processes = 0
    for name in sorted(os.listdir(folder)):
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                document = json.load(file)
        except (OSError, ValueError):
            continue
        processes += 1
        crashes += int(document["crashes"])
        retried += int(document["retried_calls"])
        for record in document["models"]:
            where = _where(record)
            line = lines.setdefault((record["model"], where), Line(record["model"], where, record["cause"]))
            line.sessions += record["sessions"]
            line.calls += record["calls"]
            line.failed += record["failed"]
            line.seconds += record["seconds"]
    return Summary(list(lines.values()), crashes, retried, processes)


def _where(record: dict[str, Any]) -> str:
    qnn, cpu = record["qnn_nodes"], record["cpu_nodes"]
    if qnn and cpu:
        return f"QNN {_count(qnn, 'node')}, CPU {cpu}"
    return f"QNN, all of {_count(qnn, 'node')}" if qnn else f"CPU, all of {_count(cpu, 'node')}" if cpu else "CPU"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun[-1] in 'sh' else 's'}"


def print_report(folder: str) -> None:
    """On stderr: stdout is the program's."""
    from qnnbridge_tools import output

    summary = read_records(folder)
    print("\nqnnbridge report", file=sys.stderr)
    if not summary.lines:
        print("  The program made no session.", file=sys.stderr)
        return
    rows = [["model", "ran on", "sessions", "calls", "failed", "time in calls"]]
    rows += [
        [
            output.visible(line.model),
            line.where,
            str(line.sessions),
            str(line.calls),
            str(line.failed),
            output.seconds(line.seconds),
        ]
        for line in summary.lines
    ]
    print(output.plain_table(rows, indent="  "), file=sys.stderr)
    for line in summary.lines:
        if line.cause:
            print(f"  {output.visible(line.model)}: {output.visible(line.cause)}", file=sys.stderr)
    died, repeated = _count(summary.crashes, "crash"), _count(summary.retried_calls, "call")
    processes = _count(summary.processes, "process")
    print(f"  {died} of the host survived, {repeated} repeated; {processes}", file=sys.stderr)
