"""`qnnbridge top`: a live view of the daemon.

`watch` queries the daemon in a loop and reads keys from the terminal. `draw` makes a page of the figures, which
come from `qnnbridge_tools.host`, sorted by `in_order`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools import output
from qnnbridge_tools.host import figures as words
from qnnbridge_tools.host.figures import ClientFigures, Figures, HostFigures, ModelFigures, read_figures
from qnnbridge_tools.host.link import Link, reach, without_us
from qnnbridge_tools.options import SortOrder
from qnnbridge_tools.output import size_text

if TYPE_CHECKING:
    from rich.console import RenderableType


# --- pure functions, which draw the status for a terminal of a given size ---


def in_order(figures: Figures, order: SortOrder, reverse: bool = False) -> Figures:
    """Return the figures with clients and models sorted.

    Models have no memory figure; `MEMORY` sorts them by sessions.
    """
    # Sort by name first; the second sort is stable and keeps this order for equal figures.
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


# Number of lines of a table besides its rows: title, header, rule.
_TABLE_LINES: Final = 3
_TEXT_COLUMNS: Final = ("client", "model", "runs on", "state", "now")
# Columns that a narrow window keeps.
_ESSENTIAL: Final = {
    "client": ("pid", "client", "calls/s", "p50", "p99", "errors"),
    "model": ("model", "runs on", "clients", "calls/s", "p50", "p99"),
}
_WIDE: Final = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """The content of the screen. note: why there are no new figures."""

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
        "; ".join(filter(None, (f"Queue: {words.queue_text(figures)}", words.generation_text(figures)))),
    ]


def _host_text(host: HostFigures) -> str:
    """Return the host's text. The changing figures come first, because a narrow window cuts off the end."""
    history = f"crashed {host.crashes}, replaced {host.planned_restarts}"
    if not host.running:
        return f"{words.host_text(host)}; {history}"
    return f"pid {host.pid}, memory {size_text(host.rss_bytes)}, {history}; {words.host_kind(host)}"


def _tables(figures: Figures, width: int, height: int) -> list[RenderableType]:
    clients = [words.client_row(client) for client in figures.clients]
    models = [words.model_row(model) for model in figures.models]
    room = max(2, height - 2 * _TABLE_LINES)
    # Models get half of the lines, and the lines that the clients do not need.
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
    # The line with the number of hidden rows takes the place of a row.
    says_more = 1 < most < len(rows)  # otherwise only the title shows that rows are hidden
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


# --- one document, pages of text, or the live view ------------------------------------------------------

# Function that queries the daemon; raises `BridgeError` if the daemon does not answer.
Ask = Callable[[], Figures]

# Function that waits for some seconds; it returns the key in lower case, or an empty string if no key was
# pressed.
WaitForKey = Callable[[float], str]

if sys.platform == "win32":
    import msvcrt

    _LOOK_INTERVAL_S: Final = 0.05
    # The first character of keys such as the arrows, which arrive as two characters.
    _PREFIXES: Final = ("\x00", "\xe0")

    @contextlib.contextmanager
    def raw_keys() -> Iterator[WaitForKey]:
        """Read keys of a Windows console."""

        def wait(seconds: float) -> str:
            end = time.monotonic() + seconds
            while not msvcrt.kbhit():
                left = end - time.monotonic()
                if left <= 0:
                    return ""
                # `kbhit` cannot wait, so call it up to 20 times a second.
                time.sleep(min(_LOOK_INTERVAL_S, left))
            key = msvcrt.getwch()
            if key in _PREFIXES:
                msvcrt.getwch()
                return ""
            if key == "\x03":  # getwch returns Ctrl+C as a character and raises nothing
                raise KeyboardInterrupt
            return key.lower()

        yield wait

else:
    import select
    import termios
    import tty

    # Key that `wait` returns if the terminal is closed: q, which ends the view.
    TERMINAL_GONE: Final = "q"

    @contextlib.contextmanager
    def raw_keys() -> Iterator[WaitForKey]:
        """Read keys of a POSIX terminal, whose line mode is switched off until the block ends."""
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)

        def wait(seconds: float) -> str:
            readable, _, _ = select.select([fd], [], [], seconds)
            if not readable:
                return ""
            try:
                # Read the whole sequence of an arrow key, of which only the first character is used.
                data = os.read(fd, 64)
            except OSError:
                data = b""
            return data.decode("ascii", "replace")[:1].lower() if data else TERMINAL_GONE

        try:
            # Use cbreak and not raw, so that Ctrl+C remains a signal.
            tty.setcbreak(fd)
            yield wait
        finally:
            with contextlib.suppress(termios.error):  # the terminal is gone
                # With TCSADRAIN the drawn text is written first.
                termios.tcsetattr(fd, termios.TCSADRAIN, before)


def show(ask: Ask, interval_s: float, order: SortOrder, rounds: int | None = None) -> None:
    """Show the view until q is pressed, the rounds are over, or `KeyboardInterrupt` is raised."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, emoji=False, markup=False)
    page = Page(None, order, False, interval_s)
    with (
        _ended_by_sigterm(),
        keyboard() as wait,
        # Without auto_refresh rich starts no thread: the view draws when something has changed.
        Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live,
    ):
        for number in itertools.count(1):
            page = refreshed(page, ask)
            live.update(draw(_sorted(page), console.width, console.height), refresh=True)
            if number == rounds:
                return
            # Set the time of the next query only once, so that pressed keys do not delay the query.
            due = time.monotonic() + interval_s
            while (left_s := due - time.monotonic()) > 0:
                key = wait(left_s)
                if key == "q":
                    return
                page = after_key(page, key)
                live.update(draw(_sorted(page), console.width, console.height), refresh=True)


def refreshed(page: Page, ask: Ask) -> Page:
    try:
        figures = ask().without_client(os.getpid())
    except BridgeError as error:
        return dataclasses.replace(page, note=f"{error.message} Waiting for the daemon ...")
    return dataclasses.replace(page, figures=figures, note="")


def after_key(page: Page, key: str) -> Page:
    if key == "s":
        return dataclasses.replace(page, order=page.order.next)
    if key == "r":
        return dataclasses.replace(page, reverse=not page.reverse)
    return page


def _sorted(page: Page) -> Page:
    if page.figures is None:
        return page
    return dataclasses.replace(page, figures=in_order(page.figures, page.order, page.reverse))


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """End the view at SIGTERM like at Ctrl+C, so that the terminal's line mode is restored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # Python sets signal handlers only in the main thread; on Windows no process sends SIGTERM to another
    # process.
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Asking:
    """Reads figures over one connection. After a lost connection, the next call opens a new connection."""

    def __init__(self) -> None:
        # Connect immediately: without a daemon the command ends with an error.
        self._link: Link | None = reach()

    def __call__(self) -> Figures:
        try:
            if self._link is None:
                self._link = reach()
            return read_figures(self._link.status())
        except BridgeError:
            # A connection that has failed is not used again.
            self.close()
            raise

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def watch(interval_s: float, order: SortOrder, rounds: int | None, as_json: bool) -> None:
    """Show the daemon's figures.

    Raises:
        BridgeError: there is no daemon at the beginning.
    """
    if as_json:
        with reach() as link:
            output.print_json(without_us(link.status()))
        return
    asking = Asking()
    try:
        if output.is_terminal():
            show(asking, interval_s, order, rounds)
        else:
            print_pages(asking, interval_s, order, rounds or 1)
    except KeyboardInterrupt:
        pass  # the user ended the view
    finally:
        asking.close()


def print_pages(asking: Asking, interval_s: float, order: SortOrder, rounds: int) -> None:
    """Print plain text, for a pipe or a file."""
    from qnnbridge_tools.host.figures import print_status

    for number in range(rounds):
        if number:
            time.sleep(interval_s)
            print()
        print_status(in_order(asking().without_client(os.getpid()), order))


@contextlib.contextmanager
def keyboard() -> Iterator[WaitForKey]:
    """Read keys as they are pressed, without showing them. Ctrl+C still interrupts.

    If stdin is not a terminal, the function that is yielded only waits.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield _only_wait
        return
    with raw_keys() as wait:
        yield wait


def _only_wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""
