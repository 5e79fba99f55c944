"""Small requests are cheap: numbers, small chunks, unread answers, schemas, while an ordinary client runs.

The long form is ``python -m lab.attack serving --scale 100``.
"""

from __future__ import annotations

import json
import socket
import time
import tracemalloc
from pathlib import Path
from typing import Any

import h11
import numpy as np
import pytest
import serve_models as models
from serving import PRIVATE, Server, serving
from tests.needs import length

from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.errors import Busy
from qnnbridge_serve import pacing
from qnnbridge_serve.errors import Refused
from qnnbridge_serve.form_reading import FormReader
from qnnbridge_serve.infer import GivenTensor, TensorSpec, to_value
from qnnbridge_serve.json_reading import read_numbers, read_texts
from qnnbridge_serve.openai_tools import read_tools
from qnnbridge_serve.transport import Admission

HEAD = "POST /v2/models/{} HTTP/1.1\r\nHost: localhost\r\n"


def nothing(*_: Any) -> None:
    """Do nothing: no limit, and no deadline."""


# --- numbers in a request ---


@pytest.mark.parametrize("shape", [(2, 0, 10**17), (2, 0, 10**8, 10**8), (2, 0)])
def test_dimensions_after_a_zero_allocate_no_memory(shape: tuple[int, ...]) -> None:
    tracemalloc.start()
    try:
        assert read_numbers(b"[[],[]]", shape[:2], np.dtype("f4"), "x", nothing, nothing).size == 0
        with pytest.raises((Refused, ValueError)):
            read_numbers(b"[[[]],[]]", shape, np.dtype("f4"), "x", nothing, nothing)
        assert read_texts(b"[[],[]]", shape, "x", nothing) == []
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", [b"[]", b"[[],[]]", b"[ [ ] , [ ] ]"])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_a_tensor_without_elements_is_read_up_to_a_limit(text: bytes, datatype: str) -> None:
    element = ElementType.FLOAT if datatype == "FP32" else ElementType.STRING
    spec = TensorSpec("x", element, (-1, -1, -1))
    assert to_value(GivenTensor("x", datatype, (2, 0, 1000), text, None), spec).shape == (2, 0, 1000)  # type: ignore[union-attr]
    with pytest.raises(Refused, match="has no elements, and the product of its dimensions other"):
        to_value(GivenTensor("x", datatype, (2, 0, 10**8), text, None), spec)
    with pytest.raises(Refused, match="has no elements, and the product of its dimensions other"):
        to_value(GivenTensor("x", datatype, (2, 0, 10**8), None, memoryview(b"")), spec)


def test_nested_data_must_have_the_declared_shape() -> None:
    def read(text: str, *shape: int) -> list[float]:
        return list(read_numbers(text.encode(), shape, np.dtype("f4"), "x", nothing, nothing).tolist())

    assert read("[[1,2],[3,4],[5,6]]", 3, 2) == [1, 2, 3, 4, 5, 6]
    assert read("[[[1],[2]],[[3],[4]]]", 2, 2, 1) == [1, 2, 3, 4]
    for text, shape in (
        ("[[1,2,3],[4,5,6]]", (3, 2)),
        ("[[1],[2,3]]", (2, 2)),
        ("[[],[]]", (3, 0)),
        ("[[]]", (0,)),
    ):
        with pytest.raises(Refused):
            read(text, *shape)


# --- small chunks ---


def fed(connection: pacing.PacedConnection, data: bytes) -> list[Any]:
    """Return the events of one read, in as many turns as needed."""
    connection.receive_data(data)
    found = []
    while True:
        connection.begin_turn()
        while (event := connection.next_event()) is not h11.NEED_DATA:
            found.append(event)
            if isinstance(event, h11.EndOfMessage):
                return found
        if not connection.held_back:
            return found


def begun() -> pacing.PacedConnection:
    connection = pacing.PacedConnection(16384)
    (request,) = fed(connection, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert isinstance(request, h11.Request)
    return connection


def test_a_body_that_is_read_in_turns_arrives_complete() -> None:
    connection = begun()
    connection.receive_data(b"40\r\n" + b"x" * 64 + b"\r\n" + (b"3\r\nabc\r\n" * 100) + b"0\r\n\r\n")
    connection.begin_turn()
    first = [connection.next_event() for _ in range(pacing.PARTS_PER_TURN)]
    assert all(isinstance(event, h11.Data) for event in first)
    assert connection.next_event() is h11.NEED_DATA
    assert connection.held_back
    rest = fed(connection, b"")
    assert isinstance(rest[-1], h11.EndOfMessage)
    assert sum(len(event.data) for event in [*first, *rest[:-1]]) == 64 + 300


def test_too_many_small_chunks_are_refused_and_large_ones_are_not() -> None:
    with pytest.raises(h11.RemoteProtocolError, match="small chunks"):
        fed(begun(), b"1\r\nx\r\n" * 5000)
    events = fed(begun(), (b"80\r\n" + b"x" * 128 + b"\r\n") * 5000 + b"0\r\n\r\n")
    assert isinstance(events[-1], h11.EndOfMessage)


def exchange(server: Server, data: bytes) -> bytes:
    """Return all data that the server sends until it closes the connection, which it must do."""
    host, _, port = server.address.rpartition(":")
    heard = b""
    with socket.create_connection((host, int(port)), 20) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            heard += part
    return heard


@pytest.mark.process
@pytest.mark.parametrize("path", ["none/infer", "same-FP32/infer"])
def test_a_refused_request_is_not_read_to_its_end(server: Server, path: str) -> None:
    body = b"1\r\nx\r\n" * 300_000
    head = HEAD.format(path).encode() + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = exchange(server, head + body)
    assert answer.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), answer[:100]
    assert b"connection: close" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.process
def test_a_request_with_two_body_lengths_closes_the_connection(server: Server) -> None:
    body = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    hidden = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = exchange(server, HEAD.format("same-FP32/infer").encode() + body + hidden)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer


# --- unread answers ---


def test_an_unread_answer_releases_its_share_of_memory_for_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    from qnnbridge_serve import transport

    now = [100.0]
    monkeypatch.setattr(transport.time, "monotonic", lambda: now[0])
    admission, ended = Admission(10, 1000), []
    read, unread = admission.enter(), admission.enter()
    for ticket, name in ((unread, "unread"), (read, "read")):
        ticket.take_place()
        ticket.take(100)
        ticket.begin_answer(500, lambda name=name: ended.append(name))  # type: ignore[misc]
    with admission.enter() as another, pytest.raises(Busy):
        another.take(500)  # both have just started
    now[0] += transport.IDLE_S
    read.note_progress()
    with admission.enter() as another:
        another.take(500)
        assert ended == ["unread"]
        with pytest.raises(Busy):
            another.take(500)
        another.take(0)
        another.begin_answer(501, nothing)  # the answer exists already, so it is sent
        with pytest.raises(Busy):
            another.take(0)
    for ticket in (read, unread):
        with ticket:
            pass
    with admission.enter() as another:
        another.take(1000)  # every byte was released, and only once


class Waiting:
    """A transport with pending bytes, and an event loop whose time the test advances."""

    def __init__(self, size: int) -> None:
        self.size, self.aborted, self.timers = size, False, list[Any]()

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True

    def call_later(self, delay_s: float, call: Any) -> Any:
        assert delay_s == pacing.STALL_TIMEOUT_S
        self.timers.append(call)
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def go_on(self) -> None:
        self.timers.pop()()


def test_a_connection_is_aborted_if_the_client_reads_nothing_of_an_answer() -> None:
    transport: Any = Waiting(100)
    watch = pacing.StallWatch(transport, transport)
    watch.start()
    watch.start()
    assert len(transport.timers) == 1
    for size in (90, 150, 149):
        transport.size = size
        transport.go_on()
        assert not transport.aborted
    transport.go_on()
    assert transport.aborted
    assert not transport.timers


def test_a_connection_is_not_watched_after_its_answer_was_read() -> None:
    transport: Any = Waiting(100)
    watch = pacing.StallWatch(transport, transport)
    watch.start()
    transport.size = 0
    transport.go_on()
    assert not transport.aborted
    assert not transport.timers
    watch.start()
    assert not transport.timers


@pytest.mark.parametrize("parts", [[], [b"body"], [b"", b"body", b"end"]])
def test_the_head_of_an_answer_is_written_with_the_first_part(parts: list[bytes]) -> None:
    class Transport:
        def __init__(self) -> None:
            self.written: list[bytes] = []
            self.write = self.written.append

        def is_closing(self) -> bool:
            return False

        def close(self) -> None:
            self.written.append(b"closed")

    transport: Any = Transport()
    joined = pacing.JoinedHead(transport)
    for data in (b"head", *parts):
        joined.write(data)
    assert len(transport.written) == len(parts)
    joined.close()
    assert b"".join(transport.written) == b"head" + b"".join(parts) + b"closed"


# --- small faults ---


def test_an_empty_list_of_tools_with_the_default_choice_means_no_tools() -> None:
    assert read_tools({"tools": [], "tool_choice": "auto"}) is None
    with pytest.raises(Refused):
        read_tools({"tools": [], "tool_choice": "required"})


def test_a_field_name_that_is_not_utf8_is_refused() -> None:
    form = FormReader(b"x", "file")
    with pytest.raises(Refused, match="UTF-8"):
        form.write(b'--x\r\nContent-Disposition: form-data; name="\xff\xfe"\r\n\r\n1\r\n--x--\r\n')
    form.close()


@pytest.mark.process
def test_the_triton_client_gets_configuration_and_statistics(server: Server) -> None:
    clients = pytest.importorskip("tritonclient.http")
    client = clients.InferenceServerClient(server.address)
    config = client.get_model_config("same-FP32")
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, -1]}]
    assert config["max_batch_size"] == 0
    (before,) = client.get_inference_statistics("same-FP32")["model_stats"]
    given = clients.InferInput("x", [1, 2], "FP32")
    given.set_data_from_numpy(np.ones((1, 2), np.float32))
    client.infer("same-FP32", [given])
    assert server.infer("same-FP32", {"name": "y"}).status == 400
    (after,) = client.get_inference_statistics("same-FP32", "1")["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 1
    assert after["inference_stats"]["fail"]["count"] == before["inference_stats"]["fail"]["count"] + 1
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        assert after["inference_stats"][name]["ns"] > before["inference_stats"][name]["ns"], name
    assert "same-FP32" in [one["name"] for one in client.get_inference_statistics()["model_stats"]]
    assert server.ask("GET", "/v2/models/none/stats").status == 404
    assert server.ask("GET", "/v2/models/none/config").status == 404


@pytest.mark.process
def test_a_token_is_required_before_the_body_is_read(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x" * 32)
    token.chmod(0o600)
    model = f"mul_1={models.MODELS / 'mul_1.onnx'}"
    with serving(*PRIVATE, "--model", model, "--token-file", token) as server:
        answer = exchange(
            server,
            HEAD.format("mul_1/infer").encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 300_000,
        )
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert server.end() == 0


@pytest.mark.process
def test_a_chat_template_that_never_ends_is_answered_in_time_and_the_server_keeps_working(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    from tests.genai.test_limits import ENDLESS
    from tests.genai.tiny_decoders import write_model

    write_model(tmp_path / "model", "dynamic")
    config = tmp_path / "model" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": ENDLESS}))
    (tmp_path / "model" / "chat_template.jinja").unlink(missing_ok=True)
    options = ("--host", "private", "--http", "127.0.0.1:0", "--answer-timeout", "1", "--threads", "1")
    with serving(
        *options, "--llm", f"tiny={tmp_path / 'model'}", QNNBRIDGE_STATE_DIR=str(tmp_path / "s")
    ) as server:
        begun = time.monotonic()
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        assert server.ask("POST", "/v1/chat/completions", chat).status == 504
        # The answer does not wait for native code, nor for the end of its host 5 s later.
        assert time.monotonic() - begun < 5
        text = {"model": "tiny", "prompt": "x", "max_tokens": 2}
        # The only slot is held by the running request, until its host is replaced.
        while (answer := server.ask("POST", "/v1/completions", text)).status == 504:
            assert time.monotonic() - begun < 60
        assert answer.status == 200, answer.body
        assert server.end() == 0


@pytest.mark.process
@pytest.mark.timeout(400)  # the long form attacks for two minutes
def test_a_correct_client_is_served_during_all_attacks() -> None:
    pytest.importorskip("onnxruntime_genai")
    from tests.serve.attacked import attacked

    report = attacked(length(8, 40), seed=1)
    assert report.good, f"{report}\n{report.rows}"
    assert report.counts["ordinary chat requests: 200"] > 1
    assert report.counts["schemas: 400"] > 1
