"""`qnnbridge crashes`: the crash reports that the supervisor wrote.

Hosts that were ended on purpose, and programs that are no host, did not crash; their reports are shown with
``--ended`` only.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from qnnbridge_tools import reporting

if TYPE_CHECKING:
    from qnnbridge._diagnosis.reports import CrashReports

app = typer.Typer(help="List and show crash reports: why hosts ended.", rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Ended = Annotated[
    bool,
    typer.Option("--ended", help="Instead: those ended on purpose, by on_deadline='kill', and what was no host."),
]


@app.callback(invoke_without_command=True)
def crashes(context: typer.Context) -> None:
    """Without a subcommand: the list."""
    if context.invoked_subcommand is None:
        list_reports()


@app.command("list")
def list_reports(as_json: Json = False, ended: Ended = False) -> None:
    """List the reports, newest first."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output

        reports = _reports(ended)
        summaries = reports.summaries()
        if as_json:
            output.print_json({"reports": [dataclasses.asdict(summary) for summary in summaries]})
        elif not summaries:
            print(f"No {'' if ended else 'crash '}reports in {output.visible(reports.folder)}.")
        else:
            output.print_table(
                ["id", "when (UTC)", "exit", "phase", "models", "most likely cause"],
                [
                    [s.id, s.when[:19].replace("T", " "), s.exit, s.phase, ", ".join(s.models) or "-", s.cause]
                    for s in summaries
                ],
            )


@app.command("show")
def show(
    report_id: Annotated[
        str, typer.Argument(metavar="[ID]", help="A report's id, the beginning of one, or last.")
    ] = "last",
    as_json: Json = False,
    ended: Ended = False,
) -> None:
    """Show a report; the newest one if none is named."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools import output

        reports = _reports(ended)
        if as_json:
            output.print_json(reports.read(report_id))
        else:
            # What a dying process printed may hold anything: only its line ends reach the terminal.
            print("\n".join(output.visible(line) for line in reports.read_text(report_id).split("\n")).rstrip())


@app.command("path")
def path() -> None:
    """Print the folder of the reports."""
    with reporting.work():
        print(_reports(ended=False).folder)


def _reports(ended: bool) -> CrashReports:
    from qnnbridge._diagnosis.reports import CrashReports

    return CrashReports().ended if ended else CrashReports()
