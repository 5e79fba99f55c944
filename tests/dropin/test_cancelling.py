"""A cancelled task or future stops its run in the host. The scripted engine's runs last until they are stopped."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
import qnnbridge.aio
import qnnbridge.futures
from tests.fakes.hosts import fake_host, script

FEED = {"x": np.ones(3, np.float32)}
# Longer than the timeout of a test: a test that waits for the end of such a run fails.
LONG = "stoppable:600"


@pytest.fixture
def host() -> Iterator[qnnbridge.Host]:
    with fake_host() as host:
        yield host


def test_a_cancelled_task_stops_its_run_in_the_host(tmp_path: Path, host: qnnbridge.Host) -> None:
    pipe = tmp_path / "began"

    async def main() -> float:
        # Not on the NPU, where the next run would wait for this one.
        long = script(npu=False, on_run=[f"note:{pipe}", LONG])
        async with qnnbridge.aio.InferenceSession(long, host=host) as session:
            task = asyncio.create_task(session.run(None, FEED))
            while not pipe.exists():
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while await asyncio.to_thread(lambda: host.stats.calls_in_flight):
                await asyncio.sleep(0.01)
        async with qnnbridge.aio.InferenceSession(script(), host=host) as other:
            return float((await other.run(None, FEED))[0][0])

    assert asyncio.run(asyncio.wait_for(main(), 60)) == 2.0
    assert host.stats.crashes == 0


def test_a_task_that_waits_for_a_model_can_be_cancelled(host: qnnbridge.Host, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> None:
        opening = asyncio.create_task(
            qnnbridge.aio.InferenceSession(script(on_create=[f"wait:{gate}"]), host=host).open()
        )
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        gate.touch()
        async with qnnbridge.aio.InferenceSession(script(), host=host) as session:
            assert len(await session.run(None, FEED)) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_event_loop_continues_while_runs_wait(tmp_path: Path, host: qnnbridge.Host) -> None:
    gate = tmp_path / "gate"

    async def main() -> list[float]:
        async with qnnbridge.aio.InferenceSession(script(npu=False, on_run=[f"wait:{gate}"]), host=host) as session:
            runs = [asyncio.create_task(session.run(None, FEED)) for _ in range(8)]
            while host.stats.calls_in_flight < len(runs):  # all runs are in the host at the same time
                await asyncio.sleep(0.01)
            gate.touch()
            return [float(outputs[0][0]) for outputs in await asyncio.gather(*runs)]

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [2.0] * 8


def test_stopping_a_started_run_ends_it(tmp_path: Path, host: qnnbridge.Host) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    session = qnnbridge.InferenceSession(script(npu=False, on_run=[f"note:{began}", LONG]), host=host)
    run = qnnbridge.futures.start(session, None, FEED)
    with open(began) as file:
        assert file.read() == "."
    run.stop()
    with pytest.raises(qnnbridge.errors.Fail, match="terminate"):
        run.future.result(60)


def test_a_future_works_with_wait_and_as_completed(host: qnnbridge.Host) -> None:
    session = qnnbridge.InferenceSession(script(), host=host)
    futures = [qnnbridge.futures.submit(session, None, {"x": np.full(1, n, np.float32)}) for n in range(10)]
    done = {float(future.result()[0][0]) for future in concurrent.futures.as_completed(futures, timeout=60)}
    assert done == {2.0 * n for n in range(10)}
    assert all(not thread.name.startswith("qnnbridge future") or thread.daemon for thread in threading.enumerate())
