"""A short run of the random walks, which finds the bugs of older code within seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.walk import crowd, more
from lab.walk.machine import shrinking_walk
from lab.walk.steps import Wrong

import qnnbridge
from qnnbridge._fastpath.call import key_of
from tests.needs import length

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[qnnbridge.Host]]:
    with qnnbridge.Host(shared_memory=True) as one, qnnbridge.Host(shared_memory=True) as other:
        one.start()
        other.start()
        yield [one, other]


def test_random_calls_of_one_thread_give_the_results_of_onnxruntime(hosts: list[qnnbridge.Host]) -> None:
    assert crowd.alone(hosts, length(700, 2_000), seed=1) > length(500, 1_500)


def test_random_calls_that_hypothesis_generates_give_the_results_of_onnxruntime(
    hosts: list[qnnbridge.Host],
) -> None:
    shrinking_walk(hosts, examples=length(5, 20), steps=30, random=False)


def test_random_calls_of_several_threads_on_the_same_sessions_give_the_results_of_onnxruntime(
    hosts: list[qnnbridge.Host],
) -> None:
    assert crowd.crowd(hosts, threads=4, steps=length(500, 1_200), seed=2) > length(300, 750)


def test_random_calls_without_shared_memory_give_the_results_of_onnxruntime() -> None:
    with qnnbridge.Host(shared_memory=False) as host:
        assert crowd.alone([host], length(250, 800), seed=3) > length(180, 600)


def test_random_calls_give_the_results_of_onnxruntime_while_hosts_are_killed() -> None:
    with qnnbridge.Host(shared_memory=True) as one, qnnbridge.Host(shared_memory=True) as other:
        assert crowd.crowd([one, other], threads=3, steps=length(250, 1_200), seed=4, kills=True) > length(100, 600)
        assert one.stats.generation + other.stats.generation > length(3, 20)


def test_random_calls_through_the_daemon_give_the_results_of_onnxruntime() -> None:
    from tests.daemon.brokers import lab

    with lab(qnnbridge.Host(shared_memory=True)) as made:
        assert crowd.crowd([made.client(), made.client()], threads=3, steps=length(300, 1_200), seed=5) > length(
            150, 600
        )


# Parts that a key could lack: the session, the names of outputs, the type, shape and location of an input, the
# location of an output.
LEFT_OUT: dict[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]] = {
    "session": lambda key: (0, *key[1:]),
    "names": lambda key: (key[0], None, *key[2:]),
    "type": lambda key: tuple([part for part in key if not isinstance(part, np.dtype)]),
    "shape": lambda key: (*key[:4], None, *key[5:]),
    "place of an input": lambda key: (*key[:5], None, *key[6:]),
    "place of an output": lambda key: key[:-1] if len(key) % 4 == 3 else key,
}


@pytest.mark.parametrize("part", LEFT_OUT)
def test_random_calls_detect_a_key_of_the_fast_path_that_lacks_a_part(
    part: str, hosts: list[qnnbridge.Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the walk can fail."""

    def incomplete(*arguments: Any, **keywords: Any) -> Any:
        found = key_of(*arguments, **keywords)
        return None if found is None else found._replace(key=LEFT_OUT[part](found.key))

    monkeypatch.setattr("qnnbridge._session.fast_calls.key_of", incomplete)
    with pytest.raises(Wrong):
        crowd.alone(hosts, 20_000, seed=6)


# --- other parts with state ---


def test_random_calls_of_sessions_with_buckets_give_the_results_of_onnxruntime() -> None:
    more.buckets(length(80, 240), seed=6)


@pytest.mark.simulator
def test_random_calls_of_cached_sessions_give_the_results_of_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime_qnn")
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    more.cache(length(6, 20), seed=7, folder=tmp_path)


def test_random_requests_to_the_server_give_the_results_of_onnxruntime(tmp_path: Path) -> None:
    more.serving(length(120, 400), seed=8, folder=tmp_path)


@pytest.mark.parametrize("layout", ["dynamic", "window"])
def test_random_text_generation_gives_the_tokens_of_onnxruntime_genai(layout: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    more.generation(length(50, 150), seed=9, folder=tmp_path, layout=layout)
