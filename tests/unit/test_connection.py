"""Allowed frames: every pair of state and kind, in both directions, and the rules of request ids."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.wire_streams import hear, put, wire

from qnnbridge_protocol.connection import API_VERSIONS, Connection, Hello, Role, State
from qnnbridge_protocol.errors import ProtocolDesync, TooLarge, VersionMismatch
from qnnbridge_protocol.frames import MAGIC, Frame, Kind
from qnnbridge_protocol.limits import EVIDENCE_BYTES, MAX_PREAMBLE_BYTES, Limits

CLIENT, HOST = Role.CLIENT, Role.HOST
ASKING = {Kind.REQUEST, Kind.CANCEL, Kind.PING}
ANSWERING = {Kind.REPLY, Kind.ERROR, Kind.PONG}
TELLING = {Kind.PHASE, Kind.EVENT}
CALLING = {Kind.CALL_BACK}

# The rules of `docs/dev/protocol.md`, written a second time: the state of each side, the frames it may send, the
# next state.
MAY_SEND: dict[tuple[Role, State], dict[Kind, State]] = {
    (CLIENT, State.START): {Kind.HELLO: State.GREETING},
    (CLIENT, State.READY): {**dict.fromkeys(ASKING | {Kind.RETURN}, State.READY), Kind.GOODBYE: State.CLOSING},
    (HOST, State.GREETING): {Kind.HELLO_OK: State.READY, Kind.HELLO_ERR: State.CLOSED},
    (HOST, State.READY): dict.fromkeys(ANSWERING | TELLING | CALLING, State.READY),
    (HOST, State.CLOSING): {**dict.fromkeys(ANSWERING | TELLING, State.CLOSING), Kind.GOODBYE: State.CLOSED},
}
MAY_HEAR: dict[tuple[Role, State], dict[Kind, State]] = {
    (HOST, State.START): {Kind.HELLO: State.GREETING},
    (HOST, State.READY): {**dict.fromkeys(ASKING | {Kind.RETURN}, State.READY), Kind.GOODBYE: State.CLOSING},
    (CLIENT, State.GREETING): {Kind.HELLO_OK: State.READY, Kind.HELLO_ERR: State.CLOSED},
    (CLIENT, State.READY): dict.fromkeys(ANSWERING | TELLING | CALLING, State.READY),
    (CLIENT, State.CLOSING): {
        **dict.fromkeys(ANSWERING | TELLING | CALLING, State.CLOSING),
        Kind.GOODBYE: State.CLOSED,
    },
}
SITUATIONS = [
    pytest.param(role, state, kind, id=f"{role.value}-{state.value}-{kind.name}")
    for role in Role
    for state in State
    for kind in Kind
]
OPEN_REQUEST, OPEN_PING, OPEN_CANCEL = 1, 2, 3


def bare(kind: Kind, request_id: int = 0, **header: object) -> Frame:
    """Return the smallest valid frame of a kind."""
    if kind in (Kind.HELLO, Kind.HELLO_OK):
        return Frame(kind, 0, Hello().to_wire())
    return Frame(kind, request_id, dict(header))


def in_state(role: Role, state: State) -> Connection:
    """Return a connection that reached `state` by regular steps. A client has three open requests, if possible."""
    connection = Connection(role, Hello())
    if state is State.START:
        return connection
    if role is CLIENT:
        connection.send_hello()
        steps: list[Callable[[], object]] = [
            lambda: hear(connection, wire(bare(Kind.HELLO_OK))),
            lambda: connection.send(bare(Kind.GOODBYE)),
            lambda: hear(connection, wire(bare(Kind.GOODBYE))),
        ]
    else:
        hear(connection, wire(bare(Kind.HELLO)))
        steps = [
            connection.accept_hello,
            lambda: hear(connection, wire(bare(Kind.GOODBYE))),
            lambda: connection.send(bare(Kind.GOODBYE)),
        ]
    order = [State.GREETING, State.READY, State.CLOSING, State.CLOSED]
    for step in steps[: order.index(state)]:
        step()
        if role is CLIENT and connection.state is State.READY:
            assert [connection.ask(kind, {})[0] for kind in (Kind.REQUEST, Kind.PING, Kind.CANCEL)] == [1, 2, 3]
    assert connection.state is state
    return connection


def request_id_for(kind: Kind) -> int:
    """Return an id with which a frame of this kind is valid in the connections of `in_state`."""
    if kind in ANSWERING | CALLING:
        return OPEN_PING if kind is Kind.PONG else OPEN_REQUEST
    return 4 if kind in ASKING else 0


def ready(role: Role, ours: Hello | None = None, theirs: Hello | None = None) -> Connection:
    """Return a connection after its HELLOs, without open requests."""
    connection = Connection(role, ours or Hello())
    if role is CLIENT:
        connection.send_hello()
        hear(connection, wire(Frame(Kind.HELLO_OK, 0, (theirs or Hello()).to_wire())))
    else:
        hear(connection, wire(Frame(Kind.HELLO, 0, (theirs or Hello()).to_wire())))
        connection.accept_hello()
    return connection


# --- tables of states and kinds --------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "state", "kind"), SITUATIONS)
def test_only_frames_that_the_state_allows_are_accepted(role: Role, state: State, kind: Kind) -> None:
    connection = in_state(role, state)
    frame = bare(kind, request_id_for(kind))
    after = MAY_HEAR.get((role, state), {}).get(kind)
    if after is None:
        with pytest.raises(ProtocolDesync, match=f"{kind.name} is not allowed in state {state.value}"):
            hear(connection, wire(frame))
    else:
        dropped = kind is Kind.CALL_BACK and state is State.CLOSING
        assert [heard.kind for heard in hear(connection, wire(frame))] == ([] if dropped else [kind])
        assert connection.state is after


@pytest.mark.parametrize(("role", "state", "kind"), SITUATIONS)
def test_only_frames_that_the_state_allows_are_sent(role: Role, state: State, kind: Kind) -> None:
    connection = in_state(role, state)
    frame = bare(kind, request_id_for(kind))
    after = MAY_SEND.get((role, state), {}).get(kind)
    if after is None:
        with pytest.raises(RuntimeError, match=f"{role.value} may not send {kind.name} in state {state.value}"):
            connection.send(frame)
        assert connection.state is state
    else:
        assert b"".join(connection.send(frame)) == wire(frame)
        assert connection.state is after


def test_each_kind_that_one_side_may_send_is_accepted_by_the_other_in_some_state() -> None:
    for speaker, listener in ((CLIENT, HOST), (HOST, CLIENT)):
        said = {kind for (role, _), kinds in MAY_SEND.items() if role is speaker for kind in kinds}
        heard = {kind for (role, _), kinds in MAY_HEAR.items() if role is listener for kind in kinds}
        assert said == heard


def test_a_frame_that_was_not_allowed_leaves_no_request_open() -> None:
    connection = in_state(CLIENT, State.CLOSING)
    with pytest.raises(RuntimeError):
        connection.ask(Kind.REQUEST, {})
    with pytest.raises(ProtocolDesync, match="not open"):
        hear(connection, wire(Frame(Kind.REPLY, 4, {})))


# --- calls back ------------------------------------------------------------------------------------------


def called_back(client: Connection) -> int:
    """Return a client with a request in which the host waits for a function."""
    number, _ = client.ask(Kind.REQUEST, {})
    assert len(hear(client, wire(Frame(Kind.CALL_BACK, number, {"call": 1})))) == 1
    return number


def test_a_call_back_is_answered_once() -> None:
    client, host = ready(CLIENT), ready(HOST)
    number = called_back(client)
    hear(host, wire(Frame(Kind.REQUEST, number, {})))
    chunks = client.give_back(number, {"call": 1, "result": 3}, (b"abc",))
    assert chunks is not None
    (heard,) = hear(host, b"".join(chunks))
    assert (heard.kind, heard.request_id, heard.header["result"]) == (Kind.RETURN, number, 3)
    assert client.give_back(number, {}) is None


def test_an_answered_call_back_may_be_followed_by_the_next() -> None:
    client = ready(CLIENT)
    number = called_back(client)
    client.give_back(number, {})
    assert len(hear(client, wire(Frame(Kind.CALL_BACK, number, {"call": 2})))) == 1


def test_calls_back_are_not_nested() -> None:
    client = ready(CLIENT)
    number = called_back(client)
    with pytest.raises(ProtocolDesync, match="before its previous CALL_BACK was answered"):
        hear(client, wire(Frame(Kind.CALL_BACK, number, {"call": 2})))


@pytest.mark.parametrize("kind", [None, Kind.PING, Kind.CANCEL])
def test_only_an_open_request_calls_back(kind: Kind | None) -> None:
    client = ready(CLIENT)
    number = 7 if kind is None else client.ask(kind, {})[0]
    with pytest.raises(ProtocolDesync, match="which is not open"):
        hear(client, wire(Frame(Kind.CALL_BACK, number, {})))


def test_a_request_that_was_already_answered_accepts_no_return() -> None:
    client = ready(CLIENT)
    number = called_back(client)
    hear(client, wire(Frame(Kind.ERROR, number, {})))
    assert client.give_back(number, {}) is None


def test_a_call_back_of_an_abandoned_request_is_dropped() -> None:
    client = ready(CLIENT)
    number, _ = client.ask(Kind.REQUEST, {})
    client.give_up(number)
    assert hear(client, wire(Frame(Kind.CALL_BACK, number, {}))) == []
    assert client.give_back(number, {}) is None


def test_a_return_that_is_too_large_can_be_replaced_by_an_error() -> None:
    client = ready(CLIENT, SMALL, LARGE)
    number = called_back(client)
    with pytest.raises(TooLarge):
        client.give_back(number, {}, (bytes(1001),))
    assert client.give_back(number, {"error": {}}) is not None


# --- the end of the stream -------------------------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("state", list(State))
def test_the_stream_may_end_only_after_goodbye(role: Role, state: State) -> None:
    connection = in_state(role, state)
    assert connection.received_eof() is (state in (State.CLOSING, State.CLOSED))
    assert connection.state is State.CLOSED


def test_the_stream_may_not_end_within_a_frame() -> None:
    connection = in_state(CLIENT, State.CLOSING)
    hear(connection, wire(Frame(Kind.REPLY, 1, {"a": 1}))[:-1])
    assert connection.mid_frame
    assert connection.received_eof() is False


# --- text before the first frame -------------------------------------------------------------------------

UTF8_TEXT = "Überprüfung: café, ÉNP, É\n".encode()  # contains the first byte of the magic


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"10 letters",
        b"x" * 63 * 1024,
        b"x" * MAX_PREAMBLE_BYTES,
        MAGIC[:1],
        MAGIC[:3],
        MAGIC[:3] * 5000,
        b"\x89PNG\r\n\x1a\n\x89N\x89NP\x89",
        UTF8_TEXT,
        b"\0" * 100,
    ],
    ids=lambda text: f"{len(text)} bytes",
)
@pytest.mark.parametrize("size", [1, 7, 40, 16 * 1024, 2**20])
def test_text_before_hello_ok_is_skipped_and_kept(text: bytes, size: int) -> None:
    connection = in_state(CLIENT, State.GREETING)
    stream = text + wire(bare(Kind.HELLO_OK)) + wire(Frame(Kind.PHASE, 0, {"phase": "ready"}))
    frames = hear(connection, stream, itertools.repeat(size))
    assert [frame.kind for frame in frames] == [Kind.HELLO_OK, Kind.PHASE]
    assert connection.preamble == text


@given(st.binary(max_size=300), st.lists(st.integers(1, 50), min_size=1))
def test_any_bytes_without_the_magic_may_come_before_hello_ok(text: bytes, sizes: list[int]) -> None:
    connection = in_state(CLIENT, State.GREETING)
    stream = text + wire(bare(Kind.HELLO_OK))
    assume(stream.find(MAGIC) == len(text))
    assert len(hear(connection, stream, itertools.cycle(sizes))) == 1
    assert connection.preamble == text


@pytest.mark.parametrize("size", [100, 2**20])
def test_more_than_64_kib_of_text_are_not_skipped(size: int) -> None:
    connection = in_state(CLIENT, State.GREETING)
    text = b"Traceback " + b"x" * (MAX_PREAMBLE_BYTES - 9)
    with pytest.raises(ProtocolDesync, match=f"more than {MAX_PREAMBLE_BYTES} bytes of text") as caught:
        hear(connection, text + wire(bare(Kind.HELLO_OK)), itertools.repeat(size))
    assert caught.value.details["bytes"].startswith(b"Traceback")


def test_endless_text_is_an_error_soon_after_64_kib() -> None:
    connection = in_state(CLIENT, State.GREETING)
    heard = 0

    def received(count: int) -> list[Frame]:
        nonlocal heard
        heard += count
        return connection.received(count)

    with pytest.raises(ProtocolDesync):
        list(put(b"x" * 10**6, connection.get_buffer, received, itertools.repeat(10**6)))
    assert heard <= 2 * MAX_PREAMBLE_BYTES


def test_text_after_hello_ok_is_an_error_with_256_bytes_of_it_as_evidence() -> None:
    connection = in_state(CLIENT, State.GREETING)
    text = b"<W> Logs will be sent to the system's default channel\n" * 10
    with pytest.raises(ProtocolDesync) as caught:
        hear(connection, wire(bare(Kind.HELLO_OK)) + text)
    assert caught.value.details["bytes"] == text[:EVIDENCE_BYTES]
    assert "Logs will be sent" in str(caught.value)


def test_a_host_accepts_no_text_before_hello() -> None:
    with pytest.raises(ProtocolDesync, match="the next bytes are not a frame"):
        hear(Connection(HOST, Hello()), b"GET / HTTP/1.1\r\n")


# --- HELLO -----------------------------------------------------------------------------------------------


def test_both_sides_know_each_other_after_the_hellos() -> None:
    ours, theirs = Hello(pid=1, machine="x64"), Hello(pid=2, machine="ARM64", versions={"onnxruntime": "1.31.1"})
    client, host = Connection(CLIENT, ours), Connection(HOST, theirs)
    hear(host, b"".join(client.send_hello()))
    hear(client, b"".join(host.accept_hello()))
    assert (client.peer, host.peer) == (theirs, ours)
    assert client.agreement == host.agreement
    assert client.agreement is not None


def test_a_host_with_other_versions_refuses_with_a_message_that_reaches_the_client() -> None:
    from qnnbridge_protocol.errors import from_wire

    client, host = Connection(CLIENT, Hello(api=(1, 1))), Connection(HOST, Hello(api=(5, 6)))
    hear(host, b"".join(client.send_hello()))
    with pytest.raises(VersionMismatch) as caught:
        host.accept_hello()
    (answer,) = hear(client, b"".join(host.refuse_hello(caught.value.to_wire())))
    error = from_wire(answer.header["error"])
    assert type(error) is VersionMismatch
    assert str(error) == str(caught.value)
    assert client.state is host.state is State.CLOSED


def test_a_client_refuses_a_host_that_accepts_without_a_common_version() -> None:
    client = in_state(CLIENT, State.GREETING)
    with pytest.raises(VersionMismatch):
        hear(client, wire(Frame(Kind.HELLO_OK, 0, Hello(api=(API_VERSIONS[1] + 1,) * 2).to_wire())))


@pytest.mark.parametrize("header", [{}, {"api": [1, 1]}, {"api": [2, 1], "limits": {}}, {"limits": {}}], ids=str)
def test_an_invalid_hello_is_refused(header: dict[str, object]) -> None:
    with pytest.raises(ProtocolDesync, match="HELLO"):
        hear(Connection(HOST, Hello()), wire(Frame(Kind.HELLO, 0, header)))
    with pytest.raises(ProtocolDesync, match="HELLO"):
        hear(in_state(CLIENT, State.GREETING), wire(Frame(Kind.HELLO_OK, 0, header)))


# --- limits ----------------------------------------------------------------------------------------------

SMALL = Hello(limits=Limits(max_header=5000, max_buffers=2, max_body=1000, max_in_flight=3))
LARGE = Hello()
TOO_MUCH = [
    pytest.param({"a": "x" * 5000}, (), id="header"),
    pytest.param({}, (b"1", b"2", b"3"), id="buffers"),
    pytest.param({}, (bytes(1001),), id="body"),
]


@pytest.mark.parametrize(("ours", "theirs"), [(SMALL, LARGE), (LARGE, SMALL)], ids=["ours", "theirs"])
@pytest.mark.parametrize(("header", "buffers"), TOO_MUCH)
def test_the_smaller_limit_applies_to_sent_frames(
    ours: Hello, theirs: Hello, header: dict[str, object], buffers: tuple[bytes, ...]
) -> None:
    client = ready(CLIENT, ours, theirs)
    assert client.agreement is not None
    assert client.agreement.limits == SMALL.limits
    with pytest.raises(TooLarge):
        client.ask(Kind.REQUEST, header, buffers)
    assert client.ask(Kind.REQUEST, {})[0] == 1, "nothing was sent, so the number was not used"


@pytest.mark.parametrize(("ours", "theirs"), [(SMALL, LARGE), (LARGE, SMALL)], ids=["ours", "theirs"])
@pytest.mark.parametrize(("header", "buffers"), TOO_MUCH)
def test_the_smaller_limit_applies_to_received_frames(
    ours: Hello, theirs: Hello, header: dict[str, object], buffers: tuple[bytes, ...]
) -> None:
    host = ready(HOST, ours, theirs)
    with pytest.raises(ProtocolDesync, match="the limit is"):
        hear(host, wire(Frame(Kind.REQUEST, 1, header, buffers)))


# --- request ids -----------------------------------------------------------------------------------------


def test_a_client_numbers_its_requests_from_one() -> None:
    client = ready(CLIENT)
    kinds = [Kind.REQUEST, Kind.CANCEL, Kind.PING, Kind.REQUEST]
    assert [client.ask(kind, {})[0] for kind in kinds] == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", sorted(ASKING))
@pytest.mark.parametrize("number", [0, 1, 4, 5])
def test_a_request_id_that_does_not_increase_is_refused(kind: Kind, number: int) -> None:
    host = ready(HOST)
    hear(host, wire(Frame(Kind.REQUEST, 5, {})))
    with pytest.raises(ProtocolDesync, match=f"request id {number} is not greater than 5"):
        hear(host, wire(Frame(kind, number, {})))


def test_request_ids_may_be_skipped() -> None:
    """The id belongs to a request that was then not sent."""
    host = ready(HOST)
    hear(host, wire(Frame(Kind.REQUEST, 5, {})) + wire(Frame(Kind.PING, 2**64 - 1, {})))


@pytest.mark.parametrize(
    ("asked", "answer"), [(Kind.REQUEST, Kind.REPLY), (Kind.REQUEST, Kind.ERROR), (Kind.CANCEL, Kind.REPLY)]
)
def test_answers_arrive_in_any_order(asked: Kind, answer: Kind) -> None:
    client = ready(CLIENT)
    numbers = [client.ask(asked, {})[0] for _ in range(3)]
    stream = b"".join(wire(Frame(answer, number, {})) for number in numbers[::-1])
    assert [frame.request_id for frame in hear(client, stream)] == numbers[::-1]


@pytest.mark.parametrize("answer", sorted(ANSWERING))
@pytest.mark.parametrize("number", [0, 4, 2**64 - 1])
def test_an_answer_without_a_request_is_refused(answer: Kind, number: int) -> None:
    with pytest.raises(ProtocolDesync, match=f"{answer.name} to request {number}, which is not open"):
        hear(in_state(CLIENT, State.READY), wire(Frame(answer, number, {})))


@pytest.mark.parametrize("second", [Kind.REPLY, Kind.ERROR])
def test_a_second_answer_is_refused(second: Kind) -> None:
    client = in_state(CLIENT, State.READY)
    with pytest.raises(ProtocolDesync, match="not open"):
        hear(client, wire(Frame(Kind.REPLY, OPEN_REQUEST, {})) + wire(Frame(second, OPEN_REQUEST, {})))


@pytest.mark.parametrize(
    ("number", "answer"),
    [
        (OPEN_REQUEST, Kind.PONG),
        (OPEN_PING, Kind.REPLY),
        (OPEN_PING, Kind.ERROR),
        (OPEN_CANCEL, Kind.ERROR),
        (OPEN_CANCEL, Kind.PONG),
    ],
)
def test_an_answer_of_the_wrong_kind_is_refused(number: int, answer: Kind) -> None:
    with pytest.raises(ProtocolDesync, match=f"{answer.name} to a"):
        hear(in_state(CLIENT, State.READY), wire(Frame(answer, number, {})))


def test_the_answer_to_an_abandoned_request_is_dropped_and_counted() -> None:
    client = in_state(CLIENT, State.READY)
    client.give_up(OPEN_REQUEST)
    stream = wire(Frame(Kind.REPLY, OPEN_REQUEST, {}, (b"late",))) + wire(Frame(Kind.PONG, OPEN_PING, {}))
    assert [frame.kind for frame in hear(client, stream)] == [Kind.PONG]
    assert client.unclaimed_answers == 1


def test_an_abandoned_request_is_answered_only_once() -> None:
    client = in_state(CLIENT, State.READY)
    client.give_up(OPEN_REQUEST)
    hear(client, wire(Frame(Kind.ERROR, OPEN_REQUEST, {})))
    with pytest.raises(ProtocolDesync, match="not open"):
        hear(client, wire(Frame(Kind.REPLY, OPEN_REQUEST, {})))


def test_abandoning_a_request_that_is_not_open_changes_nothing() -> None:
    client = in_state(CLIENT, State.READY)
    hear(client, wire(Frame(Kind.REPLY, OPEN_REQUEST, {})))
    client.give_up(OPEN_REQUEST)
    client.give_up(99)
    with pytest.raises(ProtocolDesync, match="not open"):
        hear(client, wire(Frame(Kind.REPLY, OPEN_REQUEST, {})))
    assert client.unclaimed_answers == 0


def test_answers_may_arrive_after_goodbye() -> None:
    client = in_state(CLIENT, State.CLOSING)
    stream = wire(Frame(Kind.REPLY, OPEN_REQUEST, {})) + wire(bare(Kind.GOODBYE))
    assert [frame.kind for frame in hear(client, stream)] == [Kind.REPLY, Kind.GOODBYE]


def test_events_may_refer_to_any_request_or_none() -> None:
    client = ready(CLIENT)
    stream = b"".join(wire(Frame(Kind.PHASE, number, {"phase": "running"})) for number in (0, 1, 77))
    assert [frame.request_id for frame in hear(client, stream)] == [0, 1, 77]


def test_unknown_header_keys_are_accepted() -> None:
    """A later version may add header keys, and an older version ignores them."""
    host = ready(HOST)
    (frame,) = hear(host, wire(Frame(Kind.REQUEST, 1, {"op": "host.info", "since_version_9": [1]})))
    assert frame.header["op"] == "host.info"


def test_a_conversation_cut_into_single_bytes_is_the_same_on_both_sides() -> None:
    client, host = Connection(CLIENT, Hello()), Connection(HOST, Hello())
    hear(host, b"".join(client.send_hello()), itertools.repeat(1))
    hear(client, b"".join(host.accept_hello()), itertools.repeat(1))
    number, chunks = client.ask(Kind.REQUEST, {"op": "x"}, (b"abc", bytes(100)))
    (request,) = hear(host, b"".join(chunks), itertools.repeat(1))
    answer = Frame(Kind.REPLY, request.request_id, request.header, request.buffers)
    (reply,) = hear(client, b"".join(host.send(answer)), itertools.repeat(1))
    assert (reply.request_id, reply.header) == (number, {"op": "x"})
    assert [bytes(buffer) for buffer in reply.buffers] == [b"abc", bytes(100)]
    hear(host, b"".join(client.send(bare(Kind.GOODBYE))))
    hear(client, b"".join(host.send(bare(Kind.GOODBYE))))
    assert client.state is host.state is State.CLOSED
    assert client.received_eof() is host.received_eof() is True
