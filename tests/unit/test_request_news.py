"""Progress events of a request, and the log lines about them in the application."""

from __future__ import annotations

import pytest

from qnnbridge._session.create import FIRST_WORD_S, LOG_TIMEOUT_S, LOUD_S, RequestNews, WaitLog
from qnnbridge_protocol.frames import Frame, Kind


def news_after(*frames: Frame) -> RequestNews:
    news = RequestNews("m.onnx", lambda _stage, _seconds: None)
    for frame in frames:
        news(frame)
    return news


def progress(stage: str) -> Frame:
    return Frame(Kind.EVENT, 1, {"event": "progress", "stage": stage, "seconds": 0.0})


PHASE = Frame(Kind.PHASE, 1, {"phase": "creating", "fingerprint": "f" * 64})


def test_log_messages_about_a_wait_are_few_and_become_warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "qnnbridge.cache")
    words = WaitLog(lambda: "m.onnx")
    for tenth in range(600):
        words("compiling", tenth / 10)
    levels = [record.levelname for record in caplog.records]
    assert levels[0] == "INFO"
    assert set(levels[1:]) == {"WARNING"}
    assert 3 <= len(levels) <= 6
    assert FIRST_WORD_S < LOUD_S


@pytest.mark.parametrize("frames", [(), (progress("waiting"),)], ids=["nothing", "waiting"])
def test_a_failure_before_native_code_waits_for_no_log_lines(frames: tuple[Frame, ...]) -> None:
    assert news_after(*frames).log_timeout_s == 0.0


@pytest.mark.parametrize(
    "frames", [(PHASE,), (progress("compiling"),), (progress("compiling"), progress("waiting"))]
)
def test_a_failure_of_native_code_waits_for_its_log_lines(frames: tuple[Frame, ...]) -> None:
    assert news_after(*frames).log_timeout_s == LOG_TIMEOUT_S
