"""`qnnbridge serve --llm` with the real `openai` package: answers, streams, cancel, schema, many clients, a kill."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from serving import Server, refused, serving
from tests import needs
from tests.fakes.pages import program_of
from tests.genai.tiny_decoders import Sizes, write_model

from qnnbridge_protocol.errors import Cancelled
from qnnbridge_serve import openai_endpoints, pacing, transport
from qnnbridge_serve.http_protocol import HttpProtocol
from qnnbridge_serve.openai_answers import AnswerForm, Piece
from qnnbridge_serve.openai_forms import read_generation
from qnnbridge_serve.repository import LANGUAGE, FolderFigures

pytest.importorskip("onnxruntime_genai")
openai = needs.package("openai")

pytestmark = pytest.mark.process

PRIVATE = ("--host", "private", "--http", "127.0.0.1:0")
HELLO = [{"role": "user", "content": "hello"}]
WAIT_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("language")
    strict = write_model(root / "strict", "dynamic")
    settings = json.loads((strict / "tokenizer_config.json").read_text("utf-8"))
    settings["chat_template"] = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        "<|user|>{{ m['content'] }}{% endfor %}"
    )
    (strict / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return {
        "tiny": write_model(root / "tiny", "dynamic"),
        "long": write_model(root / "long", "dynamic", sizes=Sizes(context=6000)),
        "strict": strict,
    }


@pytest.fixture(scope="module")
def server(private_temporary_folder: Path, folders: dict[str, Path]) -> Iterator[Server]:
    named = [option for name, folder in folders.items() for option in ("--llm", f"{name}={folder}")]
    with serving(*PRIVATE, *named, "--threads", "8") as running:
        yield running
        assert running.end() == 0, running.errors()


def client_of(server: Server, key: str = "none") -> Any:
    return openai.OpenAI(base_url=f"http://{server.address}/v1", api_key=key, max_retries=0, timeout=WAIT_TIMEOUT_S)


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with client_of(server) as found:
        yield found


def chat(client: Any, content: str = "hello", **options: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    return client.chat.completions.create(**{"model": "tiny", "messages": messages, "max_tokens": 12, **options})


def streamed(client: Any, content: str = "hello", **options: Any) -> str:
    return "".join(part.choices[0].delta.content or "" for part in chat(client, content, stream=True, **options))


def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_TIMEOUT_S
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def metric(server: Server, name: str, **labels: str) -> float:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    text = server.ask("GET", "/metrics").body.decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return 0.0


# --- answers ---


def test_langchain_streams_the_answer_of_its_how_to_page(
    server: Server, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("langchain_openai")
    changed = {"127.0.0.1:8000": server.address, '"phi"': '"tiny"', "max_tokens=200": "max_tokens=12"}
    exec(program_of("howto/langchain.md", changed), {})
    assert capsys.readouterr().out == streamed(client, "What is an NPU?", temperature=0)


def test_models_are_listed(client: Any) -> None:
    assert [one.id for one in client.models.list()] == ["tiny", "long", "strict"]
    assert client.models.retrieve("tiny").owned_by == "qnnbridge"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gone")
    assert caught.value.code == "model_not_found"


def test_an_answer_equals_that_of_the_library_complete_and_streamed(client: Any, folders: dict[str, Path]) -> None:
    import qnnbridge
    from qnnbridge import genai

    with (
        qnnbridge.Host() as host,
        genai.generate(genai.Model(folders["tiny"], host=host), HELLO, max_tokens=12) as it,
    ):
        truth = "".join(it)
        counts = (it.prompt_tokens, len(it.tokens))
    whole = chat(client)
    assert whole.choices[0].message.content == truth
    assert whole.choices[0].finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == counts
    parts = list(chat(client, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == truth
    assert parts[0].choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts[-3:-1]] == [None, "length"]
    assert not parts[-1].choices
    assert parts[-1].usage.total_tokens == sum(counts)
    assert len({part.id for part in parts}) == 1
    assert len(parts) > 5


def test_completions_of_texts_and_of_tokens_work(client: Any) -> None:
    whole = client.completions.create(model="tiny", prompt="hello", max_tokens=8)
    parts = client.completions.create(model="tiny", prompt=["hello"], max_tokens=8, stream=True)
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    tokens = client.completions.create(model="tiny", prompt=[10, 20, 30], max_tokens=3)
    assert (tokens.usage.prompt_tokens, tokens.usage.completion_tokens) == (3, 3)
    assert client.completions.create(model="tiny", prompt="hello").usage.completion_tokens <= 16


def test_stop_length_seed_and_content_parts_are_respected(client: Any) -> None:
    truth = chat(client).choices[0].message.content
    cut = chat(client, stop=[truth[3:5], "never"])
    assert cut.choices[0].message.content == truth[: truth.index(truth[3:5])]
    assert cut.choices[0].finish_reason == "stop"
    assert chat(client, max_completion_tokens=2, max_tokens=openai.NOT_GIVEN).usage.completion_tokens == 2
    drawn = [chat(client, temperature=1.5, top_p=0.9, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert chat(client, temperature=0).choices[0].message.content == truth
    in_parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]
    assert chat(client, messages=in_parts).choices[0].message.content == truth


def test_an_answer_follows_the_schema(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    choice = chat(client, response_format=wanted, max_tokens=60).choices[0]
    assert json.loads(choice.message.content)["a"] in (1, 2)
    assert choice.finish_reason == "stop"
    assert json.loads(streamed(client, response_format=wanted, max_tokens=60))["a"] in (1, 2)
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, response_format={**wanted, "json_schema": {"name": "s", "schema": {"type": "nonsense"}}})
    assert caught.value.param == "response_format"


# --- errors ---


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"seed": "x"}, "seed"),
        ({"extra_body": {"top_k": 5000}}, "top_k"),
        ({"extra_body": {"top_k": 5000, "temperature": 1}}, "top_k"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 1001}, "stop"),
        ({"n": 129}, "n"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"cache_salt": ""}}, "cache_salt"),
        ({"extra_body": {"cache_salt": 1}}, "cache_salt"),
        ({"messages": [{"role": "user", "content": "x" * 400}]}, "messages"),
    ],
)
def test_unsupported_options_are_refused_by_name(client: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **options)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"


def drawn(client: Any, count: int = 8, **options: Any) -> set[str]:
    return {chat(client, **options).choices[0].message.content for _ in range(count)}


def test_sampling_is_on_only_if_the_client_requests_it_and_seeds_repeat_it(client: Any) -> None:
    assert len(drawn(client)) == 1  # this model takes the most likely token
    assert len(drawn(client, extra_body={"top_k": 20})) > 1
    by_seed = [drawn(client, 2, seed=seed) for seed in range(6)]
    assert all(len(one) == 1 for one in by_seed)
    assert len(set.union(*by_seed)) > 1


@pytest.mark.parametrize("top_p", [0, 1e-300, 1e-40])
def test_the_smallest_nucleus_is_the_most_likely_token(client: Any, top_p: float) -> None:
    (likely,) = drawn(client, 1, temperature=0)
    assert drawn(client, top_p=top_p) == {likely}
    assert drawn(client, top_p=top_p, temperature=1.5) == {likely}


def test_a_prompt_over_any_limit_has_its_error_code(server: Server, client: Any) -> None:
    for prompt in ("x" * 400, [1] * 400):
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="tiny", prompt=prompt)
        assert caught.value.code == "context_length_exceeded"
    # Without the package, which takes 20 s to search a million ids.
    for long in ("x" * 3_000_000, [1] * 1_000_000):
        answer = server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": long})
        assert answer.status == 400
        assert answer.document["error"]["code"] == "context_length_exceeded"


def test_a_prompt_that_is_too_long_has_its_error_code_in_a_stream_too(client: Any) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, "x" * 400, stream=stream)
        assert caught.value.code == "context_length_exceeded"


def test_an_error_in_a_chat_template_is_an_error_of_the_client(client: Any) -> None:
    system = [{"role": "system", "content": "be brief"}, *HELLO]
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="chat template refuses the messages") as caught:
            chat(client, model="strict", messages=system, stream=stream)
        assert caught.value.param == "messages"
    assert chat(client, model="strict").choices[0].message.content


def test_errors_have_the_format_of_openai_on_its_paths_only(server: Server) -> None:
    for answer, status in (
        (server.ask("POST", "/v1/chat/completions", b"{"), 400),
        (server.ask("GET", "/v1/chat/completions"), 405),
        (server.ask("GET", "/v1/nothing"), 404),
        (server.ask("GET", "/v1/models", headers={"Host": "elsewhere.example"}), 403),
        (server.ask("POST", "/v1/completions", b"x" * (17 * 1024**2)), 413),
    ):
        assert answer.status == status
        assert set(answer.document["error"]) == {"message", "type", "param", "code"}
    assert isinstance(server.ask("GET", "/v2/nothing").document["error"], str)


def test_a_token_is_required(folders: dict[str, Path], tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-that-is-long-enough-0123456789")
    token.chmod(0o600)
    with serving(*PRIVATE, "--llm", f"tiny={folders['tiny']}", "--token-file", token) as server:
        with client_of(server, "wrong") as client, pytest.raises(openai.AuthenticationError):
            chat(client)
        with client_of(server, token.read_text()) as client:
            assert chat(client, max_tokens=2).usage.completion_tokens == 2
        assert server.ask("GET", "/v2/health/ready").status == 200


def test_a_folder_that_cannot_be_loaded_fails_the_command(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = refused(*PRIVATE, "--llm", f"one={tmp_path / 'empty'}")
    assert done.returncode == 2
    assert "genai_config.json" in done.stderr
    for wrong in ("one", f"one={tmp_path / 'none'}"):
        assert refused(*PRIVATE, "--llm", wrong).returncode == 2


# --- clients and crashes ---


def test_a_client_that_disconnects_ends_its_answer(server: Server, client: Any) -> None:
    before = metric(server, "qnnbridge_llm_requests_total", model="long", outcome="cancelled")
    stream = chat(client, model="long", max_tokens=5000, temperature=1.0, stream=True)
    for _ in range(3):
        next(stream)
    stream.close()
    until(lambda: metric(server, "qnnbridge_llm_requests_total", model="long", outcome="cancelled") == before + 1)
    assert metric(server, "qnnbridge_llm_requests_running", model="long") == 0


def test_eight_concurrent_clients_get_the_same_answers_as_a_single_one(server: Server, client: Any) -> None:
    words = [f"question {n}" for n in range(8)]
    alone = [chat(client, one).choices[0].message.content for one in words]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda one: streamed(client, one), words)) == alone


def test_fifty_concurrent_clients_are_answered(server: Server) -> None:
    def ask(number: int) -> str:
        with client_of(server) as one:
            said = streamed(one, f"n {number % 5}") if number % 2 else chat(one, f"n {number % 5}")
            return said if isinstance(said, str) else said.choices[0].message.content

    with ThreadPoolExecutor(50) as pool:
        told = list(pool.map(ask, range(50)))
    assert all(told[number] == told[number % 10] for number in range(50))
    assert metric(server, "qnnbridge_llm_requests_running", model="tiny") == 0


@needs.posix
def test_a_killed_host_only_delays_the_answer(server: Server, client: Any) -> None:
    def restarts() -> float:
        return metric(server, "qnnbridge_llm_host_restarts_total", model="long")

    options = {"model": "long", "max_tokens": 2500}
    truth, before = chat(client, **options).choices[0].message.content, restarts()
    told = ""
    with chat(client, **options, stream=True) as stream:
        for number, part in enumerate(stream):
            told += part.choices[0].delta.content or ""
            if number == 2:
                os.kill(server.host().pid, signal.SIGKILL)
    assert told == truth
    until(lambda: metric(server, "qnnbridge_llm_requests_running", model="long") == 0)
    assert restarts() == before + 1
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(chat, client, **options)
        until(lambda: metric(server, "qnnbridge_llm_requests_running", model="long") == 1)
        time.sleep(0.1)
        os.kill(server.host().pid, signal.SIGKILL)
        assert whole.result().choices[0].message.content == truth
    assert restarts() == before + 2


def test_a_client_that_does_not_read_blocks_no_other_client(server: Server, client: Any) -> None:
    host, port = server.address.split(":")
    body = json.dumps({"model": "long", "messages": HELLO, "max_tokens": 900, "temperature": 1.0, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
    lazy = []
    try:
        for _ in range(9):  # one more than are generated at a time
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((host, int(port)))
            one.sendall((head + body).encode())
            lazy.append(one)
        assert chat(client, max_tokens=3).usage.completion_tokens == 3
        until(lambda: metric(server, "qnnbridge_llm_requests_running", model="long") == 0)
    finally:
        for one in lazy:
            one.close()


class Endless(openai_endpoints.WorkedAnswer):
    """An answer that ends when it is cancelled."""

    def _make(self, turn: Any, sums: dict[str, float]) -> Any:
        while not self._cancellation.terminate:
            self._emit(Piece(0, "piece" * 10_000))
            time.sleep(0.001)
        raise Cancelled("cancelled")


@pytest.mark.parametrize("gone", [False, True], ids=["does not read", "closes the connection"])
def test_an_answer_that_is_not_read_ends(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "STALL_TIMEOUT_S", 0.05 if not gone else 30.0)
    ended: list[str] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        form = AnswerForm(read_generation({"model": "m", "prompt": "x"}, "text"), 0, "0" * 64)
        told = Endless(form, FolderFigures(LANGUAGE), None)
        queues = openai_endpoints.ClientQueues(1, 1)
        told.start(transport.Workers("test", 1), queues, "", lambda: openai_endpoints.disconnected(receive))
        first = await openai_endpoints.first_items(told)
        await openai_endpoints.EventStream(told, first, lambda: ended.append("closed"))(scope, receive, send)

    async def run() -> None:
        config = uvicorn.Config(answer, http=HttpProtocol, ws="none", lifespan="off", log_config=None)
        server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
        serving = asyncio.ensure_future(server.serve([listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if gone:
                await asyncio.get_running_loop().run_in_executor(None, client.recv, 1)
                client.close()
            while not ended:
                await asyncio.sleep(0.01)
        server.should_exit = True
        await serving

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_growing_conversation_is_processed_once(server: Server, client: Any) -> None:
    before = metric(server, "qnnbridge_llm_cached_tokens_total", model="long")
    messages = [{"role": "user", "content": "the story of the sea " * 10}]
    cached = []
    for text in ("and then", "and later", "and the end"):
        answer = chat(client, model="long", messages=messages, temperature=0)
        # With logprobs a request gets a new generator.
        alone = chat(client, model="long", messages=messages, temperature=0, logprobs=True)
        assert answer.choices[0].message.content == alone.choices[0].message.content
        assert alone.usage.prompt_tokens_details.cached_tokens == 0
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        assert cached[-1] < answer.usage.prompt_tokens
        said = {"role": "assistant", "content": answer.choices[0].message.content}
        messages = [*messages, said, {"role": "user", "content": text}]
    assert 100 < cached[1] < cached[2]
    assert metric(server, "qnnbridge_llm_cached_tokens_total", model="long") == before + sum(cached)


def test_no_client_can_learn_the_prompts_of_another(server: Server, client: Any) -> None:
    messages = [{"role": "user", "content": "the secret of the sea " * 10}]

    def cached(asking: Any = client, **options: Any) -> int:
        answer = chat(asking, model="long", messages=messages, temperature=0, **options)
        return int(answer.usage.prompt_tokens_details.cached_tokens)

    salted = {"user": "ann", "extra_body": {"cache_salt": "of ann"}}
    assert cached(**salted) == 0
    assert cached() == 0
    assert cached(user="bob") == 0
    assert cached(user="ann") == 0
    assert cached(user="ann", extra_body={"cache_salt": "of bob"}) == 0


@needs.linux
def test_clients_at_other_addresses_share_no_generator(server: Server) -> None:
    messages = [{"role": "user", "content": "the harbour of the sea " * 10}]
    body = {"model": "long", "messages": messages, "temperature": 0, "max_tokens": 12}

    def cached(address: str) -> int:
        connection = http.client.HTTPConnection(server.address, source_address=(address, 0), timeout=WAIT_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/chat/completions", json.dumps(body))
            usage = json.load(connection.getresponse())["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    addresses = ["127.0.0.1", "127.0.0.2"] * 2
    assert [cached(address) > 0 for address in addresses] == [False, False, True, True]


def test_metrics_report_the_speed(server: Server, client: Any) -> None:
    chat(client)
    assert metric(server, "qnnbridge_llm_time_to_first_token_seconds", model="tiny", quantile="0.5") > 0
    assert metric(server, "qnnbridge_llm_tokens_per_second", model="tiny", quantile="0.9") > 1
    assert metric(server, "qnnbridge_llm_generated_tokens_total", model="tiny") > 1


def test_clients_take_turns() -> None:
    """There is one slot, many requests of one client, and one request of another, which must be the second to run."""
    from qnnbridge_daemon.fair_share import Cancellation

    queues, order, begun = openai_endpoints.ClientQueues(1, 50), [], threading.Event()

    def ask(client: str, number: int) -> None:
        with queues.turn(client, Cancellation()):
            begun.wait(WAIT_TIMEOUT_S)
            order.append((client, number))

    threads = [threading.Thread(target=ask, args=("crowd", number)) for number in range(10)]
    threads += [threading.Thread(target=ask, args=("one", 0))]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    begun.set()
    for thread in threads:
        thread.join()
    assert order.index(("one", 0)) <= 2
    assert not queues._clients


def test_fields_that_client_libraries_never_send_are_read_safely() -> None:
    body = {"model": "m", "messages": HELLO, "unknown": 1, "logit_bias": {}, "n": 1, "user": 3}
    assert read_generation(body, "chat").user == ""
    assert read_generation({"model": "m", "prompt": "x", "seed": -1}, "text").search["seed"] == 2**31 - 1


@needs.posix
def test_the_end_of_the_server_ends_its_answers(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "endless", "dynamic", sizes=Sizes(context=60_000))
    with serving(*PRIVATE, "--llm", f"endless={folder}", "--drain", "1") as server, client_of(server) as client:
        host = server.host()
        stream = chat(client, model="endless", max_tokens=59_000, stream=True)
        next(stream)
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, stream)
            assert server.end() == 0, server.errors()
            assert time.monotonic() - begun < 20
            # The second error occurs if this client does not read as fast as the answer is generated.
            with pytest.raises(openai.APIError, match=r"The server is ending|Connection error"):
                rest.result()
        assert not host.is_running()
        assert "Traceback" not in server.errors()
