"""`qnnbridge bench` with real hosts, and its parts."""

from __future__ import annotations

import html.parser
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import needs
from tests.fakes.commands import in_a_process, qnnbridge

pytest.importorskip("onnxruntime")

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.values import check_sum
from qnnbridge_tools.bench import work
from qnnbridge_tools.bench.measuring import WAYS, Contender, pinned, race, summary

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """The document and the page of one run with a model of a user: with free dimensions, on QNN."""
    pytest.importorskip("onnxruntime_qnn")
    folder = tmp_path_factory.mktemp("bench")
    page, state = folder / "page.html", folder / "state"
    sizes = [part for name in ("N=1", "M1=12", "M2=12") for part in ("--dim", name)]
    np.save(folder / "x.npy", np.ones((1, 12, 12, 3), np.float32))
    given = ("--input", f"input_1={folder / 'x.npy'}", "--html", page)
    done = in_a_process(
        *("bench", "--model", MODELS / "pnet.onnx", "--quick", "--json", *sizes, *given),
        QNNBRIDGE_STATE_DIR=str(state),
    )
    assert done.returncode == 0, done.stderr
    assert "SIGKILL" not in done.stderr, "the hosts that it kills itself are no news"
    assert not (state / "crashes").exists(), "and no crash of the user's"
    return json.loads(done.stdout), page.read_text(encoding="utf-8")


def test_all_ways_are_measured_and_compared_with_a_single_process(measured: tuple[dict[str, Any], str]) -> None:
    (calls,) = measured[0]["calls"]
    assert calls["name"] == "pnet.onnx"
    assert list(calls["ways"]) == list(WAYS)
    for way in calls["ways"].values():
        assert 0 < way["best_us"] <= way["median_us"]
        assert way["p90_us"] <= way["p99_us"]
        assert way["to_direct"] == pytest.approx(way["median_us"] / calls["ways"]["direct"]["median_us"])


def test_the_fast_path_was_measured_and_not_the_connection(measured: tuple[dict[str, Any], str]) -> None:
    assert measured[0]["shared_memory"] == "available"
    assert measured[0]["shared_calls"] > 100


def test_start_and_recovery_times_are_reported_for_each_attempt(measured: tuple[dict[str, Any], str]) -> None:
    document = measured[0]
    assert list(document["starting_s"]) == [kind for kind in work.MOMENTS_IN_WORDS if kind != work.APPLICATION]
    assert all(len(told["all"]) == work.QUICK.starts for told in document["starting_s"].values())
    assert len(document["recovery_s"]["all"]) == work.QUICK.kills
    assert list(document["calls_per_second"]) == [str(size) for size in work.CROWDS]


def test_the_page_is_complete_and_needs_no_other_resources(measured: tuple[dict[str, Any], str]) -> None:
    class Reader(html.parser.HTMLParser):
        bars = 0

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.bars += tag == "rect"
            assert tag not in ("script", "link", "img")

    reader = Reader()
    reader.feed(measured[1])
    assert reader.bars == len(WAYS)
    assert "pnet.onnx" in measured[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "no-such.onnx"), "no model file"),
        (("--html", "/"), "is a folder"),
        (("--model", MODELS / "sigmoid.onnx", "--dim", "x"), "--dim"),
        (("--model", MODELS / "sigmoid.onnx", "--dim", "batch=2"), 'no free dimension "batch"'),
        (("--dim", "batch=2"), "--dim needs --model"),
        (("--input", "x=x.npy"), "no file x.npy"),
        (("--model", MODELS / "sigmoid.onnx", "--input", "x"), "not of the form"),
    ],
)
def test_a_subject_that_cannot_be_measured_is_refused_before_a_host_is_started(
    arguments: tuple[str | Path, ...], words: str
) -> None:
    done = qnnbridge("bench", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert not done.stdout


@pytest.mark.simulator
def test_a_model_with_free_dimensions_is_measured_on_qnn_with_the_given_sizes(
    measured: tuple[dict[str, Any], str],
) -> None:
    assert measured[0]["placement"]["qnn_nodes"] > 0


@pytest.mark.simulator
def test_the_error_for_a_refused_model_names_options_of_the_command() -> None:
    pytest.importorskip("onnxruntime_qnn")
    done = qnnbridge("bench", "--model", MODELS / "pnet.onnx", "--quick")
    assert done.returncode == 1
    assert "--dim N=SIZE" in done.stderr
    assert "--fallback cpu" in done.stderr


# --- parts of the benchmark ------------------------------------------------------------------------------


def test_contenders_take_turns_forwards_and_backwards() -> None:
    turns: list[str] = []

    def contender(name: str) -> Contender:
        def batch(count: int) -> list[int]:
            if count > 1:
                turns.append(name)
            return [1_000_000] * count

        return Contender(name, batch)

    timings = race([contender("a"), contender("b")], rounds=3, turn_s=0.01)
    assert "".join(turns) == "aabb" + "ab" + "ba" + "ab"
    assert timings["a"].median_s == pytest.approx(1e-3)
    assert timings["a"].calls == 3 * 10
    assert timings["a"].noise == 0


def test_a_disturbed_round_counts_as_one_round() -> None:
    quiet, disturbed = [100] * 10, [900] * 90
    timing = summary([quiet, quiet, disturbed])
    assert timing.median_s == pytest.approx(100e-9)
    assert timing.p99_s == pytest.approx(900e-9)
    assert timing.noise > 1


def test_a_checksum_detects_a_single_bit_and_changed_strings() -> None:
    x = np.zeros(8, np.float32)
    y = x.copy()
    y.view(np.uint8)[5] ^= 1
    assert check_sum([x]) == check_sum([x.copy()]) != check_sum([y])
    assert check_sum([np.array(["a"], object)]) != check_sum([np.array(["b"], object)])
    assert check_sum([[{1: 2.0}]]) != check_sum([[{1: 3.0}]])


def test_pinned_processors_are_free_again_afterwards() -> None:
    before = os.sched_getaffinity(0)
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        with pinned([os.getpid()]) as done:
            assert done
            assert len(os.sched_getaffinity(0)) == 1
            assert other.native_id is not None
            assert len(os.sched_getaffinity(other.native_id)) == 1, "threads that are there already, too"
    finally:
        over.set()
        other.join()
    assert os.sched_getaffinity(0) == before
    with pinned([2**22 + 1]) as done:
        assert not done
    assert os.sched_getaffinity(0) == before


def test_the_models_of_the_benchmark_equal_those_of_their_generator() -> None:
    """`scripts/makers` creates the assets."""
    onnx = pytest.importorskip("onnx")
    from scripts.makers import bench_models

    for name, made in (("add", bench_models.add()), ("convnet", bench_models.convnet())):
        kept = onnx.load(str(work.ASSETS / f"{name}.onnx"))
        assert kept == made


def test_notes_report_where_the_processes_ran(measured: tuple[dict[str, Any], str]) -> None:
    words = "all processes on one CPU" if measured[0]["pinned"] else "free to move"
    assert any(words in note for note in measured[0]["notes"])


@needs.long_form
@pytest.mark.process
def test_without_qnn_the_cpu_is_measured() -> None:
    done = in_a_process("bench", "--model", MODELS / "sigmoid.onnx", "--provider", "cpu", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["placement"]["qnn_nodes"] == 0
    assert [(call["name"], list(call["ways"])) for call in found["calls"]] == [("sigmoid.onnx", list(WAYS))]


@pytest.mark.process
def test_a_process_that_never_answers_ends_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "TIMEOUT_S", 0.5)
    begun = time.monotonic()
    with pytest.raises(BridgeError, match=r"not create a session within 0\.5 s"):
        work._first_output_s([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
    # A process that has answered, but does not end.
    stays = "import os, time; os.write(1, b'!'); time.sleep(60)"
    work._first_output_s([sys.executable, "-I", "-S", "-c", stays])
    assert time.monotonic() - begun < 30
