"""The table of objects in the host, with kinds that the test defines, in this process."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from tests.fakes.fake_engine import FakeEngine

from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_host.engine.sessions import Sessions
from qnnbridge_host.request.in_flight import Request
from qnnbridge_host.serve.handlers import HostObjects
from qnnbridge_protocol import errors
from qnnbridge_protocol.values import Decoder, Encoder

LIMIT = 5


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start
        self.closed = 0
        self.inside = 0
        self.most_inside = 0


MADE: list[Counter] = []


def make(call: ObjectCall) -> Counter:
    start = argument(call, "start", int) + sum(other.value for other in call.objects)
    MADE.append(Counter(start))
    return MADE[-1]


def add(counter: Counter, call: ObjectCall) -> ObjectResult:
    counter.inside += 1
    counter.most_inside = max(counter.most_inside, counter.inside)
    counter.value += argument(call, "by", int) + sum(int(value.sum()) for value in call.values)
    if call.arguments.get("pause"):
        threading.Event().wait(0.05)
    counter.inside -= 1
    return ObjectResult(counter.value, [np.full(2, counter.value)])


def close(counter: Counter) -> None:
    counter.closed += 1


COUNTER = ObjectKind(
    "Counter",
    make,
    {
        "add": add,
        "fail": lambda _counter, _call: 1 / 0,  # type: ignore[dict-item]
        "twin": lambda counter, _call: ObjectResult(made=(TWIN, Counter(counter.value))),
        "nothing": lambda _counter, _call: None,
    },
    lambda counter: {"value": counter.value},
    close,
    lane="npu",
)
TWIN = ObjectKind("Twin", None, {"value": lambda twin, _call: ObjectResult(twin.value)}, close=close)


class Client:
    def __init__(self) -> None:
        sessions = Sessions(lambda _on_phase: FakeEngine())
        sessions.start(lambda _phase: None)
        self.objects = HostObjects(sessions, {"Counter": lambda: COUNTER, "Twin": lambda: TWIN}, LIMIT)
        self._ids = itertools.count(10)

    def request(self, op: str, buffers: tuple[Any, ...] = (), **header: Any) -> Request:
        return Request(next(self._ids), {"op": op, **header}, buffers)

    def create(self, kind: str = "Counter", **header: Any) -> dict[str, Any]:
        reply, _ = self.objects.create(
            self.request("object.create", kind=kind, **{"arguments": {"start": 1}, **header}), lambda _: None
        )
        return reply

    def call(self, number: Any, operation: str, values: tuple[Any, ...] = (), **arguments: Any) -> Any:
        encoder = Encoder()
        described = [encoder.add(value) for value in values]
        buffers = tuple(np.frombuffer(bytes(memoryview(b).cast("B")), np.uint8) for b in encoder.buffers)
        request = self.request(
            "object.call", buffers, object=number, operation=operation, arguments=arguments, values=described
        )
        reply, out = self.objects.call(request, lambda _: None)
        decoder = Decoder([np.asarray(memoryview(b).cast("B")) for b in out])
        return reply, [decoder.value(item) for item in reply["values"]]

    def release(self, *numbers: Any) -> None:
        self.objects.release(self.request("object.release", objects=list(numbers)), lambda _: None)


@pytest.fixture
def client() -> Client:
    MADE.clear()
    return Client()


def test_an_object_has_the_id_of_its_request_and_its_facts(client: Client) -> None:
    made = client.create()
    assert made == {"object": 10, "result": {"value": 1}}
    assert len(client.objects) == 1
    assert client.objects.lane_of(10) == "npu"
    assert client.objects.lane_of(11) is None


def test_operations_accept_and_return_plain_facts_and_tensors(client: Client) -> None:
    number = client.create()["object"]
    reply, values = client.call(number, "add", (np.array([3, 4]),), by=2)
    assert reply["result"] == 10
    assert reply["object"] is None
    assert values[0].tolist() == [10, 10]
    assert client.call(number, "nothing")[0]["result"] is None


def test_an_object_is_created_from_others(client: Client) -> None:
    first = client.create()["object"]
    assert client.create(objects=[first, first])["result"] == {"value": 3}


def test_an_operation_creates_a_further_object(client: Client) -> None:
    number = client.create()["object"]
    twin = client.call(number, "twin")[0]["object"]
    assert twin not in (None, number)
    assert client.call(twin, "value")[0]["result"] == 1


def test_a_released_object_is_closed_once_and_removed(client: Client) -> None:
    number = client.create()["object"]
    client.release(number, number, 99, "x", None)
    assert MADE[0].closed == 1
    assert len(client.objects) == 0
    for use in (lambda: client.call(number, "add", by=1), lambda: client.create(objects=[number])):
        with pytest.raises(errors.Closed, match="was released"):
            use()


def test_all_objects_are_closed_with_their_client(client: Client) -> None:
    for _ in range(3):
        client.create()
    client.objects.close_all()
    assert [counter.closed for counter in MADE] == [1, 1, 1]


@pytest.mark.parametrize("kind", ["", "os", "qnnbridge_host.serve.handlers", "Counter ", "Twin", None, 3])
def test_only_listed_kinds_are_created(client: Client, kind: Any) -> None:
    with pytest.raises(errors.UnknownOperation, match="does not support"):
        client.create(kind)
    assert len(client.objects) == 0


@pytest.mark.parametrize("operation", ["", "__class__", "value", "close", None])
def test_only_operations_of_the_kind_are_called(client: Client, operation: Any) -> None:
    number = client.create()["object"]
    with pytest.raises(errors.UnknownOperation, match="does not support"):
        client.call(number, operation)
    assert client.call(number, "add", by=1)[0]["result"] == 2


def test_the_number_of_objects_is_limited(client: Client) -> None:
    numbers = [client.create()["object"] for _ in range(LIMIT)]
    for more in (client.create, lambda: client.call(numbers[0], "twin")):
        with pytest.raises(errors.Busy) as caught:
            more()
        assert caught.value.details == {"limit": "objects", "value": LIMIT}
    client.release(numbers[0])
    client.create()


@pytest.mark.parametrize("number", [None, "10", 10.0, True, -1, 2**70])
def test_an_id_that_the_client_does_not_own_is_refused(client: Client, number: Any) -> None:
    client.create()
    with pytest.raises(errors.Closed):
        client.call(number, "add", by=1)


@pytest.mark.parametrize("arguments", [{"by": "1"}, {"by": True}, {"by": None}, {}])
def test_an_argument_of_a_wrong_type_is_refused(client: Client, arguments: dict[str, Any]) -> None:
    number = client.create()["object"]
    with pytest.raises(errors.RemoteTypeError, match="The argument 'by' is"):
        client.call(number, "add", **arguments)
    assert client.call(number, "add", by=1)[0]["result"] == 2


@pytest.mark.parametrize("header", [{"arguments": 3}, {"arguments": [1]}, {"objects": 3}, {"objects": {"a": 1}}])
def test_an_invalid_object_request_is_refused(client: Client, header: dict[str, Any]) -> None:
    with pytest.raises(errors.ProtocolDesync):
        client.create(**header)


def test_errors_of_an_operation_keep_their_class(client: Client) -> None:
    number = client.create()["object"]
    with pytest.raises(errors.RemoteError, match="division by zero"):
        client.call(number, "fail")
    assert client.call(number, "add", by=1)[0]["result"] == 2


def test_calls_of_one_object_run_one_at_a_time(client: Client) -> None:
    number = client.create()["object"]
    threads = [
        threading.Thread(target=client.call, args=(number, "add"), kwargs={"by": 1, "pause": True})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert MADE[0].most_inside == 1
    assert MADE[0].value == 5


def test_an_object_of_an_abandoned_request_is_not_kept(client: Client) -> None:
    request = client.request("object.create", kind="Counter", arguments={"start": 1})
    request.withdrawn = True
    with pytest.raises(errors.Cancelled):
        client.objects.create(request, lambda _: None)
    assert len(client.objects) == 0
    assert MADE[0].closed == 1
