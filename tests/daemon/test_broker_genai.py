"""Generation through the daemon: clients share one loaded model, and generation continues after a crash of the NPU
host."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge import errors, genai
from qnnbridge_daemon.accounts import BrokerSettings, ClientLimits
from tests import needs
from tests.daemon.brokers import Lab, until
from tests.fakes.hosts import patched_host, script
from tests.genai.conftest import prompt
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import write_model
from tests.genai.tiny_multimodal import picture, sound, write_multimodal

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


def test_generations_of_two_applications_survive_a_crash_of_the_npu_host(lab: Lab, folder: Path) -> None:
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


def test_images_and_audio_survive_a_crash_of_the_npu_host(tmp_path: Path) -> None:
    folder = write_multimodal(tmp_path / "phi4mm", "phi4mm")
    lab = Lab(qnnbridge.Host(), BrokerSettings())
    try:
        client = lab.client()
        model = genai.Model(folder, host=client)
        inputs = model.create_multimodal_processor()(
            "<|image_1|>a<|audio_1|>b",
            images=genai.Images.open_bytes(picture()),
            audios=genai.Audios.open_bytes(sound()),
        )

        def begun() -> genai.Generator:
            one = genai.Generator(model, genai.GeneratorParams(model))
            one.set_inputs(inputs)
            return one

        expected = step(begun(), 20)
        (counted,) = [one["kv_bytes"] for one in lab.broker.status()["clients"]]
        # Two crops of an image as floats; one generator that was released, and one in use.
        assert counted >= 2 * 3 * 448 * 448 * 4
        one = begun()
        made = step(one, 10)
        process = lab.npu_host.supervisor.running
        assert process is not None
        os.kill(process.real_pid, signal.SIGKILL)
        assert made + step(one, 10) == expected
        assert one.stats.restarts == 1
        client.close()
        until(lambda: kept(lab) == 0)
    finally:
        lab.close()


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


def test_the_memory_of_a_crashed_npu_host_is_not_counted(tmp_path: Path) -> None:
    """A generator is recreated before the lost one is released."""
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
    """Two generators fit, the third does not; closing one releases memory, and so does the end of an application."""
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


def test_reused_tokens_are_counted(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "dynamic", "dynamic")
    lab = Lab(qnnbridge.Host())
    try:
        model, pool, cached = genai.Model(folder, host=lab.client()), genai.GeneratorPool(), []
        for length in (20, 20, 30):
            with genai.generate(model, prompt(length), max_tokens=4, temperature=0, pool=pool) as answer:
                list(answer)
            cached.append(answer.cached_tokens)
        assert cached == [0, 19, 20]
        (client,) = lab.broker.status()["clients"]
        assert (client["reused_prefixes"], client["reused_tokens"]) == (2, 39)
    finally:
        lab.close()


def test_idle_generators_of_a_pool_are_released_when_the_daemon_needs_memory(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "dynamic", "dynamic")
    each = 4 * 96 * 16 * 4  # as above
    lab = Lab(qnnbridge.Host(), BrokerSettings(limits=ClientLimits(kv_bytes=2 * each + 100)))
    try:
        model, pool = genai.Model(folder, host=lab.client()), genai.GeneratorPool(8)
        # The prompts have nothing in common: each needs a generator, and two fit.
        for first in range(5):
            with genai.generate(model, prompt(9, first), max_tokens=4, temperature=0, pool=pool) as answer:
                list(answer)
            assert len(answer.tokens) == 4
            assert 1 <= len(pool) <= 2
    finally:
        lab.close()


# Use sessions of the scripted engine, and a genai for which the NPU is full as long as `room` sessions are loaded.
FULL_NPU = """
import sys
sys.path.insert(0, {root!r})
import __main__
from qnnbridge_host.genai.native import from_genai
from qnnbridge_host.genai.native import GenaiLibrary
from tests.fakes import fake_engine
__main__.load_engine = lambda _on_phase: fake_engine.FakeEngine()
make = GenaiLibrary.make

def full(self, kind, name, *arguments, keeps=()):
    if name == "OgaCreateModelFromConfig" and len(fake_engine._on_npu) >= {room}:
        raise from_genai("contextCreateFromBinary failed. Error: no memory, Code: 1002", "0")
    return make(self, kind, name, *arguments, keeps=keeps)

GenaiLibrary.make = full
"""
X = np.arange(4, dtype=np.float32)


def full_npu(folder: Path, room: int) -> Lab:
    code = FULL_NPU.format(root=str(Path(__file__).parents[2]), room=room)
    return Lab(patched_host(folder, code), BrokerSettings(keep_unused_s=0.0, slots=4))


def session(lab: Lab, folder: Path, scale: int, **more: object) -> qnnbridge.InferenceSession:
    path = folder / f"m{scale}"
    path.write_bytes(script(room=9, scale=scale, **more))
    return qnnbridge.InferenceSession(path, host=lab.client())


def test_a_model_for_generation_replaces_the_least_recently_used_session_in_memory(
    folder: Path, tmp_path: Path
) -> None:
    lab = full_npu(tmp_path, 2)
    try:
        first, second = session(lab, tmp_path, 2), session(lab, tmp_path, 3)
        first.run(None, {"x": X})
        model = genai.Model(folder, host=lab.client())
        assert {one["label"]: one["loaded"] for one in lab.broker.status()["models"]} == {"m2": True, "m3": False}
        assert lab.broker.status()["totals"]["unloads"] == 1
        assert step(begin(model, prompt(9)), 8) == PlainLoop(folder).generate(prompt(9), 8)
        assert np.array_equal(second.run(None, {"x": X})[0], X * 3), "made again when it is used"
    finally:
        lab.close()


def test_active_work_is_kept_and_the_error_of_a_model_for_generation_names_it(folder: Path, tmp_path: Path) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    lab = full_npu(tmp_path, 1)
    try:
        busy = session(lab, tmp_path, 2, on_run=[f"note:{begun}", f"wait:{go}"])
        results: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: results.append(busy.run(None, {"x": X})[0]))
        thread.start()
        try:
            until(begun.exists)
            with pytest.raises(errors.GenerationError) as caught:
                genai.Model(folder, host=lab.client())
        finally:
            go.touch()
            thread.join(20)
        assert "on the NPU: m2, " in str(caught.value)
        assert "clients: 1" in str(caught.value)
        assert np.array_equal(results[0], X * 2)
        assert genai.Model(folder, host=lab.client()).type == "decoder-pipeline", "what ran is idle: there is room"
    finally:
        lab.close()
