"""`qnnbridge host`: the commands for the daemon that several applications share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qnnbridge_tools.command_line import command
from qnnbridge_tools.options import AsJson, DaemonOptions, OverwriteFile

DRAIN_S = 30.0
RESTART_TIMEOUT_S = 300.0
LINES = 50

app = typer.Typer(
    help="Start, stop and watch the daemon. It is one NPU host that several applications share.",
    rich_markup_mode=None,
)
Drain = Annotated[float, typer.Option("--drain", metavar="S", min=0.0, help="Seconds to let running calls finish.")]


@app.callback(invoke_without_command=True)
def host(context: typer.Context) -> None:
    """Show the status if there is no subcommand."""
    if context.invoked_subcommand is None:
        status()


@app.command("start")
@command
def start(*, as_json: AsJson = False, given: DaemonOptions) -> None:
    """Start the daemon in the background and return when it answers. A running daemon is kept."""
    from qnnbridge_tools.host import actions

    actions.start(given, as_json)


@app.command("run")
@command
def run(given: DaemonOptions) -> None:
    """Run the daemon in the foreground, for service managers. Ctrl+C or SIGTERM ends it cleanly."""
    from qnnbridge_tools.host import actions

    actions.run(given)


@app.command("stop")
@command
def stop(drain: Drain = DRAIN_S, as_json: AsJson = False) -> None:
    """Stop the daemon and its NPU host. Running calls finish first; the command waits for the end."""
    from qnnbridge_tools.host import actions

    actions.stop(drain, as_json)


@app.command("restart")
@command
def restart(
    *,
    whole: Annotated[
        bool, typer.Option("--daemon", help="Also restart the daemon, to change its version or options.")
    ] = False,
    drain: Drain = DRAIN_S,
    as_json: AsJson = False,
    given: DaemonOptions,
) -> None:
    """Replace the NPU host by a new one; no call is lost. The options need --daemon."""
    from qnnbridge_tools.host import actions

    if whole:
        actions.restart_daemon(given, drain, as_json)
    else:
        actions.restart_host(given, RESTART_TIMEOUT_S, as_json)


@app.command("status")
@command
def status(as_json: AsJson = False) -> None:
    """Show the daemon, its NPU host, its clients and models. Exit code 3 if no daemon runs."""
    from qnnbridge_tools.host import actions

    actions.status(as_json)


@app.command("metrics")
@command
def metrics() -> None:
    """Print metrics in OpenMetrics format, for Prometheus."""
    from qnnbridge_tools.host import actions

    actions.metrics()


@app.command("logs")
@command
def logs(
    count: Annotated[int, typer.Option("-n", "--lines", metavar="N", min=0, help="Number of lines.")] = LINES,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the log until Ctrl+C.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Print the file's path instead.")] = False,
) -> None:
    """Show the last lines of the daemon's log, whether it runs or not."""
    from qnnbridge_tools.host import actions

    actions.logs(count, follow, path)


@app.command("service")
@command
def service(
    *,
    systemd: Annotated[bool, typer.Option("--systemd", help="A user unit for systemd.")] = False,
    task_scheduler: Annotated[
        bool, typer.Option("--task-scheduler", help="A task for Windows Task Scheduler.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the file here instead of printing it."),
    ] = None,
    overwrite: OverwriteFile = False,
    given: DaemonOptions,
) -> None:
    """Print a service file that starts and watches the daemon. Default: for this system."""
    from qnnbridge_daemon.main import EXIT_RUNNING as ANOTHER_RUNS
    from qnnbridge_tools.host import service

    service.give_service_file(
        given.words(),
        systemd=systemd,
        task_scheduler=task_scheduler,
        output=output,
        overwrite=overwrite,
        another=ANOTHER_RUNS,
    )
