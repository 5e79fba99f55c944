"""``python -m lab.bench``: measure, compare with the targets, write the result as JSON.

The exit code is 1 if ``--strict`` is given and the "must" value of a target is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from lab.bench.figures import Bench
from lab.bench.targets import TARGETS, Figures, Target, of_the_floor

PACKAGES = ("numpy", "onnxruntime", "onnxruntime-qnn", "onnxruntime-genai", "msgpack", "pyzmq", "grpcio", "Pyro5")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument(
        "--only", action="append", metavar="GROUP", help="calls, threads, steady, starts, qnn, genai, serve"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument(
        "--mlserver", metavar="PYTHON", help="an interpreter with mlserver and onnxruntime, for the group serve"
    )
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="do not pin processes to processors")
    parser.add_argument("--strict", action="store_true", help="fail if a 'must' is missed")
    options = parser.parse_args()
    bench = Bench(
        rounds=5 if options.quick else 15,
        turn_s=0.02 if options.quick else 0.06,
        pin=options.pin,
        mlserver=options.mlserver,
    )
    unknown = set(options.only or ()) - bench.groups.keys()
    if unknown:
        parser.error(f"there is no group {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")  # sessions on the CPU issue warnings
    begin = time.monotonic()
    load = [psutil.getloadavg()[0]]
    for name, measure in bench.groups.items():
        # Skip the group "serve" by default: it takes minutes and is useful only in comparison with mlserver.
        if name in (options.only or ()) or (not options.only and (name != "serve" or options.mlserver)):
            print(f"... {name}", file=sys.stderr, flush=True)
            measure()
    load.append(psutil.getloadavg()[0])
    document = result(bench, load, time.monotonic() - begin)
    print_table(document)
    if bench.serving:
        print_serving(bench.serving)
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    missed = any(target["verdict"] == "missed" for target in document["targets"])
    return 1 if options.strict and missed else 0


def result(bench: Bench, load: list[float], seconds: float) -> dict[str, Any]:
    return {
        "machine": {
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "packages": {name: _version(name) for name in PACKAGES},
            "load": load,
        },
        "seconds": seconds,
        "figures": bench.figures,
        "timings": {name: dataclasses.asdict(timing) for name, timing in bench.timings.items()},
        "targets": [
            {
                "name": target.name,
                "unit": target.unit,
                "must": target.must,
                "aim": target.aim,
                "more": target.more,
                "value": target.value(bench.figures),
                "floor": _floor(target, bench.figures),
                "verdict": target.verdict(bench.figures),
            }
            for target in TARGETS
        ],
    }


def print_table(document: dict[str, Any]) -> None:
    from qnnbridge_tools import output

    rows = []
    for target in document["targets"]:
        value = target["value"]
        rows.append(
            [
                target["name"],
                "-" if value is None else f"{value:.3g}",
                "-" if target["floor"] is None else f"{target['floor']:.3g}",
                f"{target['must']:g}",
                f"{target['aim']:g}",
                target["unit"],
                target["verdict"],
            ]
        )
    output.print_table(("goal", "measured", "floor", "must", "aim", "unit", "holds"), rows)
    low, high = document["machine"]["load"]
    print(
        f"{document['seconds']:.0f} s; load average before {low:.1f}, after {high:.1f}, on "
        f"{document['machine']['cpus']} CPUs"
    )


def print_serving(lines: list[list[str]]) -> None:
    from lab.bench.serving import HEADERS
    from qnnbridge_tools import output

    print(
        "Requests per second (median milliseconds of a request); ratios: median of the rounds (lowest to highest)"
    )
    output.print_table(HEADERS, lines)


def _floor(target: Target, figures: Figures) -> float | None:
    """Return the target's value for the fastest possible bridge (the floor); ``None`` if the target has no
    floor."""
    least = target.value(of_the_floor(figures))
    return None if least == target.value(figures) else least


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
