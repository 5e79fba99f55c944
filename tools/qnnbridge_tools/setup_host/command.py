"""`qnnbridge setup-host`: an environment for the host, from nothing to a host that the doctor has examined."""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools import reporting
from qnnbridge_tools.options import AsJson, Chip, SystemSdk

if TYPE_CHECKING:
    from qnnbridge_tools.doctor.findings import Report
    from qnnbridge_tools.setup_host.plan import NpuTraits


class QnnFrom(str, enum.Enum):
    WHEEL = "wheel"
    WINDOWSML = "windowsml"
    FOLDER = "folder"


def setup_host(
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PYTHON", help="Interpreter: a path, a tag of the py launcher, 3.13; else the best one."
        ),
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="onnxruntime-qnn; else the newest that works here.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Where the environment is made.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="Wheel, sdist or checkout of qnnbridge.")
    ] = None,
    system_sdk: SystemSdk = None,
    chip: Chip = None,
    config: Annotated[
        bool, typer.Option("--config/--no-config", help="Name the new host in the configuration file.")
    ] = True,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an environment or setting that is there already.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --version: install it although it does not fit.")
    ] = False,
    engine: Annotated[
        QnnFrom, typer.Option("--engine", help="Source of QNN: onnxruntime-qnn, or the catalogue of Windows.")
    ] = QnnFrom.WHEEL,
    ep_path: Annotated[
        Path | None, typer.Option("--ep-path", metavar="PATH", help="Folder (or file) of a provider of your own.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="With --engine windowsml: have Windows download its provider.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and do nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make an environment for the host, with the onnxruntime-qnn that fits this computer or another source of QNN.

    Ends with 0 if the new host can be used, 1 if nothing was made or the doctor finds that QNN cannot be used.
    """
    with reporting.work(as_json=as_json):
        from qnnbridge._launch.installed import Surroundings
        from qnnbridge_tools import output
        from qnnbridge_tools.doctor.findings import Severity
        from qnnbridge_tools.setup_host import report
        from qnnbridge_tools.setup_host.plan import SetupOptions, make_plan
        from qnnbridge_tools.setup_host.steps import carry_out

        if not (dry_run or yes) and (as_json or not sys.stdin.isatty()):
            raise OptionError(
                "This command cannot ask here whether to go on.",
                fix="Add --yes, or --dry-run to see what would be done.",
            )
        facts = _facts(system_sdk, chip)
        options = SetupOptions(
            python,
            version,
            folder,
            source,
            facts,
            replace,
            force,
            write_config=config,
            engine=engine.value,
            ep_path=ep_path,
            download=download,
        )
        plan = make_plan(options, Surroundings.current())
        if not as_json:
            report.print_plan(plan)
            print()
        if dry_run:
            if as_json:
                output.print_json(report.document(plan))
            else:
                report.print_commands(plan)
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


def _facts(system_sdk: str | None, chip: str | None) -> NpuTraits:
    """The given values, else those of this computer's driver."""
    from qnnbridge_tools.doctor import here
    from qnnbridge_tools.setup_host.plan import NpuTraits

    sdk, hexagon = here.driver_facts()
    if system_sdk is not None:
        sdk = here.checked_sdk(system_sdk)
    if chip is not None:
        from qnnbridge_tools.versions.machines import read_chip

        hexagon = read_chip(chip)
    return NpuTraits(sdk, hexagon)


def _say(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _detail(line: str) -> None:
    """The lines of pip that say why it takes long."""
    shown = line.strip()
    if (shown.startswith("Downloading ") and shown.endswith("MB)")) or shown.startswith("Building wheel"):
        print(f"  {shown}", file=sys.stderr, flush=True)
    elif shown.startswith('{"progress":'):
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
