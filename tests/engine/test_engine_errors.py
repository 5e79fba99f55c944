"""The closed table that maps exceptions of ONNX Runtime and Python to the project's errors."""

from __future__ import annotations

import builtins
import re

import pytest

from qnnbridge_host.engine.ort_errors import Circumstances, is_cpu_fallback_refusal, translate
from qnnbridge_protocol import errors
from qnnbridge_protocol.shell import ModelInCommands

state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")


def raised_classes() -> list[type[Exception]]:
    found = [getattr(state, name) for name in dir(state)]
    return [cls for cls in found if isinstance(cls, type) and issubclass(cls, Exception)]


def test_each_error_class_of_the_installed_onnx_runtime_has_a_counterpart() -> None:
    assert {cls.__name__ for cls in raised_classes()} == set(errors.ORT_ERRORS)


@pytest.mark.parametrize("cls", raised_classes(), ids=lambda cls: cls.__name__)
def test_an_error_of_onnx_runtime_keeps_its_class_name_and_text(cls: type[Exception]) -> None:
    text = "[ONNXRuntimeError] : 1 : ANYTHING : a text, unchanged\nwith a second line"
    error = translate(cls(text))
    assert type(error).__name__ == cls.__name__
    assert isinstance(error, errors.OrtError)
    assert error.message == text


# OrtErrorCode, starting at 1.
CODES = (
    *("Fail", "InvalidArgument", "NoSuchFile", "NoModel", "EngineError", "RuntimeException", "InvalidProtobuf"),
    *("ModelLoaded", "NotImplemented", "InvalidGraph", "EPFail", "ModelLoadCanceled", "ModelRequiresCompilation"),
    *("NotFound", "DeviceReset"),
)


@pytest.mark.parametrize(("number", "name"), list(enumerate(CODES, 1)), ids=CODES)
def test_an_error_without_a_class_in_an_older_onnx_runtime_gets_the_class_of_its_code(
    number: int, name: str
) -> None:
    error = translate(RuntimeError(f"[ONNXRuntimeError] : {number} : GENERAL ERROR : text"))
    assert type(error).__name__ == name
    assert error.details["ort_code"] == number


def test_a_runtime_error_that_only_quotes_a_code_stays_a_runtime_error() -> None:
    text = "Error creating execution provider: [ONNXRuntimeError] : 1 : FAIL : BF16 mode"
    assert type(translate(RuntimeError(text))) is errors.RemoteRuntimeError


@pytest.mark.parametrize(
    "name", ["ValueError", "TypeError", "RuntimeError", "KeyError", "IndexError", "MemoryError", "OSError"]
)
def test_a_builtin_exception_becomes_its_remote_counterpart(name: str) -> None:
    error = translate(getattr(builtins, name)("text"))
    assert type(error).__name__ == f"Remote{name}"
    assert isinstance(error, getattr(builtins, name))
    assert "text" in error.message


@pytest.mark.parametrize("error", [ZeroDivisionError("text"), AttributeError("text"), OverflowError("text")])
def test_any_other_exception_is_a_remote_error_with_the_name_of_its_type(error: Exception) -> None:
    told = translate(error)
    assert type(told) is errors.RemoteError
    assert told.details["type"] == type(error).__name__


def test_subclasses_of_builtins_get_the_nearest_counterpart() -> None:
    assert type(translate(NotImplementedError("x"))) is errors.RemoteRuntimeError
    assert type(translate(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"))) is errors.RemoteValueError
    assert type(translate(FileNotFoundError(2, "x"))) is errors.RemoteFileNotFoundError
    assert type(translate(PermissionError(13, "x"))) is errors.RemoteOSError


def test_an_error_of_qnnbridge_is_not_changed() -> None:
    error = errors.OptionError("x")
    assert translate(error) is error


def test_the_qnn_code_is_masked_to_the_number_in_the_table_of_qualcomm() -> None:
    text = f"[ONNXRuntimeError] : 11 : EP_FAIL : QNN graph execute error. Error: X, Code: {0x0300000ABC0003EB}"
    assert translate(state.EPFail(text)).details["qnn_code"] == 1003


@pytest.mark.parametrize(
    "error",
    [
        state.DeviceReset("[ONNXRuntimeError] : 15 : DEVICE_RESET : NPU crashed. SSR detected."),
        RuntimeError("[ONNXRuntimeError] : 15 : GENERAL ERROR : NPU crashed. SSR detected."),
        state.EngineError("[ONNXRuntimeError] : 5 : ENGINE_ERROR : x"),
        state.EPFail("[ONNXRuntimeError] : 11 : EP_FAIL : graph execute, Code: 1007"),
    ],
)
def test_every_form_of_an_npu_reset_is_marked_as_one(error: Exception) -> None:
    assert translate(error).details["npu_reset"] is True


def test_the_refusal_of_the_cpu_is_recognised() -> None:
    text = (
        "[ONNXRuntimeError] : 1 : FAIL : This session contains graph nodes that are assigned to the default CPU "
        "EP, but fallback to CPU EP has been explicitly disabled by the user."
    )
    assert is_cpu_fallback_refusal(state.Fail(text))
    assert not is_cpu_fallback_refusal(state.Fail("fallback"))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("contextCreateFromBinary failed. Error: QNN_CONTEXT_ERROR_CREATE_FROM_BINARY", "another chip"),
        ("Failed to load from EpContext model. Empty cache file encountered.", "is empty"),
        ("Dynamic shape is not supported yet, for input: x", "fixed dimensions"),
        (
            "Load model from m.onnx failed:Fatal error: own:Op(-1) is not a registered function/op",
            "custom operators",
        ),
        ('In Node, ("n", Op, "own", -1), Error No opset import for domain \'own\'', "opset_import"),
        ("model.cc:256 Unsupported model IR version: 14, max supported IR version: 13", "newer ONNX Runtime"),
        ("Current official support for domain ai.onnx is till opset 26.", "newer ONNX Runtime"),
        (
            "EPContext node generated by 'QNNExecutionProvider' is not compatible with any execution",
            "compiled for QNN",
        ),
        ("Failed to generate EP context model since the file 'a' exists already.", "never overwrites"),
        ("Unknown exception occurred while creating QNN EP.", "provider option"),
        ("Need to specify a CSV file via provider option profiling_file_path if ETW", "without a file"),
        ("Failed to compose Qnn graph.", "not report a reason"),
        ("Node (mm) Op (MatMul) [ShapeInferenceError] Incompatible dimensions", "inputs do not match"),
        ("Absolute path not allowed for external data location", "outside of the model"),
        ('External data path escapes model directory. External data path: "../w.bin"', "outside of the model"),
    ],
)
def test_a_misleading_message_gets_a_cause(text: str, word: str) -> None:
    error = translate(state.Fail(text), Circumstances(soc_model="60", simulator=True))
    assert word in (error.cause or "")
    assert error.fix
    assert error.message == text


def test_the_error_for_a_graph_that_qnn_cannot_build_names_the_tensors_without_elements() -> None:
    given = Circumstances(model=ModelInCommands("/m/my model.onnx"), empty_results=("e (1x0x4)",))
    error = translate(state.Fail("Failed to compose Qnn graph."), given)
    assert "the model has e (1x0x4)." in (error.cause or "")
    assert "qnnbridge fix '/m/my model.onnx' -o 'my model_fixed.onnx'" in (error.fix or "")
    error = translate(state.Fail("Failed to compose Qnn graph."), given._replace(empty_inputs=("x (0)",)))
    assert "the model has x (0), e (1x0x4)." in (error.cause or "")
    assert "Give x (0) at least one element" in (error.fix or "")


def test_the_error_for_an_unregistered_operator_mentions_operators_written_in_python() -> None:
    text = "Fatal error: ai.onnx.contrib:Twice(-1) is not a registered function/op"
    error = translate(state.Fail(text), Circumstances(custom_op_libraries=("/somewhere/_extensions_pydll.so",)))
    assert "(_extensions_pydll.so)" in (error.cause or "")
    assert "@onnx_op" in (error.cause or "")
    assert "onnxruntime itself" in (error.fix or "")


def test_an_unknown_message_gets_no_invented_cause() -> None:
    error = translate(state.Fail("something new"))
    assert (error.cause, error.fix) == (None, None)
    assert not re.search(r"\bNone\b", str(error))
