"""Run the `qnnbridge` command when Python is started with `-m qnnbridge_tools`.

The doctor is started without importing the other commands: it must start fast, and work even if the libraries of
other commands are broken.
"""

from __future__ import annotations

import os
import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command; return its exit code."""
    if sys.argv[1:2] == ["exec"]:
        return _command()  # The program started by `exec` handles signals and output errors itself.
    # Some commands run ONNX Runtime in this process. Its telemetry would leave a `.ses` file. Hosts set the same
    # variable.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        # Import here, because Ctrl+C during an import at the top of this module would print a stack trace.
        from qnnbridge_tools import output, signals

        with signals.ended_by_signals():
            code = output.guarded(_command)
    except KeyboardInterrupt:  # Ctrl+C while commands are imported or output is flushed
        code = EXIT_INTERRUPTED
        print("Interrupted.", file=sys.stderr)
    if code == EXIT_INTERRUPTED:
        import signal

        # The command has ended. Another Ctrl+C during the shutdown of the interpreter would print a stack trace.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _command() -> int:
    if sys.argv[1:2] == ["doctor"]:
        from qnnbridge_tools.doctor.__main__ import main as doctor

        return doctor(sys.argv[2:], "qnnbridge doctor")
    try:
        from qnnbridge_tools.cli import main as commands
    except ImportError as error:
        from qnnbridge_tools import output

        return output.report_incomplete(error)
    return commands()


if __name__ == "__main__":
    sys.exit(main())
