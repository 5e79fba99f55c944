r"""Collect the host's stderr from its start to its end, and convert the bytes to text.

Native libraries write to stderr at any time and in any amount, and a full pipe would block the host. So one thread
reads continuously and keeps only a part: the first 16 KiB and the last 64 KiB of the whole output, and up to 4 MiB
of the output between the marker lines of a request (8 MiB for all requests). Bytes are kept raw, and marker lines
are removed. The code does not rely on line ends: the text may contain none, and in UTF-16 a line ends with
``\\n\\0``.

Threads: the reader thread stores the output, and any thread may query it. The reader has a separate descriptor,
which no other thread closes, so a descriptor is never closed while the reader is blocked in a read.

On Windows ONNX Runtime writes its log as UTF-16LE to the same descriptor to which Python and the C runtime write
narrow text, so one stream contains both, switching in the middle and at odd offsets. Everything is decoded here,
and nothing is lost: a byte that is not text becomes U+FFFD.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge_os.fds import OwnedFds
from qnnbridge_os.native import Lock
from qnnbridge_os.shield import Changes, start_thread
from qnnbridge_protocol.visible import log_of

# Maximum length of a line of evidence. Longer lines are shortened in the middle to keep them readable.
MAX_LINE: Final = 400

# Start of UTF-16 text: two consecutive ASCII characters, each followed by a NUL. A single character with a NUL
# could also be the end of a C string.
_WIDE_START = re.compile(rb"(?:[\t\n\r\x1b\x20-\x7e]\x00){2}")
_NARROW_AHEAD = re.compile(rb"[\t\n\r\x20-\x7e]{6}")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIX = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[(?P<severity>[VIWEF]):(?P<logger>[^,\]]*), (?P<place>[^\]]*)\] ?"
)


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """A line of the output without its time stamp.

    Attributes:
        severity: V, I, W, E or F; '' for a line that ONNX Runtime did not write.
        place: name of the function that wrote the line.
    """

    text: str
    severity: str = ""
    place: str = ""


def decode_stderr(data: bytes) -> str:
    r"""Return the output as text with ``\\n`` line ends and without colours."""
    text = "".join(_parts(bytes(data)))
    return strip_ansi(text).replace("\r\n", "\n").replace("\x00", "")


def strip_ansi(text: str) -> str:
    return _ANSI.sub("", text)


def parse_line(line: str) -> LogLine:
    """Remove ONNX Runtime's prefix (time, severity, source file) from a line."""
    line = strip_ansi(line).rstrip()
    match = _PREFIX.match(line)
    if match is None:
        return LogLine(line)
    place = match.group("place").rsplit(" ", 1)[-1].rsplit("::", 1)[-1]
    return LogLine(line[match.end() :].lstrip(" "), match.group("severity"), place)


def shorten(text: str, limit: int = MAX_LINE) -> str:
    """Return one line of at most `limit` characters. It is shortened in the middle, because the end often
    contains the reason."""
    # Replace line ends, because error messages quote evidence within one line.
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]}...{text[-tail:]}"


def _parts(data: bytes) -> Iterator[str]:
    position = 0
    while position < len(data):
        # This section is narrow text, which extends to the next start of UTF-16 text.
        start = _WIDE_START.search(data, position)
        if start is None:
            yield data[position:].decode("utf-8", "replace")
            return
        if start.start() > position:
            yield data[position : start.start()].decode("utf-8", "replace")
        end = _wide_end(data, start.start())
        yield data[start.start() : end].decode("utf-16-le", "replace")
        position = end


def _wide_end(data: bytes, start: int) -> int:
    """Return where a section of UTF-16 ends: after a line end that is not followed by UTF-16 text, or where narrow
    text starts.

    The second byte of a UTF-16 character outside Latin-1 is not 0, so only several consecutive printable bytes
    count as narrow text.
    """
    position = start
    while position + 1 < len(data):
        # A second byte of 0 means a Latin-1 character, like nearly all characters of ONNX Runtime's log.
        if data[position + 1] == 0:
            at_line_end = data[position] == 0x0A
            position += 2
            if at_line_end and not _WIDE_START.match(data, position):
                break
        elif _NARROW_AHEAD.match(data, position):
            break
        else:
            position += 2
    return position


# Maximum length of a line for `logging`. Longer lines are passed in pieces.
LINE_BYTES = 8 * 1024

# Accept "\r\n", which the C runtime of Windows writes for "\n" to a stream in text mode.
_MARKER = re.compile(rb"@qnnbridge (begin|end) (\d{1,20})\r?\n")
_MARKER_BYTES_MAX = 48
_MARKER_WORDS = (b"@qnnbridge begin ", b"@qnnbridge end ")
_MARKER_OPEN = re.compile(rb"@qnnbridge (?:begin|end) \d{1,20}\r?")


@dataclasses.dataclass(frozen=True)
class Marker:
    request_id: int
    begins: bool


class Bounded:
    """Keep the first and the last bytes of a stream of any length."""

    __slots__ = ("_head_bytes", "_left_out", "_tail_bytes", "head", "tail")

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._left_out = 0
        self.head = bytearray()
        self.tail = bytearray()

    def add(self, data: bytes) -> None:
        room = self._head_bytes - len(self.head)
        if room > 0:
            # Fill the head first and keep it unchanged, because it contains the output of a failed start.
            self.head += data[:room]
            data = data[room:]
        self.tail += data
        excess = len(self.tail) - self._tail_bytes
        if excess > 0:
            del self.tail[:excess]
            self._left_out += excess

    def __len__(self) -> int:
        """Return the number of kept bytes."""
        return len(self.head) + len(self.tail)

    def join(self) -> bytes:
        """Return the kept bytes; a line in the middle reports the number of missing bytes."""
        if not self._left_out:
            return bytes(self.head + self.tail)
        return bytes(self.head) + b"\n[... %d bytes left out ...]\n" % self._left_out + bytes(self.tail)


class MarkerSplitter:
    """Remove the marker lines from a stream that arrives in arbitrary chunks.

    Native code may leave a line unfinished, so the host writes a line end before each marker. If the line was
    complete, this class removes the additional line end.
    """

    def __init__(self) -> None:
        self._held = b""  # bytes that may be the beginning of a marker
        self._last = b"\n"  # last byte of output that `feed` has returned

    def feed(self, data: bytes) -> list[bytes | Marker]:
        """Return the output and the markers in order. Hold back only bytes that may be the beginning of a
        marker."""
        # The last read may have ended inside a marker, so put the bytes that were held back first.
        data = self._held + data
        parts: list[bytes | Marker] = []
        position = 0
        for found in _MARKER.finditer(data):
            self._pass_on(parts, data[position : found.start()], before_marker=True)
            parts.append(Marker(int(found[2]), found[1] == b"begin"))
            position = found.end()
        rest = data[position:]
        keep = len(rest) - self._unsure(rest)
        self._held = rest[keep:]
        self._pass_on(parts, rest[:keep])
        return parts

    def end(self) -> list[bytes | Marker]:
        """Return the bytes that `feed` has held back, because the stream has ended."""
        parts: list[bytes | Marker] = []
        held, self._held = self._held, b""
        self._pass_on(parts, held)
        return parts

    def _unsure(self, rest: bytes) -> int:
        """Return how many bytes at the end may belong to a marker, or to the line end before a marker."""
        # Only the last few bytes can be the beginning of a marker, so each chunk is searched in constant time.
        at = rest.rfind(b"@", max(0, len(rest) - _MARKER_BYTES_MAX))
        start = at if at >= 0 and _may_become_marker(rest[at:]) else len(rest)
        return len(rest) - self._without_line_end(rest, start)

    def _without_line_end(self, text: bytes, end: int) -> int:
        """Return `end`, or the position of the line end before `end` if that line end closes an empty line."""
        for line_end in (b"\r\n", b"\n"):
            if text.endswith(line_end, 0, end):
                before = end - len(line_end)
                if (text[before - 1 : before] or self._last) == b"\n":
                    return before
        return end

    def _pass_on(self, parts: list[bytes | Marker], text: bytes, *, before_marker: bool = False) -> None:
        if before_marker:
            text = text[: self._without_line_end(text, len(text))]
        if text:
            parts.append(text)
            self._last = text[-1:]


def _may_become_marker(text: bytes) -> bool:
    return any(word.startswith(text) for word in _MARKER_WORDS) or bool(_MARKER_OPEN.fullmatch(text))


class LogForwarder:
    """Pass complete lines to a logger.

    ONNX Runtime's plugin logs harmless warnings in every session, so only errors get the level INFO, and all other
    lines DEBUG. A logging handler that blocks also blocks the reading of stderr; this class cannot prevent that.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._line = bytearray()

    def feed(self, data: bytes) -> None:
        # Do not decode lines that are not logged, because QNN may log megabytes.
        if not self._logger.isEnabledFor(logging.INFO):
            return
        pieces = data.split(b"\n")
        for piece in pieces[:-1]:
            self._line += piece
            self.end_line()
        self._line += pieces[-1]
        while len(self._line) > LINE_BYTES:
            self._log(bytes(self._line[:LINE_BYTES]))
            del self._line[:LINE_BYTES]

    def end_line(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        # The output is split after the byte "\n", so a UTF-16 line begins with the second byte of the preceding
        # line end. Remove this byte.
        line = line[1:] if line.startswith(b"\x00") else line
        for start in range(0, len(line), LINE_BYTES):
            self._log(line[start : start + LINE_BYTES])

    def _log(self, line: bytes) -> None:
        text = decode_stderr(line).rstrip()
        if not text:
            return
        # Log errors with the level INFO, because the exception of the failed call contains the important lines.
        level = logging.INFO if parse_line(text).severity in ("E", "F") else logging.DEBUG
        try:
            self._logger.log(level, "%s", text)
        except Exception:  # noqa: BLE001, S110 - the application's handler failed; reading must continue
            pass


HEAD_BYTES = 16 * 1024
TAIL_BYTES = 64 * 1024
# Maximum size of the text of one request. With verbose logging QNN writes several megabytes for one session.
SECTION_BYTES = 4 * 1024 * 1024
SECTIONS_MAX = 32
# Maximum total size of sections that were not queried. If this size or `SECTIONS_MAX` is exceeded, the oldest
# section is dropped.
SECTIONS_TOTAL_BYTES = 8 * 1024 * 1024

_READ_BYTES = 64 * 1024


class _Section:
    __slots__ = ("ended", "text")

    def __init__(self) -> None:
        # Keep both ends: the reason why QNN did not start is at the end, after many lines about successes.
        self.text = Bounded(SECTION_BYTES // 2, SECTION_BYTES // 2)
        self.ended = False


class StderrCollector:
    """Collect the output of a host. `fd` is duplicated; the caller keeps and closes its own descriptor."""

    def __init__(self, fd: int, *, logger_name: str = "qnnbridge.host") -> None:
        self._fds = OwnedFds()
        # The reader continues after `close`, so it needs a separate descriptor that the caller does not close.
        self._fd = self._fds.duplicate(fd)
        self._all = Bounded(HEAD_BYTES, TAIL_BYTES)
        self._sections: collections.OrderedDict[int, _Section] = collections.OrderedDict()
        self._lock = Lock()
        self._changes: Changes[bool] = Changes()
        self._at_end = False
        self._closed = False
        self._splitter = MarkerSplitter()
        self._forwarder = LogForwarder(log_of(logger_name))
        try:
            # Start reading now, because a host that fills the pipe (64 KiB on Linux) before its HELLO would block
            # forever.
            start_thread("qnnbridge-stderr", self._read)
        except RuntimeError:  # no thread can be started, because the interpreter is shutting down
            self._end()

    def head(self) -> bytes:
        """Return the first 16 KiB."""
        with self._lock:
            return bytes(self._all.head)

    def tail(self) -> bytes:
        """Return the last 64 KiB of the output after the head."""
        with self._lock:
            return bytes(self._all.tail)

    def section(self, request_id: int, timeout_s: float) -> bytes:
        """Return the output between the two markers of a request, and remove it from this object.

        Wait until the end marker, the end of the stream or the timeout, and return the output so far.
        """

        def complete() -> bool:
            section = self._sections.get(request_id)
            return self._closed or self._at_end or (section is not None and section.ended)

        # The section may not have begun yet, because stderr and the answers arrive in two independent pipes.
        self._changes.wait_for(complete, timeout_s)
        with self._lock:
            section = self._sections.pop(request_id, None)
            return b"" if section is None else section.text.join()

    def forget(self, request_id: int) -> None:
        """Drop the section of a request."""
        with self._lock:
            self._sections.pop(request_id, None)

    def drain(self, timeout_s: float) -> bool:
        """Wait until the output of a dead host is read completely. Return False if another process keeps the pipe
        open."""
        return self._changes.wait_for(lambda: self._at_end, timeout_s)

    def close(self) -> None:
        """Stop storing and forwarding output, but keep head and tail. Never block. The reader continues until the
        end of the stream, because a full pipe would block a host that still runs."""
        with self._lock:
            self._closed = True
            self._sections.clear()
        self._changes.notify()

    # --- the reader thread ---

    def _read(self) -> None:
        fd = self._fd
        try:
            # Stop if other code has closed the descriptor, because its number may refer to another file.
            while self._fds.is_ours(fd) and (data := os.read(fd, _READ_BYTES)):
                self._take(self._splitter.feed(data))
        except OSError:
            pass  # the descriptor was closed in a fork of the application, or the pipe is broken (Windows)
        finally:
            self._take(self._splitter.end())
            self._end()

    def _take(self, parts: list[bytes | Marker]) -> None:
        with self._lock:
            if self._closed:
                return
            for part in parts:
                if isinstance(part, Marker):
                    self._mark(part)
                else:
                    self._all.add(part)
                    for section in self._sections.values():
                        # It is unknown which open request wrote the output, so add the output to the sections of
                        # all open requests.
                        if not section.ended:
                            section.text.add(part)
                    self._keep_within_bounds()
        # Forward without holding the lock, because a logging handler of the application may run any code.
        for part in parts:
            if isinstance(part, Marker):
                self._forwarder.end_line()
            else:
                self._forwarder.feed(part)

    def _mark(self, marker: Marker) -> None:
        if marker.begins:
            # A host uses each request number once. If the stream is damaged and a begin marker comes twice, the new
            # section replaces the old one.
            self._sections.pop(marker.request_id, None)
            self._sections[marker.request_id] = _Section()
            self._keep_within_bounds()
        elif (section := self._sections.get(marker.request_id)) is not None:
            section.ended = True
            self._changes.notify()

    def _keep_within_bounds(self) -> None:
        total = sum(len(section.text) for section in self._sections.values())
        while len(self._sections) > SECTIONS_MAX or total > SECTIONS_TOTAL_BYTES:
            _, oldest = self._sections.popitem(last=False)
            total -= len(oldest.text)

    def _end(self) -> None:
        self._forwarder.end_line()
        self._at_end = True
        self._changes.notify()
        self._fds.close_all()
