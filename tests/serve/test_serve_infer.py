"""Inference over HTTP with Triton's own client, compared bit for bit with a session without a server between."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ml_dtypes")

import ml_dtypes
import serve_models as models
from serving import Server
from tests import needs

import qnnbridge
from qnnbridge_protocol.values import equal_bits

triton = needs.package("tritonclient.http")
triton_utils = needs.package("tritonclient.utils")

Array = np.ndarray[Any, np.dtype[Any]]
JSON_TYPES = [name for name in models.ELEMENTS if name not in ("FP16", "BF16")]


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address, concurrency=8) as made:
        yield made


def values_of(datatype: str, shape: tuple[int, ...] = (3, 4)) -> Array:
    """Return values up to the limits of the type's range."""
    count = int(np.prod(shape))
    if datatype == "BYTES":
        texts = ["", "a", "grün", "日本語", "line\nline", "\x00", '"quoted"', "x" * 300]
        return np.array([texts[i % len(texts)] for i in range(count)], object).reshape(shape)
    if datatype == "BOOL":
        return (np.arange(count) % 3 == 0).reshape(shape)
    if datatype in ("FP16", "FP32", "FP64", "BF16"):
        dtype = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BF16": ml_dtypes.bfloat16}[datatype]
        row = [0.0, -0.0, 1 / 3, -2.5, np.inf, -np.inf, np.nan, 1e-7, 3e4, 0.1, 7.0, -1e-3]
        return np.resize(np.array(row, np.float64), shape).astype(dtype)
    kind = np.dtype(datatype.lower())
    limits = np.iinfo(kind)
    return np.resize(np.array([limits.min, limits.max, 0, 1, limits.max // 3], kind), shape)


def given(name: str, array: Array, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(array.shape), triton_utils.np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, binary_data=binary)


def direct(model: Path, host: qnnbridge.Host, feed: dict[str, Array]) -> list[Any]:
    with qnnbridge.InferenceSession(str(model), providers=["CPUExecutionProvider"], host=host) as session:
        return session.run(None, feed)


def as_texts(array: Array) -> Array:
    """Convert BYTES arrays of the client, which contain bytes if they arrived as binary data."""
    if array.dtype != object:
        return array
    made = np.empty(array.shape, object)
    made.reshape(-1)[:] = [item.decode() if isinstance(item, bytes) else item for item in array.reshape(-1)]
    return made


# --- every type, in JSON and binary -------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", models.ELEMENTS)
def test_binary_data_is_returned_bit_for_bit(client: Any, datatype: str) -> None:
    values = values_of(datatype)
    result = client.infer(f"same-{datatype}", [given("x", values)])
    assert result.get_output("y")["datatype"] == datatype
    assert equal_bits(as_texts(result.as_numpy("y")), values)


@pytest.mark.parametrize("datatype", JSON_TYPES)
def test_json_is_returned_bit_for_bit(client: Any, datatype: str) -> None:
    values = values_of(datatype)
    wanted = [triton.InferRequestedOutput("y", binary_data=False)]
    result = client.infer(f"same-{datatype}", [given("x", values, binary=False)], outputs=wanted)
    assert "parameters" not in result.get_output("y")
    found = as_texts(result.as_numpy("y"))
    if values.dtype.kind == "f":  # JSON has only one NaN
        found, values = np.nan_to_num(found, nan=5.5), np.nan_to_num(values, nan=5.5)
    assert equal_bits(found, values)


@pytest.mark.parametrize("datatype", models.ELEMENTS)
@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_tensors_without_elements_keep_their_shape(client: Any, datatype: str, shape: tuple[int, ...]) -> None:
    result = client.infer(f"same-{datatype}", [given("x", values_of(datatype, shape))])
    assert result.as_numpy("y").shape == shape


def test_a_scalar_is_a_tensor_without_dimensions(client: Any, server: Server) -> None:
    result = client.infer("scalar", [given("x", np.array(1.5, np.float32))])
    assert result.as_numpy("y").shape == ()
    answer = server.infer("scalar", {"name": "x", "datatype": "FP32", "shape": [], "data": [1.5]})
    assert answer.document["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [], "data": [1.5]}]


def test_json_data_may_be_nested_as_the_shape(server: Server) -> None:
    nested = {"name": "x", "datatype": "INT32", "shape": [2, 3], "data": [[1, 2, 3], [4, 5, 6]]}
    (output,) = server.infer("same-INT32", nested).document["outputs"]
    assert output["data"] == [1, 2, 3, 4, 5, 6]
    assert output["shape"] == [2, 3]


def test_binary_data_at_any_offset_of_the_body_is_read_correctly(server: Server) -> None:
    """The JSON before the numbers has any length, so the numbers start at any offset."""
    values = values_of("FP64")
    for padding in range(1, 9):
        head = json.dumps(
            {
                "id": "i" * padding,
                "inputs": [
                    {
                        "name": "x",
                        "datatype": "FP64",
                        "shape": [3, 4],
                        "parameters": {"binary_data_size": values.nbytes},
                    }
                ],
                "parameters": {"binary_data_output": True},
            }
        ).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = server.ask("POST", "/v2/models/same-FP64/infer", head + values.tobytes(), headers)
        size = int(answer.headers["inference-header-content-length"])
        assert json.loads(answer.body[:size])["id"] == "i" * padding
        assert answer.body[size:] == values.tobytes()


def test_binary_bytes_elements_have_a_length_prefix(server: Server) -> None:
    """The bytes are those of the protocol's specification, written without a client library."""
    texts = ["", "grün"]
    data = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "BYTES", "shape": [1, 2], "parameters": {"binary_data_size": len(data)}}
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = server.ask("POST", "/v2/models/same-BYTES/infer", head + data, headers)
    assert answer.headers["content-type"] == "application/octet-stream"
    size = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": len(data)}
    assert answer.body[size:] == data


# --- real models --------------------------------------------------------------------------------------------


def test_a_real_model_with_two_outputs_gives_the_results_of_a_session(
    client: Any, direct_host: qnnbridge.Host
) -> None:
    image = np.random.default_rng(3).random((1, 40, 30, 3), np.float32)
    expected = direct(models.MODELS / "pnet.onnx", direct_host, {"input_1": image})
    for binary in (True, False):
        wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("conv2d_4", "softmax")]
        result = client.infer("pnet", [given("input_1", image, binary)], outputs=wanted)
        assert equal_bits([result.as_numpy("conv2d_4"), result.as_numpy("softmax")], expected)


def test_outputs_are_returned_in_the_requested_order_and_format(client: Any, direct_host: qnnbridge.Host) -> None:
    image = np.random.default_rng(4).random((2, 48, 48, 3), np.float32)
    names = [output["name"] for output in client.get_model_metadata("onet")["outputs"]]
    assert len(names) == 3
    expected = dict(zip(names, direct(models.MODELS / "onet.onnx", direct_host, {"input_3": image}), strict=True))
    wanted = [
        triton.InferRequestedOutput(names[2], binary_data=False),
        triton.InferRequestedOutput(names[0], binary_data=True),
    ]
    result = client.infer("onet", [given("input_3", image)], outputs=wanted)
    assert [output["name"] for output in result.get_response()["outputs"]] == [names[2], names[0]]
    assert "data" in result.get_output(names[2])
    for name in (names[0], names[2]):
        assert equal_bits(result.as_numpy(name), expected[name])


def test_a_model_with_state_is_fed_its_own_outputs(client: Any, direct_host: qnnbridge.Host) -> None:
    model = "silero_vad_openvino_16k"
    metadata = client.get_model_metadata(model)
    sound, state = (entry["name"] for entry in metadata["inputs"])
    chance, state_out = (entry["name"] for entry in metadata["outputs"])
    frames = np.random.default_rng(5).standard_normal((3, 1, 576)).astype(np.float32)
    with qnnbridge.InferenceSession(
        str(models.MODELS / f"{model}.onnx"), providers=["CPUExecutionProvider"], host=direct_host
    ) as session:
        mine = theirs = np.zeros((2, 1, 128), np.float32)
        for frame in frames:
            expected, mine = session.run([chance, state_out], {sound: frame, state: mine})
            result = client.infer(model, [given(sound, frame), given(state, theirs)])
            theirs = result.as_numpy(state_out)
            assert equal_bits(result.as_numpy(chance), expected)
            assert equal_bits(theirs, mine)


def test_concurrent_requests_each_get_their_own_result(server: Server, client: Any) -> None:
    def one(number: int) -> bool:
        values = np.full((20, 1 + number % 7), number, np.int64)
        with triton.InferenceServerClient(server.address) as own:
            return equal_bits(own.infer("same-INT64", [given("x", values)]).as_numpy("y"), values)

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(60)))
    pending = [client.async_infer("same-INT32", [given("x", np.full((3, 3), n, np.int32))]) for n in range(16)]
    for number, request in enumerate(pending):
        assert int(request.get_result().as_numpy("y").max()) == number


# --- other parts of a request -------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("wanted", [None, "gzip", "deflate"])
def test_bodies_may_be_compressed_with_gzip_or_deflate(client: Any, sent: str | None, wanted: str | None) -> None:
    values = np.arange(30000, dtype=np.float32).reshape(300, 100)
    result = client.infer(
        "same-FP32",
        [given("x", values)],
        request_compression_algorithm=sent,
        response_compression_algorithm=wanted,
    )
    assert equal_bits(result.as_numpy("y"), values)


def test_an_answer_is_compressed_only_if_the_client_accepts_nothing_else(server: Server) -> None:
    body = {"inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [7]}]}
    path = "/v2/models/same-INT32/infer"
    packed = server.ask("POST", path, body, {"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(packed.body))["outputs"][0]["data"] == [7]
    usual = server.ask("POST", path, body, {"Accept-Encoding": "gzip, deflate, br"})
    assert "content-encoding" not in usual.headers
    assert usual.document["outputs"][0]["data"] == [7]


def test_the_id_is_echoed_and_unknown_parameters_are_ignored(client: Any, server: Server) -> None:
    values = values_of("INT8")
    result = client.infer(
        "same-INT8",
        [given("x", values)],
        request_id="Anfrage 7 – ü",
        priority=3,
        sequence_id=5,
        timeout=60_000_000,
        parameters={"something": "else"},
    )
    response = result.get_response()
    assert response["id"] == "Anfrage 7 – ü"
    assert (response["model_name"], response["model_version"]) == ("same-INT8", "1")
    without = server.infer("same-INT8", {"name": "x", "datatype": "INT8", "shape": [1, 1], "data": [1]})
    assert "id" not in without.document


def test_the_highest_version_of_a_folder_is_served(client: Any) -> None:
    values = np.array([[1, 2]], np.int32)
    assert client.get_model_metadata("versions")["versions"] == ["3"]
    assert client.is_model_ready("versions", "3")
    assert not client.is_model_ready("versions", "1")
    result = client.infer("versions", [given("x", values)], model_version="3")
    assert result.get_response()["model_version"] == "3"
    with pytest.raises(triton_utils.InferenceServerException, match="no version '1'"):
        client.infer("versions", [given("x", values)], model_version="1")


# --- metadata -----------------------------------------------------------------------------------------------


def test_the_server_reports_its_name_version_and_extensions(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("pnet")
    assert client.get_server_metadata() == {
        "name": "qnnbridge",
        "version": qnnbridge.__version__,
        "extensions": ["binary_tensor_data", "model_configuration", "model_repository", "statistics"],
    }


def test_a_model_reports_its_inputs_and_outputs(client: Any) -> None:
    assert client.get_model_metadata("pnet") == {
        "name": "pnet",
        "versions": ["1"],
        "platform": "onnx_onnxv1",
        "inputs": [{"name": "input_1", "datatype": "FP32", "shape": [-1, -1, -1, 3]}],
        "outputs": [
            {"name": "conv2d_4", "datatype": "FP32", "shape": [-1, -1, -1, 4]},
            {"name": "softmax", "datatype": "FP32", "shape": [-1, -1, -1, 2]},
        ],
    }


@pytest.mark.parametrize("datatype", models.ELEMENTS)
def test_metadata_names_every_type(client: Any, datatype: str) -> None:
    (described,) = client.get_model_metadata(f"same-{datatype}")["inputs"]
    assert described == {"name": "x", "datatype": datatype, "shape": [-1, -1]}


def test_an_output_type_that_the_protocol_lacks_is_omitted_and_never_silently(server: Server) -> None:
    """The probabilities of this classifier are a sequence of maps."""
    metadata = server.ask("GET", "/v2/models/logreg_iris").document
    assert [output["name"] for output in metadata["outputs"]] == ["label"]
    x = {"name": "float_input", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 5, 6]}
    assert server.infer("logreg_iris", x, outputs=[{"name": "label"}]).status == 200
    everything = server.infer("logreg_iris", x)
    assert (everything.status, "'probabilities' (seq(map(int64,tensor(float))))" in everything.error) == (400, True)
    that_one = server.infer("logreg_iris", x, outputs=[{"name": "probabilities"}])
    assert (that_one.status, "cannot represent output 'probabilities'" in that_one.error) == (400, True)
