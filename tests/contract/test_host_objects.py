"""Objects in the host, as the application uses them: released, lost, passed to another host, after a fork."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import qnnbridge
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge_protocol.errors import Closed, ForkedClient, HostCrashed, InvalidArgument, StateLost

pytestmark = [pytest.mark.process, pytest.mark.simulator]

KIND = "AdapterFormat"


def adapter(host: qnnbridge.Host) -> HostObject:
    return create_object(host, KIND)[0]


def kept(host: qnnbridge.Host) -> int:
    return int(host.call({"op": "host.stats"}).header["objects"])


def until(condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    pytest.fail("it does not come")


@pytest.fixture
def other_host() -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host() as host:
        yield host


def test_an_object_is_created_used_and_counted(host: qnnbridge.Host) -> None:
    made, facts = create_object(host, KIND)
    assert facts == {"format_version": 1, "adapter_version": 0, "model_version": 0}
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    made.call("set_parameters", {"names": ["p"]}, [array])
    found = made.call("parameters")
    assert found.result == ["p"]
    assert np.array_equal(found.values[0], array)
    assert (kept(host), host.stats.objects) == (1, 1)
    made.release()
    until(lambda: kept(host) == 0)
    assert host.stats.objects == 0


def test_objects_are_released_with_the_next_call_after_they_are_dropped(host: qnnbridge.Host) -> None:
    made = [adapter(host) for _ in range(20)]
    assert kept(host) == 20
    del made
    gc.collect()
    until(lambda: host.stats.objects == 0)  # a background thread removes them
    last = adapter(host)
    until(lambda: kept(host) == 1)
    last.release()


def test_a_released_object_reports_that_it_was_released(host: qnnbridge.Host) -> None:
    made = adapter(host)
    made.release()
    made.release()
    with pytest.raises(Closed, match="AdapterFormat was released"):
        made.call("parameters")
    with pytest.raises(Closed):
        create_object(host, KIND, objects=[made])


def test_objects_of_two_hosts_cannot_be_mixed(host: qnnbridge.Host, other_host: qnnbridge.Host) -> None:
    ours, theirs = adapter(host), adapter(other_host)
    with pytest.raises(InvalidArgument, match="belongs to another host"):
        ours.call("parameters", objects=[theirs])
    assert ours.call("parameters").result == []


def test_an_object_is_lost_with_its_host(other_host: qnnbridge.Host) -> None:
    made = adapter(other_host)
    process = other_host.supervisor.running
    assert process is not None
    process.kill("the test ends it")
    with pytest.raises((HostCrashed, StateLost)):
        made.call("parameters")
    with pytest.raises(StateLost, match="AdapterFormat is lost"):
        made.call("parameters")
    again = adapter(other_host)
    with pytest.raises(StateLost):
        again.call("parameters", objects=[made])
    assert again.call("parameters").result == []
    assert other_host.stats.objects == 1
    made.release()
    assert kept(other_host) == 1


def test_an_object_is_lost_with_a_planned_restart(other_host: qnnbridge.Host) -> None:
    made = adapter(other_host)
    other_host.restart()
    with pytest.raises(StateLost):
        made.call("parameters")


def test_a_host_with_objects_is_not_recycled() -> None:
    with qnnbridge.Host(recycle=qnnbridge.RecycleAfter(rss_bytes=1)) as host:
        made = adapter(host)
        host.recycler._next_check = 0.0
        before = host.stats.planned_restarts
        assert made.call("parameters").result == []
        assert host.stats.planned_restarts == before
        made.release()
        host.recycler._next_check = 0.0
        adapter(host)
        assert host.stats.planned_restarts == before + 1


def test_an_object_of_a_closed_host_refuses_calls() -> None:
    host = qnnbridge.Host()
    made = adapter(host)
    host.close()
    with pytest.raises(Closed):
        made.call("parameters")


def test_any_thread_may_use_an_object(host: qnnbridge.Host) -> None:
    made = adapter(host)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(made.call("parameters").result)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[]] * 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_object_cannot_be_used_after_a_fork(host: qnnbridge.Host, tmp_path: Path) -> None:
    made = adapter(host)
    told = tmp_path / "told"
    child = os.fork()
    if child == 0:
        try:
            made.call("parameters")
        except ForkedClient as error:
            told.write_text(str(error.fix))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert "after the fork" in told.read_text()
    assert made.call("parameters").result == []
