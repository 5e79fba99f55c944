"""Collects what the host writes to stderr, from its start to its end.

Native libraries write there at any time and in any amount, and a full pipe would stop the host; so one thread reads
without pause and keeps a bounded part: the first 16 KiB and the last 64 KiB of everything, and of what was written
between the marker lines of a request up to 4 MiB, of all requests together 8 MiB. Bytes are kept raw. Marker lines
are taken out.

Threads: the reader thread fills, any thread asks. The reader has a descriptor of its own, which it alone closes, so
nobody ever closes a descriptor under a blocked reader.
"""

from __future__ import annotations

import collections
import logging
import os
import threading
import time

from qnnbridge._launch.stderr_stream import Bounded, LogForwarder, Marker, MarkerSplitter
from qnnbridge._platform import OwnedFds

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 64 * 1024
SECTION_BYTES = 4 * 1024 * 1024
SECTIONS_MAX = 32
# Of sections, finished or not, that nobody has asked for yet: over either number the oldest goes first.
SECTIONS_TOTAL_BYTES = 8 * 1024 * 1024

_READ_BYTES = 64 * 1024


class _Section:
    __slots__ = ("ended", "text")

    def __init__(self) -> None:
        # Both ends: a set-up that is refused says why at the end, after pages of what went well.
        self.text = Bounded(SECTION_BYTES // 2, SECTION_BYTES // 2)
        self.ended = False


class StderrCollector:
    """See the module. The descriptor stays the caller's; the collector reads from a duplicate of it."""

    def __init__(self, fd: int, *, logger_name: str = "qnnbridge.host") -> None:
        self._fds = OwnedFds()
        self._fd = self._fds.duplicate(fd)
        self._all = Bounded(HEAD_BYTES, TAIL_BYTES)
        self._sections: collections.OrderedDict[int, _Section] = collections.OrderedDict()
        self._changed = threading.Condition()
        self._at_end = False
        self._closed = False
        self._splitter = MarkerSplitter()
        self._forwarder = LogForwarder(logging.getLogger(logger_name))
        self._thread = threading.Thread(target=self._read, name="qnnbridge-stderr", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down
            self._end()

    def head(self) -> bytes:
        """The first 16 KiB."""
        with self._changed:
            return bytes(self._all.head)

    def tail(self) -> bytes:
        """The last 64 KiB of what came after the head."""
        with self._changed:
            return bytes(self._all.tail)

    def section(self, request_id: int, timeout_s: float) -> bytes:
        """What was written between the two markers of the request, which is then forgotten.

        Waits for the end marker, the end of the stream or the time; what has come by then is the answer.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._closed and not self._at_end:
                section = self._sections.get(request_id)
                if section is not None and section.ended:
                    break
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            section = self._sections.pop(request_id, None)
            return b"" if section is None else section.text.join()

    def forget(self, request_id: int) -> None:
        """Nobody will ask for the section of this request."""
        with self._changed:
            self._sections.pop(request_id, None)

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is read that the dead host had written. False if somebody keeps the pipe open."""
        with self._changed:
            return self._changed.wait_for(lambda: self._at_end, timeout_s)

    def close(self) -> None:
        """Nothing is kept or forwarded from here on; head and tail stay. Never blocks.

        The reader goes on until the end of the stream, so that a host that is still alive is not stopped by it.
        """
        with self._changed:
            self._closed = True
            self._sections.clear()
            self._changed.notify_all()

    # --- the reader thread ---

    def _read(self) -> None:
        fd = self._fd
        try:
            while data := os.read(fd, _READ_BYTES):
                self._take(self._splitter.feed(data))
        except OSError:
            pass  # a fork of the application, where the descriptor was closed; or a pipe cut off on Windows
        finally:
            self._take(self._splitter.end())
            self._end()

    def _take(self, parts: list[bytes | Marker]) -> None:
        with self._changed:
            if self._closed:
                return
            for part in parts:
                if isinstance(part, Marker):
                    self._mark(part)
                else:
                    self._all.add(part)
                    for section in self._sections.values():
                        if not section.ended:
                            section.text.add(part)
                    self._keep_within_bounds()
        # Outside the lock: a handler of the application may do anything.
        for part in parts:
            if isinstance(part, Marker):
                self._forwarder.end_line()
            else:
                self._forwarder.feed(part)

    def _mark(self, marker: Marker) -> None:
        if marker.begins:
            self._sections.pop(marker.request_id, None)
            self._sections[marker.request_id] = _Section()
            self._keep_within_bounds()
        elif (section := self._sections.get(marker.request_id)) is not None:
            section.ended = True
            self._changed.notify_all()

    def _keep_within_bounds(self) -> None:
        total = sum(len(section.text) for section in self._sections.values())
        while len(self._sections) > SECTIONS_MAX or total > SECTIONS_TOTAL_BYTES:
            _, oldest = self._sections.popitem(last=False)
            total -= len(oldest.text)

    def _end(self) -> None:
        self._forwarder.end_line()
        with self._changed:
            self._at_end = True
            self._changed.notify_all()
        self._fds.close_all()
