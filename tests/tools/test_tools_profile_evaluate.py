"""Evaluation of recorded files by `qnnbridge profile`: grouping, sums, shares, charts."""

from __future__ import annotations

import dataclasses
import json
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from qnnbridge import HostInfo
from qnnbridge_models.profiling import page, report
from qnnbridge_models.profiling import recording as files
from qnnbridge_models.profiling.evaluate import evaluate
from qnnbridge_models.profiling.page import Bar, bars, shortened, stacked
from qnnbridge_models.profiling.recording import CallKind, QnnCall, QnnRow, Recording
from qnnbridge_models.profiling.report import ProfileResult, Series, document
from qnnbridge_os.outputs import OutputFile
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import Placement
from qnnbridge_tools import output

PROFILES = Path(__file__).parent / "profiles"
ODD_NAME = 'soft0, "the\nfirst"'
BRIDGE_S = 0.002


def recorded(name: str, host: HostInfo, **changes: Any) -> Recording:
    """Return a recording in which the bridge added 2 ms to each run."""
    session = files.read_ort(PROFILES / name / "ort.json")
    recording = Recording(
        model="parts.onnx",
        level="basic" if name == "basic" else "detailed",
        compiled=name == "compiled",
        inputs=(("x", "tensor(float)", "random, seed 0"),),
        bytes_to_host=1024,
        bytes_from_host=256,
        placement=Placement(
            known=True, qnn_nodes=6, cpu_nodes=2, partitions=3, simulator=True, backend="htp", soc_model="60"
        ),
        host=host,
        ready_s=1.0,
        create_s=(session.parse_us + session.initialize_us) / 1e6 + 0.1,
        calls_s=tuple(run.time_us / 1e6 + BRIDGE_S for run in session.runs),
        session=session,
        calls=files.read_qnn(PROFILES / name / "qnn.csv"),
        trace=files.read_op_trace(PROFILES / name / files.OP_TRACE_FILE),
    )
    return dataclasses.replace(recording, **changes)


@pytest.fixture(scope="module")
def host() -> HostInfo:
    return HostInfo(
        pid=1,
        generation=1,
        python="3.11.0",
        machine="arm64",
        platform="Windows",
        executable="python.exe",
        qnnbridge="0.1",
        versions={"onnxruntime": "1.31.1"},
        startup_seconds=0.1,
    )


@pytest.fixture
def detailed(host: HostInfo) -> ProfileResult:
    return evaluate(recorded("detailed", host))


def test_every_partition_has_its_own_calls_of_qnn(detailed: ProfileResult) -> None:
    assert [one.label for one in detailed.partitions] == ["part 1", "part 2", "part 3"]
    assert [one.operators for one in detailed.partitions] == [
        (ODD_NAME,),
        ("add0", "mul0", "soft1"),
        ("add1", "mul1"),
    ]
    first, second, _ = detailed.partitions
    assert first.execute_s is not None
    assert first.execute_s.values == (0.06904, 0.021441, 0.026176)
    assert second.accelerator_s is not None
    assert second.accelerator_s.values == (0.060074, 0.003858, 0.007633)
    for one in detailed.partitions:
        assert one.execute_s
        assert one.accelerator_s
        triples = zip(one.node_s.values, one.execute_s.values, one.accelerator_s.values, strict=True)
        assert all(node >= execute >= accelerator for node, execute, accelerator in triples)


@pytest.mark.parametrize("name", ["basic", "detailed", "compiled"])
def test_the_components_of_a_run_add_up_to_the_call(name: str, host: HostInfo) -> None:
    result = evaluate(recorded(name, host))
    for number, call_s in enumerate(result.call_s.values):
        assert sum(one.time_s.values[number] for one in result.components) == pytest.approx(call_s)
    by_key = {one.key: one.time_s for one in result.components}
    assert list(by_key) == ["bridge", "onnxruntime", "cpu", "provider", "transfer", "accelerator"]
    assert by_key["bridge"].values == pytest.approx((BRIDGE_S,) * 3)
    parts = [one.accelerator_s.values for one in result.partitions if one.accelerator_s]
    assert by_key["accelerator"].values == pytest.approx([sum(values) for values in zip(*parts, strict=True)])


def test_the_first_run_is_reported_separately() -> None:
    series = Series.of([9.0, 1.0, 5.0, 2.0])
    assert (series.first, series.median, series.least, series.most) == (9.0, 2.0, 1.0, 5.0)
    alone = Series.of([9.0])
    assert (alone.first, alone.median) == (9.0, 9.0)


def test_operators_have_their_share_of_the_time_on_the_accelerator(detailed: ProfileResult) -> None:
    by_name = {time.name: time for time in detailed.operators if not time.is_transfer}
    add = by_name["add0"]
    assert (add.type, add.partition, add.cycles.values) == ("ElementWiseAdd", "part 2", (77998, 120344, 47995))
    second = detailed.partitions[1].accelerator_s
    assert second is not None
    in_all = (8562197, 280979, 141477)  # the sums of the cycles of part 2 in the recorded file
    shares = [cycles / whole for cycles, whole in zip(add.cycles.values, in_all, strict=True)]
    later = [share * time for share, time in zip(shares[1:], second.values[1:], strict=True)]
    assert add.time_s == pytest.approx(statistics.median(later))
    assert sum(time.share for time in detailed.operators) == pytest.approx(1.0)
    in_parts = [
        sum(t.time_s or 0 for t in detailed.operators if t.partition == p.label) for p in detailed.partitions
    ]
    assert in_parts == pytest.approx([p.accelerator_s.median for p in detailed.partitions if p.accelerator_s])
    assert [time.cycles.median for time in detailed.operators] == sorted(
        (time.cycles.median for time in detailed.operators), reverse=True
    )


def test_inputs_and_outputs_are_reported_as_transfers_of_their_part(detailed: ProfileResult) -> None:
    moved = [(time.partition, time.name) for time in detailed.operators if time.is_transfer]
    assert len(moved) == len(set(moved)) == 6
    assert [(one.bytes_in, one.bytes_out) for one in detailed.partitions] == [(1024, 1024), (16, 256), (16, 256)]


def test_operators_made_from_one_node_are_merged(host: HostInfo) -> None:
    """QNN creates reshapes around a convolution, and one operator for a convolution with its quantisations."""
    rows = (
        QnnRow("conv_token_7", 60, "CYCLES", "dq;w_dq;conv_token_7;q", True),
        QnnRow("convReshape", 20, "CYCLES", "dq;w_dq;conv_token_7;q", True),
        QnnRow("relu", 20, "CYCLES", "relu", True),
    )
    facts = (QnnRow("Accelerator (execute) time", 1000, "US"),)
    trace = {"g": {"conv_token_7": "Conv2d", "convReshape": "Reshape"}}
    recording = recorded("compiled", host)
    calls = tuple(
        QnnCall(CallKind.EXECUTE, 1200.0, facts, rows) for call in recording.calls if call.kind is CallKind.EXECUTE
    )
    result = evaluate(dataclasses.replace(recording, calls=calls, trace=trace))
    first = [time for time in result.operators if time.partition == "part 1"]
    assert [(time.name, time.type, time.cycles.median) for time in first] == [
        ("conv", "Conv2d", 80),
        ("relu", "", 20),
    ]
    assert first[0].time_s == pytest.approx(0.0008)


def test_loading_is_reported_by_phase_and_adds_up(detailed: ProfileResult) -> None:
    phases = {phase.name: phase for phase in detailed.load}
    assert [phases[f"QNN compiles part {number}"].time_s for number in (1, 2, 3)] == [0.048553, 0.048061, 0.067182]
    assert sum(phase.time_s for phase in detailed.load) == pytest.approx(detailed.recorded.create_s)
    assert {part.name: part.time_s for part in phases["QNN compiles part 1"].parts}[
        "Graph Optimizations"
    ] == 0.037496


def test_a_compiled_model_has_a_loading_phase_instead_of_a_compilation(host: HostInfo) -> None:
    result = evaluate(recorded("compiled", host))
    names = [phase.name for phase in result.load]
    assert "QNN loads the context binary" in names
    assert not any("compiles" in name for name in names)
    assert [one.operators for one in result.partitions][1:] == [("add0", "mul0", "soft1"), ("add1", "mul1")]


def test_nodes_on_the_cpu_are_reported_with_their_time(detailed: ProfileResult) -> None:
    assert {(node.name, node.op, node.calls_per_run) for node in detailed.cpu_nodes} == {
        ("det0", "Det", 1.0),
        ("det1", "Det", 1.0),
    }
    session = files.read_ort(PROFILES / "detailed" / "ort.json")
    for node in detailed.cpu_nodes:
        times = [one.time_us / 1e6 for run in session.runs for one in run.nodes if one.name == node.name]
        assert node.time_s.values == tuple(times)


def test_a_part_within_a_node_on_the_cpu_counts_once(host: HostInfo) -> None:
    """If a part is in the body of a Loop on the CPU, for example, the time of the Loop contains that of the part."""
    recording = recorded("detailed", host)

    def wrapped(run: files.OrtRun) -> files.OrtRun:
        loop = files.NodeRun("loop", "Loop", "CPUExecutionProvider", 0.0, run.time_us - 5, 0, 0)
        return files.OrtRun(run.time_us, (loop, *(dataclasses.replace(node, nested=True) for node in run.nodes)))

    session = dataclasses.replace(recording.session, runs=tuple(map(wrapped, recording.session.runs)))
    plain, result = evaluate(recording), evaluate(dataclasses.replace(recording, session=session))
    for number, call_s in enumerate(result.call_s.values):
        assert sum(one.time_s.values[number] for one in result.components) == pytest.approx(call_s)
    assert {one.key: one for one in result.components}["accelerator"] == plain.components[-1]
    assert (result.cpu_nodes[0].name, result.cpu_nodes[0].nested) == ("loop", False)
    assert [node.nested for node in result.cpu_nodes][1:] == [True, True]


def test_calls_that_do_not_match_are_omitted_with_a_note(host: HostInfo) -> None:
    recording = recorded("detailed", host)
    result = evaluate(dataclasses.replace(recording, calls=recording.calls[:-1]))
    assert all(one.execute_s is None and not one.facts for one in result.partitions)
    assert result.operators == ()
    assert any("cannot be assigned" in note for note in result.notes)
    assert sum(one.time_s.median for one in result.components) == pytest.approx(result.call_s.median, rel=0.2)


def test_without_accelerator_times_those_of_qnn_are_used(host: HostInfo) -> None:
    recording = recorded("basic", host)
    calls = tuple(dataclasses.replace(call, facts=()) for call in recording.calls)
    result = evaluate(dataclasses.replace(recording, calls=calls))
    assert all(one.accelerator_s is None and one.execute_s is not None for one in result.partitions)
    assert sum(one.time_s.values[0] for one in result.components) == pytest.approx(result.call_s.values[0])


def test_times_of_the_simulator_have_a_note_that_they_do_not_apply_to_an_npu(host: HostInfo) -> None:
    simulated = evaluate(recorded("basic", host))
    assert any("do not apply to an NPU" in note for note in simulated.notes)
    on_device = dataclasses.replace(recorded("basic", host).placement, simulator=False)
    assert not any("simulator" in note for note in evaluate(recorded("basic", host, placement=on_device)).notes)


def test_the_level_basic_names_the_level_that_shows_operators(host: HostInfo) -> None:
    assert any("--level detailed records" in note for note in evaluate(recorded("basic", host)).notes)


def test_the_document_is_json_and_complete(detailed: ProfileResult) -> None:
    told = json.loads(json.dumps(output.jsonable(document(detailed)), allow_nan=False))
    assert told["schema"] == 1
    assert told["simulator"] is True
    assert len(told["operators"]) == len(detailed.operators)
    assert told["partitions"][0]["execute_seconds"]["first"] == 0.06904
    assert len(told["run_seconds"]["values"]) == 3


def test_the_text_has_a_bar_for_each_share(detailed: ProfileResult, capsys: pytest.CaptureFixture[str]) -> None:
    report.print_result(detailed, 3)
    text = capsys.readouterr().out
    assert "Parts on QNN: 3" in text
    assert "more with" in text
    assert r'soft0, "the\nfirst"' in text
    assert ODD_NAME not in text
    longest = max(line.count("█") + line.count("#") for line in text.splitlines())
    assert 0 < longest <= report.BAR_WIDTH


@pytest.mark.parametrize(("share", "cells"), [(0.0, 0), (0.001, 0), (0.01, 1), (0.5, 12), (1.0, 24), (7.0, 24)])
def test_a_bar_is_as_long_as_its_share(share: float, cells: int) -> None:
    assert len(report.bar(share)) == cells


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")])
def test_bytes_have_the_unit_that_fits(count: int, text: str) -> None:
    assert report.bytes_text(count) == text


class Reader(HTMLParser):
    """Parser that collects tags and checks that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_complete_and_loads_nothing(detailed: ProfileResult) -> None:
    reader = Reader()
    reader.feed(page.page(detailed))
    assert reader.open == []
    assert not reader.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"}
    assert not {name for name, _ in reader.attributes} & {"src", "href", "style", "onload", "onclick"}
    assert [value for _, value in reader.attributes if value and "://" in value] == [
        "http://www.w3.org/2000/svg"
    ] * 6
    for words in (
        "Parts on QNN: 3",
        "Operators on QNN",
        "Nodes on the CPU: 2",
        "Loading",
        "do not apply to an NPU",
    ):
        assert words in reader.text


def test_names_from_a_model_cannot_escape_into_the_page(host: HostInfo) -> None:
    evil = "</title><script>alert(1)</script>&\"'\x07"
    recording = recorded("detailed", host, model=f"{evil}.onnx")
    runs = tuple(
        dataclasses.replace(
            run, nodes=tuple(dataclasses.replace(node, name=evil + node.name) for node in run.nodes)
        )
        for run in recording.session.runs
    )
    session = dataclasses.replace(recording.session, runs=runs)
    made = page.page(evaluate(dataclasses.replace(recording, session=session)))
    reader = Reader()
    reader.feed(made)
    assert "script" not in reader.tags
    assert "\x07" not in made
    assert "alert(1)" in reader.text


def test_bars_are_as_long_as_their_values() -> None:
    drawn = ElementTree.fromstring(bars("title", [Bar("a", 4.0, "4"), Bar("b", 1.0, "1"), Bar("c", 0.0, "0")]))
    widths = [float(rect.attrib["width"]) for rect in drawn.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[0] / widths[1] == pytest.approx(4.0)
    assert widths[2] == 1.0
    whole = ElementTree.fromstring(stacked("title", [Bar("a", 3.0, "3"), Bar("b", 1.0, "1")]))
    rects = [rect.attrib for rect in whole.iter("{http://www.w3.org/2000/svg}rect")]
    assert float(rects[1]["x"]) == pytest.approx(float(rects[0]["width"])) == pytest.approx(720.0)
    ElementTree.fromstring(bars("nothing", []))
    ElementTree.fromstring(stacked("nothing", []))


def test_a_long_label_is_shortened_in_the_middle() -> None:
    assert shortened("short") == "short"
    cut = shortened("first/" + "x" * 100 + "/last")
    assert cut.startswith("first/")
    assert cut.endswith("/last")
    assert len(cut) < 50


def test_the_page_is_written_completely_or_not_at_all(detailed: ProfileResult, tmp_path: Path) -> None:
    target = tmp_path / "profile.html"
    target.write_text("old", encoding="utf-8")
    OutputFile(target, overwrite=True).write_text(page.page(detailed))
    assert target.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.html"]
    with pytest.raises(OptionError, match="is a folder"):
        OutputFile(tmp_path, overwrite=True)
