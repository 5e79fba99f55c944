"""`qnnbridge demo`: the command line of the demo."""

from __future__ import annotations

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import AsJson, HostPython, Timeout


def demo(
    host_python: HostPython = None,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Show a trained model at work on QNN, the CPU beside it.

    Tells which way up six lines of text are, computed by QNN in the host process, where and how fast. Ends
    with 0 only if QNN answered and every answer is right.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output
        from qnnbridge_tools.demo import report
        from qnnbridge_tools.demo.compute import compute

        if not as_json:
            report.print_question()
        outcome = compute(host_python=host_python, timeout_s=timeout)
        if as_json:
            output.print_json(report.document(outcome))
        else:
            report.print_outcome(outcome)
        raise typer.Exit(0 if outcome.ok else reporting.EXIT_FAILED)
