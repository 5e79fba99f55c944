"""`qnnbridge exec SCRIPT.py [ARGS]` and `qnnbridge exec -m MODULE [ARGS]`: the options, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from qnnbridge_tools import reporting

# Everything behind the script belongs to the script.
CONTEXT_SETTINGS = {"allow_interspersed_args": False}


class ExecCommand(TyperCommand):
    """Everything behind ``-m MODULE`` belongs to the module, as with Python's own ``-m``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._ended_by_module(args))

    def _ended_by_module(self, args: list[str]) -> list[str]:
        with_value = {name for one in self.params if not getattr(one, "is_flag", True) for name in one.opts}
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ("-", "--"):
            following = at + (2 if args[at] in with_value else 1)
            if args[at].startswith("-m") and following <= len(args):
                return [*args[:following], "--", *args[following:]]
            at = following
        return args


def exec_program(
    program: Annotated[
        list[str] | None, typer.Argument(metavar="SCRIPT.py [ARGS]...", help="The program and its arguments.")
    ] = None,
    module: Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m.")] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="as-requested by the program, qnn (to the NPU as far as models go), or cpu. "
            "Default: QNNBRIDGE_DROPIN_PROVIDER, else as-requested."
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="At the end: models, where they ran, calls, time, crashes survived.")
    ] = False,
) -> None:
    """Run a program written for onnxruntime through the bridge, unchanged."""
    arguments = list(program or [])
    with reporting.work():
        from qnnbridge.ort._providers import POLICIES, policy
        from qnnbridge_protocol.errors import OptionError

        chosen = policy() if provider is None else provider
        if chosen not in POLICIES:
            raise OptionError(f"--provider {chosen} is not known.", fix=f"One of: {', '.join(POLICIES)}.")
        if not module and not arguments:
            raise OptionError("No program is given.", fix="qnnbridge exec SCRIPT.py, or qnnbridge exec -m MODULE.")
        from qnnbridge_tools.exec_program.running import Program, environment_for, run_program

        wanted = Program(module, arguments) if module else Program(None, arguments[1:], script=arguments[0])
        wanted.check()
        environ = environment_for(chosen)
    raise typer.Exit(run_program(wanted, environ, report))
