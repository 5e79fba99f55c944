"""What the application logs while the host compiles a model, or waits for another process that does."""

from __future__ import annotations

import pytest

from qnnbridge._create import FIRST_WORD_S, LOUD_S, WaitLog


def test_words_are_few_and_grow_loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "qnnbridge.cache")
    words = WaitLog(lambda: "m.onnx")
    for tenth in range(600):
        words("compiling", tenth / 10)
    levels = [record.levelname for record in caplog.records]
    assert levels[0] == "INFO"
    assert set(levels[1:]) == {"WARNING"}
    assert 3 <= len(levels) <= 6
    assert FIRST_WORD_S < LOUD_S
