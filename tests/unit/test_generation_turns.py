"""The order in which generations take turns on a device, and the steps that need no turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from qnnbridge_host.genai.generation import Generation
from qnnbridge_host.genai.models import Turns
from qnnbridge_host.request.client import StopSignal

WAIT_S = 30


class Device:
    """Turns of a device that somebody uses, and the order in which waiting threads get them."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.order: list[str] = []
        self._threads: list[threading.Thread] = []
        self._busy, self._leave = threading.Event(), threading.Event()

    def use(self, *, prompt: bool) -> None:
        """Take the device until `release`."""

        def run() -> None:
            with self.turns.prompt() if prompt else self.turns:
                self._busy.set()
                self._leave.wait(WAIT_S)

        self._start(run)
        assert self._busy.wait(WAIT_S)

    def wait(self, name: str, *, during: Callable[[], None] = lambda: None) -> None:
        """Let a thread wait for a turn: for a prompt if the name begins with "p", else for a token."""
        before = self._waiting()

        def run() -> None:
            with self.turns.prompt() if name.startswith("p") else self.turns:
                self.order.append(name)
                during()

        self._start(run)
        until = time.monotonic() + WAIT_S
        while self._waiting() == before:
            assert time.monotonic() < until
            time.sleep(0.001)

    def release(self) -> list[str]:
        """Free the device, and return the names of the turns in their order."""
        self._leave.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self.turns.has_prompt
        return self.order

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def _waiting(self) -> int:
        return len(self.turns._tokens) + len(self.turns._prompts)


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.release()


def test_tokens_get_turns_in_the_order_of_their_requests(device: Device) -> None:
    device.use(prompt=False)
    for name in ("t1", "t2", "t3"):
        device.wait(name)
    assert device.release() == ["t1", "t2", "t3"]


def test_each_waiting_token_is_generated_between_two_prompts(device: Device) -> None:
    device.use(prompt=True)
    for name in ("p1", "t1", "p2", "t2"):
        device.wait(name)
    assert device.release() == ["t1", "t2", "p1", "p2"]


def test_a_token_that_arrives_during_a_prompt_waits_for_this_prompt_only(device: Device) -> None:
    device.use(prompt=True)
    device.wait("p1", during=lambda: device.wait("t1"))
    device.wait("p2")
    assert device.release() == ["p1", "t1", "p2"]


def test_a_prompt_waits_for_one_token_of_each_answer(device: Device) -> None:
    device.use(prompt=True)
    device.wait("t1", during=lambda: device.wait("t1 again"))
    device.wait("p1")
    assert device.release() == ["t1", "p1", "t1 again"]


def test_a_prompt_comes_before_tokens_that_have_waited_for_no_prompt(device: Device) -> None:
    device.use(prompt=False)
    for name in ("t1", "p1", "t2"):
        device.wait(name)
    assert device.release() == ["p1", "t1", "t2"]


class Recorded(Generation):
    """Generation whose native functions only record whether the device was taken."""

    def __init__(self, turns: Turns, guidance: Any = None) -> None:
        self._model: Any = SimpleNamespace(turns=turns, filler=None)
        self._settings: Any = SimpleNamespace(guidance=guidance)
        self._native: Any = SimpleNamespace(handle=1)
        self._appends, self._shares, self._is_ahead, self._has_logits = True, True, False, False
        self._prefilling = None
        self.tokens, self.base = [], 0
        self.with_device: list[bool] = []

    def _call(self, name: str, *_: Any) -> None:
        self.with_device.append(self._model.turns._busy)

    def _count(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("guidance", "with_device"),
    [(None, [True, False, True]), (("regex", "a", False), [True, True, True])],
    ids=["without guidance", "with guidance"],
)
def test_only_the_first_token_after_a_prompt_needs_no_turn(guidance: Any, with_device: list[bool]) -> None:
    made = Recorded(Turns(), guidance)
    assert made._append([1, 2, 3], StopSignal())
    made._generate_next()
    made._generate_next()
    assert made.with_device == with_device
