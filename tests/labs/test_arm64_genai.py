"""Text generation of an x86_64 application by a real ARM64 host with onnxruntime-genai, emulated by qemu."""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections.abc import Iterator

import pytest
from tests.genai.conftest import Folders, folders, prompt
from tests.genai.plain_loop import PlainLoop

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import BridgeError, PlacementRefused

__all__ = ["folders"]

pytestmark = pytest.mark.process

TOKENS = 12


@pytest.fixture(scope="module")
def host(arm64_python: str) -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host(python=arm64_python) as host:
        host.start()
        yield host


@pytest.fixture(scope="module", params=["dynamic", "window"])
def model(request: pytest.FixtureRequest, host: qnnbridge.Host, folders: Folders) -> Iterator[genai.Model]:
    model = genai.Model(folders(request.param), host=host)
    yield model
    model.close()


def greedy(model: genai.Model, tokens: list[int], count: int = TOKENS) -> list[int]:
    with genai.generate(model, tokens, max_tokens=count, do_sample=False) as answer:
        for _ in answer:
            pass
        return list(answer.tokens)


def test_tokens_of_an_arm64_host_equal_those_of_a_plain_loop_on_this_machine(
    model: genai.Model, host: qnnbridge.Host, folders: Folders
) -> None:
    assert platform.machine() == "x86_64"
    assert host.info.machine == "aarch64"
    truth = PlainLoop(folders(str(model.info.layout)))
    for length in (5, 40):
        assert greedy(model, prompt(length)) == truth.generate(prompt(length), TOKENS)


def test_the_history_continues_in_the_next_host(model: genai.Model, host: qnnbridge.Host) -> None:
    whole = greedy(model, prompt(20))
    before = host.stats.crashes
    made: list[int] = []
    with genai.generate(model, prompt(20), max_tokens=TOKENS, do_sample=False) as answer:
        for _ in answer:
            if not made:
                os.kill(host.info.pid, signal.SIGKILL)
            made = list(answer.tokens)
        assert list(answer.tokens) == whole
    assert host.stats.crashes == before + 1


def test_an_answer_is_cancelled_and_the_next_one_works(model: genai.Model) -> None:
    with genai.generate(model, prompt(9), max_tokens=80, do_sample=False) as answer:
        threading.Timer(0.2, answer.cancel).start()
        for _ in answer:
            pass
    assert answer.finish_reason in ("cancelled", "length", "stop")
    assert len(greedy(model, prompt(9), 3)) == 3


def test_stages_that_require_an_npu_are_refused_without_one(host: qnnbridge.Host, folders: Folders) -> None:
    with pytest.raises((PlacementRefused, BridgeError)) as caught:
        genai.Model(folders("window-qnn"), host=host)
    assert caught.value.cause or caught.value.fix
    assert "QNN" in str(caught.value)
    assert host.ping() < 30
