"""A line of progress after two seconds of work whose completed fraction is unknown."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from qnnbridge_tools import stages


@pytest.mark.parametrize(
    ("terminal", "first", "piped", "is_shown"),
    [(True, 0.05, 60.0, True), (True, 60.0, 0.05, False), (False, 60.0, 0.05, True), (False, 0.05, 60.0, False)],
)
def test_long_work_is_shown_after_its_delay(
    terminal: bool, first: float, piped: float, is_shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(stages, "FIRST_S", first)
    monkeypatch.setattr(stages, "FIRST_PIPED_S", piped)
    shown: list[str] = []
    monkeypatch.setattr(
        stages.ShownStages, "__call__", lambda self, stage, seconds: shown.append(self._text(stage))
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with stages.waiting("running", "m.onnx"):
        time.sleep(0.3)
    assert bool(shown) is is_shown
    assert set(shown) <= {"running m.onnx"}
    capsys.readouterr()


def test_quick_work_shows_nothing_and_an_error_is_raised(capsys: Any) -> None:
    begun = time.monotonic()
    with pytest.raises(KeyError), stages.waiting("running", "m.onnx"):
        raise KeyError
    assert time.monotonic() - begun < stages.FIRST_S
    assert capsys.readouterr().err == ""
