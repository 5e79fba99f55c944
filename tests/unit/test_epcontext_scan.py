"""The results of a scan match those of the onnx package, and a scan reads no more than necessary."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import needs

from qnnbridge_host.model.scan import scan_model, scan_open
from qnnbridge_protocol.errors import InvalidProtobuf, NoSuchFile
from qnnbridge_protocol.limits import MAX_METADATA_BYTES

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from tests.unit import epcontext_models as models  # noqa: E402

MODELS = Path(__file__).parents[1] / "models"


def scan(model: Any, **options: Any) -> Any:
    return scan_model(model.SerializeToString(), **options)


# --- compiled parts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count_nodes", [True, False])
@pytest.mark.parametrize("place", models.PLACES)
def test_a_compiled_part_is_found(place: str, count_nodes: bool) -> None:
    (found,) = scan(models.PLACES[place](models.context_node("p")), count_nodes=count_nodes).ep_contexts
    assert (found.name, found.source, found.main_context, found.embed_mode) == ("p", models.QNN, 1, 0)
    assert (found.cache_path, found.partition_name, found.sdk_version) == ("m_qnn.bin", "p", "v2.51.0.260929181845")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("at top level", "the main graph"),
        ("in a branch of If", "then_branch of the If node 'branch' in the main graph"),
        (
            "in a Loop in an If",
            "body of the Loop node 'turns' in then_branch of the If node 'branch' in the main graph",
        ),
        ("in the body of a function", "the function Block"),
    ],
)
def test_the_location_of_a_compiled_part_is_reported(place: str, words: str) -> None:
    assert scan(models.PLACES[place](models.context_node())).ep_contexts[0].where == words


def test_similar_nodes_are_distinguished_from_compiled_parts() -> None:
    foreign = models.context_node("foreign", domain="someone.else")
    named = helper.make_node("Relu", ["x"], ["y"], name="EPContext")
    local = models.context_node("local", domain="")
    found = scan(models.model_of(foreign, named, local))
    assert not found.is_compiled
    assert [(node.name, node.op_type, node.domain) for node in found.lookalikes] == [
        ("foreign", "EPContext", "someone.else"),
        ("EPContext", "Relu", ""),
        ("local", "EPContext", ""),
    ]


def test_a_string_that_contains_the_operator_name_is_ignored() -> None:
    talks = helper.make_node("Relu", ["EPContext"], ["com.microsoft"], doc_string="EPContext of com.microsoft")
    found = scan(models.model_of(talks))
    assert not found.is_compiled
    assert not found.lookalikes


def test_an_embedded_context_binary_is_located_and_not_read(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    path = models.save(
        models.model_of(models.context_node(embed_mode=1, ep_cache_context=data)), tmp_path / "m.onnx"
    )
    (node,) = scan_model(path).ep_contexts
    assert node.embedded.length == len(data)
    assert path.read_bytes()[node.embedded.start :][: len(data)] == data
    assert node.cache_path is None


@pytest.mark.parametrize("mode", [None, 1])
def test_a_path_in_place_of_an_embedded_context_binary_is_not_treated_as_a_path(mode: int | None) -> None:
    (node,) = scan(models.model_of(models.context_node(embed_mode=mode))).ep_contexts
    assert node.embeds
    assert node.cache_path is None
    assert node.embedded == b"m_qnn.bin"


def test_negative_numbers_are_read_as_negative() -> None:
    (node,) = scan(models.model_of(models.context_node(main_context=-1))).ep_contexts
    assert node.main_context == -1
    assert not node.owns_blob


@pytest.mark.parametrize("path", sorted(models.COMPILED.glob("*.onnx")), ids=lambda path: path.name)
def test_models_that_qnn_compiled_are_recognised(path: Path) -> None:
    found = scan_model(path)
    assert found.is_compiled
    assert found.sources == (models.QNN,)
    assert found.files == (found.ep_contexts[0].cache_path,)
    assert not found.external_files


# --- everything else -------------------------------------------------------------------------------------


def operators(graph: Any, counted: Counter[str]) -> Counter[str]:
    for node in graph.node:
        counted[node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"] += 1
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                operators(inner, counted)
    return counted


@pytest.mark.parametrize(
    "path", sorted((*MODELS.glob("*.onnx"), *models.COMPILED.glob("*.onnx"))), ids=lambda path: path.name
)
def test_a_real_model_is_read_as_onnx_reads_it(path: Path) -> None:
    found, model = scan_model(path), onnx.load(path, load_external_data=False)
    assert found.ops == dict(operators(model.graph, Counter()))
    assert found.node_count == sum(found.ops.values())
    assert found.initializer_count == len(model.graph.initializer)
    assert found.opsets == {opset.domain: opset.version for opset in model.opset_import}
    assert found.metadata == {entry.key: entry.value for entry in model.metadata_props}
    assert (found.ir_version, found.producer, found.graph_name) == (
        model.ir_version,
        model.producer_name,
        model.graph.name,
    )
    weights = {tensor.name for tensor in model.graph.initializer} if model.ir_version < 4 else set()
    assert [node.name for node in found.inputs] == [i.name for i in model.graph.input if i.name not in weights]
    assert [node.name for node in found.outputs] == [o.name for o in model.graph.output]


def test_metadata_are_read_up_to_the_size_of_a_message() -> None:
    model = models.model_of()
    helper.set_model_props(model, {"long": "x" * 100_000, "empty": "", "too long": "x" * (MAX_METADATA_BYTES + 1)})
    assert scan(model).metadata == {"long": "x" * 100_000, "empty": ""}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.name)
def test_inputs_and_outputs_equal_those_of_onnx_runtime(path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    session, found = ort.InferenceSession(path, providers=["CPUExecutionProvider"]), scan_model(path)
    for ours, theirs in ((found.inputs, session.get_inputs()), (found.outputs, session.get_outputs())):
        assert [(node.name, node.type) for node in ours] == [(node.name, node.type) for node in theirs]
    assert [list(node.shape or ()) for node in found.inputs] == [node.shape for node in session.get_inputs()]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (helper.make_tensor_type_proto(1, [2, "n", None]), "tensor(float)"),
        (helper.make_sequence_type_proto(helper.make_tensor_type_proto(7, None)), "seq(tensor(int64))"),
        (helper.make_map_type_proto(8, helper.make_tensor_type_proto(11, None)), "map(string,tensor(double))"),
        (helper.make_optional_type_proto(helper.make_tensor_type_proto(9, [])), "optional(tensor(bool))"),
        (helper.make_sparse_tensor_type_proto(16, [3]), "sparse_tensor(bfloat16)"),
    ],
)
def test_types_are_written_as_onnx_runtime_writes_them(made: Any, text: str) -> None:
    model = models.model_of()
    del model.graph.input[:]
    model.graph.input.append(helper.make_value_info("v", made))
    (node,) = scan(model).inputs
    assert node.type == text
    if text == "tensor(float)":
        assert node.shape == (2, "n", None)


def test_a_weight_that_an_old_model_lists_as_an_input_is_not_an_input() -> None:
    model = models.model_of(initializer=[helper.make_tensor("x", 1, [1, 8], [0.0] * 8)])
    model.ir_version = 3
    assert scan(model).inputs == ()
    model.ir_version = 9
    assert [node.name for node in scan(model).inputs] == ["x"]


def test_a_call_of_a_function_counts_as_the_nodes_of_its_body() -> None:
    inner = helper.make_node("Relu", ["x"], ["y"])
    found = scan(
        models.model_of(
            helper.make_node("Block", ["x"], ["y"], domain="own"), functions=(models.function_with(inner, inner),)
        )
    )
    assert (found.node_count, found.function_nodes, found.functions) == (2, 2, ("own.Block",))
    assert found.ops == {"Relu": 2}


def test_training_graphs_are_ignored() -> None:
    model = models.model_of()
    model.training_info.add().algorithm.node.append(models.context_node())
    assert not scan(model).is_compiled


# --- size ------------------------------------------------------------------------------------------------


GUARD_IN_A_PROCESS = """
import re, sys, time
from qnnbridge_host.model.scan import refuse_compiled
from qnnbridge.errors import CompiledModelRefused
begin = time.process_time()
try:
    refuse_compiled(sys.argv[1], "a test")
except CompiledModelRefused:
    used = time.process_time() - begin
    # The greatest size of this program; getrusage() counts what was there before exec, too.
    print(used, int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) / 1024)
"""


@pytest.mark.process
@needs.linux
@pytest.mark.parametrize("embedded", [False, True], ids=["2 GB of weights", "2 GB of context binary"])
def test_a_file_of_2_gb_is_scanned_in_half_a_second_and_100_mb(embedded: bool, tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    if embedded:
        # The marker is a field of the same kind as the context binary, with a changed length.
        size = 2_000_000_000
        node = models.context_node(embed_mode=1, ep_cache_context=None).SerializeToString()
        cache = b"\x0a\x10ep_cache_context\xa0\x01\x03\x22" + models.varint(size)
        attribute = b"\x2a" + models.varint(len(cache) + size) + cache
        graph = b"\x12\x01g\x0a" + models.varint(len(node) + len(attribute) + size) + node + attribute
        head = onnx.ModelProto(ir_version=9).SerializeToString() + b"\x3a" + models.varint(len(graph) + size)
        with path.open("wb") as file:
            file.write(head + graph)
            file.truncate(len(head) + len(graph) + size)
        (found,) = scan_model(path).ep_contexts
        assert found.embedded.length == size
    else:
        models.write_huge(path, 2_000_000_000, models.context_node())
    assert path.stat().st_size > 2_000_000_000
    done = subprocess.run(
        [sys.executable, "-c", GUARD_IN_A_PROCESS, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    seconds, megabytes = map(float, done.stdout.split())
    assert seconds < 0.5
    assert megabytes < 100


class CountingFile(io.BytesIO):
    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.taken += len(data)
        return data


def test_neither_weights_nor_context_binaries_are_read() -> None:
    blob = models.context_node(embed_mode=1, ep_cache_context=bytes(5_000_000))
    weights = onnx.TensorProto(name="w", data_type=1, dims=[5_000_000], raw_data=bytes(20_000_000))
    file = CountingFile(models.model_of(blob, initializer=[weights]).SerializeToString())
    assert scan_open(file).is_compiled
    assert file.taken < 100_000


# --- files that are not models ---------------------------------------------------------------------------

NO_MODELS = {
    "empty": (b"", "is empty"),
    "text": (b"<!DOCTYPE html>\n<html>not found</html>", "it is a text"),
    "text that is no ASCII": ("nicht gefunden: Größe".encode(), "it is a text"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4c\nsize 9\n", "Git LFS pointer"),
    "cut off": (models.model_of(models.context_node()).SerializeToString()[:-3], "cut off"),
    "random": (b"\xff\x01\x80" * 3000, "cut off"),
    "no graph": (onnx.ModelProto(ir_version=9).SerializeToString(), "is not an ONNX model"),
    "context binary": ((models.COMPILED / "a_qnn.bin").read_bytes(), "it is a QNN context binary"),
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_a_file_that_is_not_a_model_is_refused_with_an_explanation(case: str, tmp_path: Path) -> None:
    data, words = NO_MODELS[case]
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(InvalidProtobuf, match=words) as caught:
            scan_model(source)
        assert caught.value.fix
    with pytest.raises(InvalidProtobuf, match=r"broken\.onnx"):
        scan_model(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"nowhere\.onnx"):
        scan_model(tmp_path / "nowhere.onnx")
    with pytest.raises(InvalidProtobuf, match="is a folder"):
        scan_model(tmp_path)


def test_the_ort_format_of_onnx_runtime_is_recognised_by_its_signature(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(MODELS / "mul_1.onnx", options, providers=["CPUExecutionProvider"])
    found = scan_model(tmp_path / "m.ort")
    assert (found.format, found.size_bytes) == ("ort", (tmp_path / "m.ort").stat().st_size)


WHOLE = models.PLACES["in an If in a function"](models.context_node()).SerializeToString()


@given(st.integers(0, len(WHOLE) - 1))
def test_a_truncated_model_raises_or_gives_no_more_than_the_complete_one(length: int) -> None:
    try:
        found = scan_model(WHOLE[:length])
    except InvalidProtobuf:
        return
    assert len(found.ep_contexts) <= 1


@given(
    st.binary(max_size=300)
    | st.builds(lambda at, put: WHOLE[:at] + put + WHOLE[at:], st.integers(0, len(WHOLE)), st.binary(max_size=20))
)
def test_garbage_raises_only_the_typed_error(data: bytes) -> None:
    for count_nodes in (True, False):
        try:
            scan_model(data, count_nodes=count_nodes)
        except InvalidProtobuf:
            pass


@pytest.mark.process
def test_a_scan_loads_neither_onnx_nor_onnx_runtime() -> None:
    code = (
        "import sys; from qnnbridge_host.model.scan import refuse_compiled; refuse_compiled(sys.argv[1], 'x');"
        "print([name for name in ('onnx', 'onnxruntime', 'google', 'rich') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(MODELS / "logreg_iris.onnx")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
