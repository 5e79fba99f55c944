"""`qnnbridge doctor` with only the standard library, so that it works if libraries of other commands are broken.

It also starts in half the time of other commands. The command `qnnbridge doctor` runs this module.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools import output
from qnnbridge_tools.examples import GUIDES

EXIT_BLOCKED = 2
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None, name: str = "python -m qnnbridge_tools.doctor") -> int:
    output.make_streams_safe()
    given = _parser(name).parse_args(arguments)
    # Import `examine` only after parsing, because `--help` and a mistyped option do not need it.
    from qnnbridge_tools.doctor.examine import DoctorOptions, SurveyOptions, perform

    order = SurveyOptions(
        given.host_python,
        given.model,
        given.backend_path,
        given.quick,
        given.numbers,
        given.timeout,
        tuple(given.dim or ()),
    )
    request = DoctorOptions(
        order, given.snapshot, given.overwrite, given.from_snapshot, given.explain, given.fix, given.json
    )
    try:
        return perform(request, lambda question: input(f"{question} [y/N] ").strip().lower().startswith("y"))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        if output.reader_is_gone(error):
            raise
        output.print_error(output.loss_error(error), given.json)
    except BridgeError as error:
        output.print_error(error, given.json)
    return EXIT_BLOCKED


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        seconds = float(text)
        # This comparison also refuses NaN, because comparisons with NaN are false.
        if 1 <= seconds <= 1e9:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 1,000,000,000")


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=name,
        description="Diagnose this machine and describe how to fix it.",
        epilog="Exit code 0: all is well; 1: something is degraded; 2: the NPU cannot be used.\n\n"
        + GUIDES["doctor"].text().removeprefix("\b\n"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Refuse abbreviated options, like the other commands: an option added later could make an abbreviation
        # ambiguous.
        allow_abbrev=False,
    )
    parser.add_argument("--host-python", metavar="PYTHON", help="interpreter of the host")
    parser.add_argument("--model", metavar="MODEL", help="also examine this model on this host")
    parser.add_argument("--dim", metavar="NAME=SIZE", action="append", help="set a free dimension of the model")
    parser.add_argument("--backend-path", metavar="FILE", help="backend_path that your application uses")
    parser.add_argument(
        "--quick", action="store_true", help="take less than a second: skip hashing and the live probe"
    )
    parser.add_argument(
        "--numbers",
        action="store_true",
        help="also measure which operators of the known-wrong table are wrong on this NPU",
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", default=60.0, help="seconds for a live probe")
    parser.add_argument("--fix", action="store_true", help="offer the fixes that cannot do harm")
    parser.add_argument(
        "--snapshot",
        type=Path,
        metavar="FILE",
        help="also write the collected facts, for diagnosis on another computer",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing FILE")
    parser.add_argument("--from-snapshot", type=Path, metavar="FILE", help="diagnose another computer's snapshot")
    parser.add_argument(
        "--explain", metavar="TEXT", help="explain a pasted message or code; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


if __name__ == "__main__":
    sys.exit(output.guarded(main))
