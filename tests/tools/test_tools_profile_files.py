"""The readers of profile recording, with files that ONNX Runtime and QNN's provider wrote (see profiles/README.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from qnnbridge_models.profiling import recording
from qnnbridge_models.profiling.recording import CallKind
from qnnbridge_protocol.errors import BridgeError

PROFILES = Path(__file__).parent / "profiles"
HEADER = "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"
ODD_NAME = 'soft0, "the\nfirst"'


def of_kind(name: str, kind: CallKind) -> list[recording.QnnCall]:
    return [call for call in recording.read_qnn(PROFILES / name / "qnn.csv") if call.kind is kind]


def written(folder: Path, text: str) -> Path:
    path = folder / "qnn.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize("name", ["basic", "detailed"])
def test_every_graph_counts_once_although_the_file_lists_most_of_them_twice(name: str) -> None:
    text = (PROFILES / name / "qnn.csv").read_text(encoding="utf-8")
    assert text.count(",FINALIZE,") == 5
    times = [call.time_us for call in of_kind(name, CallKind.COMPILE)]
    assert len(times) == len(set(times)) == 3
    assert all(f"FINALIZE,{time:.0f},US" in text for time in times)


def test_a_compilation_has_its_phases() -> None:
    first, second, third = of_kind("detailed", CallKind.COMPILE)
    assert [call.time_us for call in (first, second, third)] == [48553, 48061, 67182]
    assert [row.name for row in first.parts][:3] == [
        "Graph Preparation Initializing",
        "Graph Optimizations",
        "Post Graph Optimization",
    ]
    assert next(row.value for row in third.parts if row.name == "Finalizing Graph Sequence") == 12491


def test_two_graphs_with_equal_compile_times_stay_separate(tmp_path: Path) -> None:
    row = "0,FINALIZE,100,US,BACKEND,ROOT,QNN (finalize) time\n"
    assert len(recording.read_qnn(written(tmp_path, HEADER + row * 2))) == 2
    assert len(recording.read_qnn(written(tmp_path, HEADER + row * 3))) == 2
    assert len(recording.read_qnn(written(tmp_path, HEADER + row * 4))) == 4


def test_an_execution_has_its_operators_and_the_metrics_of_the_backend() -> None:
    executed = of_kind("detailed", CallKind.EXECUTE)
    assert len(executed) == 9
    assert [call.time_us for call in executed[:3]] == [69040, 60238, 51969]
    second = executed[1]
    assert second.fact("Accelerator (execute) time") == 60074
    assert second.fact("Accelerator (execute) time (cycles)") == 8562273
    assert second.fact("RPC (execute) time") is None
    assert [(row.name, row.value, row.sources, row.is_transfer) for row in second.parts] == [
        ("Input", 970, "", True),
        ("add0", 77998, "add0", False),
        ("mul0", 43119, "mul0", False),
        ("soft1", 8438621, "soft1", False),
        ("Output", 1565, "", True),
    ]


def test_the_level_basic_has_times_and_no_operators() -> None:
    executed = of_kind("basic", CallKind.EXECUTE)
    assert len(executed) == 9
    assert all(call.fact("Accelerator (execute) time") and not call.parts for call in executed)


@pytest.mark.parametrize("name", ["detailed", "compiled"])
def test_a_name_with_comma_quote_and_line_break_is_read_completely(name: str) -> None:
    first = of_kind(name, CallKind.EXECUTE)[0].parts[1]
    assert first.name == ODD_NAME
    assert first.is_operator
    assert first.sources == (ODD_NAME if name == "detailed" else "")


def test_loading_a_compiled_model_is_a_call_with_the_accelerator_time() -> None:
    [loaded] = of_kind("compiled", CallKind.LOAD)
    assert loaded.time_us > 0
    assert [fact.name for fact in loaded.facts] == ["Accelerator (load binary) time"] * 3
    assert not of_kind("compiled", CallKind.COMPILE)


def test_metrics_that_only_a_device_reports_belong_to_their_call(tmp_path: Path) -> None:
    rows = (
        "7,BACKEND,300,US,BACKEND,ROOT,RPC (execute) time",
        "7,BACKEND,250,US,BACKEND,ROOT,QNN accelerator (execute) time",
        "7,BACKEND,200,US,BACKEND,ROOT,Accelerator (execute) time",
        "7,EXECUTE,400,US,BACKEND,ROOT,QNN (execute) time",
        "7,DEINIT,90,US,BACKEND,ROOT,QNN (deinit) time",
    )
    for end in ("\n", "\r\n"):
        executed, closed = recording.read_qnn(written(tmp_path, HEADER + "".join(row + end for row in rows)))
        assert (executed.kind, executed.time_us, executed.fact("RPC (execute) time")) == (
            CallKind.EXECUTE,
            400,
            300,
        )
        assert (closed.kind, closed.facts) == (CallKind.CLOSE, ())


def test_a_node_of_the_model_that_is_called_input_is_not_a_transfer(tmp_path: Path) -> None:
    rows = (
        "0,BACKEND,9,CYCLES,BACKEND,ROOT,Accelerator (execute) time (cycles)\n"
        "0,NODE,4,CYCLES,BACKEND,SUB-EVENT,Input OpId_2 (cycles)\n"
        "0,NODE,5,CYCLES,BACKEND,SUB-EVENT,Input:OpId_16 (cycles)\n"
        "0,EXECUTE,1,US,BACKEND,ROOT,QNN (execute) time\n"
    )
    [call] = recording.read_qnn(written(tmp_path, HEADER + rows))
    assert [(row.name, row.is_transfer) for row in call.parts] == [("Input", True), ("Input", False)]


@pytest.mark.parametrize("name", ["basic", "detailed", "compiled"])
def test_a_truncated_qnn_profile_is_an_error_or_has_fewer_calls(name: str, tmp_path: Path) -> None:
    whole = (PROFILES / name / "qnn.csv").read_bytes()
    calls = len(recording.read_qnn(PROFILES / name / "qnn.csv"))
    refused = 0
    for size in range(0, len(whole) - 1, 41):
        path = tmp_path / "qnn.csv"
        path.write_bytes(whole[:size])
        try:
            assert len(recording.read_qnn(path)) < calls, size
        except BridgeError as error:
            refused += 1
            assert "The profile of QNN cannot be read" in str(error)
            assert error.fix
    assert refused > 20


@pytest.mark.parametrize("text", ["", "nonsense\n", "\0\0\0\0", "Msg Timestamp\n1,2,3\n", HEADER + "nonsense\n"])
def test_a_file_that_is_not_a_qnn_profile_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match="The profile of QNN cannot be read"):
        recording.read_qnn(written(tmp_path, text))


def test_a_profile_without_any_call_is_empty(tmp_path: Path) -> None:
    assert recording.read_qnn(written(tmp_path, HEADER)) == ()


def test_the_error_of_a_missing_file_contains_its_producer(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match=r"QNN wrote no profile[\s\S]*qnn\.csv does not exist"):
        recording.read_qnn(tmp_path / "qnn.csv")
    with pytest.raises(BridgeError, match=r"ONNX Runtime wrote no profile[\s\S]*disk is full"):
        recording.read_ort(tmp_path / "ort.json")


def test_the_error_for_a_file_that_is_too_large_has_a_fix(tmp_path: Path) -> None:
    path = tmp_path / "qnn.csv"
    path.touch()
    os.truncate(path, recording.MAX_PROFILE_BYTES + 1)
    for read in (recording.read_qnn, recording.read_ort):
        with pytest.raises(BridgeError, match=r"too large: 256 MiB[\s\S]*--runs 10"):
            read(path)


@pytest.mark.parametrize("name", ["basic", "detailed", "compiled"])
def test_the_onnxruntime_profile_has_loading_and_the_nodes_of_every_run(name: str) -> None:
    path = PROFILES / name / "ort.json"
    profile = recording.read_ort(path)
    events = json.loads(path.read_text(encoding="utf-8"))
    assert profile.parse_us == next(e["dur"] for e in events if e["name"] == "model_loading_uri")
    assert profile.initialize_us == next(e["dur"] for e in events if e["name"] == "session_initialization")
    assert [run.time_us for run in profile.runs] == [e["dur"] for e in events if e["name"] == "model_run"]
    for run in profile.runs:
        assert [node.provider[:3] for node in run.nodes] == ["QNN", "CPU", "QNN", "CPU", "QNN"]
        assert [node.name for node in run.nodes if node.op == "Det"] == ["det0", "det1"]
        assert (run.nodes[0].bytes_in, run.nodes[0].bytes_out) == (1024, 1024)
        assert sum(node.time_us for node in run.nodes) <= run.time_us
        assert not any(node.nested for node in run.nodes)


def test_a_node_within_another_one_is_nested(tmp_path: Path) -> None:
    def event(name: str, start: int, duration: int, category: str = "Node") -> str:
        return json.dumps({"cat": category, "name": name, "ts": start, "dur": duration, "args": {}})

    events = [
        event("body_kernel_time", 12, 3),
        event("body_kernel_time", 16, 3),
        event("loop_kernel_time", 10, 10),
        event("after_kernel_time", 20, 5),
        event("model_run", 9, 20, "Session"),
    ]
    path = tmp_path / "ort.json"
    path.write_text("[\n" + ",\n".join(events) + "\n]\n", encoding="utf-8")
    [run] = recording.read_ort(path).runs
    assert [(node.name, node.nested) for node in run.nodes] == [
        ("loop", False),
        ("body", True),
        ("body", True),
        ("after", False),
    ]


def test_a_truncated_onnxruntime_profile_is_an_error(tmp_path: Path) -> None:
    whole = (PROFILES / "detailed" / "ort.json").read_bytes().rstrip()
    path = tmp_path / "ort.json"
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(BridgeError, match="The profile of ONNX Runtime cannot be read"):
            recording.read_ort(path)


@pytest.mark.parametrize("text", ["[]\n", "[\n]\n"])
def test_an_onnxruntime_profile_without_events_has_no_runs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ort.json"
    path.write_text(text, encoding="utf-8")
    assert recording.read_ort(path).runs == ()


@pytest.mark.parametrize("text", ["[\n17,\n]\n", '[\n{"name": "x"},\n]\n', '[\n{"dur": "x"},\n]\n', "{}"])
def test_a_file_that_is_not_an_onnxruntime_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ort.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BridgeError, match="The profile of ONNX Runtime cannot be read"):
        recording.read_ort(path)


def test_the_operator_trace_lists_the_nodes_of_each_graph() -> None:
    trace = recording.read_op_trace(PROFILES / "detailed" / "qnn_op_trace.json")
    assert [list(graph) for graph in trace.values()] == [
        [ODD_NAME],
        ["add0", "mul0", "soft1"],
        ["add1", "mul1"],
    ]
    assert list(trace.values())[1]["mul0"] == "ElementWiseMultiply"


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"subgraph_traces": [{}]}', '{"subgraph_traces": 1}'])
def test_an_unreadable_operator_trace_is_ignored(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / recording.OP_TRACE_FILE
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert recording.read_op_trace(path) == {}
