"""`python -m qnnbridge_tools.doctor`: the doctor where even the `qnnbridge` command does not start.

That command needs libraries with native parts, which an interpreter on Arm may be unable to load. This needs the
standard library alone.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

EXIT_BLOCKED = 2


def main(arguments: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an old code page lacks characters
    given = _parser().parse_args(arguments)
    from qnnbridge_protocol.errors import BridgeError
    from qnnbridge_tools.doctor.examine import Request, perform
    from qnnbridge_tools.doctor.survey import Order

    order = Order(
        given.host_python, given.model, given.backend_path, given.quick, given.timeout, tuple(given.dim or ())
    )
    request = Request(order, given.snapshot, given.from_snapshot, given.explain, given.fix, given.json)
    try:
        return perform(request, lambda question: input(f"{question} [y/N] ").strip().lower().startswith("y"))
    except (BridgeError, OSError) as error:
        if os.environ.get("QNNBRIDGE_DEBUG", "") not in ("", "0"):
            raise
        print(f"Error: {error}", file=sys.stderr)
        return EXIT_BLOCKED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m qnnbridge_tools.doctor",
        description="Say what is wrong with this machine, and how to mend it.",
    )
    parser.add_argument("--host-python", metavar="PYTHON", help="interpreter of the host")
    parser.add_argument("--model", metavar="MODEL", help="examine this model on this host, too")
    parser.add_argument("--dim", metavar="NAME=SIZE", action="append", help="fix a free dimension of the model")
    parser.add_argument("--backend-path", metavar="FILE", help="backend_path that your application uses")
    parser.add_argument("--quick", action="store_true", help="under a second: no hashing, no live probe")
    parser.add_argument("--timeout", type=float, metavar="S", default=60.0, help="seconds for a live probe")
    parser.add_argument("--fix", action="store_true", help="offer to mend what can be mended without harm")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help="also write what was found out")
    parser.add_argument("--from-snapshot", type=Path, metavar="FILE", help="diagnose another computer's snapshot")
    parser.add_argument(
        "--explain", metavar="TEXT", help="explain a pasted message or code; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
