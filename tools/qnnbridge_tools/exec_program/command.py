"""`qnnbridge exec SCRIPT.py [ARGS]` and `qnnbridge exec -m MODULE [ARGS]`: the options, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from qnnbridge_tools import reporting

# Everything behind the script belongs to the script.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


def exec_program(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py [ARGS]...", help="The program and its arguments.")
    ] = None,
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m.")] = None,
    provider: Annotated[
        str, typer.Option(help="as-requested by the program, qnn (to the NPU as far as models go), or cpu.")
    ] = "as-requested",
    report: Annotated[
        bool, typer.Option("--report", help="At the end: models, where they ran, calls, time, crashes survived.")
    ] = False,
) -> None:
    """Run a program written for onnxruntime through the bridge, unchanged."""
    arguments = list(program or [])
    with reporting.work():
        from qnnbridge.ort.provider_choice import POLICIES
        from qnnbridge_protocol.errors import OptionError

        if provider not in POLICIES:
            raise OptionError(f"--provider {provider} is not known.", fix=f"One of: {', '.join(POLICIES)}.")
        if module is None and not arguments:
            raise OptionError("No program is given.", fix="qnnbridge exec SCRIPT.py, or qnnbridge exec -m MODULE.")
        from qnnbridge_tools.exec_program.running import Program, run_program

        wanted = Program(module, arguments) if module else Program(None, arguments[1:], script=arguments[0])
        wanted.check()
    raise typer.Exit(run_program(wanted, provider, report))
