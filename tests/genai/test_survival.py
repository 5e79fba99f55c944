"""If a host crashes during a generation, the text continues in the next host. `tests.genai.kills` is the long
form."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge._transport.channel import CallTimedOut, Channel
from qnnbridge.errors import (
    Busy,
    Cancelled,
    DeadlineExceeded,
    GenerationError,
    HostCrashed,
    ModelChanged,
    ModelQuarantined,
    StateLost,
)
from qnnbridge.genai import _model
from tests import needs
from tests.genai.conftest import Folders, prompt
from tests.genai.kills import Killer, run
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import VOCABULARY, Sizes, write_model

pytestmark = [pytest.mark.process, pytest.mark.simulator, needs.posix]


@pytest.fixture
def own_host() -> Iterator[qnnbridge.Host]:
    pytest.importorskip("onnxruntime_genai")
    with qnnbridge.Host() as host:
        yield host


def generator(model: genai.Model, **options: object) -> genai.Generator:
    params = genai.GeneratorParams(model)
    params.set_search_options(**options)
    return genai.Generator(model, params)


def step(one: genai.Generator, count: int) -> list[int]:
    made = []
    for _ in range(count):
        one.generate_next_token()
        made.append(int(one.get_next_tokens()[0]))
    return made


@pytest.mark.parametrize("kind", ["dynamic", "window-qnn"])
def test_greedy_text_under_random_kills_equals_that_without_kills(kind: str, folders: Folders) -> None:
    generations, kills = needs.length(5, 10), needs.length(2, 4)
    told = run(folders(kind), generations=generations, kills=kills, tokens=20, seed=5)
    assert (told.equal, told.generations, told.kills) == (generations, generations, kills)


def test_a_kill_at_every_token_changes_no_token(folders: Folders, own_host: qnnbridge.Host) -> None:
    model, truth = genai.Model(folders("window"), host=own_host), PlainLoop(folders("window"))
    one, killer, made = generator(model), Killer(own_host), []
    one.append_tokens(prompt(9))
    one.get_logits()  # from here on nothing is generated ahead: each token needs a host
    for _ in range(6):
        made += step(one, 1)
        killer.kill()
    assert made == truth.generate(prompt(9), 6)
    assert one.stats.restarts == 5
    assert own_host.stats.crashes == 5


def test_a_kill_between_turns_or_while_idle_changes_no_token(folders: Folders, own_host: qnnbridge.Host) -> None:
    model, truth = genai.Model(folders("dynamic"), host=own_host), PlainLoop(folders("dynamic"))
    one, killer = generator(model), Killer(own_host)
    tokenizer = genai.Tokenizer(model)
    one.append_tokens(prompt(9))
    first = step(one, 4)
    killer.kill()
    one.append_tokens(prompt(5, 3))
    assert step(one, 4) == truth.generate([*prompt(9), *first, *prompt(5, 3)], 4)
    killer.kill()
    assert tokenizer.decode(tokenizer.encode("still here")) == "still here"


@pytest.fixture
def with_adapter(tmp_path: Path) -> tuple[Path, Path, int]:
    """Return a model, the file of an adapter with which the model generates only one token, and that token."""
    ort, token = pytest.importorskip("onnxruntime"), 42
    write_model(tmp_path, "dynamic")
    path, file = tmp_path / "model.onnx", tmp_path / "says.onnx_adapter"
    model = onnx.load(path)
    (last,) = (node for node in model.graph.node if "logits" in node.output)
    last.output[list(last.output).index("logits")] = "without"
    model.graph.node.append(onnx.helper.make_node("Add", ["without", "delta"], ["logits"]))
    delta = np.zeros(VOCABULARY, np.float32)
    # An input with a default value, which an adapter replaces.
    model.graph.initializer.append(onnx.numpy_helper.from_array(delta, "delta"))
    model.graph.input.append(onnx.helper.make_tensor_value_info("delta", onnx.TensorProto.FLOAT, [VOCABULARY]))
    onnx.save(model, path)
    delta[token] = 1e4
    adapter = ort.AdapterFormat()
    adapter.set_parameters({"delta": ort.OrtValue.ortvalue_from_numpy(delta)})
    adapter.export_adapter(str(file))
    return tmp_path, file, token


def test_an_adapter_is_loaded_again_in_the_next_host(
    with_adapter: tuple[Path, Path, int], own_host: qnnbridge.Host
) -> None:
    folder, file, token = with_adapter
    model = genai.Model(folder, host=own_host)
    adapters = genai.Adapters(model)
    adapters.load(file, "unloaded")
    adapters.load(file, "says")
    adapters.unload("unloaded")
    plain, one = generator(model), generator(model)
    one.set_active_adapter(adapters, "says")
    for each in (plain, one):
        each.append_tokens(prompt(9))
    assert step(one, 3) == [token] * 3
    first = step(plain, 3)
    assert token not in first
    for _ in range(2):
        Killer(own_host).kill()
        assert step(one, 4) == [token] * 4
    assert first + step(plain, 3) == PlainLoop(folder).generate(prompt(9), 6)
    other = generator(model)
    other.set_active_adapter(adapters, "unloaded")
    with pytest.raises(GenerationError, match="unloaded"):
        other.append_tokens(prompt(9))


def test_no_thread_gets_adapters_before_they_are_loaded_again(
    with_adapter: tuple[Path, Path, int], own_host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file, _ = with_adapter
    adapters = genai.Adapters(genai.Model(folder, host=own_host))
    adapters.load(file, "says")
    Killer(own_host).kill()
    loads, go_on, call = threading.Event(), threading.Event(), _model.call_object

    def slow(process: Any, *arguments: Any) -> Any:
        # The call that notices the crash of the host is one of the first generation.
        if process.generation > 1:
            loads.set()
            assert go_on.wait(30)
        return call(process, *arguments)

    monkeypatch.setattr(_model, "call_object", slow)
    loading = threading.Thread(target=adapters.load, args=(file, "further"))
    loading.start()
    try:
        assert loads.wait(30)
        process = own_host.supervisor.current
        assert process is not None
        with pytest.raises(CallTimedOut):
            adapters.number_in(process, time.monotonic() + 0.2)
    finally:
        go_on.set()
        loading.join(30)
    assert adapters.number_in(process, None) > 0


def test_sampling_after_a_crash_reports_its_new_seed(folders: Folders, own_host: qnnbridge.Host) -> None:
    model = genai.Model(folders("window"), host=own_host)
    options = {"do_sample": True, "top_k": 20, "temperature": 1.0, "random_seed": 7}
    first, again = generator(model, **options), generator(model, **options)
    for one in (first, again):
        one.append_tokens(prompt(9))
    assert step(first, 6) == step(again, 6)
    assert not first.stats.reseeded
    Killer(own_host).kill()
    # The statistics arrive with the end of a step: the first step of the next host ends after at most ten tokens.
    assert len(step(first, 10)) == 10
    assert first.stats.reseeded
    assert first.stats.restarts == 1


def test_beams_are_generated_again_after_a_crash(folders: Folders, own_host: qnnbridge.Host) -> None:
    model = genai.Model(folders("dynamic"), host=own_host)
    sequences = []
    for kill in (False, True):
        one = generator(model, num_beams=2, max_length=20)
        one.append_tokens(prompt(8))
        while not one.is_done():
            one.generate_next_token()
            if kill and one._remote.stats.steps == 5:
                Killer(own_host).kill()
        sequences.append(list(one.get_sequence(0)))
    assert sequences[0] == sequences[1]
    assert len(sequences[0]) == 20


class Spoiled:
    """Fault injection for requests of generators: a request that is not sent, or whose answer is lost.

    Each error is raised once. before: raised instead of the next request. behind: raised instead of the next
    answer.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: Exception | None = None
        self.behind: Exception | None = None
        call = Channel.call

        def spoiled(channel: Channel, header: dict[str, Any], *rest: Any) -> Any:
            if header.get("operation") not in ("generator", "step"):
                return call(channel, header, *rest)
            before, self.before = self.before, None
            if before is not None:
                raise before
            answer = call(channel, header, *rest)
            behind, self.behind = self.behind, None
            if behind is not None:
                raise behind
            return answer

        monkeypatch.setattr(Channel, "call", spoiled)


def test_an_unanswered_call_in_a_new_host_is_repeated_with_the_whole_history(
    folders: Folders, own_host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole history is sent until a step is answered, each time to an empty generator."""
    spoiled = Spoiled(monkeypatch)
    model, truth = genai.Model(folders("dynamic"), host=own_host), PlainLoop(folders("dynamic"))
    one, killer = generator(model), Killer(own_host)
    one.timeout = 60
    one.append_tokens(prompt(9))
    one.get_logits()  # from here on nothing is generated ahead
    made = step(one, 3)
    killer.kill()
    genai.Tokenizer(model).encode("a")  # notices the crash
    spoiled.before = Busy("The queue is full.")
    with pytest.raises(Busy):
        step(one, 1)
    spoiled.behind = CallTimedOut("finished")
    with pytest.raises(DeadlineExceeded):
        step(one, 1)
    assert made + step(one, 3) == truth.generate(prompt(9), 6)


def test_a_batch_continues_after_its_last_complete_answer(
    folders: Folders, own_host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of the host in abandoned calls are not counted."""
    spoiled = Spoiled(monkeypatch)
    model = genai.Model(folders("dynamic"), host=own_host)

    def run(*, spoil: bool) -> list[list[int]]:
        one, made = generator(model, batch_size=2, max_length=20), []
        one.timeout = 60
        for attempt in ("spoiled", "whole") if spoil else ("whole",):
            if attempt == "whole":
                one.append_tokens([prompt(8), prompt(8, 3)])
                continue
            spoiled.behind = CallTimedOut("finished")
            with pytest.raises(DeadlineExceeded):
                one.append_tokens([prompt(8), prompt(8, 3)])
        for number in range(6):
            if spoil and number == 3:
                spoiled.behind = CallTimedOut("finished")
                with pytest.raises(DeadlineExceeded):
                    one.generate_next_token()
            one.generate_next_token()
            made.append(list(one.get_next_tokens()))
        return made

    assert run(spoil=True) == run(spoil=False)


def test_a_sampling_batch_is_lost_with_its_host(folders: Folders, own_host: qnnbridge.Host) -> None:
    model = genai.Model(folders("dynamic"), host=own_host)
    one = generator(model, batch_size=2, do_sample=True, max_length=30)
    one.append_tokens([prompt(8), prompt(8, 3)])
    one.generate_next_token()
    assert len(one.get_next_tokens()) == 2
    Killer(own_host).kill()
    with pytest.raises(StateLost):
        one.generate_next_token()


def test_a_prompt_that_crashes_the_host_twice_is_refused_and_others_continue(
    folders: Folders, own_host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = genai.Model(folders("dynamic"), host=own_host)
    poison = prompt(13, 29)
    stopping = threading.Event()

    def abort_when_it_is_inside() -> None:
        # SIGSEGV counts as a crash of the native library; SIGKILL would not be blamed on a prompt.
        while not stopping.is_set():
            process = own_host.supervisor.running
            if process is not None and any(
                entry.context.op == "genai.step" for entry in list(process.channel.requests._open.values())
            ):
                os.kill(process.real_pid, signal.SIGSEGV)
            time.sleep(0.0002)

    watcher = threading.Thread(target=abort_when_it_is_inside)
    watcher.start()
    one = generator(model)
    try:
        with pytest.raises((HostCrashed, ModelQuarantined)):
            for _ in range(50):
                one.rewind_to(0)
                one.append_tokens(poison)
    finally:
        stopping.set()
        watcher.join()
    with pytest.raises(ModelQuarantined, match="13 tokens"):
        one.append_tokens(poison)
    other = generator(model)
    other.append_tokens(prompt(9))
    assert step(other, 3) == PlainLoop(folders("dynamic")).generate(prompt(9), 3)
    assert own_host.quarantine is not None
    own_host.quarantine.clear()


def test_a_changed_model_is_not_loaded_again(folders: Folders, own_host: qnnbridge.Host, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(folders("dynamic"), folder)
    model = genai.Model(folder, host=own_host)
    one = generator(model)
    one.append_tokens(prompt(9))
    made = step(one, 1)
    os.utime(folder / "model.onnx", ns=(1, 1))
    Killer(own_host).kill()
    made += step(one, 1)  # a new date alone does not make a different model
    assert made == PlainLoop(folder).generate(prompt(9), 2)
    write_model(tmp_path / "other", "dynamic", seed=4)
    os.replace(tmp_path / "other" / "model.onnx", folder / "model.onnx")
    Killer(own_host).kill()
    with pytest.raises(ModelChanged):
        step(one, 40)  # the first tokens were generated ahead


def test_cancel_deadline_and_stop_end_a_generation(folders: Folders, own_host: qnnbridge.Host) -> None:
    model = genai.Model(folders("window-qnn"), host=own_host)
    whole = "".join(genai.generate(model, prompt(9), max_tokens=40))
    with genai.generate(model, prompt(9), max_tokens=40) as answer:
        pieces = [next(answer) for _ in range(3)]
        answer.cancel()
        assert list(answer) == []
    assert answer.finish_reason == "cancelled"
    assert whole.startswith("".join(pieces))
    stop = whole[9:12]
    cut = genai.generate(model, prompt(9), max_tokens=40, stop=[stop, "never"])
    assert "".join(cut) == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    with pytest.raises(DeadlineExceeded) as late:
        list(genai.generate(model, prompt(9), timeout=0.15))
    assert late.value.fix
    assert "".join(genai.generate(model, prompt(9), max_tokens=40)) == whole


def test_a_prompt_is_cancelled_while_it_is_processed(own_host: qnnbridge.Host, tmp_path: Path) -> None:
    """ONNX Runtime checks the flag between two nodes; this prompt takes it some seconds."""
    model = genai.Model(write_model(tmp_path / "long", "dynamic", sizes=Sizes(context=20_000)), host=own_host)
    tokens = prompt(18_000)
    at_once = genai.generate(model, tokens, on_begin=genai.TextStream.cancel)
    assert (list(at_once), at_once.finish_reason, at_once.prompt_tokens) == ([], "cancelled", 18_000)
    begun: list[genai.TextStream] = []
    timer = threading.Timer(0.1, lambda: begun[0].cancel())
    answer = genai.generate(model, tokens, on_begin=lambda stream: (begun.append(stream), timer.start()))
    assert (list(answer), answer.finish_reason, answer.tokens) == ([], "cancelled", [])
    timer.join()
    one = generator(model)
    one.append_tokens(tokens[:9])
    one.set_runtime_option("terminate_session", "1")
    with pytest.raises(Cancelled):
        for _ in range(100):
            one.generate_next_token()
    assert not one._remote.ahead  # not even tokens that had already arrived
    one.set_runtime_option("terminate_session", "0")
    made = one.token_count()
    one.generate_next_token()
    assert one.token_count() == made + 1
    assert own_host.stats.crashes == 0


def test_a_generation_continues_after_the_host_is_closed_or_restarted(folders: Folders) -> None:
    with qnnbridge.Host() as host:
        model = genai.Model(folders("dynamic"), host=host)
        one = generator(model)
        one.append_tokens(prompt(9))
        made = step(one, 5)
        host.restart()
        made += step(one, 5)
        assert made == PlainLoop(folders("dynamic")).generate(prompt(9), 10)
        assert host.stats.crashes == 0
    with pytest.raises(qnnbridge.BridgeError):
        step(one, 40)


def test_dropped_objects_are_released_in_the_host(folders: Folders, own_host: qnnbridge.Host) -> None:
    def objects() -> int:
        any_call.encode("x")  # objects that the garbage collector found are released with the next call
        return int(own_host.call({"op": "host.stats"}).header["objects"]) - 2

    any_call = genai.Tokenizer(genai.Model(folders("window"), host=own_host))
    model = genai.Model(folders("dynamic"), host=own_host)
    tokenizer = genai.Tokenizer(model)
    for _ in range(5):
        one = generator(model)
        one.append_tokens(prompt(9))
        step(one, 4)  # a generation ahead is running
        text = genai.generate(model, "hello", tokenizer=tokenizer, max_tokens=4)
        list(text)
    assert objects() >= 4  # and a generator of each kind
    del one, text
    for _ in range(100):
        if objects() == 2:  # the model and its tokenizer
            break
        time.sleep(0.05)
    assert objects() == 2
    model.close()
    del tokenizer
    for _ in range(100):
        if objects() == 0:
            break
        time.sleep(0.05)
    assert objects() == 0


def test_two_models_of_one_folder_are_loaded_once(folders: Folders, own_host: qnnbridge.Host) -> None:
    begin = own_host.call({"op": "host.stats"}).header["rss_bytes"]
    models = [genai.Model(folders("dynamic"), host=own_host) for _ in range(6)]
    one = generator(models[-1])
    one.append_tokens(prompt(9))
    assert len(step(one, 3)) == 3
    assert own_host.call({"op": "host.stats"}).header["rss_bytes"] - begin < 300 * 2**20


def test_many_generators_run_at_the_same_time(folders: Folders, own_host: qnnbridge.Host) -> None:
    """Run 50 threads; generations take turns, and each has its own text."""
    model, truth = genai.Model(folders("dynamic"), host=own_host), PlainLoop(folders("dynamic"))
    prompts = [prompt(5 + n % 9, n) for n in range(50)]
    made: dict[int, list[int]] = {}

    def work(number: int) -> None:
        one = generator(model)
        one.append_tokens(prompts[number])
        made[number] = step(one, 12)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert made == {number: truth.generate(prompts[number], 12) for number in range(50)}


def test_generators_that_are_not_read_block_no_other_generator(folders: Folders, own_host: qnnbridge.Host) -> None:
    model = genai.Model(folders("dynamic"), host=own_host)
    waiting = []
    for number in range(80):
        one = generator(model)
        one.append_tokens(prompt(6, number))
        step(one, 3)  # the host generates ahead
        waiting.append(one)
    assert own_host.ping() < 5
    last = generator(model)
    last.append_tokens(prompt(9))
    assert len(step(last, 20)) == 20
    assert len(step(waiting[0], 20)) == 20


def test_a_session_runs_during_a_generation(folders: Folders, own_host: qnnbridge.Host) -> None:
    import numpy as np

    from tests.contract.small_models import identity

    model = genai.Model(folders("window-qnn"), host=own_host)
    session = qnnbridge.InferenceSession(identity(), providers=["CPUExecutionProvider"], host=own_host)
    feeds = {session.get_inputs()[0].name: np.ones(3, np.float32)}
    for _ in range(3):
        session.run(None, feeds)
    one = generator(model)
    one.append_tokens(prompt(9))
    one.get_logits()
    made: list[int] = []

    def work() -> None:
        while len(made) < 60:
            made.append(step(one, 1)[0])

    thread = threading.Thread(target=work)
    thread.start()
    within = 0
    while thread.is_alive():
        before = len(made)
        session.run(None, feeds)
        within += before == len(made)  # the run started and ended while one token was generated
    thread.join()
    assert within > 10


def test_a_finished_generation_refuses_further_tokens(folders: Folders, own_host: qnnbridge.Host) -> None:
    one = generator(genai.Model(folders("dynamic"), host=own_host), max_length=12)
    with pytest.raises(GenerationError, match="no prompt"):
        one.generate_next_token()
    one.append_tokens(prompt(9))
    assert len(step(one, 3)) == 3
    assert one.is_done()
    with pytest.raises(GenerationError, match="done"):
        one.generate_next_token()


def test_other_weights_with_the_same_name_size_and_date_are_another_model(
    tmp_path: Path, own_host: qnnbridge.Host
) -> None:
    """Archives give all their files the same date, and the weights of two trainings have the same size."""
    folder, models, made = tmp_path / "m", [], []
    for seed in (3, 4):
        fresh = write_model(tmp_path / "fresh", "dynamic", seed=seed)
        for file in fresh.iterdir():
            os.utime(file, ns=(1, 1))
        if folder.exists():
            folder.rename(tmp_path / "old")
        fresh.rename(folder)
        models.append(genai.Model(folder, host=own_host))
        one = generator(models[-1])
        one.append_tokens(prompt(9))
        made.append(step(one, 6))
        assert made[-1] == PlainLoop(folder).generate(prompt(9), 6)
    assert made[0] != made[1], "the second one is not the first one, which is loaded still"
