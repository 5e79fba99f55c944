"""The daemon's figures in order, as one page of a terminal, drawn by rich. Pure: figures and a size in, a
drawing out.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from qnnbridge_tools import output
from qnnbridge_tools.host import figures_text as words
from qnnbridge_tools.host.figures import ClientFigures, Figures, HostFigures, ModelFigures
from qnnbridge_tools.output import size_text

if TYPE_CHECKING:
    from rich.console import RenderableType


class SortOrder(enum.Enum):
    """The sorted column: greatest first, names ascending."""

    RATE = "rate"
    CALLS = "calls"
    LATENCY = "latency"
    ERRORS = "errors"
    MEMORY = "memory"
    NAME = "name"

    @property
    def next(self) -> SortOrder:
        orders = list(SortOrder)
        return orders[(orders.index(self) + 1) % len(orders)]


def in_order(figures: Figures, order: SortOrder, reverse: bool = False) -> Figures:
    """Clients and models sorted. Models have no memory figure; `MEMORY` sorts them by sessions."""
    # By name first; the second sort is stable, so that equal figures keep that order.
    clients = sorted(figures.clients, key=lambda client: (client.name.lower(), client.pid), reverse=reverse)
    models = sorted(figures.models, key=lambda model: (model.label.lower(), model.key), reverse=reverse)
    if order is not SortOrder.NAME:
        clients.sort(
            key=lambda one: _figure(one, order, one.errors + one.busy, one.shared_bytes), reverse=not reverse
        )
        models.sort(key=lambda one: _figure(one, order, one.errors, one.sessions), reverse=not reverse)
    return dataclasses.replace(figures, clients=tuple(clients), models=tuple(models))


def _figure(one: ClientFigures | ModelFigures, order: SortOrder, errors: int, size: int) -> float:
    return {
        SortOrder.RATE: one.calls_per_s,
        SortOrder.CALLS: one.calls,
        SortOrder.LATENCY: one.latency_ms.p99 or 0.0,
        SortOrder.ERRORS: errors,
    }.get(order, size)


# Of a table without its rows: title, header, rule.
_TABLE_LINES: Final = 3
_TEXT_COLUMNS: Final = ("client", "model", "runs on", "state", "now")
# Columns that stay where the window is narrow.
_ESSENTIAL: Final = {
    "client": ("pid", "client", "calls/s", "p50", "p99", "errors"),
    "model": ("model", "runs on", "clients", "calls/s", "p50", "p99"),
}
_WIDE: Final = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """The content of the screen. note: why there are no fresh figures."""

    figures: Figures | None
    order: SortOrder
    reverse: bool
    interval_s: float
    note: str = ""


def draw(page: Page, width: int, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if page.note:
        parts.append(Text(output.visible(page.note), style="bold red", overflow="ellipsis", no_wrap=True))
    if page.figures is not None:
        parts += [Text(line, overflow="ellipsis", no_wrap=True) for line in head(page.figures)]
        parts += _tables(page.figures, width, height - len(parts) - 1)
    parts.append(Text(_help(page), style="dim", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def head(figures: Figures) -> list[str]:
    daemon, totals = figures.daemon, figures.totals
    return [
        f"qnnbridge {daemon.qnnbridge} daemon, pid {daemon.pid}, up {words.duration(daemon.uptime_s)}, "
        f"memory {size_text(figures.daemon_rss_bytes)}, shared {size_text(figures.shared_bytes)}",
        output.visible(f"NPU host: {_host_text(figures.host)}"),
        f"Calls: {words.rate_text(figures.calls_per_s)}/s now, {words.count_text(totals.calls)} in all, "
        f"{words.count_text(totals.errors)} errors, {words.count_text(totals.busy)} refused",
        f"Queue: {words.queue_text(figures)}",
    ]


def _host_text(host: HostFigures) -> str:
    """The changing figures first: a narrow window cuts off the end."""
    history = f"crashed {host.crashes}, replaced {host.planned_restarts}"
    if not host.running:
        return f"{words.host_text(host)}; {history}"
    return f"pid {host.pid}, memory {size_text(host.rss_bytes)}, {history}; {words.host_kind(host)}"


def _tables(figures: Figures, width: int, height: int) -> list[RenderableType]:
    clients = [words.client_row(client) for client in figures.clients]
    models = [words.model_row(model) for model in figures.models]
    room = max(2, height - 2 * _TABLE_LINES)
    # Models get half of the room, and what the clients leave of theirs.
    first = min(len(models), max(room // 2, room - len(clients)))
    second = max(1, room - first)
    return [
        *_table("Models", words.MODEL_HEADERS, models, first, width),
        *_table("Clients", words.CLIENT_HEADERS, clients, second, width),
    ]


def _table(
    title: str, headers: Sequence[str], rows: Sequence[Sequence[str]], most: int, width: int
) -> list[RenderableType]:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return [Text(f"{title}: none", style="bold")]
    # The line that says so takes the place of a row.
    says_more = 1 < most < len(rows)  # else the number in the title has to do
    shown = rows[: most - says_more]
    kept = _columns(headers, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for column in kept:
        is_text = headers[column] in _TEXT_COLUMNS
        table.add_column(
            Text(headers[column]), justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis"
        )
    for row in shown:
        table.add_row(*(Text(row[column]) for column in kept))
    parts: list[RenderableType] = [Text(f"{title}: {len(rows)}", style="bold"), table]
    if says_more:
        parts.append(Text(f"... and {len(rows) - len(shown)} more", style="dim"))
    return parts


def _columns(headers: Sequence[str], width: int) -> list[int]:
    essential = next(names for key, names in _ESSENTIAL.items() if key in headers)
    return [index for index, header in enumerate(headers) if width >= _WIDE or header in essential]


def _help(page: Page) -> str:
    reverse = ", reversed" if page.reverse else ""
    return f"sorted by {page.order.value}{reverse}, every {page.interval_s:g} s    q quit  s sort  r reverse"
