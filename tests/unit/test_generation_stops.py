"""A generation that is stopped, and a generation that waits for a model that another thread loads."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from qnnbridge._transport.channel import CallTimedOut
from qnnbridge.genai._remote import Remade
from qnnbridge_host.genai.generation import Generation
from qnnbridge_host.genai.models import Turns
from qnnbridge_host.request.client import StopSignal


class _StoppedAtTheEnd(Generation):
    """The stop arrives when native code has processed the prompt."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stop = StopSignal()
        library = SimpleNamespace(call=lambda name, *_: self.calls.append(name))
        self._model: Any = SimpleNamespace(turns=Turns(), library=library)
        self._native: Any = SimpleNamespace(handle=1)
        self._appends, self._shares, self._is_ahead = True, True, False
        self._prefilling = None
        self.tokens, self.base = [], 0

    def _call(self, name: str, *_: Any) -> None:
        self.calls.append(name)

    def _count(self) -> int:
        self.stop.stop()
        return 3


def test_a_terminated_native_generator_is_not_used_again() -> None:
    one = _StoppedAtTheEnd()
    with one.stop.calling(one.interrupt):
        assert not one._append([1, 2, 3], one.stop)
    assert one.calls == ["OgaGenerator_AppendTokens", "OgaGenerator_SetRuntimeOption"]
    assert one._native is None


def test_waiting_for_the_load_of_another_thread_ends_with_the_timeout_of_the_call() -> None:
    made = Remade(None, "model")  # type: ignore[arg-type]
    process: Any = SimpleNamespace(generation=1)
    with made._lock:
        caught: list[BaseException] = []

        def ask() -> None:
            try:
                made.number_in(process, time.monotonic() + 0.05)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    with pytest.raises(CallTimedOut):
        raise caught[0]
