"""Parts of the server: names and addresses, tokens, bodies, limits of memory."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import re
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click import Context
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.main import get_command

from qnnbridge._session.runs import NodeArg
from qnnbridge.genai import GenerationStats
from qnnbridge_protocol import errors
from qnnbridge_protocol.elements import ElementType
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_protocol.values import equal_bits
from qnnbridge_serve import app as app_module
from qnnbridge_serve import errors as serve_errors
from qnnbridge_serve import infer, openai_endpoints, openai_forms, transport
from qnnbridge_serve import repository as repository_module
from qnnbridge_serve.errors import Refused, refusal_of
from qnnbridge_serve.infer import DATATYPES, GivenTensor, TensorSpec, make_contract, read_request
from qnnbridge_serve.openai_answers import AnswerForm, Piece
from qnnbridge_serve.options import ModelFile, find_models, listen, read_address, read_token, shows_token
from qnnbridge_serve.repository import LANGUAGE, FolderFigures, Repository, language_models
from qnnbridge_serve.server import check_exposure
from qnnbridge_serve.transport import Admission
from qnnbridge_tools.cli import app

# --- addresses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("127.8.9.1:1", "127.8.9.1", 1, True),
        ("8000", "127.0.0.1", 8000, True),
        ("[::1]:8000", "::1", 8000, True),
        ("0.0.0.0:8000", "0.0.0.0", 8000, False),
        ("[::]:8000", "::", 8000, False),
        ("192.168.1.7:80", "192.168.1.7", 80, False),
        ("[::ffff:192.168.1.7]:80", "::ffff:192.168.1.7", 80, False),
    ],
)
def test_an_address_shows_who_can_reach_the_server(text: str, host: str, port: int, loopback: bool) -> None:
    address = read_address(text)
    assert (address.host, address.port, address.loopback) == (host, port, loopback)
    if loopback:
        check_exposure(address, None)
    else:
        check_exposure(address, Path("token"))
        with pytest.raises(errors.OptionError, match="can be reached from other machines"):
            check_exposure(address, None)


@pytest.mark.parametrize(
    "text", ["", "localhost", ":8000", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:http", "a b:1"]
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(errors.OptionError):
        read_address(text)


def test_accepted_connections_have_tcp_nodelay_set() -> None:
    """Nagle's algorithm delays each answer that is sent in two pieces by 40 ms."""

    async def accepted() -> int:
        loop = asyncio.get_running_loop()
        came: asyncio.Future[asyncio.BaseTransport] = loop.create_future()

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                came.set_result(transport)

        with listen(read_address("127.0.0.1:0")) as listener:
            server = await loop.create_server(Accepted, sock=listener)
            _, writer = await asyncio.open_connection(*listener.getsockname())
            transport = await came
            option = int(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            transport.close()
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()
        return option

    assert asyncio.run(accepted()) == 1


# --- models ---------------------------------------------------------------------------------------------------


def test_models_are_found_by_name_by_file_and_by_version(tmp_path: Path) -> None:
    for name in (
        "b.onnx",
        "a.ONNX",
        "note.txt",
        "many/2/model.onnx",
        "many/10/model.onnx",
        "many/x/model.onnx",
        "none/1/other.onnx",
        "shipped/manifest.json",
        "shipped/1/model.onnx",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = find_models([f"own={tmp_path / 'b.onnx'}"], [tmp_path])
    assert found == [
        ModelFile("own", tmp_path / "b.onnx"),
        ModelFile("a", tmp_path / "a.ONNX"),
        ModelFile("b", tmp_path / "b.onnx"),
        ModelFile("many", tmp_path / "many" / "10" / "model.onnx", "10"),
        ModelFile("shipped", tmp_path / "shipped"),
    ]
    assert find_models([f"own={tmp_path / 'shipped'}"], []) == [ModelFile("own", tmp_path / "shipped")]
    with pytest.raises(errors.InvalidProtobuf, match="is a folder, not a model"):
        find_models([f"own={tmp_path / 'many'}"], [])
    with pytest.raises(errors.OptionError, match='Two models are called "b"'):
        find_models([f"b={tmp_path / 'a.ONNX'}"], [tmp_path])
    with pytest.raises(errors.OptionError, match="cannot be a model's name"):
        find_models([f"a/b={tmp_path / 'a.ONNX'}"], [])
    with pytest.raises(errors.OptionError, match="There is no model in"):
        find_models([], [tmp_path / "none"])
    with pytest.raises(errors.NoSuchFile, match="no model file"):
        find_models(["a=nothing.onnx"], [])
    with pytest.raises(errors.NoSuchFile, match="no folder"):
        find_models([], [tmp_path / "nothing"])
    with pytest.raises(errors.OptionError, match="not of the form"):
        find_models(["nothing.onnx"], [])
    with pytest.raises(errors.OptionError, match="no model to serve"):
        find_models([], [])


def node(name: str, kind: str, shape: Any = ()) -> NodeArg:
    return NodeArg(NodeInfo(name=name, type=kind, shape=shape))


def test_every_type_of_onnx_has_a_name_in_the_protocol_or_is_refused() -> None:
    for element in ElementType:
        inputs = [node("x", f"tensor({element.text})", (1, "n", None, -1))]
        if element in DATATYPES:
            contract = make_contract(inputs, [], inputs)
            assert contract.described()["inputs"] == [
                {"name": "x", "datatype": DATATYPES[element], "shape": [1, -1, -1, -1]}
            ]
        else:
            with pytest.raises(errors.OptionError, match=f"its input 'x' is tensor\\({element.text}\\)"):
                make_contract(inputs, [], inputs)


def test_a_model_whose_outputs_cannot_be_sent_is_refused() -> None:
    with pytest.raises(errors.OptionError, match="none of its outputs can be sent"):
        make_contract([node("x", "tensor(float)")], [], [node("y", "seq(tensor(float))")])


def test_initializers_may_be_fed_and_are_not_in_the_metadata() -> None:
    contract = make_contract(
        [node("x", "tensor(float)")], [node("w", "tensor(int64)", (3,))], [node("y", "tensor(bool)")]
    )
    assert list(contract.inputs) == ["x", "w"]
    assert [entry["name"] for entry in contract.described()["inputs"]] == ["x"]


# --- tokens ---------------------------------------------------------------------------------------------------


def test_a_token_is_one_line_that_cannot_be_guessed(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text, good in (
        ("x" * 16 + "\n", True),
        ("x" * 15, False),
        ("", False),
        ("x" * 20 + " y", False),
        ("ü" * 20, False),
        ("x" * 5000, False),
    ):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        if good:
            assert read_token(path) == b"x" * 16
        else:
            with pytest.raises(errors.OptionError, match="contains no valid token"):
                read_token(path)
    with pytest.raises(errors.NoSuchFile, match="no token file"):
        read_token(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        (b"Bearer sesame", True),
        (b"bearer  sesame ", True),
        (b"Bearer sesam", False),
        (b"Bearer sesame2", False),
        (b"Basic sesame", False),
        (b"sesame", False),
        (b"", False),
        (None, False),
    ],
)
def test_a_token_is_sent_as_bearer(header: bytes | None, shown: bool) -> None:
    assert shows_token(header, b"sesame") is shown


# --- bodies ---------------------------------------------------------------------------------------------------


def test_a_compressed_body_may_have_many_members_but_only_few_empty_ones() -> None:
    data = bytes(range(256)) * 16
    one = gzip.compress(data, 0)
    assert transport.unpack(memoryview(one * 100), lambda size: None) == data * 100
    with pytest.raises(Refused, match="too many gzip members"):
        transport.unpack(memoryview(gzip.compress(b"") * 10_000), lambda size: None)


def test_compressed_bodies_of_any_size_are_decompressed() -> None:
    noise = random.Random(1).randbytes(3 * 1024**2)
    for data in (b"", b"x", noise, b"\0" * 5_000_000):
        for packed in (gzip.compress(data), zlib.compress(data), gzip.compress(data[:7]) + gzip.compress(data[7:])):
            taken: list[int] = []
            assert transport.unpack(memoryview(packed), taken.append) == data
            assert sum(taken) == len(data)


def test_a_decompression_bomb_is_detected_before_it_fills_the_memory() -> None:
    bomb = gzip.compress(b"\0" * 200_000_000)
    taken: list[int] = []

    def take(size: int) -> None:
        taken.append(size)
        ticket.unpack(size, 5_000_000)

    with Admission(1, 1 << 30).enter() as ticket, pytest.raises(Refused, match="more than 5000000 bytes"):
        transport.unpack(memoryview(bomb), take)
    assert sum(taken) < 8_000_000


def test_concurrent_requests_and_their_bytes_are_limited_and_released() -> None:
    admission = Admission(most=2, most_bytes=100)
    with admission.enter() as first, admission.enter() as second, admission.enter() as late:
        first.take_place()
        second.take_place()
        with pytest.raises(errors.Busy, match="2 requests"):
            admission.enter()
        with pytest.raises(errors.Busy, match="2 requests"):
            late.take_place()
        first.take(60)
        with pytest.raises(errors.Busy, match="60 bytes; 41 more"):
            second.take(41)
        second.take(40)
    with admission.enter() as third, admission.enter() as fourth:
        third.take(100)
        third.take_place()
        fourth.take_place()


# --- tensors --------------------------------------------------------------------------------------------------

ELEMENTS = st.sampled_from([element for element in DATATYPES if element is not ElementType.STRING])


@settings(max_examples=60, deadline=None)
@given(
    element=ELEMENTS,
    shape=st.lists(st.integers(0, 4), max_size=4),
    seed=st.integers(0, 2**32 - 1),
    offset=st.integers(0, 8),
)
def test_any_bits_are_transferred_unchanged(element: ElementType, shape: list[int], seed: int, offset: int) -> None:
    tensor = TensorSpec("x", element, (-1,) * len(shape))
    count = int(np.prod(shape))
    size = {"BOOL": 1, "BF16": 2, "FP16": 2, "FP32": 4, "FP64": 8}.get(tensor.datatype) or int(
        "".join(filter(str.isdigit, tensor.datatype))
    ) // 8
    data = random.Random(seed).randbytes(count * size)
    if element is ElementType.BOOL:
        data = bytes(byte & 1 for byte in data)
    body = memoryview(b"\0" * offset + data)[offset:]
    value: Any = infer.to_value(GivenTensor("x", tensor.datatype, tuple(shape), None, body), tensor)
    array = value if isinstance(value, np.ndarray) else value.data
    assert array.flags.aligned
    assert bytes(infer.to_bytes(array, tensor)) == data
    assert infer.shape_of(array, tensor) == shape


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6))
def test_any_strings_are_transferred_unchanged(texts: list[str]) -> None:
    tensor = TensorSpec("x", ElementType.STRING, (-1,))
    array = np.empty(len(texts), object)
    array[:] = texts
    data = infer.to_bytes(array, tensor)
    raw = infer.to_value(GivenTensor("x", "BYTES", (len(texts),), None, memoryview(data)), tensor)
    assert equal_bits(raw, array)
    in_json = GivenTensor("x", "BYTES", (len(texts),), json.dumps(texts).encode(), None)
    assert equal_bits(infer.to_value(in_json, tensor), array)


@settings(max_examples=200, deadline=None)
@given(
    body=st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "inputs",
                        "outputs",
                        "name",
                        "shape",
                        "datatype",
                        "data",
                        "parameters",
                        "binary_data_size",
                        "id",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    size=st.none() | st.integers(0, 20),
)
def test_a_random_request_is_only_ever_read_or_refused(body: Any, size: int | None) -> None:
    import json

    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        read_request(memoryview(data), None if size is None else min(size, len(data)))
    except Refused as refused:
        assert refused.status == 400
        assert refused.text


# --- the page -------------------------------------------------------------------------------------------------


def test_the_page_documents_every_option_status_and_type() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    command = get_command(app).get_command(Context(get_command(app)), "serve")  # type: ignore[attr-defined]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert len(options) > 15
    assert [name for name in sorted(options) if name.startswith("--") and name not in page] == [
        "--model-control",
        "--page",
    ]
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(app_module.__file__).parent.glob("*.py"))
    statuses = (
        set(re.findall(r"Refused\(\s*(\d{3})", sources))
        | {str(status) for _, status in serve_errors._STATUS}
        | {"500"}
    )
    assert len(statuses) > 10
    table = page[page.index("| status | when |") :]
    assert {status for status in statuses if status not in table} == set()
    for datatype in ("BOOL", "UINT8", "INT64", "FP16", "FP32", "FP64", "BF16", "BYTES"):
        assert f"`{datatype}`" in page


# --- answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.DeadlineExceeded("m"), 504),
        (errors.Busy("m"), 429),
        (errors.TooLarge("m"), 413),
        (errors.HostCrashed("m"), 503),
        (errors.HostHung("m"), 503),
        (errors.BreakerOpen("m"), 503),
        (errors.ModelQuarantined("m"), 503),
        (errors.InvalidArgument("m"), 400),
        (errors.RemoteValueError("m"), 400),
        (errors.Fail("m"), 500),
        (errors.RuntimeException("m"), 500),
        (KeyError("m"), 500),
    ],
)
def test_every_error_has_its_http_status(error: Exception, status: int) -> None:
    assert refusal_of(error).status == status


def test_the_error_message_contains_cause_and_fix_and_never_the_evidence() -> None:
    error = errors.HostCrashed("It died.", cause="A fault.", fix="Update.", evidence=["File x.py, line 7 in f"])
    refused = refusal_of(error)
    assert refused.text == "It died.\nCause: A fault.\nFix: Update."
    assert refused.headers == {"qnnbridge-error": "host.Crashed", "retry-after": "1"}
    assert "KeyError" in refusal_of(KeyError("secret")).text
    assert "secret" not in refusal_of(KeyError("secret")).text


# --- connections ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HT"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", b"{"),
    ],
    ids=["a second head that is not finished", "the rest of a body that was refused"],
)
def test_a_connection_with_an_early_answer_is_not_kept_forever(
    first: bytes, then: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uvicorn

    from qnnbridge_serve import http_protocol

    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)

    async def answered_early(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def run() -> bytes:
        config = uvicorn.Config(
            answered_early, http=http_protocol.HttpProtocol, lifespan="off", log_config=None, ws="none"
        )
        server = uvicorn.Server(config)
        with listen(read_address("127.0.0.1:0")) as listener:
            listener.listen()
            serving = asyncio.ensure_future(server.serve([listener]))
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(first)
            await reader.readuntil(b"ok")
            writer.write(then)
            rest = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            server.should_exit = True
            await serving
        return rest

    assert asyncio.run(run()) == b""


# --- answers of language models -------------------------------------------------------------------------------

SAID = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


class Told:
    """A `TextStream` of two pieces."""

    prompt_tokens = 3
    cached_tokens = 0
    stats = GenerationStats()

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.tokens: list[int] = []

    def __enter__(self) -> Told:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __next__(self) -> str:
        if self.finish_reason is None and len(self.tokens) < 2:
            self.tokens.append(1)
            return "word "
        self.finish_reason = self.finish_reason or "length"
        raise StopIteration

    def cancel(self) -> None:
        self.finish_reason = "cancelled"


def whole_answer_of(
    monkeypatch: pytest.MonkeyPatch, generate: Any, queues: openai_endpoints.ClientQueues | None = None
) -> Any:
    """Return the document of an answer from a replacement of a model."""
    monkeypatch.setattr("qnnbridge.genai.generate", generate)
    model = SimpleNamespace(
        name="m",
        model=SimpleNamespace(info=SimpleNamespace(fingerprint="0" * 64)),
        tokenizer=SimpleNamespace(apply_chat_template=lambda messages, **_: messages),
    )

    async def never() -> None:
        await asyncio.sleep(1000)

    async def run() -> Any:
        asked = openai_forms.read_generation(SAID, "chat")
        deadline = time.monotonic() + 1000
        answer = openai_endpoints.GeneratedAnswer(asked, model, FolderFigures(LANGUAGE), deadline)  # type: ignore[arg-type]
        used = queues or openai_endpoints.ClientQueues(1, 1)
        if isinstance(used, LateQueues):
            used.answer = answer
        answer.start(transport.Workers("test", 1), used, "client", never)
        return await openai_endpoints.whole_answer(answer)

    return asyncio.run(run())


class LateQueues(openai_endpoints.ClientQueues):
    """Queues with which the deadline expires exactly when the turn starts."""

    answer: Any

    @contextlib.contextmanager
    def turn(self, client: str, cancellation: Any, *, again: bool = False) -> Iterator[None]:
        with super().turn(client, cancellation, again=again):
            self.answer._too_late()
            yield


def told(_model: Any, _prompt: Any, *, on_begin: Any, **_: Any) -> Told:
    stream = Told()
    on_begin(stream)
    return stream


def test_a_collected_answer_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    found = whole_answer_of(monkeypatch, told)
    assert found["choices"][0]["message"]["content"] == "word word "
    assert found["choices"][0]["finish_reason"] == "length"


def test_a_truncated_answer_is_never_returned_as_a_complete_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        whole_answer_of(monkeypatch, told, LateQueues(1, 1))


@pytest.mark.parametrize(
    ("details", "code"), [({"context_length": 96, "tokens": 400}, "context_length_exceeded"), ({}, None)]
)
def test_only_a_prompt_that_is_too_long_has_its_error_code(
    details: dict[str, Any], code: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs shorten the conversation when they get this code, which helps with no other prompt."""

    def refuse(*_: Any, **__: Any) -> Told:
        raise errors.PromptRefused("The prompt is refused.", details=details)

    with pytest.raises(Refused) as caught:
        whole_answer_of(monkeypatch, refuse)
    assert (caught.value.status, caught.value.reason) == (400, code)


def test_an_unexpected_error_in_a_stream_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[bytes] = []

    class Broken:
        form = AnswerForm(openai_forms.read_generation(SAID, "chat"), 0, "0" * 64)
        cancel = staticmethod(lambda: None)
        client_gone = False

        async def next(self) -> list[BaseException]:
            return [ZeroDivisionError("the cause")]

        async def end(self) -> None:
            pass

    async def never() -> Any:
        await asyncio.sleep(1000)

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    stream = openai_endpoints.EventStream(Broken(), [Piece(0, "piece")], lambda: None)  # type: ignore[arg-type]
    asyncio.run(stream({"type": "http"}, never, send))  # type: ignore[arg-type]
    assert b"see the server's log" in sent[-1]
    assert "the cause" in caplog.text


@pytest.mark.parametrize("value", [10**400, 0, -1, True, "1", 1e39])
def test_a_penalty_that_does_not_fit_a_float_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match="repetition_penalty has to be a number") as caught:
        openai_forms.read_generation({**SAID, "repetition_penalty": value}, "chat")
    assert caught.value.status == 400


FILE = ModelFile("m", Path("m.onnx"))


def test_a_model_that_is_reloaded_stays_listed_as_ready() -> None:
    listed: list[Any] = []

    def opener(file: ModelFile) -> Any:
        listed.append([(one["state"], one["reason"]) for one in repository.index(ready_only=True)])
        if len(listed) == 3:
            raise errors.BridgeError("broken")
        return SimpleNamespace(summary="ready", close=lambda: None)

    repository = Repository([FILE], opener)
    repository.load("m")
    repository.load("m")
    with pytest.raises(errors.BridgeError, match="broken"):
        repository.load("m")
    assert listed == [[], *2 * [[("READY", "it is being loaded again")]]]
    (entry,) = repository.index(ready_only=True)
    assert (entry["state"], entry["reason"]) == ("READY", "loading it again failed: broken")


@pytest.mark.parametrize("error", [KeyboardInterrupt, errors.Cancelled("The load is cancelled."), ValueError])
def test_a_load_that_is_cancelled_or_fails_leaves_no_session(monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    closed: list[bool] = []

    class Session:
        def get_inputs(self) -> Any:
            raise error

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(repository_module, "open_session", lambda *_: Session())
    with pytest.raises(error if isinstance(error, type) else type(error)):
        repository_module.open_model(FILE, None, None)  # type: ignore[arg-type]
    assert closed == [True]


def test_a_language_model_without_a_tokenizer_is_released_in_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    info = SimpleNamespace(layout="dynamic", context_length=8)
    model = SimpleNamespace(info=info, close=lambda: closed.append(True))
    monkeypatch.setattr("qnnbridge.genai.Model", lambda *_, **__: model)

    def damaged(_model: Any) -> Any:
        raise errors.GenerationFolderInvalid("The tokenizer is damaged.")

    monkeypatch.setattr("qnnbridge.genai.Tokenizer", damaged)
    registry = language_models({"m": Path("folder")}, None, "error")  # type: ignore[arg-type]
    assert isinstance(registry.load_all(lambda text: None)["m"], errors.GenerationFolderInvalid)
    assert closed == [True]


def test_threads_are_reused_for_the_next_job_and_end_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two concurrent jobs need two threads; consecutive jobs share one."""
    from qnnbridge_serve import transport

    monkeypatch.setattr(transport, "LINGER_S", 0.2)
    others = set(threading.enumerate())  # threads of earlier tests stay idle for longer
    workers = transport.Workers("test", 2)

    async def ask() -> tuple[set[int], set[int]]:
        meet = threading.Barrier(2, timeout=30)

        def together() -> int:
            meet.wait()
            return threading.get_ident()

        both = set(await asyncio.gather(workers.do(together), workers.do(together)))
        return both, {await workers.do(threading.get_ident) for _ in range(20)}

    both, after = asyncio.run(ask())
    assert len(both) == 2
    assert after <= both
    end = time.monotonic() + 30
    while any(thread.name == "qnnbridge serve test" for thread in set(threading.enumerate()) - others):
        assert time.monotonic() < end
        time.sleep(0.05)
