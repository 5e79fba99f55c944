"""What padding changes in a session with buckets: tried when it is made, and at a variant's first padded call.

QNN's results are compared with the CPU's for the padded inputs, so that comparison cannot see it. Nothing is kept
for other sessions: what padding changes follows from the inputs, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qnnbridge._buckets.plan import Sizes
from qnnbridge._numbers import MAX_BYTES
from qnnbridge._recipe import Verify
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import start_thread
from qnnbridge_protocol.errors import BridgeError, NumbersDiffer

_log = logging.getLogger("qnnbridge.buckets")

Feeds = Mapping[str, Any]


class PaddingCheck:
    """found: what padding changes, as text; empty for nothing. Any thread.

    Args:
        mode: "warn" compares behind the call's back; "raise" before its result is handed out.
    """

    def __init__(self, label: str, mode: Verify) -> None:
        self.found = ""
        self._label = label
        self._mode = mode
        self._lock = Lock()
        # Variants of which a padded call was compared.
        self._tried: set[Sizes] = set()

    def report(self, change: str) -> None:
        """Padding was found to change this, if anything. Warns once."""
        with self._lock:
            if not change or self.found:
                return
            self.found = change
        _log.warning(
            "%s: padding changes results: %s. verify_padding(feeds) tries other inputs. Exact sizes change "
            "nothing; pad='edge', or no pad= at all, may do.",
            self._label,
            change,
        )

    def padded_call(self, variant: Sizes, feeds: Feeds, compare: Callable[[Feeds], str]) -> None:
        """A call is padded to this variant.

        Args:
            feeds: without the padding.
            compare: finds what padding changes in them.

        Raises:
            NumbersDiffer: padding changes results, for ``verify="raise"``.
        """
        with self._lock:
            first = variant not in self._tried
            self._tried.add(variant)
        if self._mode == "off" or sum(np.asarray(value).nbytes for value in feeds.values()) > MAX_BYTES:
            return
        if self._mode == "warn":
            if first:
                # The application may change its own meanwhile.
                copies = {name: np.array(value) for name, value in feeds.items()}
                start_thread("qnnbridge padding", self._look, copies, compare)
            return
        if first:
            self._look(feeds, compare)
        if self.found:
            raise NumbersDiffer(
                f"{self._label} gives other results with padding than without.",
                cause=f"Output {self.found}.",
                fix="Give exact sizes, pad='edge' or another value; verify_padding(feeds) tries it. verify=False "
                "accepts the results.",
            )

    def _look(self, feeds: Feeds, compare: Callable[[Feeds], str]) -> None:
        try:
            self.report(compare(feeds))
        except BridgeError as error:  # the call itself is none the worse
            _log.debug("%s: its padding was not compared: %s", self._label, error.message)
