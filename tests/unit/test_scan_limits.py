"""A scan of any bytes ends soon, accepts everything that protobuf accepts, and does not hash damaged files."""

from __future__ import annotations

import io
import itertools
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qnnbridge_host.model import protobuf
from qnnbridge_host.model.graph_index import read_graph
from qnnbridge_host.model.scan import scan_model, scan_open
from qnnbridge_host.model.source import ModelSource, interruptible, open_again
from qnnbridge_protocol.errors import InvalidProtobuf, ModelChanged

onnx = pytest.importorskip("onnx")

from google.protobuf.message import DecodeError  # noqa: E402
from onnx import helper  # noqa: E402
from tests.needs import length  # noqa: E402
from tests.unit import epcontext_models as models  # noqa: E402

GOOD = models.model_of(helper.make_node("Relu", ["x"], ["y"])).SerializeToString()
FEW_FIELDS = 10_000
MANY = 1_000_000
GROUP_BEGIN, GROUP_END = models.varint(100 << 3 | 3), models.varint(100 << 3 | 4)


def field(number: int, data: bytes) -> bytes:
    return models.varint(number << 3 | 2) + models.varint(len(data)) + data


def in_graph(data: bytes) -> bytes:
    return bytes(GOOD + field(7, data))


class CountingFile(io.BytesIO):
    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def never_hashed() -> None:
    raise AssertionError("it was hashed")


# --- files that were not written completely --------------------------------------------------------------


@pytest.mark.parametrize("count_nodes", [True, False])
@pytest.mark.parametrize(
    ("data", "at"),
    [
        (bytes(MANY), 0),
        (GOOD + bytes(MANY), len(GOOD)),
        (in_graph(bytes(MANY)), len(in_graph(bytes(MANY))) - MANY),
        (GOOD[:20] + bytes(MANY) + GOOD[20:], None),
    ],
    ids=["zeros", "a model, then zeros", "a graph of zeros", "a hole"],
)
def test_zeros_are_refused_where_they_begin(data: bytes, at: int | None, count_nodes: bool) -> None:
    file = CountingFile(data)
    with pytest.raises(InvalidProtobuf, match=r"zeros|cut off") as caught:
        scan_open(file, count_nodes=count_nodes)
    assert file.taken < 4 * protobuf.WINDOW_BYTES
    assert caught.value.evidence
    assert caught.value.fix
    if at is not None:
        assert caught.value.details["at"] == at
        assert f"byte {at} of {len(data)}" in caught.value.evidence[0]
        assert "zeros" in caught.value.message


def test_three_gigabytes_of_zeros_are_neither_read_nor_hashed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with interruptible(never_hashed):
        with pytest.raises(InvalidProtobuf, match=r"Load model from .*m\.onnx failed:Protobuf parsing") as caught:
            ModelSource.open(path)
        assert "it consists of zeros" in (caught.value.cause or "")
    with pytest.raises(InvalidProtobuf, match=r"m\.onnx is not an ONNX model: it consists of zeros"):
        scan_model(path)


def test_a_model_overwritten_with_zeros_has_other_contents(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD)
    identity = ModelSource.open(path).identity
    path.write_bytes(bytes(len(GOOD)))
    with pytest.raises(ModelChanged, match=r"m\.onnx has other contents now"):
        open_again(path, None, None, identity.fingerprint, identity.files)


def test_the_missing_bytes_of_a_truncated_file_are_reported() -> None:
    with pytest.raises(InvalidProtobuf, match="cut off") as caught:
        scan_model(GOOD[:-4])
    assert any("the file lacks" in line for line in caught.value.evidence)


# --- files that keep their readers busy ------------------------------------------------------------------

BUSY = {
    "a wanted number": GOOD + b"\x08\x08" * MANY,
    "unknown numbers with long headers": GOOD + (models.varint(100 << 3) + b"\x01") * MANY,
    "empty unknown fields": GOOD + b"\x6a\0" * MANY,
    "empty nodes": in_graph(b"\x0a\0" * MANY),
    "empty initializers": in_graph(b"\x2a\0" * MANY),
    "empty inputs": in_graph(b"\x5a\0" * MANY),
    "empty attributes": in_graph(field(1, b"\x2a\0" * MANY)),
    "empty metadata": GOOD + b"\x72\0" * MANY,
    "groups": GOOD + (GROUP_BEGIN + GROUP_END) * MANY,
    "groups in groups": GOOD + (GROUP_BEGIN * 90 + GROUP_END * 90) * (MANY // 90),
    "small nodes of empty fields": in_graph(field(1, b"\x0a\0" * 2000) * (MANY // 2000)),
    "two lists in turns": GOOD + b"\x50\x01\x58\x01" * MANY,
}


@pytest.mark.parametrize("case", BUSY)
def test_a_scan_that_would_take_minutes_is_refused(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "MOST_FIELDS", FEW_FIELDS)
    file = CountingFile(BUSY[case])
    with pytest.raises(InvalidProtobuf, match="too many fields") as caught:
        scan_open(file, count_nodes=True)
    assert file.taken < 20 * FEW_FIELDS
    assert caught.value.details["limit"] is True
    with interruptible(never_hashed), pytest.raises(InvalidProtobuf, match="too many fields"):
        ModelSource.open(BUSY[case])


@pytest.mark.parametrize(
    "fields",
    [b"\x3d\0\0\x80\x3f" * MANY, b"\x40\x81\x01" * MANY, b"\x59" + bytes(8) + (b"\x59" + bytes(8)) * MANY],
    ids=["floats", "integers", "doubles"],
)
@pytest.mark.parametrize("rest", [b"", b"\x52\x03abc"], ids=["at the end", "before more"])
def test_a_list_of_a_million_numbers_is_skipped(
    fields: bytes, rest: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tree ensembles have such attributes, which are larger than many networks."""
    monkeypatch.setattr(protobuf, "MOST_FIELDS", MANY // 4)
    trees = b"\x22\x04Tree" + field(5, b"\x0a\x01n" + fields + rest)
    found = scan_open(io.BytesIO(in_graph(field(1, trees))), count_nodes=True)
    assert found.ops["Tree"] == 1
    data = in_graph(field(1, trees))
    assert read_graph(io.BytesIO(data), len(data)).nodes[-1].op == "Tree"


def test_numbers_at_the_boundaries_of_read_windows_are_read_correctly() -> None:
    """Use runs of numbers of every length before a relevant field, which no skipped number may include."""
    for before, width in itertools.product(range(16), (1, 2, 3)):
        number = b"\x50" + b"\x81" * (width - 1) + b"\x01"
        data = GOOD + b"\x6a" + bytes([before]) + bytes(before) + number * 9000 + field(2, b"me")
        assert scan_model(data).producer == "me"


def test_half_a_million_nodes_of_an_ordinary_model_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = 5000
    monkeypatch.setattr(protobuf, "MOST_FIELDS", protobuf.MOST_FIELDS * nodes // 500_000)
    listed, values = [], []
    for index in range(nodes):
        sizes = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]}
        listed.append(helper.make_node("Conv", [f"t{index}", "w"], [f"t{index + 1}"], name=f"n{index}", **sizes))
        values.append(helper.make_tensor_value_info(f"t{index + 1}", 1, [1, 8, 32, 32]))
    weights = [onnx.TensorProto(name=f"w{index}", data_type=1, dims=[8, 8, 3, 3]) for index in range(nodes)]
    for tensor in weights:
        tensor.data_location = 1
        for key, value in (("location", "w.bin"), ("offset", "4096"), ("length", "2304")):
            tensor.external_data.add(key=key, value=value)
    plain = models.model_of(*listed)
    plain.graph.value_info.extend(values)
    data = plain.SerializeToString()
    assert len(read_graph(io.BytesIO(data), len(data)).nodes) == nodes
    plain.graph.initializer.extend(weights)
    assert scan_model(plain.SerializeToString()).node_count == nodes


def test_many_dimensions_and_nodes_of_one_name_do_not_take_quadratic_time() -> None:
    """Both took minutes: 300,000 dimensions, and 20,000 nodes that all read and write one tensor."""
    begun = time.process_time()
    many = 300_000
    shape = field(1, b"\x08\x01" + field(2, b"\x0a\0" * many))
    found = scan_model(in_graph(field(11, b"\x0a\x01q" + field(2, shape)))).inputs[-1]
    assert len(found.shape or ()) == many
    data = in_graph(field(1, field(1, b"a") + field(2, b"a") + field(4, b"Relu")) * 20_000)
    assert len(read_graph(io.BytesIO(data), len(data)).nodes) == 20_001
    dims = in_graph(field(5, b"\x08\xff\xff\xff\xff\x7f" * many + field(8, b"w")))
    read_graph(io.BytesIO(dims), len(dims))
    assert time.process_time() - begun < 20.0


# --- compatibility with protobuf -------------------------------------------------------------------------

TAKEN = {
    "an unknown number": b"\xa0\x06\x01",
    "an unknown text": b"\xa2\x06\x03abc",
    "a group": GROUP_BEGIN + b"\x08\x01" + GROUP_END,
    "a group in a group": GROUP_BEGIN + b"\x0b\x0c" + GROUP_END,
    "100 groups": GROUP_BEGIN * 100 + GROUP_END * 100,
    "the graph's number as a group": b"\x3b\x3c",
    "the graph's number as a number": b"\x38\x01",
    "the longest number": b"\xa0\x06" + b"\xff" * 9 + b"\x01",
}
REFUSED = {
    "101 groups": GROUP_BEGIN * 101 + GROUP_END * 101,
    "an open group": GROUP_BEGIN,
    "the end of no group": GROUP_END,
    "the end of another group": GROUP_BEGIN + b"\xac\x06",
    "field 0 of another kind": b"\x01" + bytes(8),
    "field 0, written long": b"\x80\x00",
    "kind 6": b"\xa6\x06",
    "kind 7": b"\xa7\x06",
    "a number without an end": b"\xa0\x06" + b"\xff" * 10 + b"\x01",
    "a length of four gigabytes": b"\xa2\x06\xff\xff\xff\xff\x0f",
}


@pytest.mark.parametrize("case", [*TAKEN, *REFUSED])
def test_protobuf_and_the_scan_accept_and_refuse_the_same_files(case: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    data = GOOD + (TAKEN.get(case) or REFUSED[case])

    def load() -> Any:
        return ort.InferenceSession(data, providers=["CPUExecutionProvider"])

    if case in TAKEN:
        assert scan_model(data).node_count == 1
        load()
        return
    with pytest.raises(InvalidProtobuf):
        scan_model(data)
    with pytest.raises(Exception, match="protobuf parsing failed"):
        load()


WHOLE = models.PLACES["in an If in a function"](models.context_node()).SerializeToString()
PIECES = st.binary(max_size=6) | st.sampled_from(sorted({*TAKEN.values(), *REFUSED.values()}))


@settings(max_examples=length(100, 300))
@given(st.lists(st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 3), PIECES), min_size=1, max_size=3))
def test_every_file_that_protobuf_accepts_is_accepted(edits: list[tuple[int, int, bytes]]) -> None:
    data = WHOLE
    for at, gone, put in edits:
        data = data[:at] + put + data[at + gone :]
    for count_nodes in (True, False):
        try:
            scan_model(data, count_nodes=count_nodes)
        except InvalidProtobuf as error:
            if error.details.get("limit") is not None:
                with pytest.raises(Exception, match="parsing message"):
                    onnx.ModelProto.FromString(data)


def test_the_scan_of_a_file_that_is_replaced_meanwhile_is_of_the_hashed_contents(tmp_path: Path) -> None:
    """The file changes between scan and hash: the first access of the memo replaces it."""
    path, other = tmp_path / "m.onnx", tmp_path / "other.onnx"
    path.write_bytes(GOOD)
    other.write_bytes(WHOLE)

    class Replaces:
        def look(self, name: str) -> Any:
            if other.exists():
                os.replace(other, path)
            source = ModelSource.open(path)
            return source.known[0]

    found = ModelSource.open(path, None, Replaces())
    assert found.scan is not None
    assert found.scan.is_compiled


@pytest.mark.parametrize("version", [5 << 64 | 9, 63 << 64 | 9])
def test_a_number_of_more_than_64_bits_is_truncated_as_in_protobuf(version: int) -> None:
    data = GOOD + b"\x08" + models.varint(version)
    assert len(models.varint(version)) == 10
    assert onnx.ModelProto.FromString(data).ir_version == 9
    assert scan_open(io.BytesIO(data)).ir_version == 9


def test_a_length_of_more_than_64_bits_is_refused() -> None:
    data = GOOD + b"\x12" + models.varint(1 << 64 | 1) + b"p"
    with pytest.raises(DecodeError):
        onnx.ModelProto.FromString(data)
    with pytest.raises(InvalidProtobuf):
        scan_open(io.BytesIO(data))
