"""The files to which a model refers, anywhere in the model; the onnx package serves as the reference."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import needs

from qnnbridge_host.graph.files import link_files
from qnnbridge_host.model.scan import scan_open
from qnnbridge_protocol.errors import InvalidProtobuf

onnx = pytest.importorskip("onnx")
helper = onnx.helper

MODELS = Path(__file__).parents[1] / "models"


def referenced_files(data: bytes | io.BytesIO | io.RawIOBase) -> list[str]:
    """Return the files to which a model refers; an empty list if it is not a model."""
    try:
        return list(scan_open(io.BytesIO(data) if isinstance(data, bytes) else data).files)
    except InvalidProtobuf:
        return []


def external(location: str, name: str = "w") -> Any:
    tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("offset", "0"), ("location", location), ("length", "16")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def sparse(location: str) -> Any:
    tensor = onnx.SparseTensorProto(dims=[8])
    tensor.values.CopyFrom(external(location))
    return tensor


def graph(*nodes: Any, **more: Any) -> Any:
    return helper.make_graph(list(nodes), "g", [], [], **more)


def data_of(made: Any, functions: tuple[Any, ...] = ()) -> bytes:
    proto = helper.make_model(made)
    proto.functions.extend(functions)
    return bytes(proto.SerializeToString())


def context_node(embed_mode: int | None, context: bytes, domain: str = "com.microsoft") -> Any:
    node = helper.make_node("EPContext", ["x"], ["y"], domain=domain, main_context=1, source="QNNExecutionProvider")
    # Before and after: the order of attributes is not guaranteed.
    node.attribute.append(helper.make_attribute("ep_cache_context", context))
    if embed_mode is not None:
        node.attribute.append(helper.make_attribute("embed_mode", embed_mode))
    return node


def constant(location: str) -> Any:
    return helper.make_node("Constant", [], ["c"], value=external(location))


def with_subgraph(inner: Any) -> Any:
    return helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=graph())


def in_lists() -> Any:
    node = helper.make_node("Anything", [], [])
    for field, value in (("tensors", external("a.bin")), ("graphs", graph(constant("b.bin")))):
        attribute = onnx.AttributeProto(name=field, type=onnx.AttributeProto.TENSORS)
        getattr(attribute, field).append(value)
        node.attribute.append(attribute)
    attribute = onnx.AttributeProto(name="s", type=onnx.AttributeProto.SPARSE_TENSORS)
    attribute.sparse_tensors.append(sparse("c.bin"))
    attribute.sparse_tensor.CopyFrom(sparse("d.bin"))
    node.attribute.append(attribute)
    return node


FUNCTION = helper.make_function("own", "f", ["x"], ["y"], [constant("function.bin")], [helper.make_opsetid("", 21)])

PLACES = [
    ("an initializer", data_of(graph(initializer=[external("w.bin")])), ["w.bin"]),
    ("a sparse initializer", data_of(graph(sparse_initializer=[sparse("s.bin")])), ["s.bin"]),
    ("a Constant node", data_of(graph(constant("c.bin"))), ["c.bin"]),
    ("a subgraph", data_of(graph(with_subgraph(graph(with_subgraph(graph(constant("deep.bin"))))))), ["deep.bin"]),
    ("lists of an attribute", data_of(graph(in_lists())), ["d.bin", "a.bin", "b.bin", "c.bin"]),
    ("a function", data_of(graph(), (FUNCTION,)), ["function.bin"]),
    ("a compiled model", data_of(graph(context_node(0, b"m_qnn.bin"))), ["m_qnn.bin"]),
    ("a subgraph of compiled parts", data_of(graph(with_subgraph(graph(context_node(0, b"p.bin"))))), ["p.bin"]),
    ("a name that is no ASCII", data_of(graph(initializer=[external("größe/重み.bin")])), ["größe/重み.bin"]),
]


@pytest.mark.parametrize(("data", "expected"), [row[1:] for row in PLACES], ids=[row[0] for row in PLACES])
def test_an_external_file_is_found_in_each_kind_of_attribute(data: bytes, expected: list[str]) -> None:
    assert sorted(referenced_files(data)) == sorted(expected)


def test_many_tensors_in_one_file_list_it_once_in_the_order_of_the_model() -> None:
    tensors = [external("two.bin" if n % 2 else "one.bin", f"w{n}") for n in range(2000)]
    assert referenced_files(data_of(graph(initializer=tensors))) == ["one.bin", "two.bin"]


@pytest.mark.parametrize(
    "node",
    [
        context_node(1, b"\x02\x00\x00\x00" * 5000),
        context_node(1, b"short.bin"),
        context_node(None, b"embedded is the default"),
        context_node(0, b"other.bin", domain="someone.else"),
        context_node(0, b""),
    ],
    ids=["blob", "small blob", "default", "other domain", "empty"],
)
def test_an_embedded_context_binary_is_not_a_file(node: Any) -> None:
    assert referenced_files(data_of(graph(node))) == []


def test_the_location_of_a_tensor_that_is_not_external_is_ignored() -> None:
    tensor = external("unused.bin")
    tensor.data_location = onnx.TensorProto.DEFAULT
    assert referenced_files(data_of(graph(initializer=[tensor]))) == []


def test_a_file_is_read_as_bytes_are(tmp_path: Path) -> None:
    weights = onnx.TensorProto(name="w", data_type=1, dims=[100_000], raw_data=b"\xff" * 400_000)
    data = data_of(graph(initializer=[weights, external("behind.bin"), weights, external("last.bin")]))
    (tmp_path / "m.onnx").write_bytes(data)
    with open(tmp_path / "m.onnx", "rb", buffering=0) as file:
        assert referenced_files(file) == referenced_files(data) == ["behind.bin", "last.bin"]


class CountingFile(io.BytesIO):
    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_weights_inside_the_model_are_not_read() -> None:
    weights = onnx.TensorProto(name="w", data_type=1, dims=[5_000_000], raw_data=bytes(20_000_000))
    file = CountingFile(data_of(graph(initializer=[weights, external("w.bin")])))
    assert referenced_files(file) == ["w.bin"]
    assert file.taken < 100_000


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.name)
def test_real_models_are_read_to_their_end(path: Path) -> None:
    """The marker after the last byte of a real model is found only if everything before it was parsed."""
    data = path.read_bytes()
    assert referenced_files(data) == []
    mark = onnx.ModelProto()
    mark.graph.initializer.append(external("mark.bin"))
    assert referenced_files(data + mark.SerializeToString()) == ["mark.bin"]


WHOLE = data_of(graph(constant("c.bin"), in_lists(), context_node(0, b"m.bin")), (FUNCTION,))


@given(st.integers(0, len(WHOLE) - 1))
def test_a_truncated_model_lists_no_more_files_than_the_complete_one(length: int) -> None:
    assert set(referenced_files(WHOLE[:length])) <= set(referenced_files(WHOLE))


@given(
    st.binary(max_size=400) | st.builds(lambda a, b, n: WHOLE[:n] + a + b, st.binary(), st.binary(), st.integers(0))
)
def test_garbage_raises_nothing(data: bytes) -> None:
    assert all(isinstance(name, str) for name in referenced_files(data))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff" * 100_000, b"ORTM", b"version https://git-lfs.github.com/spec/v1"]
)
def test_a_file_that_is_not_a_model_has_no_files(data: bytes) -> None:
    assert referenced_files(data) == []


def test_endlessly_nested_messages_are_abandoned() -> None:
    data = data_of(graph(constant("bottom.bin")))[-40:]
    for field in (b"\x0a", b"\x2a", b"\x32") * 400:  # node, attribute, graph
        size = len(data)
        data = field + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + data
    started = time.perf_counter()
    assert referenced_files(b"\x3a" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7 & 0x7F]) + data) == []
    assert time.perf_counter() - started < 5


@needs.posix
def test_links_among_external_weights_are_resolved(tmp_path: Path) -> None:
    """Caches of model hubs store each file once, and give it its name by a relative link."""
    blobs, snapshot, work = (tmp_path / name for name in ("blobs", "snapshot", "work"))
    for folder in (blobs, snapshot, work):
        folder.mkdir()
    (blobs / "1f").write_bytes(b"weights")
    (snapshot / "w.bin").symlink_to("../blobs/1f")
    link_files(snapshot, ["w.bin"], work / "candidate")
    assert (work / "candidate" / "w.bin").read_bytes() == b"weights"
