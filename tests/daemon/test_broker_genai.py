"""Generation through the daemon: one loaded model for all, text that outlives the NPU host."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from qnnbridge import genai
from tests import needs
from tests.daemon.brokers import Lab, until
from tests.genai.conftest import prompt
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import write_model

pytestmark = [pytest.mark.process, needs.posix]

pytest.importorskip("onnxruntime_genai")


def kept(lab: Lab) -> int:
    return int(lab.npu_host.call({"op": "host.stats"}).header["objects"])


def step(one: genai.Generator, count: int) -> list[int]:
    made = []
    for _ in range(count):
        one.generate_next_token()
        made.append(int(one.get_next_tokens()[0]))
    return made


def begin(model: genai.Model, tokens: list[int]) -> genai.Generator:
    one = genai.Generator(model, genai.GeneratorParams(model))
    one.append_tokens(tokens)
    return one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("genai") / "window", "window")


def test_two_applications_and_the_death_of_the_npu_host(lab: Lab, folder: Path) -> None:
    truth = PlainLoop(folder)
    clients = [lab.client(), lab.client()]
    models = [genai.Model(folder, host=client) for client in clients]
    generators = [begin(model, prompt(9, n)) for n, model in enumerate(models)]
    made = [step(one, 12) for one in generators]
    process = lab.npu_host.supervisor.running
    assert process is not None
    os.kill(process.real_pid, signal.SIGKILL)
    for one, tokens in zip(generators, made, strict=True):
        tokens += step(one, 20)
    assert made == [truth.generate(prompt(9, n), 32) for n in range(2)]
    assert all(one.stats.replays for one in generators)
    for client in clients:
        client.close()
    until(lambda: kept(lab) == 0)


def test_eight_applications_take_turns(lab: Lab, folder: Path) -> None:
    truth, made = PlainLoop(folder), {}

    def work(number: int) -> None:
        client = lab.client()
        made[number] = step(begin(genai.Model(folder, host=client), prompt(7, number)), 16)
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == {number: truth.generate(prompt(7, number), 16) for number in range(8)}
