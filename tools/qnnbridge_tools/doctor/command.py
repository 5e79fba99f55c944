"""`qnnbridge doctor`: the command line. `__main__` is another one, for where the library of this one is broken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.options import AsJson, HostPython


def doctor(
    host_python: HostPython = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Examine this model on this host, too.")
    ] = None,
    dims: Annotated[
        list[str] | None, typer.Option("--dim", metavar="NAME=SIZE", help="Fix a free dimension of the model.")
    ] = None,
    backend_path: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The provider option backend_path that your application uses."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Under a second: no hashing, no live probe.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds for a live probe.")] = 60.0,
    fix: Annotated[bool, typer.Option("--fix", help="Offer to mend what can be mended without harm.")] = False,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write what was found out, to be diagnosed elsewhere.")
    ] = None,
    from_snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Diagnose another computer's snapshot.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Explain a pasted message or code; - reads standard input.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with this machine, and how to mend it.

    Ends with 0 if all is well, 1 if something is degraded, 2 if the NPU cannot be used.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge_tools.doctor.examine import DoctorOptions, perform
        from qnnbridge_tools.doctor.survey import SurveyOptions

        order = SurveyOptions(
            host_python=host_python,
            model=str(model) if model is not None else None,
            backend=backend_path,
            quick=quick,
            probe_timeout_s=timeout,
            dimensions=tuple(dims or ()),
        )
        request = DoctorOptions(order, snapshot, from_snapshot, explain, fix, as_json)
        raise typer.Exit(perform(request, lambda question: typer.confirm(question, err=True)))
