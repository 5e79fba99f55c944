"""The host's stderr as text.

On Windows ONNX Runtime writes its log as UTF-16LE to the same descriptor on which Python and the C runtime write
narrow text, so one stream holds both, switching in the middle and at odd offsets. Everything is decoded here, and
nothing is lost: a byte that is no text becomes U+FFFD. Pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

# Evidence is for a person: longer lines are cut in the middle (characters).
MAX_LINE: Final = 400

# Two wide ASCII characters in a row: no narrow text looks like this.
_WIDE_START = re.compile(rb"(?:[\t\n\r\x1b\x20-\x7e]\x00){2}")
_NARROW_AHEAD = re.compile(rb"[\t\n\r\x20-\x7e]{6}")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIX = re.compile(
    r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ \[(?P<severity>[VIWEF]):(?P<logger>[^,\]]*), (?P<place>[^\]]*)\] ?"
)


@dataclasses.dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its time stamp.

    severity: V, I, W, E or F, empty for a line that is not ONNX Runtime's. place: the function that wrote it.
    """

    text: str
    severity: str = ""
    place: str = ""


def decode_stderr(data: bytes) -> str:
    """What was written, as text with ``\\n`` line ends and without colours."""
    text = "".join(_parts(bytes(data)))
    return strip_ansi(text).replace("\r\n", "\n").replace("\x00", "")


def strip_ansi(text: str) -> str:
    return _ANSI.sub("", text)


def parse_line(line: str) -> LogLine:
    """Takes ONNX Runtime's prefix (time, severity, source file) off a line."""
    line = strip_ansi(line).rstrip()
    match = _PREFIX.match(line)
    if match is None:
        return LogLine(line)
    place = match.group("place").rsplit(" ", 1)[-1].rsplit("::", 1)[-1]
    return LogLine(line[match.end() :].lstrip(" "), match.group("severity"), place)


def shorten(text: str, limit: int = MAX_LINE) -> str:
    """One line, at most `limit` characters: cut in the middle, because the end often says why."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]}...{text[-tail:]}"


def _parts(data: bytes) -> Iterator[str]:
    position = 0
    while position < len(data):
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
    """Where a run of UTF-16 ends: at a line end that no wide character follows, or where narrow text breaks in.

    A character outside Latin-1 has a second byte that is not 0; only a longer stretch of printable bytes is taken
    for narrow text.
    """
    position = start
    while position + 1 < len(data):
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
