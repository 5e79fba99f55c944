"""What `qnnbridge top` does: one JSON document, pages of text, or the live view. One thread, one connection."""

from __future__ import annotations

import os
import time

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_tools import output
from qnnbridge_tools.host.figures import Figures, read_figures
from qnnbridge_tools.host.link import Link, reach, without_us
from qnnbridge_tools.top.sorting import Order, in_order


class Asking:
    """Asks for figures over one connection. One that was lost is looked for again at the next question."""

    def __init__(self) -> None:
        self._link: Link | None = reach()

    def __call__(self) -> Figures:
        try:
            if self._link is None:
                self._link = reach()
            return read_figures(self._link.status())
        except BridgeError:
            self.close()
            raise

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def watch(interval_s: float, order: Order, rounds: int | None, as_json: bool) -> None:
    """Raises `BridgeError` if there is no daemon at the beginning."""
    if as_json:
        with reach() as link:
            output.print_json(without_us(link.status()))
        return
    asking = Asking()
    try:
        if output.is_terminal():
            from qnnbridge_tools.top.live import View, show

            show(asking, View(interval_s, order, rounds))
        else:
            print_pages(asking, interval_s, order, rounds or 1)
    except KeyboardInterrupt:
        pass  # the usual way to leave
    finally:
        asking.close()


def print_pages(asking: Asking, interval_s: float, order: Order, rounds: int) -> None:
    """Plain text, for a pipe or a file."""
    from qnnbridge_tools.host.status_text import print_status

    for number in range(rounds):
        if number:
            time.sleep(interval_s)
            print()
        print_status(in_order(asking().without_client(os.getpid()), order))
