"""`python -m qnnbridge_tools` is the `qnnbridge` command.

The doctor is started without the other commands: they need libraries that may be what is broken, and it has to work
then, too, and quickly.
"""

from __future__ import annotations

import os
import sys

from qnnbridge_tools import output


def main() -> int:
    """The exit code of the command."""
    if sys.argv[1:2] == ["exec"]:
        return _command()  # the output, and how its loss is reported, are the program's
    # As hosts have it, for commands that run ONNX Runtime in this process: it would leave a file behind (`.ses`).
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return output.guarded(_command)
    except KeyboardInterrupt:  # while the commands are imported, or what was printed is written out
        print("Interrupted.", file=sys.stderr)
        return 130


def _command() -> int:
    if sys.argv[1:2] == ["doctor"]:
        from qnnbridge_tools.doctor.__main__ import main as doctor

        return doctor(sys.argv[2:], "qnnbridge doctor")
    try:
        from qnnbridge_tools.cli import main as commands
    except ImportError as error:
        return output.report_incomplete(error)
    return commands()


if __name__ == "__main__":
    sys.exit(main())
