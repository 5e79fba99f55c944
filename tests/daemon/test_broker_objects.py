"""Objects of the NPU host belong to one client of the daemon, and end with it."""

from __future__ import annotations

import numpy as np
import pytest

from qnnbridge._host_objects import HostObject, create_object
from qnnbridge_daemon import client_sessions
from qnnbridge_protocol.errors import Busy, CallBackFailed, Closed, HostCrashed, StateLost
from tests.daemon.brokers import Lab, until

pytestmark = pytest.mark.process

KIND = "AdapterFormat"


def kept(lab: Lab) -> int:
    return int(lab.npu_host.call({"op": "host.stats"}).header["objects"])


def test_objects_of_two_clients_are_separate(lab: Lab) -> None:
    one, two = (create_object(lab.client(), KIND)[0] for _ in range(2))
    one.call("set_parameters", {"names": ["p"]}, [np.zeros(3, np.float32)])
    assert one.call("parameters").result == ["p"]
    assert two.call("parameters").result == []
    assert kept(lab) == 2
    stolen = HostObject(two.host, two.generation, one.number + 100, KIND)
    with pytest.raises(Closed):
        stolen.call("parameters")
    one.release()
    two.host.close()
    until(lambda: kept(lab) == 0)


def test_each_client_has_its_own_limit_of_objects(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    host = lab.client()
    host.start()
    (client,) = lab.broker.clients
    monkeypatch.setattr(client.handlers._objects, "_limit", 2)
    made = [create_object(host, KIND)[0] for _ in range(2)]
    with pytest.raises(Busy) as caught:
        create_object(host, KIND)
    assert caught.value.details == {"limit": "objects", "value": 2}
    made.pop().release()
    until(lambda: len(client.handlers._objects) == 1)
    create_object(host, KIND)
    host.close()
    until(lambda: kept(lab) == 0)
    assert client_sessions.MAX_OBJECTS == 1000


def test_an_object_is_lost_with_the_npu_host_and_the_next_one_works(lab: Lab) -> None:
    made = create_object(lab.client(), KIND)[0]
    process = lab.npu_host.supervisor.running
    assert process is not None
    process.kill("the test ends it")
    with pytest.raises((HostCrashed, StateLost)):
        made.call("parameters")
    with pytest.raises(StateLost):
        made.call("parameters")
    assert create_object(made.host, KIND)[0].call("parameters").result == []
    made.host.close()
    until(lambda: kept(lab) == 0)


def test_a_daemon_refuses_requests_that_call_functions_of_the_application(lab: Lab) -> None:
    made = create_object(lab.client(), KIND)[0]
    with pytest.raises(CallBackFailed) as caught:
        made.call("parameters", functions={"f": lambda *_: (None, ())})
    assert caught.value.details["reason"] == "unavailable"
    assert made.call("parameters").result == []
    made.host.close()
