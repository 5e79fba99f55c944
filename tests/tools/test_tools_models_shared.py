"""Common parts of `optimize` and `quantize`: comparing results, sizes of free dimensions, the extra, progress."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tests import needs

pytest.importorskip("onnxruntime")

import model_work_models as models

from qnnbridge_host.engine import cpu
from qnnbridge_host.graph import shapes
from qnnbridge_host.graph.files import Output, inside_folder
from qnnbridge_host.numerics.comparing import OutputComparison, compare, cosine
from qnnbridge_host.rewrite.removals import INSERTED_CAST, strip_inserted_casts
from qnnbridge_models.progress import ShownProgress
from qnnbridge_models.quantize.ort_quantizer import Quiet
from qnnbridge_protocol.errors import BridgeError, InvalidProtobuf, OptionError
from qnnbridge_protocol.installing import install_command

MODELS = Path(__file__).parent.parent / "models"
MUL, RNET = MODELS / "mul_1.onnx", MODELS / "rnet.onnx"


def difference(expected: object, found: object) -> OutputComparison:
    return compare(["y"], [[expected]], [[found]])[0]


def test_rounding_is_within_the_tolerance_and_a_wrong_value_is_not() -> None:
    expected = np.linspace(-10, 10, 50, dtype=np.float32)
    near, wrong = expected * np.float32(1 + 1e-6), expected.copy()
    wrong[7] += 0.5
    assert difference(expected, near).within(1e-3)
    told = difference(expected, wrong)
    assert not told.within(1e-3)
    assert told.max_abs == pytest.approx(0.5)
    assert told.max_relative == pytest.approx(0.05)
    assert told.cosine is not None
    assert 0.99 < told.cosine < 1


def test_nan_and_infinity_equal_only_themselves() -> None:
    expected = np.array([1, np.nan, np.inf, 4], np.float32)
    assert difference(expected, expected.copy()).within(1e-3)
    assert difference(expected, np.array([1, 2, np.inf, 4], np.float32)).different == 1
    assert difference(expected, np.array([1, np.nan, -np.inf, 4], np.float32)).different == 1


def test_integers_must_be_equal_but_quantised_ones_may_be_one_step_off() -> None:
    assert not difference(np.array([5, 6]), np.array([5, 7])).within(1)
    assert difference(np.array([5, 6], np.uint8), np.array([5, 7], np.uint8)).within(0)
    assert not difference(np.array([5, 6], np.uint8), np.array([5, 8], np.uint8)).within(1)
    assert not difference(np.array([True]), np.array([False])).within(1)
    assert not difference(np.array(["a"]), np.array(["b"])).within(1)
    assert not difference(np.array([2**60]), np.array([2**60 + 1])).within(1), "float64 cannot tell these apart"


def test_different_shapes_types_or_trees_are_a_mismatch() -> None:
    assert "shape" in (difference(np.zeros(2), np.zeros(3)).mismatch or "")
    assert "type" in (difference(np.zeros(2), np.zeros(2, np.float32)).mismatch or "")
    assert "length" in (difference([np.zeros(2)], []).mismatch or "")
    assert "keys" in (difference({"a": 1.0}, {"b": 1.0}).mismatch or "")
    assert difference([{0: 0.5, 1: 0.5}], [{0: 0.5, 1: 0.5}]).within(0)
    assert not difference([{0: 0.5, 1: 0.5}], [{0: 0.9, 1: 0.1}]).within(1e-3)


def test_the_worst_sample_decides() -> None:
    good, bad = np.ones(4, np.float32), np.array([1, -1, 1, -1], np.float32)
    told = compare(["y"], [[good], [good]], [[good], [bad]])[0]
    assert told.cosine == pytest.approx(0)
    assert told.elements == 8


def test_the_cosine_neither_overflows_nor_divides_by_zero() -> None:
    assert cosine(np.full(3, 1e200), np.full(3, 1e-200)) == pytest.approx(1)
    assert cosine(np.zeros(3), np.zeros(3)) == 1
    assert cosine(np.zeros(3), np.ones(3)) == 0


def test_two_axes_with_the_same_name_can_get_separate_sizes_by_axis() -> None:
    made = models.one_node("Relu", [models.value("x", ["?", "?"])], [models.value("y", ["?", "?"])])
    free = shapes.free_dimensions(made.graph)
    assert shapes.options_text(free, {("x", 0): 4, ("x", 1): 8}) == '--dim "x:0=4" --dim "x:1=8"'
    assert shapes.options_text(free, {("x", 0): 4, ("x", 1): 4}) == '--dim "x:0=4" --dim "x:1=4"'
    assert shapes.fix(made, shapes.as_dimensions({"x:0": 4, "x:1": 8}))
    assert [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim] == [4, 8]


def test_minus_one_is_a_free_dimension_and_zero_is_not() -> None:
    made = models.one_node("Relu", [models.value("x", [-1, 0, 3])], [models.value("y", [-1, 0, 3])])
    assert [dimension.axis for dimension in shapes.free_dimensions(made.graph)] == [0]


def test_casts_inserted_by_onnxruntime_are_removed_and_others_are_kept() -> None:
    from onnx import helper

    nodes = [
        helper.make_node("Cast", ["x"], ["x32"], name=INSERTED_CAST + "x", to=models.FLOAT),
        helper.make_node("Relu", ["x32"], ["r32"], name="relu"),
        helper.make_node("Cast", ["r32"], ["y"], name=INSERTED_CAST + "y", to=models.FLOAT16),
        helper.make_node("Cast", ["y"], ["z"], name="wanted", to=models.FLOAT),
    ]
    made = models.model(
        nodes,
        [models.value("x", [2], models.FLOAT16)],
        [models.value("y", [2], models.FLOAT16), models.value("z", [2])],
    )
    assert strip_inserted_casts(made) == 2
    assert [(list(n.input), list(n.output)) for n in made.graph.node] == [(["x"], ["y"]), (["y"], ["z"])]


@pytest.mark.parametrize("name", ["a.bin", "sub/a.bin", "a..b.bin"])
def test_names_inside_of_a_folder_are_accepted(name: str) -> None:
    assert inside_folder(name)


@pytest.mark.parametrize(
    "name", ["", "..", "../a", "a/../../b", "a\\..\\..\\b", "/a", "\\a", "C:a", "C:\\a", "//s/a", "a\0"]
)
def test_names_that_may_lead_out_of_a_folder_are_refused(name: str) -> None:
    assert not inside_folder(name)


def test_a_new_model_is_never_visible_with_old_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails between the two renames: then there is no model at all, instead of one with wrong weights."""
    import os

    target = tmp_path / "o.onnx"
    target.write_bytes(b"old model")
    (tmp_path / "o.onnx.data").write_bytes(b"old weights")
    real = os.replace

    def breaks(source: Path, place: Path) -> None:
        if Path(place).name == "o.onnx":
            raise OSError("the disk is gone")
        real(source, place)

    with Output(tmp_path / "m.onnx", target, overwrite=True, external=True) as output:
        output.model.write_bytes(b"new model")
        output.model.with_name(output.data_name).write_bytes(b"new weights")
        monkeypatch.setattr(os, "replace", breaks)
        with pytest.raises(OSError, match="the disk is gone"):
            output.commit()
    assert [path.name for path in tmp_path.iterdir()] == ["o.onnx.data"]


@needs.posix
@pytest.mark.parametrize("command", ["optimize", "quantize"])
def test_a_result_that_cannot_be_written_is_one_clear_error(command: str, tmp_path: Path) -> None:
    """Limit the size of files, which the writer sees as a full disk."""
    target = tmp_path / "out" / "o.onnx"
    words = [command, str(RNET), "-o", str(target), "--dim", "N=1"]
    words += ["--random", "1"] if command == "quantize" else []
    code = (
        # With bytecode enabled, Python would keep truncated files for all later tests.
        "import resource, sys; sys.dont_write_bytecode = True; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
        f"from qnnbridge_tools.cli import main; sys.argv = {['qnnbridge', *words]!r}; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert f"Error: o.onnx cannot be written to {target.parent}." in done.stderr
    assert "Fix: Free disk space" in done.stderr
    assert list(target.parent.iterdir()) == []


def test_an_unrelated_error_is_not_changed(tmp_path: Path) -> None:
    for error in (
        FileNotFoundError(2, "No such file", "x"),
        InvalidProtobuf("x", cause="Protobuf parsing failed."),
    ):
        with pytest.raises(type(error)), Output(MUL, tmp_path / "o.onnx", overwrite=False):
            raise error


@pytest.mark.parametrize(
    ("folder", "cause"),
    [("/proc/self/x", "No file can be created in /proc/.*: No such file"), ("/dev/null/x", "/dev/null is a file")],
)
@needs.linux
def test_a_folder_that_cannot_be_written_is_reported(folder: str, cause: str) -> None:
    with (
        pytest.raises(OptionError, match=rf"{folder}/o.onnx cannot be written.\n  Cause: {cause}"),
        Output(MUL, Path(folder) / "o.onnx", overwrite=False),
    ):
        pass


def test_without_the_extra_there_is_one_clear_error(tmp_path: Path) -> None:
    """Run in a process that cannot import onnxruntime."""
    code = (
        "import sys; sys.modules['onnxruntime'] = None; from qnnbridge_tools.cli import main; "
        f"sys.argv = ['qnnbridge', COMMAND, {str(MUL)!r}, '-o', {str(tmp_path / 'o.onnx')!r}]; "
        "sys.exit(main())"
    )
    for command in ("optimize", "quantize"):
        result = subprocess.run(
            [sys.executable, "-c", code.replace("COMMAND", repr(command))],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == 1
        assert f"qnnbridge {command} needs onnxruntime" in result.stderr
        assert install_command("models", python=sys.executable) in result.stderr
        assert "Traceback" not in result.stderr


def test_a_package_that_cannot_be_loaded_has_a_separate_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ImportError("DLL load failed while importing onnxruntime_pybind11_state")

    monkeypatch.setattr(cpu.importlib, "import_module", fails)
    with pytest.raises(BridgeError, match="installed but cannot be imported") as caught:
        cpu.require_models_extra("qnnbridge optimize")
    assert "DLL load failed" in (caught.value.cause or "")


def test_progress_is_printed_as_lines_when_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    with ShownProgress() as progress:
        progress("preparing", 0, 0)
        for done in range(1001):
            progress("calibrating", done, 1000)
    lines = piped.getvalue().splitlines()
    assert lines[:2] == ["preparing", "calibrating 0/1000"]
    assert lines[-1] == "calibrating 1000/1000"
    assert len(lines) == 12


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with ShownProgress() as progress:
        for done in range(11):
            progress("calibrating", done, 10)
    assert "10/10" in terminal.getvalue()
    assert "\n" not in terminal.getvalue().split("10/10")[0].strip("\n"), "one line that is drawn again and again"


def test_only_the_thread_of_the_quantizer_is_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    with Quiet() as quiet:
        print("from the quantizer")
        logging.warning("about the model")
        other = threading.Thread(target=print, args=("from the application",))
        other.start()
        other.join()
    assert capsys.readouterr().out == "from the application\n"
    assert quiet.messages == ["about the model"]
    assert root.handlers == before


def test_two_overlapping_quantizers_leave_the_output_streams_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    """The first quantizer to start, in this thread, is the first to end; the other one continues meanwhile."""
    before, begun, ended = sys.stdout, threading.Event(), threading.Event()

    def other() -> None:
        with Quiet():
            begun.set()
            assert ended.wait(30)
            print("from the second quantizer")

    thread = threading.Thread(target=other)
    with Quiet():
        thread.start()
        assert begun.wait(30)
    print("from the application")
    ended.set()
    thread.join(30)
    assert sys.stdout is before
    assert capsys.readouterr().out == "from the application\n"


def test_malformed_sizes_are_refused() -> None:
    with pytest.raises(OptionError):
        shapes.as_dimensions({"N": 0})


def test_constants_after_inserted_casts_are_float16_again() -> None:
    """ONNX Runtime folds the cast into the constant, on either side of the operator."""
    import onnx
    import onnx.reference
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("Cast", ["x"], ["x32"], name=INSERTED_CAST + "x", to=models.FLOAT),
        helper.make_node("Div", ["one", "x32"], ["d"]),
        helper.make_node("Clip", ["d", "", "most"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], name=INSERTED_CAST + "y", to=models.FLOAT16),
        helper.make_node("Cast", ["y"], ["w"], to=models.FLOAT),
        helper.make_node("Add", ["w", "one"], ["z"]),
    ]
    values = [helper.make_tensor_value_info("x", models.FLOAT16, [2])]
    results = [helper.make_tensor_value_info("z", models.FLOAT, [2])]
    constants = [numpy_helper.from_array(np.float32(value), name) for name, value in (("one", 1), ("most", 0.25))]
    made = helper.make_model(
        helper.make_graph(nodes, "g", values, results, constants), opset_imports=[helper.make_opsetid("", 17)]
    )
    assert strip_inserted_casts(made) == 2
    onnx.checker.check_model(made, full_check=True)
    (answer,) = onnx.reference.ReferenceEvaluator(made).run(None, {"x": np.array([2, 8], np.float16)})
    np.testing.assert_array_equal(answer, np.array([1.25, 1.125], np.float32))
