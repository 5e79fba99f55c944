"""The two sides of a callback, tested separately: the host's wait, and the application's thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qnnbridge._threads import CalledFunctions, LogFunction
from qnnbridge_host.request.client import CallsBack
from qnnbridge_protocol.errors import CallBackFailed, Cancelled, Fail, HostCrashed
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.values import Encoder

NUMBER = 7


def frame(kind: Kind, header: dict[str, Any], values: tuple[Any, ...] = ()) -> Frame:
    """Return the frame as the reader returns it: buffers are byte arrays."""
    encoder = Encoder()
    described = [encoder.add(value) for value in values]
    buffers = tuple(np.frombuffer(bytes(memoryview(b).cast("B")), np.uint8) for b in encoder.buffers)
    return Frame(kind, NUMBER, {**header, "values": described}, buffers)


# --- the host --------------------------------------------------------------------------------------------


class Host:
    """Calls back to a client that the test simulates: `answer` is called with each CALL_BACK, in a thread."""

    def __init__(self, answer: Callable[[Frame], Frame | None], timeout_s: Any = 5.0, names: Any = None) -> None:
        self.request = SimpleNamespace(id=NUMBER, withdrawn=False)
        self.sent: list[Frame] = []
        self._answer = answer
        self.calls = CallsBack(self.request, ["f"] if names is None else names, timeout_s, self._send)

    def _send(self, sent: Frame) -> None:
        self.sent.append(sent)
        threading.Thread(target=self._reply, args=(sent,), daemon=True).start()

    def _reply(self, sent: Frame) -> None:
        returned = self._answer(sent)
        if returned is not None:
            self.calls.returned(returned)


def twice(sent: Frame) -> Frame:
    return frame(Kind.RETURN, {"call": sent.header["call"], "result": sent.header["arguments"]["x"] * 2})


def test_a_call_returns_the_result_of_the_function() -> None:
    host = Host(twice)
    assert [host.calls.call("f", {"x": x}).result for x in (1, 2, 3)] == [2, 4, 6]
    assert [sent.header["call"] for sent in host.sent] == [1, 2, 3]
    assert {(sent.kind, sent.request_id, sent.header["function"]) for sent in host.sent} == {
        (Kind.CALL_BACK, NUMBER, "f")
    }


def test_values_are_sent_after_the_header_in_both_directions() -> None:
    def back(sent: Frame) -> Frame:
        assert sum(memoryview(buffer).nbytes for buffer in sent.buffers) == 12
        return frame(Kind.RETURN, {"call": 1, "result": None}, (np.arange(3), np.array(["a"], object)))

    found = Host(back).calls.call("f", values=[np.zeros(3, np.float32)])
    assert [value.tolist() for value in found.values] == [[0, 1, 2], ["a"]]


def test_only_functions_that_the_request_names_can_be_called() -> None:
    assert "f" in Host(twice).calls
    assert "g" not in Host(twice).calls
    for names in (None, "f", {"f": 1}, 3):
        request = SimpleNamespace(id=1, withdrawn=False)
        assert "f" not in CallsBack(request, names, None, lambda _: None)


def test_a_function_that_raises_is_an_error_and_ends_the_calls() -> None:
    def raised(sent: Frame) -> Frame:
        return frame(Kind.RETURN, {"call": sent.header["call"], "error": {"type": "KeyError", "text": "'x'"}})

    host = Host(raised)
    for _ in range(2):
        with pytest.raises(CallBackFailed, match="KeyError: 'x'") as caught:
            host.calls.call("f", {"x": 1})
        assert caught.value.details["reason"] == "raised"
    assert len(host.sent) == 1
    assert isinstance(host.calls.failure, CallBackFailed)


def test_a_function_that_hangs_has_a_timeout_and_its_late_answer_is_dropped() -> None:
    go = threading.Event()

    def late(sent: Frame) -> Frame:
        go.wait(20)
        return twice(sent)

    host = Host(late, timeout_s=0.2)
    begin = time.monotonic()
    with pytest.raises(CallBackFailed, match=r"did not return within 0\.2 s") as caught:
        host.calls.call("f", {"x": 1})
    assert caught.value.details["reason"] == "late"
    assert time.monotonic() - begin < 10
    go.set()
    with pytest.raises(CallBackFailed):
        host.calls.call("f", {"x": 1})
    assert len(host.sent) == 1


def test_cancelling_a_request_ends_its_wait() -> None:
    host = Host(lambda _: None)
    threading.Timer(0.1, lambda: setattr(host.request, "withdrawn", True)).start()
    with pytest.raises(Cancelled):
        host.calls.call("f", {"x": 1})


def test_a_client_that_disconnects_is_not_an_internal_error() -> None:
    def closed(_sent: Frame) -> None:
        raise RuntimeError("host may not send CALL_BACK in state closing")

    calls = CallsBack(SimpleNamespace(id=1, withdrawn=False), ["f"], 1.0, closed)
    with pytest.raises(Cancelled, match="is leaving"):
        calls.call("f")


@pytest.mark.parametrize("number", [0, 2, None, "1"])
def test_an_answer_to_another_call_is_dropped(number: Any) -> None:
    host = Host(lambda _: frame(Kind.RETURN, {"call": number, "result": 1}), timeout_s=0.3)
    with pytest.raises(CallBackFailed):
        host.calls.call("f")


def test_calls_of_several_threads_run_one_at_a_time() -> None:
    inside, most = [0], [0]

    def slow(sent: Frame) -> Frame:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        return twice(sent)

    host = Host(slow)
    threads = [threading.Thread(target=host.calls.call, args=("f", {"x": 1})) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(host.sent), most[0]) == (8, 1)


# --- the application -------------------------------------------------------------------------------------


class Channel:
    """Channel that records what is returned."""

    def __init__(self, features: frozenset[str] = frozenset({"callback"})) -> None:
        self.agreement = SimpleNamespace(features=features)
        self.given: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        self.arrived = threading.Semaphore(0)
        self.refuse: Exception | None = None

    def give_back(self, request_id: int, header: dict[str, Any], buffers: tuple[Any, ...]) -> None:
        assert request_id == NUMBER
        refuse, self.refuse = self.refuse, None
        if refuse is not None:
            raise refuse
        self.given.append((header, buffers))
        self.arrived.release()

    def answer(self) -> dict[str, Any]:
        assert self.arrived.acquire(timeout=20)
        return self.given[-1][0]


@pytest.fixture
def channel() -> Iterator[Channel]:
    yield Channel()
    for thread in threading.enumerate():
        if thread.name == "qnnbridge function":
            thread.join(20)


def call(function: str = "f", number: int = 1, **arguments: Any) -> Frame:
    return frame(Kind.CALL_BACK, {"call": number, "function": function, "arguments": arguments})


def test_a_function_gets_arguments_and_returns_values(channel: Channel) -> None:
    called = CalledFunctions({"f": lambda arguments, _: (arguments["x"] + 1, [np.zeros(2, np.float32)])})
    with called.around(channel):
        called(call(x=1))
        told = channel.answer()
    assert (told["call"], told["result"], len(told["values"])) == (1, 2, 1)
    assert called.header()["functions"] == ["f"]


def test_an_exception_of_the_function_replaces_the_error_of_the_host(channel: Channel) -> None:
    error = LookupError("mine")

    def fails(*_: Any) -> Any:
        raise error

    called = CalledFunctions({"f": fails})
    with pytest.raises(LookupError) as caught, called.around(channel):
        called(call())
        assert channel.answer()["error"] == {"type": "LookupError", "text": "mine"}
        raise Fail("LookupError: mine")
    assert caught.value is error


def test_a_crash_of_the_host_is_reported_even_if_the_function_raised(channel: Channel) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("mine")

    called = CalledFunctions({"f": fails})
    with pytest.raises(HostCrashed), called.around(channel):
        called(call())
        channel.answer()
        raise HostCrashed("it ended")


def test_an_exception_of_the_function_does_not_fail_a_successful_request(channel: Channel) -> None:
    def fails(*_: Any) -> Any:
        raise LookupError("mine")

    called = CalledFunctions({"f": fails})
    with called.around(channel):
        called(call())
        channel.answer()


def test_an_unknown_function_and_a_result_that_cannot_be_encoded_are_errors(channel: Channel) -> None:
    called = CalledFunctions({"f": lambda *_: (object(), ())})
    with pytest.raises(TypeError, match="can not serialize"), called.around(channel):
        called(call("g"))
        assert channel.answer()["error"]["type"] == "KeyError"
        channel.refuse = TypeError("can not serialize 'object' object")
        called._raised = None
        called(call(number=2))
        assert channel.answer() == {
            "call": 2,
            "error": {"type": "TypeError", "text": "can not serialize 'object' object"},
        }
        raise Fail("x")


def test_a_daemon_calls_no_functions() -> None:
    called = CalledFunctions({"f": lambda *_: (None, ())})
    with (
        pytest.raises(CallBackFailed, match="does not call functions") as caught,
        called.around(Channel(frozenset())),
    ):
        pytest.fail("it is refused before")
    assert caught.value.details["reason"] == "unavailable"
    assert "QNNBRIDGE_HOST" in str(caught.value.fix)


def test_other_events_reach_the_earlier_handler(channel: Channel) -> None:
    news: list[Frame] = []
    called = CalledFunctions({}, news.append)
    with called.around(channel):
        called(Frame(Kind.PHASE, NUMBER, {"phase": "creating"}))
    assert [told.kind for told in news] == [Kind.PHASE]
    assert not any(thread.name == "qnnbridge function" for thread in threading.enumerate())


def test_a_log_function_gets_its_line_and_never_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Any] = []
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    line = {"severity": 3, "category": "onnxruntime", "logid": "", "code_location": "a.cc:1 f", "message": "m"}
    assert LogFunction(lambda *given: lines.append(given), 2)(line, []) == (None, ())
    assert lines == [(3, "onnxruntime", "", "a.cc:1 f", "m")]
    error = ValueError("full")

    def fails(*_: Any) -> None:
        raise error

    assert LogFunction(fails, 2)(line, []) == (None, ())
    assert [args.exc_value for args in told] == [error]
