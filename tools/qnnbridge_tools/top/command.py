"""`qnnbridge top`: the options, and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from qnnbridge_tools import reporting
from qnnbridge_tools.top.view import SortOrder

LEAST_INTERVAL_S = 0.2


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="S", min=LEAST_INTERVAL_S, help="Seconds between looks.")
    ] = 1.0,
    order: Annotated[
        SortOrder, typer.Option("--sort", help="What stands first. The key s changes it.")
    ] = SortOrder.RATE,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", metavar="N", min=1, help="Look so many times, then end. Default without a terminal: 1."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document, once.")] = False,
) -> None:
    """Watch the daemon: clients, models, where they run, calls per second, latencies. q ends it."""
    with reporting.work(as_json=as_json):
        from qnnbridge_tools.arguments import check_seconds
        from qnnbridge_tools.top import live

        check_seconds("--interval", interval)
        live.watch(interval, order, rounds, as_json)
