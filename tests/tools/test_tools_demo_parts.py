"""The demo's parts: lines, preview, report."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from qnnbridge import HostInfo, Placement
from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_tools import demo, output
from qnnbridge_tools.demo import GLYPHS, Computed, DemoResult, preview

ASSETS = Path(demo.__file__).parent / "assets"


def test_the_lines_are_images_with_the_height_that_the_model_requires() -> None:
    asked = demo.load_lines()
    assert len(asked) == 6
    assert 0 < sum(line.upside_down for line in asked) < 6
    for line in asked:
        assert line.image.dtype == np.uint8
        assert line.image.shape[0] == 48
        assert line.image.shape[1] <= 192
        assert line.image.shape[2] == 3
    assert min(line.image.shape[1] for line in asked) < 192, "one line must be shorter: padding has to be shown"


def test_pixels_are_scaled_as_in_training_and_padding_is_zero() -> None:
    image = np.zeros((48, 100, 3), np.uint8)
    image[:, :, 1] = 255
    tensor = demo.model_input(image)
    assert tensor.shape == (1, 3, 48, 192)
    assert tensor.dtype == np.float32
    assert (tensor[0, 0, :, :100] == -1).all()
    assert (tensor[0, 1, :, :100] == 1).all()
    assert (tensor[..., 100:] == 0).all()


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="48 pixels high"):
        demo.model_input(np.zeros((32, 100, 3), np.uint8))
    with pytest.raises(ValueError, match="at most 192 wide"):
        demo.model_input(np.zeros((48, 193, 3), np.uint8))


def test_the_answer_is_the_more_probable_of_both_orientations() -> None:
    assert demo.answer_of(np.array([[0.25, 0.75]])) == demo.LineAnswer(upside_down=True, sure=0.75)
    assert demo.answer_of(np.array([[0.9, 0.1]])) == demo.LineAnswer(upside_down=False, sure=0.9)


def test_the_model_recognises_every_line_also_when_it_is_upside_down() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    with demo.model_file() as path:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for line in demo.load_lines():
        for image, upside_down in (
            (line.image, line.upside_down),
            (np.ascontiguousarray(line.image[::-1, ::-1]), not line.upside_down),
        ):
            (probabilities,) = session.run(None, {demo.INPUT_NAME: demo.model_input(image)})
            assert demo.answer_of(probabilities).upside_down is upside_down, line.text


def test_licence_and_origin_are_in_the_package_of_the_model_and_name_its_author() -> None:
    notice = (ASSETS / "NOTICE.md").read_text(encoding="utf-8")
    generator = (Path(__file__).parents[2] / "scripts" / "makers" / "demo_files.py").read_text(encoding="utf-8")
    assert "Apache License" in (ASSETS / "LICENSE-Apache-2.0.txt").read_text(encoding="utf-8")
    (source_digest,) = set(re.findall(r"\b[0-9a-f]{64}\b", notice))
    assert source_digest in generator
    assert "rapidocr-onnxruntime 1.4.4" in notice


def test_the_model_equals_the_published_one_apart_from_its_dimensions() -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(ASSETS / "text_direction.onnx"))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == list(demo.INPUT_SHAPE)
    # With the published dimensions, the model must be the published file again, byte for byte.
    for dim in dims:
        dim.Clear()
    dims[0].dim_value, dims[1].dim_value, dims[2].dim_param, dims[3].dim_param = -1, 3, "?", "?"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    notice = (ASSETS / "NOTICE.md").read_text(encoding="utf-8")
    assert hashlib.sha256(model.SerializeToString()).hexdigest() in notice


def test_a_line_is_drawn_in_half_blocks_with_two_pixels_per_cell() -> None:
    image = np.full((48, 30, 3), 255, np.uint8)
    image[12:15, 6:9] = 0  # one preview pixel, in the upper half of its cell
    image[18:24, 12:15] = 0  # two pixels, one above the other
    image[27:30, 0:3] = 0  # one pixel, in the lower half
    assert preview(image) == ["  ▀", "    █", "▄"]
    assert set("".join(preview(demo.load_lines()[0].image))) <= set(GLYPHS)


def test_light_text_on_a_dark_background_is_drawn_as_ink() -> None:
    image = np.zeros((48, 30, 3), np.uint8)
    image[24:27, 3:6] = 255
    assert preview(image) == [" ▀"]


HOST = HostInfo(
    pid=1,
    machine="arm64",
    python="3.11.9",
    executable="python.exe",
    qnnbridge="0.1.0",
    platform="win-arm64",
    generation=1,
    startup_seconds=0.1,
    versions={"onnxruntime": "1.31.1"},
)


def outcome(*, qnn: bool = True) -> DemoResult:
    """Return six right answers of both providers."""
    asked = demo.load_lines()
    answers = [demo.LineAnswer(line.upside_down, 0.99) for line in asked]
    on_cpu = Computed(answers, Placement(cpu_nodes=9), load_s=0.1, run_s=0.01)
    on_qnn = Computed(answers, Placement(qnn_nodes=9), load_s=0.1, run_s=0.01)
    error = None if qnn else ProviderUnavailable("No QNN here.", fix="Install it.")
    return DemoResult(asked, on_qnn if qnn else None, error, on_cpu, HOST, ready_s=0.2)


def with_wrong_answer(provider: str) -> DemoResult:
    good = outcome()
    computed = good.qnn if provider == "qnn" else good.cpu
    assert computed is not None
    first = dataclasses.replace(computed.answers[0], upside_down=not computed.answers[0].upside_down)
    worse = dataclasses.replace(computed, answers=[first, *computed.answers[1:]])
    return dataclasses.replace(good, qnn=worse) if provider == "qnn" else dataclasses.replace(good, cpu=worse)


def test_only_right_answers_on_qnn_are_a_success() -> None:
    assert outcome().ok
    assert not with_wrong_answer("qnn").ok
    assert with_wrong_answer("cpu").ok
    assert not outcome(qnn=False).ok


def test_the_output_shows_the_answers_and_where_they_were_computed(capsys: pytest.CaptureFixture[str]) -> None:
    good = outcome()
    assert good.qnn is not None
    placement = Placement(qnn_nodes=181, simulator=True, soc_model="60", backend="htp")
    demo.print_outcome(dataclasses.replace(good, qnn=dataclasses.replace(good.qnn, placement=placement)))
    printed = capsys.readouterr().out
    assert "Departures         upright, 99.0 % sure      upright, 99.0 % sure      yes    yes\n" in printed
    assert "6 of 6 right. QNN and CPU agree on 6 of 6" in printed
    assert "nodes        181 nodes on QNN, 0 on the CPU, after optimisation\n" in printed
    assert "HTP simulator on the CPU, not an NPU; SoC model 60; backend htp\n" in printed
    assert "host start-up  200 ms (connects after 100 ms, then loads ONNX Runtime)\n" in printed
    assert "QNN            load 100 ms, run 10 ms for a line (median)\n" in printed


def test_a_wrong_answer_is_marked_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_outcome(with_wrong_answer("qnn"))
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("Departures")]
    assert row.split()[-2:] == ["NO", "NO"]
    assert "5 of 6 right. QNN and CPU agree on 5 of 6; their probabilities differ by 0.9800 at most." in printed


def test_without_qnn_the_reason_and_the_fix_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_outcome(outcome(qnn=False))
    printed = capsys.readouterr().out
    assert "6 of 6 right, computed by the CPU provider only." in printed
    assert "QNN could not be used: No QNN here.\n  Fix: Install it." in printed
    assert "CPU of the host" in printed


def test_on_a_terminal_the_lines_are_drawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    demo.print_outcome(with_wrong_answer("cpu"))
    printed = capsys.readouterr().out
    assert "██" in printed
    assert '"Departures": upright, 99.0 % sure. CPU: upside down, 99.0 % sure. They DISAGREE.\n' in printed
    assert '"Exit 9": upside down, 99.0 % sure. CPU: upside down, 99.0 % sure. They agree.\n' in printed
    monkeypatch.setenv("COLUMNS", "40")
    demo.print_outcome(outcome())
    assert "██" not in capsys.readouterr().out, "a narrow terminal would break the drawing"


def test_on_an_npu_the_simulator_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    demo.print_outcome(outcome())
    printed = capsys.readouterr().out
    assert "simulator" not in printed
    assert "device       NPU" in printed
