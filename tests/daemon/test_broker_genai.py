"""Generation through the daemon: one loaded model for all, text that outlives the NPU host."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import qnnbridge
from qnnbridge import errors, genai
from qnnbridge_daemon.options import BrokerSettings, ClientLimits
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


def test_the_memory_of_a_dead_npu_host_is_not_counted(tmp_path: Path) -> None:
    """A generator is made again before the one that died is released."""
    folder = write_model(tmp_path / "dynamic", "dynamic")
    lab = Lab(qnnbridge.Host(), BrokerSettings(limits=ClientLimits(kv_bytes=4 * 96 * 16 * 4 + 100)))
    try:
        one = begin(genai.Model(folder, host=lab.client()), prompt(5))
        made = step(one, 3)
        process = lab.npu_host.supervisor.running
        assert process is not None
        os.kill(process.real_pid, signal.SIGKILL)
        assert made + step(one, 5) == PlainLoop(folder).generate(prompt(5), 8)
    finally:
        lab.close()


def test_the_memory_of_kv_caches_is_counted_and_limited(tmp_path: Path) -> None:
    """Two generators fit, the third does not; one that is closed makes room, and so does an application's end."""
    folder = write_model(tmp_path / "dynamic", "dynamic")
    each = 4 * 96 * 16 * 4  # four tensors, 96 tokens, one head of 16 floats
    lab = Lab(qnnbridge.Host(), BrokerSettings(limits=ClientLimits(kv_bytes=2 * each + 100)))
    try:
        client, other = lab.client(), lab.client()
        model = genai.Model(folder, host=client)
        held = [begin(model, prompt(5)) for _ in range(2)]
        assert [one["kv_bytes"] for one in lab.broker.status()["clients"]] == [2 * each]
        with pytest.raises(errors.Busy) as caught:
            begin(model, prompt(5))
        assert caught.value.details == {"limit": "kv_bytes", "value": 2 * each + 100}
        assert "--max-kv-bytes" in str(caught.value)
        step(begin(genai.Model(folder, host=other), prompt(5)), 3)
        held[0].close()
        assert len(step(begin(model, prompt(5)), 3)) == 3
        client.close()
        until(lambda: len(lab.broker.status()["clients"]) == 1)
    finally:
        lab.close()
