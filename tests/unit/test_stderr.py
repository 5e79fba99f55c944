"""The collector of the host's stderr: the lines that it keeps and removes, and that it never stops reading."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterator

import pytest
from tests.fakes.later import until

from qnnbridge._launch.stderr import (
    HEAD_BYTES,
    LINE_BYTES,
    SECTION_BYTES,
    SECTIONS_MAX,
    SECTIONS_TOTAL_BYTES,
    TAIL_BYTES,
    Bounded,
    Marker,
    MarkerSplitter,
    StderrCollector,
)

TIMEOUT_S = 20.0


class Writer:
    """The writing end of the pipe that the collector reads."""

    def __init__(self) -> None:
        read_fd, self.fd = os.pipe()
        self.collector = StderrCollector(read_fd, logger_name="test.host")
        os.close(read_fd)  # the collector has its own copy

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.fd, data) :]

    def end(self) -> StderrCollector:
        """Close the pipe and wait until everything has been read."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        assert self.collector.drain(TIMEOUT_S)
        return self.collector


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.end().close()


# --- head and tail ---------------------------------------------------------------------------------------------


def test_ten_megabytes_without_a_line_end_are_read_and_both_ends_kept(writer: Writer) -> None:
    data = random.Random(1).randbytes(10 << 20).replace(b"\n", b"x").replace(b"@", b"x")
    writer.write(data)
    collector = writer.end()
    assert collector.head() == data[:HEAD_BYTES]
    assert collector.tail() == data[-TAIL_BYTES:]


def test_little_text_is_all_in_the_head(writer: Writer) -> None:
    writer.write(b"terminate called")
    collector = writer.end()
    assert (collector.head(), collector.tail()) == (b"terminate called", b"")


def test_text_without_a_line_end_is_available_before_the_end(writer: Writer) -> None:
    writer.write(b"@qnnbridge begin 1\nlast words @")
    writer.write(b"!")
    while writer.collector.head() != b"last words @!":
        assert not writer.collector.section(7, 0.01)
    assert writer.collector.section(1, 0.01) == b"last words @!"


# --- sections --------------------------------------------------------------------------------------------------


def test_a_section_is_the_text_between_its_markers(writer: Writer) -> None:
    writer.write(b"before\n\n@qnnbridge begin 5\none\ntwo\n\n@qnnbridge end 5\nafter\n")
    assert writer.collector.section(5, TIMEOUT_S) == b"one\ntwo\n"
    assert writer.end().head() == b"before\none\ntwo\nafter\n"


def test_a_section_is_waited_for(writer: Writer) -> None:
    found: list[bytes] = []
    asker = threading.Thread(target=lambda: found.append(writer.collector.section(9, TIMEOUT_S)))
    asker.start()
    writer.write(b"@qnnbridge begin 9\ncause\n")
    writer.write(b"@qnnbridge end 9\n")
    asker.join(TIMEOUT_S)
    assert found == [b"cause\n"]


def test_a_section_ends_with_the_stream_if_the_host_crashed_within_it(writer: Writer) -> None:
    writer.write(b"@qnnbridge begin 5\nlast words")
    writer.end()
    assert writer.collector.section(5, TIMEOUT_S) == b"last words"


def test_a_section_that_never_arrived_is_empty(writer: Writer) -> None:
    assert writer.collector.section(5, 0.01) == b""


def test_a_section_is_returned_once_and_removed(writer: Writer) -> None:
    writer.write(b"@qnnbridge begin 5\nx\n@qnnbridge end 5\n@qnnbridge begin 6\ny\n@qnnbridge end 6\n")
    writer.end()
    assert writer.collector.section(5, TIMEOUT_S) == b"x\n"
    assert writer.collector.section(5, TIMEOUT_S) == b""
    writer.collector.forget(6)
    writer.collector.forget(6)
    assert writer.collector.section(6, TIMEOUT_S) == b""


def test_sections_may_overlap_and_contain_no_marker_of_another(writer: Writer) -> None:
    writer.write(b"@qnnbridge begin 1\na\n@qnnbridge begin 2\nb\n@qnnbridge end 1\nc\n@qnnbridge end 2\n")
    writer.end()
    assert writer.collector.section(1, TIMEOUT_S) == b"a\nb\n"
    assert writer.collector.section(2, TIMEOUT_S) == b"b\nc\n"


def test_a_long_section_keeps_its_beginning_and_its_end(writer: Writer) -> None:
    writer.write(b"@qnnbridge begin 1\nFIRST" + b"." * (SECTION_BYTES + 1000) + b"LAST\n@qnnbridge end 1\n")
    section = writer.collector.section(1, TIMEOUT_S)
    assert section.startswith(b"FIRST.")
    assert section.endswith(b".LAST\n")
    assert b"\n[... 1010 bytes left out ...]\n" in section
    assert len(section) < SECTION_BYTES + 100


def test_sections_that_are_never_requested_do_not_accumulate(writer: Writer) -> None:
    for number in range(SECTIONS_MAX + 1):
        writer.write(b"@qnnbridge begin %d\n%d\n@qnnbridge end %d\n" % (number, number, number))
    writer.end()
    assert writer.collector.section(0, TIMEOUT_S) == b""
    assert writer.collector.section(1, TIMEOUT_S) == b"1\n"


def test_the_total_size_of_sections_that_are_never_requested_is_limited(writer: Writer) -> None:
    count = SECTIONS_TOTAL_BYTES // SECTION_BYTES + 1
    for number in range(count):
        writer.write(b"@qnnbridge begin %d\n" % number + b"." * SECTION_BYTES + b"\n@qnnbridge end %d\n" % number)
    writer.end()
    kept = [len(writer.collector.section(number, TIMEOUT_S)) for number in range(count)]
    assert kept[0] == 0, "the oldest goes first"
    assert kept[-1] >= SECTION_BYTES
    assert sum(kept) <= SECTIONS_TOTAL_BYTES + 100 * count


# --- markers in a stream that arrives in pieces -----------------------------------------------------------------

STREAM = (
    b"text\n\n@qnnbridge begin 12\nwide\x00\n\x00@qnnbridge end 12\r\nno end of line@qnnbridge begin 3\n"
    b"@qnnbridge beginning 4\n@qnnbridge end x\n@@qnnbridge end 3\n\xff\xfe@qnnbridge\n\n\n@qnnbridge end 4"
)
TEXT = (
    b"text\nwide\x00\n\x00no end of line@qnnbridge beginning 4\n@qnnbridge end x\n"
    b"@\xff\xfe@qnnbridge\n\n\n@qnnbridge end 4"
)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 33, 1000])
def test_markers_are_found_wherever_the_stream_is_cut(size: int) -> None:
    splitter = MarkerSplitter()
    parts = [part for start in range(0, len(STREAM), size) for part in splitter.feed(STREAM[start : start + size])]
    parts += splitter.end()
    assert b"".join(part for part in parts if isinstance(part, bytes)) == TEXT
    assert [part for part in parts if isinstance(part, Marker)] == [
        Marker(12, True),
        Marker(12, False),
        Marker(3, True),
        Marker(3, False),
    ]


def test_only_text_that_may_become_a_marker_is_held_back() -> None:
    splitter = MarkerSplitter()
    assert splitter.feed(b"mail me@") == [b"mail me"]
    assert splitter.feed(b"home") == [b"@home"]
    assert splitter.feed(b"@qnnbridge begin 77") == []
    assert splitter.feed(b"!") == [b"@qnnbridge begin 77!"]


def test_limited_memory_reports_how_much_it_omitted() -> None:
    kept = Bounded(3, 3)
    for byte in b"abcdefgh":
        kept.add(bytes([byte]))
    assert kept.join() == b"abc\n[... 2 bytes left out ...]\nfgh"


# --- logging -----------------------------------------------------------------------------------------------------

ORT_LINE = "2026-11-21 10:00:00.000000000 [{}:onnxruntime:Default, qnn_ep.cc:1 Create] {}\n"


def test_lines_are_logged_and_only_errors_are_warnings(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "test.host")
    for severity in "VIWEF":
        writer.write(ORT_LINE.format(severity, "said").encode())
    writer.write(b"@qnnbridge begin 1\n\xff plain\n\n@qnnbridge end 1\nno line end")
    writer.end()
    levels = [(record.name, record.levelname) for record in caplog.records]
    assert levels == [("test.host", name) for name in ("DEBUG", "DEBUG", "DEBUG", "INFO", "INFO", "DEBUG", "DEBUG")]
    assert caplog.messages[-2:] == ["\ufffd plain", "no line end"]
    assert not any("@qnnbridge" in message for message in caplog.messages)


def test_the_wide_log_of_windows_is_readable(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "test.host")
    line = ORT_LINE.format("E", "weit ä")
    writer.write((line + line).encode("utf-16-le") + b"narrow\n")
    writer.end()
    assert [message[-6:] for message in caplog.messages] == ["weit ä", "weit ä", "narrow"]
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "DEBUG"]


def test_an_endless_line_is_logged_in_pieces(writer: Writer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "test.host")
    writer.write(b"x" * (LINE_BYTES * 10 + 5))
    writer.end()
    assert sum(map(len, caplog.messages)) == LINE_BYTES * 10 + 5
    assert max(map(len, caplog.messages)) == LINE_BYTES


def test_a_log_handler_that_raises_does_not_stop_the_reading(writer: Writer) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError

    logger, handler = logging.getLogger("test.host"), Broken()
    logger.addHandler(handler)
    try:
        writer.write(ORT_LINE.format("E", "one").encode() + b"two\n")
        assert writer.end().head().endswith(b"two\n")
    finally:
        logger.removeHandler(handler)


# --- the end -----------------------------------------------------------------------------------------------------


def test_closing_does_not_wait_and_releases_waiting_threads(writer: Writer) -> None:
    found: list[bytes] = []
    writer.write(b"@qnnbridge begin 1\n")
    asker = threading.Thread(target=lambda: found.append(writer.collector.section(1, TIMEOUT_S)))
    asker.start()
    writer.collector.close()
    asker.join(TIMEOUT_S)
    assert found == [b""]
    assert not writer.collector.drain(0)


def test_a_running_host_can_continue_to_write_after_close(writer: Writer) -> None:
    writer.write(b"before")
    while writer.collector.head() != b"before":
        writer.collector.section(1, 0.01)
    writer.collector.close()
    writer.write(b"x" * (1 << 20))
    assert writer.end().head() == b"before"


@pytest.mark.usefixtures("no_leaks")
def test_the_end_of_the_stream_closes_the_descriptor_and_ends_the_thread() -> None:
    others = set(threading.enumerate())  # a host that tests of this process share has such a thread, too
    writer = Writer()
    writer.end()
    until(lambda: all(thread.name != "qnnbridge-stderr" for thread in set(threading.enumerate()) - others))
