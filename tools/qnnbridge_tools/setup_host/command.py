"""`qnnbridge setup-host`: an environment for the host, from nothing to a host that the doctor has examined."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson
from qnnbridge_tools.setup_host.options import SetupOptions

if TYPE_CHECKING:
    from qnnbridge_tools.doctor.findings import Report


@command
def setup_host(
    options: SetupOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an environment for the host, with the onnxruntime-qnn that fits this computer or another source of QNN.

    Ends with 0 if the new host can be used, 1 if nothing was made or the doctor finds that QNN cannot be used.
    """
    from qnnbridge._launch.installed import Surroundings
    from qnnbridge_tools import output
    from qnnbridge_tools.doctor.findings import Severity
    from qnnbridge_tools.setup_host import report
    from qnnbridge_tools.setup_host.plan import make_plan
    from qnnbridge_tools.setup_host.steps import carry_out

    # Before anything is planned. With --json the question would stand in the document on stdout.
    if not (dry_run or yes) and (as_json or not sys.stdin.isatty()):
        raise OptionError(
            "This command cannot ask here whether to go on.",
            fix="Add --yes, or --dry-run to see what would be done.",
        )
    plan = make_plan(options, Surroundings.current())
    if not as_json:
        report.print_plan(plan)
        print()
    if dry_run:
        reporting.show(plan, report.document, report.print_commands, as_json=as_json)
        return
    if not yes and not typer.confirm("Go on?"):
        raise typer.Exit(reporting.EXIT_FAILED)
    info = carry_out(plan, _say, _detail)
    _say("Examining the new host")
    if plan.engine != "wheel":
        os.environ.update(plan.variables)  # for the doctor: with --no-config the file does not say it
    found = examine(plan.python)
    if as_json:
        output.print_json(report.document(plan, info, found))
    else:
        report.print_result(plan, info, found)
    if found.severity is Severity.BLOCKED:
        raise typer.Exit(reporting.EXIT_FAILED)


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _detail(line: str) -> None:
    """The lines of pip that say why it takes long."""
    shown = line.strip()
    # pip names a size for each download; only those in MB take time.
    if (shown.startswith("Downloading ") and shown.endswith("MB)")) or shown.startswith("Building wheel"):
        print(f"  {shown}", file=sys.stderr, flush=True)
    elif shown.startswith('{"progress":'):
        # The line of `qnnbridge_host.windows_ml download`, a number from 0 to 1.
        percent = shown.removeprefix('{"progress":').removesuffix("}")
        print(f"  {float(percent):.0%}", file=sys.stderr, flush=True)
    elif shown.startswith("Installing collected packages"):
        print(f"  Unpacking {shown.count(',') + 1} packages", file=sys.stderr, flush=True)


def examine(python: Path) -> Report:
    """Never raises for what is wrong: that is what the report is about."""
    from qnnbridge_tools.doctor.diagnose import diagnose
    from qnnbridge_tools.doctor.real_machine import RealMachine
    from qnnbridge_tools.doctor.survey import SurveyOptions, survey

    begun = time.perf_counter()
    facts = survey(RealMachine(), SurveyOptions(host_python=str(python)))
    return dataclasses.replace(diagnose(facts), seconds=time.perf_counter() - begun)
