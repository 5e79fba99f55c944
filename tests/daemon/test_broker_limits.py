"""Limits of one client, and misbehaving clients, which must not affect others or leave anything behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.faultlab.leaks import holdings

import qnnbridge
from qnnbridge import errors
from qnnbridge_daemon.accounts import BrokerSettings, ClientLimits
from qnnbridge_protocol.connection import DAEMON_FEATURE, FEATURES, Connection, Hello, Role
from qnnbridge_protocol.errors import from_wire
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec
from qnnbridge_protocol.values import Encoder
from tests.daemon.brokers import GRACE_S, Lab, until
from tests.fakes.hosts import fake_host, script

X = np.arange(5, dtype=np.float32)
MIB = 1 << 20
LONGER_THAN_A_LOOK_S = 0.5


class Bare:
    """A client that sends the frames of a test, and reads only on request."""

    def __init__(self, lab: Lab) -> None:
        self.to_daemon, self.from_daemon, self.thread = lab.connect()
        self._connection = Connection(Role.CLIENT, Hello(features=FEATURES | {DAEMON_FEATURE}))
        self._frames: list[Frame] = []
        self._write(self._connection.send_hello())
        assert self.read().kind is Kind.HELLO_OK

    def ask(self, header: dict[str, Any], buffers: tuple[Any, ...] = ()) -> int:
        number, chunks = self._connection.ask(Kind.REQUEST, header, buffers)
        self._write(chunks)
        return number

    def call(self, header: dict[str, Any], buffers: tuple[Any, ...] = ()) -> Frame:
        self.ask(header, buffers)
        frame = self.read()
        if frame.kind is Kind.ERROR:
            raise from_wire(frame.header["error"])
        return frame

    def open(self, model: bytes, **more: Any) -> int:
        spec = SessionSpec(None, providers=(ProviderSpec("QNNExecutionProvider"),))
        return int(self.call({"op": "session.create", "spec": spec.to_wire(), **more}, (model,)).header["session"])

    def send_run(self, session: int, x: Any) -> int:
        encoder = Encoder()
        header = {"op": "session.run", "session": session, "inputs": [["x", encoder.add(x)]]}
        return self.ask(header, tuple(encoder.buffers))

    def read(self) -> Frame:
        while not self._frames:
            buffer = self._connection.get_buffer()
            count = os.readv(self.from_daemon, [buffer])
            assert count, "the daemon has closed the connection"
            self._frames = self._connection.received(count)[::-1]
        return self._frames.pop()

    def close(self) -> None:
        os.close(self.to_daemon)
        os.close(self.from_daemon)
        self.thread.join(GRACE_S)
        assert not self.thread.is_alive()

    def _write(self, chunks: list[memoryview]) -> None:
        for chunk in chunks:
            while chunk:
                chunk = chunk[os.write(self.to_daemon, chunk) :]


def mappings() -> int:
    """Return the shared mappings of this process, if the system lists them."""
    maps = Path("/proc/self/maps")
    return len(maps.read_text().splitlines()) if maps.exists() else 0


@pytest.fixture
def settings() -> BrokerSettings:
    return BrokerSettings(limits=ClientLimits(sessions=2, queued=1, bytes=64 * MIB), slots=1, stall_s=3600)


@pytest.fixture
def bare(lab: Lab) -> Iterator[Bare]:
    made = Bare(lab)
    yield made
    made.close()


def test_one_session_too_many_is_refused_and_the_error_names_the_limit(lab: Lab) -> None:
    host = lab.client()
    sessions = [qnnbridge.InferenceSession(script(scale=scale), host=host) for scale in (1, 2)]
    with pytest.raises(errors.Busy) as caught:
        qnnbridge.InferenceSession(script(scale=3), host=host)
    assert caught.value.details == {"limit": "sessions", "value": 2}
    assert "--max-sessions" in str(caught.value)
    other = lab.client()
    qnnbridge.InferenceSession(script(scale=3), host=other).close()
    sessions[0].close()
    assert qnnbridge.InferenceSession(script(scale=3), host=host).run(None, {"x": X})[0][1] == 3
    assert lab.broker.status()["clients"][0]["busy"] == 1


def test_a_session_that_could_not_be_created_does_not_count(lab: Lab) -> None:
    host = lab.client()
    for _ in range(4):
        with pytest.raises(errors.Fail):
            qnnbridge.InferenceSession(script(on_create=["raise:ort.Fail=no"]), host=host)
    assert lab.broker.clients[0].account.sessions == 0


def test_one_call_too_many_is_refused_and_the_others_are_served(lab: Lab, bare: Bare, tmp_path: Any) -> None:
    go = tmp_path / "go"
    session = bare.open(script(on_run=[f"wait:{go}"]))
    asked = [bare.send_run(session, X) for _ in range(3)]
    refused = bare.read()
    assert refused.kind is Kind.ERROR
    error = from_wire(refused.header["error"])
    assert isinstance(error, errors.Busy)
    assert error.details["limit"] == "queued"
    go.touch()
    served = [bare.read() for _ in range(2)]
    assert {frame.kind for frame in served} == {Kind.REPLY}
    assert {frame.request_id for frame in (refused, *served)} == set(asked)
    assert lab.broker.status()["totals"]["busy"] == 1


def test_shared_memory_over_the_limit_is_refused_and_calls_use_the_connection(lab: Lab) -> None:
    session = qnnbridge.InferenceSession(script(), host=lab.client())
    x = np.ones(8 * MIB // 4, np.float32)
    for _ in range(3):
        assert session.run(None, {"x": x})[0][-1] == 2
    used = lab.broker.status()["clients"][0]["shared_bytes"]
    assert 16 * MIB <= used <= 64 * MIB
    x = np.ones(26 * MIB // 4, np.float32)
    for _ in range(3):
        try:
            assert session.run(None, {"x": x})[0][-1] == 2
        except errors.Busy as error:
            assert error.details["limit"] == "bytes"
        assert lab.broker.clients[0].account.shared_bytes <= 64 * MIB


def test_a_client_that_does_not_read_blocks_no_other_client_and_its_memory_is_limited(lab: Lab, bare: Bare) -> None:
    session = bare.open(script())
    x = np.ones(20 * MIB // 4, np.float32)
    other = qnnbridge.InferenceSession(script(scale=3), host=lab.client())
    account = lab.broker.clients[0].account
    for _ in range(6):
        bare.send_run(session, x)
        for _ in range(5):
            assert other.run(None, {"x": X}, timeout=GRACE_S)[0][1] == 3
        assert account.in_flight_bytes <= 64 * MIB
    answers = [bare.read() for _ in range(6)]
    well = [frame for frame in answers if frame.kind is Kind.REPLY]
    assert well, "what it reads at last is whole"
    assert all(np.frombuffer(frame.buffers[0], np.float32)[-1] == 2 for frame in well)
    told = [from_wire(frame.header["error"]) for frame in answers if frame.kind is Kind.ERROR]
    assert all(isinstance(error, errors.Busy) and error.details["limit"] == "bytes" for error in told)
    until(lambda: account.in_flight_bytes == 0)


def test_a_client_that_does_not_read_for_too_long_is_disconnected() -> None:
    made = Lab(fake_host(), BrokerSettings(stall_s=0.3, keep_unused_s=0.0))
    try:
        bare = Bare(made)
        session = bare.open(script())
        bare.send_run(session, np.ones(4 * MIB // 4, np.float32))
        until(lambda: not made.broker.clients)
        assert not made.broker.sessions.models()
        bare.close()
    finally:
        made.close()


def test_a_client_that_disconnects_in_the_middle_of_a_frame_is_removed(lab: Lab) -> None:
    bare = Bare(lab)
    _, chunks = bare._connection.ask(Kind.REQUEST, {"op": "session.run"}, (bytes(MIB),))
    os.write(bare.to_daemon, bytes(chunks[0])[:30])
    bare.close()
    assert not lab.broker.clients


@pytest.mark.parametrize("nonsense", [b"GET / HTTP/1.1\r\n\r\n" * 10, b"\x89NPB" + b"\xff" * 60])
def test_invalid_data_closes_only_its_own_connection(
    lab: Lab, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    session = qnnbridge.InferenceSession(script(), host=lab.client())
    for stage in ("before HELLO", "behind it"):
        if stage == "before HELLO":
            to_daemon, from_daemon, thread = lab.connect()
        else:
            bare = Bare(lab)
            to_daemon, from_daemon, thread = bare.to_daemon, bare.from_daemon, bare.thread
        os.write(to_daemon, nonsense)
        thread.join(GRACE_S)
        assert not thread.is_alive()
        assert os.read(from_daemon, 1) == b""
        os.close(to_daemon)
        os.close(from_daemon)
    assert len(lab.broker.clients) == 1
    assert session.run(None, {"x": X})[0][1] == 2
    assert "client " in caplog.text


def test_a_client_that_never_sends_hello_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab(fake_host(), BrokerSettings(greeting_s=0.3, keep_unused_s=0.0))
    try:
        session = qnnbridge.InferenceSession(script(), host=lab.client())
        to_daemon, from_daemon, thread = lab.connect()
        thread.join(GRACE_S)
        assert not thread.is_alive()
        os.close(to_daemon)
        os.close(from_daemon)
        assert "sent no HELLO" in caplog.text
        assert session.run(None, {"x": X})[0][1] == 2, "who has greeted stays"
        assert len(lab.broker.clients) == 1
    finally:
        lab.close()


def test_a_thousand_connections_leak_nothing(lab: Lab) -> None:
    keeper = qnnbridge.InferenceSession(script(), host=lab.client())
    for _ in range(3):
        keeper.run(None, {"x": X})

    def connect(count: int) -> None:
        for number in range(count):
            if number % 3 == 0:  # half open: the connection sends nothing
                to_daemon, from_daemon, thread = lab.connect()
                os.close(to_daemon)
                os.close(from_daemon)
                thread.join(GRACE_S)
                continue
            bare = Bare(lab)
            if number % 3 == 1:
                bare.open(script())
            bare.close()

    connect(20)
    before, mapped = holdings(), mappings()
    connect(1000)
    until(lambda: len(lab.broker.clients) == 1)
    until(lambda: not holdings().more_than(before), lambda: holdings().more_than(before))
    assert mappings() < mapped + 50
    assert not lab.broker.fair_share.running
    assert len(lab.broker.fair_share._queues) == 1
    assert lab.broker.status()["totals"]["clients"] >= 1020
    assert keeper.run(None, {"x": X})[0][1] == 2


def test_a_stopping_broker_finishes_calls_and_refuses_new_clients(lab: Lab, tmp_path: Any) -> None:
    go = tmp_path / "go"
    session = qnnbridge.InferenceSession(script(on_run=[f"wait:{go}"]), host=lab.client(), retry=0)
    out: list[Any] = []
    caller = threading.Thread(target=lambda: out.append(session.run(None, {"x": X})[0].tolist()))
    caller.start()
    until(lambda: lab.broker.fair_share.running == 1)
    stopper = threading.Thread(target=lab.broker.stop, args=(GRACE_S,))
    stopper.start()
    until(lambda: lab.broker._stopped.is_set())
    to_daemon, from_daemon, _ = lab.connect()
    assert os.read(from_daemon, 1) == b"", "refused"
    go.touch()
    caller.join(GRACE_S)
    stopper.join(GRACE_S)
    assert out == [(X * 2).tolist()]
    assert not lab.broker.clients
    os.close(to_daemon)
    os.close(from_daemon)


def test_further_calls_do_not_prevent_a_broker_from_stopping(lab: Lab, tmp_path: Any) -> None:
    """A call after the stop is not started: its client learns immediately that the daemon is lost, and may repeat
    the call in another daemon. A running call is finished.
    """
    go = tmp_path / "go"
    slow = qnnbridge.InferenceSession(script(on_run=[f"wait:{go}"]), host=lab.client(), retry=0)
    busy = qnnbridge.InferenceSession(script(), host=lab.client(), retry=0)
    busy.run(None, {"x": X})
    out: list[Any] = []
    caller = threading.Thread(target=lambda: out.append(slow.run(None, {"x": X})[0].tolist()))
    caller.start()
    until(lambda: lab.broker.fair_share.running == 1)
    stopper = threading.Thread(target=lab.broker.stop, args=(GRACE_S,))
    stopper.start()
    until(lambda: lab.broker.fair_share.closed)
    with pytest.raises(errors.HostCrashed):
        busy.run(None, {"x": X}, timeout=GRACE_S)
    assert stopper.is_alive()
    go.touch()
    stopper.join(GRACE_S)
    caller.join(GRACE_S)
    assert out == [(X * 2).tolist()]
    assert not lab.broker.fair_share.running
    assert not lab.broker.clients


def test_an_answer_that_is_being_written_when_the_broker_stops_arrives(
    lab: Lab, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has sent another call meanwhile, which was too late. It still gets the answer of its earlier call,
    however slow the machine is.
    """
    go, writing, ended = tmp_path / "go", threading.Event(), threading.Event()
    host = lab.client()
    session = qnnbridge.InferenceSession(script(on_run=[f"wait:{go}"]), host=host, retry=0)
    out: list[Any] = []
    caller = threading.Thread(target=lambda: out.append(session.run(None, {"x": X})[0].tolist()))
    caller.start()
    until(lambda: lab.broker.fair_share.running == 1)
    (client,) = lab.broker.clients
    write_all, end = client._transport.write_all, client.end

    def slowly(chunks: list[memoryview]) -> None:
        writing.set()
        ended.wait(LONGER_THAN_A_LOOK_S)
        write_all(chunks)

    def at_the_end() -> None:
        ended.set()
        end()

    monkeypatch.setattr(client._transport, "write_all", slowly)
    monkeypatch.setattr(client, "end", at_the_end)
    stopper = threading.Thread(target=lab.broker.stop, args=(GRACE_S,))
    stopper.start()
    until(lambda: lab.broker.fair_share.closed)
    late: list[BaseException] = []

    def call_late() -> None:
        try:
            session.run(None, {"x": X})
        except errors.BridgeError as error:
            late.append(error)

    too_late = threading.Thread(target=call_late)
    too_late.start()
    until(lambda: bool(client.queue.late))
    go.touch()
    assert writing.wait(GRACE_S)
    for thread in (caller, too_late, stopper):
        thread.join(GRACE_S)
    assert out == [(X * 2).tolist()]
    assert [type(error) for error in late] == [errors.HostCrashed]


def test_stopping_does_not_wait_forever_for_a_call(lab: Lab, tmp_path: Any) -> None:
    go = tmp_path / "go"
    session = qnnbridge.InferenceSession(script(on_run=[f"wait:{go}"]), host=lab.client(), retry=0)
    out: list[Any] = []

    def work() -> None:
        try:
            session.run(None, {"x": X})
        except errors.BridgeError as error:
            out.append(error)

    caller = threading.Thread(target=work)
    caller.start()
    until(lambda: lab.broker.fair_share.running == 1)
    begin = time.monotonic()
    lab.broker.stop(0.1)
    caller.join(GRACE_S)
    assert time.monotonic() - begin < GRACE_S
    assert isinstance(out[0], errors.HostCrashed)
    go.touch()


def test_recreating_a_session_for_its_options_does_not_delay_stopping(lab: Lab, tmp_path: Any) -> None:
    """Compiling may take minutes, and stopping does not wait for it."""
    once, go = tmp_path / "once", tmp_path / "go"
    once.touch()
    session = qnnbridge.InferenceSession(script(on_create=[f"wait:{go}"], once=str(once)), host=lab.client())
    once.unlink()
    out: list[BaseException] = []

    def change() -> None:
        try:
            session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
        except errors.BridgeError as error:
            out.append(error)

    caller, stopper = (
        threading.Thread(target=work, daemon=True) for work in (change, lambda: lab.broker.stop(0.1))
    )
    caller.start()
    until(once.exists)
    stopper.start()
    try:
        stopper.join(GRACE_S)
        assert not stopper.is_alive()
    finally:
        go.touch()
        stopper.join()
        caller.join(GRACE_S)
    assert [type(error) for error in out] in ([errors.HostCrashed], [errors.StateLost])


def test_a_repeated_call_that_is_queued_when_the_broker_stops_is_lost_and_not_cancelled(
    lab: Lab, tmp_path: Any
) -> None:
    """Unlike a cancelled call, a call that is lost before its turn can be repeated in the next daemon."""
    go = tmp_path / "go"
    slow = qnnbridge.InferenceSession(script(on_run=[f"wait:{go}"]), host=lab.client(), retry=0)
    waiting = qnnbridge.InferenceSession(script(), host=lab.client(), retry=0)
    for _ in range(3):
        waiting.run(None, {"x": X})
    assert waiting.host.stats.shared_calls, "by a line, which has pipes of its own"
    out: list[BaseException] = []

    def call(session: qnnbridge.InferenceSession) -> None:
        try:
            session.run(None, {"x": X})
        except errors.BridgeError as error:
            out.append(error)

    callers = [threading.Thread(target=call, args=(session,)) for session in (slow, waiting)]
    callers[0].start()
    until(lambda: lab.broker.fair_share.running == 1)
    callers[1].start()
    until(lambda: lab.broker.fair_share.waiting == 1)
    lab.broker.stop(0.1)
    for caller in callers:
        caller.join(GRACE_S)
    go.touch()
    assert [type(error) for error in out] == [errors.HostCrashed] * 2


def test_the_broker_reports_its_idle_time(lab: Lab) -> None:
    until(lambda: lab.broker.idle_for_s > 0)
    with lab.client() as host:
        host.start()
        assert lab.broker.idle_for_s == 0
    until(lambda: lab.broker.idle_for_s > 0)
