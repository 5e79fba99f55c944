"""Which tokens of a step share a frame, with a simulated clock."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from qnnbridge_host.genai import generation
from qnnbridge_host.genai.generation import HOLD_S, Generation
from qnnbridge_host.genai.models import Turns
from qnnbridge_host.request.client import StopSignal


class _Paced(Generation):
    """Generation in which each token takes the next number of seconds."""

    def __init__(self, paces: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 100.0
        self._paces = iter(paces)
        self._made = 0
        self._native: Any = object()
        self._model: Any = SimpleNamespace(turns=Turns())
        self.done = False
        self.emitted: list[list[int]] = []
        monkeypatch.setattr(generation, "time", SimpleNamespace(monotonic=lambda: self._now))

    def _one(self, stop: StopSignal) -> list[int]:
        self._native = object()
        self._now += next(self._paces)
        self._made += 1
        return [self._made]

    def step(self, count: int) -> list[int]:
        return self.generate(count, StopSignal(), self.emitted.append)


def test_fast_tokens_are_sent_together_in_one_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Paced([HOLD_S / 40] * 32, monkeypatch)
    assert made.step(32) == list(range(1, 33))
    assert made.emitted == []


def test_slow_tokens_are_sent_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Paced([0.05] * 4, monkeypatch)
    assert made.step(4) == [4]
    assert made.emitted == [[1], [2], [3]]


@pytest.mark.parametrize("pace", [HOLD_S * part for part in (0.1, 0.3, 0.45, 0.51, 0.9, 1.0)])
def test_no_token_at_an_even_pace_waits_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch, pace: float) -> None:
    made = _Paced([pace] * 32, monkeypatch)
    rest = made.step(32)
    frames = [*made.emitted, rest]
    assert [token for frame in frames for token in frame] == list(range(1, 33))
    assert all((len(frame) - 1) * pace <= HOLD_S for frame in frames)


def test_tokens_do_not_wait_for_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Paced([HOLD_S / 40] * 3, monkeypatch)
    once = made._one

    def with_full_window(stop: StopSignal) -> list[int]:
        tokens = once(stop)
        if made._made == 2:
            made._native = None
        return tokens

    made._one = with_full_window  # type: ignore[method-assign]
    assert made.step(3) == [3]
    assert made.emitted == [[1, 2]]


def test_tokens_do_not_wait_for_the_prompt_of_another_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    made = _Paced([HOLD_S / 40] * 3, monkeypatch)
    turns = made._model.turns
    inside, leave = threading.Event(), threading.Event()

    def prompt() -> None:
        with turns.prompt():
            inside.set()
            leave.wait(30)

    other = threading.Thread(target=prompt)
    other.start()
    try:
        assert inside.wait(30)
        assert made.step(2) == [2]
        assert made.emitted == [[1]]
    finally:
        leave.set()
        other.join(30)
    assert not turns.has_prompt
    assert made.step(1) == [3]
