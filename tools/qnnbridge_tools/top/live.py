"""`qnnbridge top` at work: one JSON document, pages of text, or the live view: ask, draw, wait for a key or the
time.

The live view waits for a daemon that goes away: the last figures stay, with the reason above them. One thread,
one connection.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools import output
from qnnbridge_tools.host.figures import Figures, read_figures
from qnnbridge_tools.host.link import Link, reach, without_us
from qnnbridge_tools.top.view import Page, SortOrder, draw, in_order

# Raises `BridgeError` if the daemon does not answer.
Ask = Callable[[], Figures]

# Seconds to wait -> the key, in lower case; empty if none was pressed.
WaitForKey = Callable[[float], str]

if sys.platform == "win32":
    import msvcrt

    _LOOK_INTERVAL_S: Final = 0.05
    # Of keys such as the arrows, which come as two characters.
    _PREFIXES: Final = ("\x00", "\xe0")

    @contextlib.contextmanager
    def raw_keys() -> Iterator[WaitForKey]:
        """Keys of a Windows console."""

        def wait(seconds: float) -> str:
            end = time.monotonic() + seconds
            while not msvcrt.kbhit():
                left = end - time.monotonic()
                if left <= 0:
                    return ""
                # `kbhit` cannot wait: it is asked again, 20 times a second at most.
                time.sleep(min(_LOOK_INTERVAL_S, left))
            key = msvcrt.getwch()
            if key in _PREFIXES:
                msvcrt.getwch()
                return ""
            if key == "\x03":  # getwch takes Ctrl+C for a key
                raise KeyboardInterrupt
            return key.lower()

        yield wait

else:
    import select
    import termios
    import tty

    # A terminal that is closed ends the view, as the key does.
    TERMINAL_GONE: Final = "q"

    @contextlib.contextmanager
    def raw_keys() -> Iterator[WaitForKey]:
        """Keys of a POSIX terminal: its line mode is off while keys are read, and comes back in any case."""
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)

        def wait(seconds: float) -> str:
            readable, _, _ = select.select([fd], [], [], seconds)
            if not readable:
                return ""
            try:
                # The whole sequence of an arrow key, of which the first character alone counts.
                data = os.read(fd, 64)
            except OSError:
                data = b""
            return data.decode("ascii", "replace")[:1].lower() if data else TERMINAL_GONE

        try:
            tty.setcbreak(fd)
            yield wait
        finally:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(fd, termios.TCSADRAIN, before)


@dataclasses.dataclass(frozen=True, slots=True)
class WatchOptions:
    """The options of the view. rounds: number of pages; ``None``: until the user leaves."""

    interval_s: float
    order: SortOrder
    rounds: int | None = None


def show(ask: Ask, view: WatchOptions) -> None:
    """Until q is pressed, the rounds are over, or `KeyboardInterrupt`."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, emoji=False, markup=False)
    page = Page(None, view.order, False, view.interval_s)
    with (
        _ended_by_sigterm(),
        keyboard() as wait,
        # Without auto_refresh rich starts no thread: the view draws when it has something new.
        Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        ) as live,
    ):
        rounds = 0
        while True:
            page = refreshed(page, ask)
            live.update(draw(_sorted(page), console.width, console.height), refresh=True)
            rounds += 1
            if view.rounds is not None and rounds >= view.rounds:
                return
            # A key does not put the next question off.
            due = time.monotonic() + view.interval_s
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
        return dataclasses.replace(page, note=f"{error.message} Waiting for it ...")
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
    """SIGTERM ends the view as Ctrl+C does, so that the terminal gets its line mode back."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Asking:
    """Asks for figures over one connection. One that was lost is looked for again at the next question."""

    def __init__(self) -> None:
        # At once: without a daemon at the beginning the command ends with its reason.
        self._link: Link | None = reach()

    def __call__(self) -> Figures:
        try:
            if self._link is None:
                self._link = reach()
            return read_figures(self._link.status())
        except BridgeError:
            # A connection that has failed once is not asked again.
            self.close()
            raise

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def watch(interval_s: float, order: SortOrder, rounds: int | None, as_json: bool) -> None:
    """Raises `BridgeError` if there is no daemon at the beginning."""
    if as_json:
        with reach() as link:
            output.print_json(without_us(link.status()))
        return
    asking = Asking()
    try:
        if output.is_terminal():
            show(asking, WatchOptions(interval_s, order, rounds))
        else:
            print_pages(asking, interval_s, order, rounds or 1)
    except KeyboardInterrupt:
        pass  # the usual way to leave
    finally:
        asking.close()


def print_pages(asking: Asking, interval_s: float, order: SortOrder, rounds: int) -> None:
    """Plain text, for a pipe or a file."""
    from qnnbridge_tools.host.figures_text import print_status

    for number in range(rounds):
        if number:
            time.sleep(interval_s)
            print()
        print_status(in_order(asking().without_client(os.getpid()), order))


@contextlib.contextmanager
def keyboard() -> Iterator[WaitForKey]:
    """Keys come as they are pressed and are not shown. Ctrl+C still interrupts. Without a keyboard time passes."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _only_wait
        return
    with raw_keys() as wait:
        yield wait


def _only_wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""
