"""What `qnnbridge bench` tells: tables for a person, and one document for a program."""

from __future__ import annotations

import statistics
from typing import Any

from qnnbridge_tools import output, version, where
from qnnbridge_tools.bench.hosts import DIRECT, WAYS, WAYS_IN_WORDS
from qnnbridge_tools.bench.measuring import Timing
from qnnbridge_tools.bench.moments import DIRECT_SESSION, EMPTY, MOMENTS_IN_WORDS, READY, SESSION
from qnnbridge_tools.bench.work import Measured, Row

NOISY = 0.1
"""Above this a difference of two timings says little."""

BUSY = 0.5
"""Load per CPU above which a note is due."""


def print_measured(measured: Measured) -> None:
    print("A call, median in microseconds (and times ONNX Runtime in one process)")
    output.print_table(("", *WAYS), [_cells(row) for row in measured.rows])
    print()
    for way in WAYS:
        print(f"  {way:<10} {WAYS_IN_WORDS[way]}")
    print()
    print("The slowest call of ten, and of a hundred, in microseconds; noise: how far rounds lie apart")
    output.print_table(
        ("", *WAYS),
        [[row.name, *(_tail(row.timings[way]) for way in WAYS)] for row in measured.rows],
    )
    print()
    name = measured.rows[0].name
    one = measured.crowds[min(measured.crowds)]
    print(f"Many callers at once ({name}, plain arrays)")
    output.print_table(
        ("threads", "calls/s", "times one thread"),
        [[str(size), f"{rate:.0f}", f"{rate / one:.2f}"] for size, rate in measured.crowds.items()],
    )
    print()
    print("Starting")
    output.print_table(
        ("", "median", "from", "to"),
        [
            [MOMENTS_IN_WORDS[kind], *(output.seconds(s) for s in (statistics.median(took), min(took), max(took)))]
            for kind, took in measured.starts.items()
        ],
    )
    print()
    recovery = measured.recovery_s
    print(
        f"After the host was killed, the next answer came after {output.seconds(statistics.median(recovery))} "
        f"(the slowest of {len(recovery)}: {output.seconds(max(recovery))}); the caller saw no error."
    )
    print()
    if measured.placement is not None:
        output.print_pairs("Where the model ran", where.placement_pairs(measured.placement))
    output.print_pairs("Sides", where.sides_pairs(measured.host))
    for note in notes(measured):
        print(f"Note: {note}")


def notes(measured: Measured) -> list[str]:
    """What somebody must know who compares these numbers with others."""
    said = []
    noisy = [f"{row.name} {way}" for row in measured.rows for way in WAYS if row.timings[way].noise > NOISY]
    if noisy:
        most = "most" if len(noisy) > len(measured.rows) * len(WAYS) / 2 else ", ".join(noisy[:6])
        said.append(f"these timings vary by more than {output.percent(NOISY)} from round to round: {most}.")
    if measured.load is not None and max(measured.load) / measured.cpus > 1 + BUSY:
        said.append(
            f"the machine is busy with other things (load {max(measured.load):.1f} on {measured.cpus} CPUs)."
        )
    if measured.pinned:
        said.append("calls were measured with all processes on one CPU; threads and starting without.")
    else:
        said.append("processes were free to move between CPUs: waking the other one up is part of a call.")
    if measured.stats.shared_memory != "available":
        said.append(f"shared memory is {measured.stats.shared_memory}; 'bridge' and 'zero-copy' went without.")
    return said


def document(measured: Measured) -> dict[str, Any]:
    return {
        "calls": [
            {
                "name": row.name,
                "bytes_in": row.bytes_in,
                "ways": {way: _timing_document(row.timings[way], row.timings[DIRECT]) for way in WAYS},
            }
            for row in measured.rows
        ],
        "calls_per_second": {str(size): rate for size, rate in measured.crowds.items()},
        "starting_s": {
            kind: {"median": statistics.median(took), "all": took} for kind, took in measured.starts.items()
        },
        "ready_to_python": _ratio(measured, READY, EMPTY),
        "session_to_direct": _ratio(measured, SESSION, DIRECT_SESSION),
        "recovery_s": {"median": statistics.median(measured.recovery_s), "all": measured.recovery_s},
        "pinned": measured.pinned,
        "load": measured.load,
        "cpus": measured.cpus,
        "shared_memory": measured.stats.shared_memory,
        "shared_calls": measured.stats.shared_calls,
        "placement": None if measured.placement is None else measured.placement.to_wire(),
        "notes": notes(measured),
        "host": version.host_document(measured.host),
        "application": version.application_document(),
    }


def _ratio(measured: Measured, one: str, other: str) -> float:
    return statistics.median(measured.starts[one]) / statistics.median(measured.starts[other])


def _timing_document(timing: Timing, direct: Timing) -> dict[str, Any]:
    return {
        "median_us": timing.median_s * 1e6,
        "p90_us": timing.p90_s * 1e6,
        "p99_us": timing.p99_s * 1e6,
        "best_us": timing.best_s * 1e6,
        "noise": timing.noise,
        "calls": timing.calls,
        "to_direct": timing.median_s / direct.median_s,
        "added_us": (timing.median_s - direct.median_s) * 1e6,
    }


def _cells(row: Row) -> list[str]:
    direct = row.timings[DIRECT].median_s
    cells = [row.name]
    for way in WAYS:
        median = row.timings[way].median_s
        cells.append(_us(median) if way == DIRECT else f"{_us(median)} ({median / direct:.2f}x)")
    return cells


def _tail(timing: Timing) -> str:
    return f"{_us(timing.p90_s)}, {_us(timing.p99_s)}, {timing.noise * 100:.0f} %"


def _us(seconds: float) -> str:
    microseconds = seconds * 1e6
    return f"{microseconds:.1f}" if microseconds < 100 else f"{microseconds:.0f}"
