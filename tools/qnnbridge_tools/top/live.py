"""The loop behind `qnnbridge top` on a terminal: ask, draw, wait for a key or for the time.

A daemon that goes away is waited for: the last figures stay, with the reason above them. One thread.
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

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools.host.figures import Figures
from qnnbridge_tools.top.keys import keyboard
from qnnbridge_tools.top.sorting import Order, in_order
from qnnbridge_tools.top.view import Page, draw

Ask = Callable[[], Figures]
"""Raises `BridgeError` if the daemon does not tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """How to look. rounds: so many pages, then the end; ``None``: until somebody leaves."""

    interval_s: float
    order: Order
    rounds: int | None = None


def show(ask: Ask, view: View) -> None:
    """Until q is pressed, the rounds are over, or `KeyboardInterrupt`."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, emoji=False, markup=False)
    page = Page(None, view.order, False, view.interval_s)
    with (
        _ended_by_sigterm(),
        keyboard() as wait,
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
    """As by Ctrl+C: else the terminal would stay as it is drawn on, without its line mode."""

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
