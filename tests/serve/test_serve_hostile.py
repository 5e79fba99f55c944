"""A hostile client does not prevent responses to others, and the server's memory stays within its limits."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from serve_models import ELEMENTS, write_identity
from serving import PRIVATE, Answer, Server, serving

MIB = 1024**2
# Allowed growth of the server: the body, its copies, and memory that Python keeps.
GROWTH = 160 * MIB
DATA = [1.0, 2.0, 3.0, 4.0]
X = {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": DATA}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    models: list[str] = []
    for datatype in ("FP32", "BYTES"):
        path = folder / f"{datatype}.onnx"
        write_identity(path, ELEMENTS[datatype])
        models += ["--model", f"{datatype}={path}"]
    with serving(*PRIVATE, *models, "--timeout", "30", "--allow-origin", "http://localhost:3000") as made:
        yield made


def most_bytes(server: Server, ask: Any) -> tuple[Answer, int]:
    """Return the answer, and the growth of the server's memory during the request."""
    process = psutil.Process(server.process.pid)
    before, most, over = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.005):
            most = max(most, process.memory_info().rss - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return ask(), most
    finally:
        over.set()
        watcher.join()


def bytes_request(size: int, shape: list[int]) -> tuple[bytes, dict[str, str]]:
    part = {"name": "x", "datatype": "BYTES", "shape": shape, "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [part]}).encode()
    return head + bytes(size), {"Inference-Header-Content-Length": str(len(head))}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [[1, 1], [1, 2**22]])
def test_empty_strings_use_no_more_memory_than_the_shape_requires(
    server: Server, packed: bool, shape: list[int]
) -> None:
    body, headers = bytes_request(16 * MIB, shape)
    if packed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    answer, grown = most_bytes(server, lambda: server.ask("POST", "/v2/models/BYTES/infer", body, headers))
    if shape == [1, 1]:
        assert (answer.status, "BYTES data has more" in answer.error) == (400, True)
        assert grown < GROWTH
    else:  # 4 million texts use more memory than a request may use
        assert (answer.status, "--max-request" in answer.error) == (413, True)


@pytest.mark.parametrize("entry", ["[],", "{},", '"",', "0,", "[[[]]],"])
@pytest.mark.parametrize("model", ["FP32", "BYTES"])
def test_json_uses_no_more_memory_than_the_shape_requires(server: Server, model: str, entry: str) -> None:
    data = f"[{entry * (16 * MIB // len(entry))}0]"
    body = f'{{"inputs": [{{"name": "x", "datatype": "{model}", "shape": [1, 1], "data": {data}}}]}}'.encode()
    answer, grown = most_bytes(server, lambda: server.ask("POST", f"/v2/models/{model}/infer", body))
    assert answer.status in (400, 413)
    assert grown < GROWTH


@pytest.mark.parametrize("word", ["NaN", "-Infinity"])
def test_nan_and_infinity_in_json_use_no_more_memory_than_numbers(server: Server, word: str) -> None:
    """Words that are not JSON once took 31 s and 977 MB: each word was marked in the text before anything was
    counted.
    """
    count = 16 * MIB // (len(word) + 1)
    data = "[" + ",".join([word] * count) + "]"
    body = f'{{"inputs": [{{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": {data}}}]}}'.encode()
    answer, grown = most_bytes(server, lambda: server.ask("POST", "/v2/models/FP32/infer", body))
    assert (answer.status, f"data has {count}" in answer.error) == (400, True)
    assert grown < GROWTH


def test_nan_and_infinity_in_json_are_accepted_in_numeric_data_only(server: Server) -> None:
    """Strings are not changed, and similar words are refused."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal(1000).astype(np.float32)
    values[rng.integers(0, 1000, 300)] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), 300)
    x = {**X, "shape": [10, 100], "data": values.tolist()}
    text = json.dumps({"id": "NaN is not Infinity", "inputs": [{**x, "NaN": "Infinity"}]})
    answer = server.ask("POST", "/v2/models/FP32/infer", text.encode())
    (output,) = answer.document["outputs"]
    assert answer.document["id"] == "NaN is not Infinity"
    assert np.array_equal(np.array(output["data"], np.float32), values, equal_nan=True)
    for datatype, words in (
        ("FP32", ("-NaN", "NaN1", "1NaN", "1-Infinity", "--Infinity", "Infinity7", "NaNNaN", "1e400, NaN", "nan")),
        ("BYTES", ("NaN", '"NaN", NaN', "-Infinity")),
    ):
        for word in words:
            shape = [1, word.count(",") + 1]
            inputs = f'[{{"name": "x", "datatype": "{datatype}", "shape": {shape}, "data": [{word}]}}]'
            refused = server.ask("POST", f"/v2/models/{datatype}/infer", f'{{"inputs": {inputs}}}'.encode())
            assert refused.status == 400, word


def test_escapes_use_no_more_memory_than_letters(server: Server) -> None:
    """Each escape once used 60 bytes while strings were separated from other text: 990 MB for 16 MB."""
    data = r'["' + r"\n" * (8 * MIB) + '"]'
    body = f'{{"inputs": [{{"name": "x", "datatype": "BYTES", "shape": [1, 2], "data": {data}}}]}}'.encode()
    answer, grown = most_bytes(server, lambda: server.ask("POST", "/v2/models/BYTES/infer", body))
    assert (answer.status, "data has 1" in answer.error) == (400, True)
    assert grown < GROWTH


def test_unknown_fields_use_no_memory(server: Server) -> None:
    note = "[" + "[]," * (5 * MIB) + "0]"
    body = json.dumps({"inputs": [X], "parameters": {"note": "@"}}).replace('"@"', note).encode()
    answer, grown = most_bytes(server, lambda: server.ask("POST", "/v2/models/FP32/infer", body))
    assert (answer.status, "too large" in answer.error) == (400, True)
    assert grown < GROWTH
    body = json.dumps({"inputs": [X], "note": "@"}).replace('"@"', note).encode()
    answer, grown = most_bytes(server, lambda: server.ask("POST", "/v2/models/FP32/infer", body))
    assert answer.status == 200
    assert grown < GROWTH


def test_large_requests_do_not_delay_small_ones(server: Server) -> None:
    """With two reading threads, five requests of 12 KB that unpack to 16 MB once took 13 s."""
    body, headers = bytes_request(16 * MIB, [1, 2**22])
    body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    small: list[tuple[int, float]] = []
    with ThreadPoolExecutor(5) as pool:
        large = [pool.submit(server.ask, "POST", "/v2/models/BYTES/infer", body, headers) for _ in range(5)]
        while not all(one.done() for one in large):
            begun = time.monotonic()
            status = server.infer("FP32", X, parameters={"timeout": 3_000_000}).status
            small.append((status, time.monotonic() - begun))
            time.sleep(0.02)
        assert [one.result().status for one in large] == [413] * 5
    assert {status for status, _ in small} == {200}
    assert max(took_s for _, took_s in small) < 2


def test_no_request_with_many_texts_is_answered_more_than_a_second_after_its_deadline(server: Server) -> None:
    """Reading the texts and packing the answer once took seconds without checking the deadline, and the deadline of
    the run started only after they had been encoded.
    """
    count = 600_000
    data = json.dumps(["a" * 60] * count).encode()
    late: list[tuple[int, float]] = []
    for timeout in (200_000, 600_000, 1_200_000, 2_400_000):
        part = b'{"name": "x", "datatype": "BYTES", "shape": [1, %d], "data": %b}' % (count, data)
        body = b'{"parameters": {"timeout": %d}, "inputs": [%b]}' % (timeout, part)
        begun = time.monotonic()
        answer = server.ask("POST", "/v2/models/BYTES/infer", body, {"Accept-Encoding": "gzip"})
        late.append((answer.status, time.monotonic() - begun - timeout / 1e6))
        if answer.status == 200:
            break
    assert {status for status, _ in late} <= {200, 504}
    assert max(seconds for status, seconds in late if status == 504) < 2  # plus the time for sending and receiving


def test_requests_with_many_texts_do_not_take_threads_from_small_ones(tmp_path: Path) -> None:
    """Five requests of a few KB, within all limits, once held both threads: small requests were refused with 504."""
    models: list[str] = []
    for datatype in ("FP32", "BYTES"):
        path = tmp_path / f"{datatype}.onnx"
        write_identity(path, ELEMENTS[datatype])
        models += ["--model", f"{datatype}={path}"]
    count = 1_000_000
    part = {"name": "x", "datatype": "BYTES", "shape": [1, count], "parameters": {"binary_data_size": 4 * count}}
    head = json.dumps({"inputs": [part], "parameters": {"timeout": 6_000_000, "binary_data_output": True}}).encode()
    body = gzip.compress(head + bytes(4 * count))
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Encoding": "gzip"}
    with serving(*PRIVATE, *models, "--threads", "2") as server, ThreadPoolExecutor(5) as pool:
        assert server.infer("FP32", X).status == 200
        large = [pool.submit(server.ask, "POST", "/v2/models/BYTES/infer", body, headers) for _ in range(5)]
        time.sleep(0.3)  # they are decompressed
        small: list[tuple[int, float]] = []
        while not all(one.done() for one in large):
            begun = time.monotonic()
            status = server.infer("FP32", X, parameters={"timeout": 2_000_000}).status
            small.append((status, time.monotonic() - begun))
            time.sleep(0.1)
        assert {one.result().status for one in large} <= {200, 504}
    assert small
    assert {status for status, _ in small} == {200}
    assert max(took_s for _, took_s in small) < 3


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_has_closed_its_sending_side_gets_its_answer(server: Server, version: str) -> None:
    body = json.dumps({"inputs": [X]}).encode()
    host, port = server.address.rsplit(":", 1)
    for part in (slice(None), slice(5)):
        with socket.create_connection((host, int(port)), timeout=60) as client:
            head = f"POST /v2/models/FP32/infer HTTP/{version}\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body[part])
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        if part == slice(None):
            assert b" 200 " in answer
            assert json.loads(answer.split(b"\r\n\r\n")[-1])["outputs"][0]["data"] == DATA
        else:  # half a request gets no answer
            assert b" 200 " not in answer


def test_a_page_with_an_allowed_origin_may_use_the_server_and_read_answers(server: Server) -> None:
    origin = {"Origin": "http://localhost:3000"}
    wanted = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    preflight = server.ask("OPTIONS", "/v2/models/FP32/infer", None, wanted)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    answer = server.ask("POST", "/v2/models/FP32/infer", {"inputs": [X]}, origin)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "http://localhost:3000")
    for other in ("http://localhost:3001", "https://localhost:3000", "http://localhost:3000.example"):
        assert server.ask("GET", "/v2", None, {"Origin": other}).status == 403


@pytest.mark.parametrize("origin", ["*", "localhost:3000", "http://localhost:3000/", "http://LOCALHOST", "http://"])
def test_an_invalid_origin_is_refused(origin: str, tmp_path: Path) -> None:
    from qnnbridge_protocol.errors import OptionError
    from qnnbridge_serve.options import read_origins

    with pytest.raises(OptionError, match="not the origin"):
        read_origins([origin])


def test_no_request_is_reset_when_it_ends_under_load(tmp_path: Path) -> None:
    """Each request gets a response, or the server has announced the close of the connection before."""
    path = tmp_path / "m.onnx"
    write_identity(path, ELEMENTS["FP32"])
    body = json.dumps({"inputs": [X]}).encode()
    with serving(*PRIVATE, "--model", f"FP32={path}") as server:
        host, port = server.address.rsplit(":", 1)
        reset: list[str] = []
        answered: list[int] = []

        def work() -> None:
            connection = http.client.HTTPConnection(host, int(port), timeout=60)
            connection.connect()
            while True:
                try:
                    connection.request("POST", "/v2/models/FP32/infer", body)
                    response = connection.getresponse()
                    response.read()
                except OSError as error:
                    reset.append(repr(error))
                    return
                answered.append(response.status)
                if response.will_close:
                    return

        clients = [threading.Thread(target=work) for _ in range(12)]
        for client in clients:
            client.start()
        while len(answered) < 100:
            time.sleep(0.01)
        assert server.end() == 0
        for client in clients:
            client.join()
        assert set(answered) == {200}
        assert reset == []


def test_metrics_count_requests_in_any_format(server: Server) -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        shape = [int(size) for size in rng.integers(0, 5, 2)]
        values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-30, 30)).astype(np.float32)
        flat = rng.random() < 0.5
        data = values.reshape(-1).tolist() if flat else values.tolist()
        text = json.dumps({"inputs": [{**X, "shape": shape, "data": data}]}, indent=int(rng.integers(0, 3)) or None)
        (output,) = server.ask("POST", "/v2/models/FP32/infer", text.encode()).document["outputs"]
        assert output["shape"] == shape
        assert np.array_equal(np.array(output["data"], np.float32).reshape(shape), values)
    large = rng.standard_normal((400, 700)).astype(np.float32)  # several steps
    (output,) = server.infer("FP32", {**X, "shape": [400, 700], "data": large.tolist()}).document["outputs"]
    assert np.array_equal(np.array(output["data"], np.float32).reshape(400, 700), large)
