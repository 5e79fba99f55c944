"""Invalid requests get the right status and a message, in KServe's error format."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from serving import Answer, Server

X = {"name": "x", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]}


def x(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**X, **changes}.items() if value is not None}


def binary(server: Server, head: Any, data: bytes = b"", model: str = "same-INT32", **headers: str) -> Answer:
    front = json.dumps(head).encode()
    sent = {"Inference-Header-Content-Length": str(len(front)), **headers}
    return server.ask("POST", f"/v2/models/{model}/infer", front + data, sent)


# --- tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (x(name="z"), "no input 'z'. Its inputs: x."),
        (x(datatype="FP32"), "has the datatype FP32, but the model expects INT32"),
        (x(datatype="int32"), "has the datatype int32, but the model expects INT32"),
        (x(shape=[4]), "Invalid rank for input: x Got: 1 Expected: 2"),
        (x(shape=[2, 3]), "shape [2, 3] has 6 elements, but data has 4"),
        (x(shape=[2, -2]), "shape is [2, -2], not an array of sizes"),
        (x(shape=[2, True]), "shape is [2, true], not an array of sizes"),
        (x(shape=[2**40, 2**40]), "2**62"),
        (x(shape=[1] * 70), "70 dimensions are too many"),
        (x(shape=None), "shape is null"),
        (x(name=None), 'has no string "name"'),
        (x(datatype=None), 'has no string "datatype"'),
        (x(data=None), "neither data nor the parameter binary_data_size"),
        (x(data=5), "data is not an array"),
        (x(data=[1, 2, 3, "4"]), "data must contain only integers, but contains strings"),
        (x(data=[1, 2, 3, 4.5]), "data must contain only integers, but contains fractions"),
        (x(data=[1, 2, 3, True]), "data must contain only integers, but contains true or false"),
        (x(data=[1, 2, 3, 2**31]), "not between -2147483648 and 2147483647"),
        (x(data=[1, 2, 3, [4]]), "the nesting of data does not match its shape [2, 2]"),
        (x(data=[[1, 2, 3], [4]]), "the nesting of data does not match its shape [2, 2]"),
        (x(data=[[1, 2], [3, [4]]]), "the nesting of data does not match its shape [2, 2]"),
        (x(parameters={"binary_data_size": 16}), "data and binary_data_size"),
        (x(data=None, parameters={"binary_data_size": 16}), "only 0 bytes are left"),
        (x(data=None, parameters={"binary_data_size": "16"}), "not a number of bytes"),
        (x(data=None, parameters={"shared_memory_region": "r"}), "Shared memory regions are not supported"),
        (x(parameters=[]), "parameters is not a JSON object"),
        ([], "An input is not a JSON object"),
    ],
)
def test_a_bad_input_is_refused_with_an_explanation(server: Server, given: Any, words: str) -> None:
    answer = server.infer("same-INT32", given)
    assert words in answer.error
    assert answer.status == 400


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("UINT8", [256], "not between 0 and 255"),
        ("UINT8", [-1], "not between 0 and 255"),
        ("UINT64", [2**64], "not between 0 and 18446744073709551615"),
        ("INT64", [-(2**63) - 1], "not between -9223372036854775808"),
        ("FP32", [1e39], "too large for FP32"),
        ("FP32", [float("nan"), 1e39], "shape [1, 1] has 1 elements, but data has 2"),
        ("FP32", [True], "data must contain only numbers, but contains true or false"),
        ("FP64", [10**400], "too large for the datatype (a floating point number)"),
        ("FP32", ["1"], "data must contain only numbers, but contains strings"),
        ("FP32", [None], "data must contain only numbers, but contains null"),
        ("BOOL", [2], "true or false, or 0 or 1"),
        ("BYTES", [1], "data must contain only strings, but contains numbers"),
        ("BYTES", ["\ud800"], "an unpaired surrogate"),
    ],
)
def test_a_number_outside_of_the_range_of_the_type_is_refused(
    server: Server, datatype: str, data: Any, words: str
) -> None:
    answer = server.infer(f"same-{datatype}", x(datatype=datatype, shape=[1, 1], data=data))
    assert words in answer.error
    assert answer.status == 400


@pytest.mark.parametrize(
    ("datatype", "number", "words"),
    [
        ("FP32", b"1e400", "too large for the datatype (a floating point number)"),
        ("FP64", b"1e400", "too large for the datatype (a floating point number)"),
        ("FP64", b"-1e400", "too large for the datatype (a floating point number)"),
        ("FP64", b"9" * 5000, "too large for the datatype (a floating point number)"),
        ("INT64", b"9" * 5000, "too large for the datatype (an integer)"),
        ("INT64", b"1e3", "data must contain only integers, but contains fractions"),
        ("INT64", b"1.0", "data must contain only integers, but contains fractions"),
        ("INT64", b"NaN", "data must contain only integers, but contains NaN or Infinity"),
        ("BOOL", b"true1", "cannot be read"),
        ("INT64", b"1 2", "cannot be read"),
        ("INT64", b"", "data has"),
    ],
)
def test_the_error_for_a_refused_number_quotes_it_as_written(
    server: Server, datatype: str, number: bytes, words: str
) -> None:
    head = f'{{"inputs": [{{"name": "x", "datatype": "{datatype}", "shape": [1, 1], "data": ['.encode()
    answer = server.ask("POST", f"/v2/models/same-{datatype}/infer", head + number + b"]}]}")
    assert words in answer.error
    assert answer.status == 400


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_nan_and_infinity_are_accepted_in_json(server: Server, datatype: str) -> None:
    data = [[float("nan"), 1.5], [float("inf"), -float("inf")], [1e-400, -0.0]]
    given = x(datatype=datatype, shape=[3, 2], data=data, parameters={"note": 'NaN, "Infinity"'})
    (output,) = server.infer(f"same-{datatype}", given).document["outputs"]
    assert np.array_equal(np.array(output["data"]), np.array(data).reshape(-1), equal_nan=True)
    beyond = json.dumps({"inputs": [given]}).replace("-0.0", "1e400").encode()
    answer = server.ask("POST", f"/v2/models/same-{datatype}/infer", beyond)
    assert (answer.status, "too large" in answer.error) == (400, True)


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_float16_is_never_sent_as_json(server: Server, datatype: str) -> None:
    in_json = x(datatype=datatype, shape=[1, 1], data=[1.0])
    answer = server.infer(f"same-{datatype}", in_json, parameters={"binary_data_output": True})
    assert (answer.status, f"'x': {datatype} can only be sent as binary data" in answer.error) == (400, True)
    part = {"name": "x", "datatype": datatype, "shape": [1, 1], "parameters": {"binary_data_size": 2}}
    answer = binary(server, {"inputs": [part]}, b"\0\0", f"same-{datatype}")
    assert answer.status == 400
    assert "can only be sent as binary data" in answer.error
    assert (
        binary(
            server, {"inputs": [part], "parameters": {"binary_data_output": True}}, b"\0\0", f"same-{datatype}"
        ).status
        == 200
    )


@pytest.mark.parametrize(
    ("size", "data", "words"),
    [
        (16, b"\0" * 15, "only 15 bytes are left"),
        (15, b"\0" * 15, "INT32 of shape [2, 2] has 16 bytes, but binary_data_size is 15"),
        (16, b"\0" * 17, "1 bytes of the body do not belong to any input"),
        (-1, b"\0" * 16, "not a number of bytes"),
        (True, b"\0", "not a number of bytes"),
    ],
)
def test_binary_data_of_another_size_is_refused(server: Server, size: int, data: bytes, words: str) -> None:
    answer = binary(server, {"inputs": [x(data=None, parameters={"binary_data_size": size})]}, data)
    assert words in answer.error
    assert answer.status == 400


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (struct.pack("<I", 3) + b"ab", "its BYTES data ends in the middle of element 0"),
        (b"\1\0", "its BYTES data ends in the middle of element 0"),
        (struct.pack("<I", 1) + b"a", "its shape has 2 elements, but its BYTES data has 1"),
        ((struct.pack("<I", 1) + b"\xff") * 2, "ONNX strings must be UTF-8"),
        (struct.pack("<I", 2**32 - 1) + b"a", "ends in the middle"),
    ],
)
def test_damaged_binary_data_is_refused(server: Server, data: bytes, words: str) -> None:
    part = {"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(data)}}
    answer = binary(server, {"inputs": [part]}, data, "same-BYTES")
    assert words in answer.error
    assert answer.status == 400


def test_a_bool_is_0_or_1(server: Server) -> None:
    part = {"name": "x", "datatype": "BOOL", "shape": [1, 2], "parameters": {"binary_data_size": 2}}
    assert "0 or 1" in binary(server, {"inputs": [part]}, b"\1\2", "same-BOOL").error


# --- the request ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b"\xff\xfe\xfd", "cannot be read"),
        (b"[]", "The request is not a JSON object"),
        (b"{}", 'The request has no array "inputs"'),
        (b'{"inputs": 1}', '"inputs" is not an array'),
        (b'{"inputs": []}', "Required inputs (['x']) are missing"),
        (b'{"inputs": [], "id": 7}', 'has no string "id"'),
        (b'{"inputs": [], "outputs": [1]}', "An output is not a JSON object"),
        (b"[" * 100000, "The request is not a JSON object"),
        (b'{"inputs": [{"data": ' + b"[" * 100000, "nested too deep"),
        (b'{"inputs": [], "inputs": []}', "contains a name twice"),
        (b'{"inputs": [], "in\\u0070uts": []}', "contains a name twice"),
        (b'{"inputs": [{"name": "x", "name": "y"}]}', "contains a name twice"),
        (b'{"inputs": [], "parameters": {"timeout": 1, "timeout": 2}}', "a name twice"),
        (b'{"inputs": [], "parameters": {"timeout": ' + b"9" * 5000 + b"}}", "a number has too many digits"),
        (b'{"inputs": [' + b"{}," * 450_000 + b"{}]}", "too many fields"),
        (b"{" + b'"a":1,' * 450_000 + b'"b":1}', "too many fields"),
        (json.dumps({"inputs": [X, X]}).encode(), "An input is given twice: x, x"),
        (json.dumps({"inputs": [X], "outputs": [{"name": "z"}]}).encode(), "no output 'z'. Its outputs: y."),
        (json.dumps({"inputs": [X], "outputs": [{"name": "y"}] * 2}).encode(), "requested twice"),
        (json.dumps({"inputs": [X], "parameters": {"binary_data_output": 1}}).encode(), "neither true nor false"),
        (json.dumps({"inputs": [X], "parameters": {"timeout": "1"}}).encode(), "not a number of microseconds"),
        (
            json.dumps({"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": 2}}]}).encode(),
            "classification extension is not supported",
        ),
    ],
)
def test_a_bad_request_is_refused_with_an_explanation(server: Server, body: bytes, words: str) -> None:
    answer = server.ask("POST", "/v2/models/same-INT32/infer", body)
    assert words in answer.error
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("text", ["-1", "1e3", "999999", "x", "9" * 40])
def test_an_impossible_header_length_is_refused(server: Server, text: str) -> None:
    answer = server.ask(
        "POST", "/v2/models/same-INT32/infer", {"inputs": [X]}, {"Inference-Header-Content-Length": text}
    )
    assert "Inference-Header-Content-Length" in answer.error
    assert answer.status == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/models/none/ready", 404),
        ("POST", "/v2/models/none/infer", 404),
        ("GET", "/v2/models/pnet/versions/2", 404),
        ("GET", "/v2/models/pnet/versions/2/ready", 404),
        ("POST", "/v2/models/pnet/versions/2/infer", 404),
        ("POST", "/v2/repository/models/none/load", 404),
        ("POST", "/v2/repository/models/none/unload", 404),
        ("GET", "/v2/models/..%2f..%2fpasswd", 404),
        ("GET", "/page", 404),
        ("GET", "/page/none.js", 404),
        ("POST", "/", 405),
        ("GET", "/v2/", 404),
        ("GET", "/v1/models/pnet", 404),
        ("GET", "/v2/models/pnet/infer", 405),
        ("DELETE", "/v2/models/pnet", 405),
    ],
)
def test_a_missing_model_or_path_is_reported(server: Server, method: str, path: str, status: int) -> None:
    answer = server.ask(method, path)
    assert answer.error
    assert answer.status == status


def test_a_request_that_is_too_large_is_refused_before_it_is_received(server: Server) -> None:
    """The limit there is 32 MiB. The length alone decides: such a body is never sent here."""
    answer = server.ask("POST", "/v2/models/same-INT32/infer", None, {"Content-Length": str(32 * 1024**2 + 1)})
    assert answer.status == 413
    assert "more than 33554432 bytes" in answer.error


def test_a_request_without_a_length_is_measured_while_it_is_received(server: Server) -> None:
    import http.client

    host, port = server.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        parts = (b" " * 1024**2 for _ in range(34))
        connection.request("POST", "/v2/models/same-INT32/infer", parts, encode_chunked=True)
        response = connection.getresponse()
        assert response.status == 413
        assert "more than 33554432 bytes" in json.loads(response.read())["error"]
    finally:
        connection.close()


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_request_is_measured_after_decompression(server: Server, pack: Any) -> None:
    body = pack(b" " * (33 * 1024**2))
    encoding = "gzip" if pack is gzip.compress else "deflate"
    answer = server.ask("POST", "/v2/models/same-INT32/infer", body, {"Content-Encoding": encoding})
    assert (answer.status, "decompressed body has more than 33554432 bytes" in answer.error) == (413, True)


def test_a_damaged_compressed_request_or_another_encoding_is_refused(server: Server) -> None:
    path = "/v2/models/same-INT32/infer"
    whole = gzip.compress(json.dumps({"inputs": [X]}).encode())
    assert server.ask("POST", path, whole, {"Content-Encoding": "gzip"}).status == 200
    for body, words in ((whole[:-9], "its end is missing"), (b"no zip", "cannot be decompressed")):
        answer = server.ask("POST", path, body, {"Content-Encoding": "gzip"})
        assert (answer.status, words in answer.error) == (400, True)
    answer = server.ask("POST", path, whole, {"Content-Encoding": "br"})
    assert (answer.status, "gzip and deflate" in answer.error) == (415, True)


def test_the_error_for_a_size_that_only_the_model_refuses_names_the_dimension(server: Server) -> None:
    answer = server.infer(
        "logreg_iris",
        {"name": "float_input", "datatype": "FP32", "shape": [3, 4], "data": [0] * 12},
        outputs=[{"name": "label"}],
    )
    assert answer.status == 400
    assert "index: 1 Got: 4 Expected: 2" in answer.error
    assert answer.headers["qnnbridge-error"] == "ort.InvalidArgument"


# --- access ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://somewhere.example"},
        {"Origin": "http://localhost:3000"},  # an origin of any other server on this machine
        {"Origin": "http://127.0.0.1"},
        {"Origin": ""},
        {"Origin": "null"},
        {"Host": "rebound.example:8000"},
        {"Host": "[nonsense"},
        {"Host": "192.168.1.7"},
    ],
)
def test_a_page_in_a_browser_cannot_use_a_server_without_a_token(server: Server, headers: dict[str, str]) -> None:
    answer = server.ask("POST", "/v2/repository/models/pnet/unload", b"", headers)
    assert answer.status == 403
    assert ("--allow-origin" if "Origin" in headers else "--token-file") in answer.error
    preflight = {"Access-Control-Request-Method": "POST", **headers}
    refused = server.ask("OPTIONS", "/v2/repository/models/pnet/unload", None, preflight)
    assert refused.status == 403
    assert "access-control-allow-origin" not in refused.headers
    assert server.ask("GET", "/v2/models/pnet/ready").status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "localhost:8000"},
        {"Host": "[::1]"},
    ],
)
def test_local_programs_can_use_a_server_without_a_token(server: Server, headers: dict[str, str]) -> None:
    assert server.ask("GET", "/v2", None, headers).status == 200


# --- speech -------------------------------------------------------------------------------------------------


def test_speech_is_not_found_without_its_option(server: Server) -> None:
    answer = server.ask("POST", "/v1/audio/transcriptions", b"x" * 100_000)
    assert answer.status == 404
    assert "--speech NAME=FOLDER" in answer.document["error"]["message"]
