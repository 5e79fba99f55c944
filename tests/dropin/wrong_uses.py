"""Wrong uses of the module ``onnxruntime``, each a function of the module, and the models they need.

Each must raise. `test_wrong_uses` compares class and text with those of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MODELS = Path(__file__).parents[1] / "models"
MUL = str(MODELS / "mul_1.onnx")  # X: float[3,2] -> Y
X = np.ones((3, 2), np.float32)

WRONG_USES: dict[str, Callable[[Any], Any]] = {}


def wrong(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    WRONG_USES[function.__name__] = function
    return function


def session(ort: Any, **keywords: Any) -> Any:
    return ort.InferenceSession(MUL, providers=["CPUExecutionProvider"], **keywords)


@wrong
def no_such_file(ort: Any) -> Any:
    return ort.InferenceSession("no_such_model.onnx", providers=["CPUExecutionProvider"], enable_fallback=0)


@wrong
def garbage_bytes(ort: Any) -> Any:
    return ort.InferenceSession(b"this is no model", providers=["CPUExecutionProvider"], enable_fallback=0)


@wrong
def garbage_in_a_file(ort: Any) -> Any:
    Path("garbage.onnx").write_bytes(b"this is no model")
    return ort.InferenceSession("garbage.onnx", providers=["CPUExecutionProvider"], enable_fallback=0)


@wrong
def a_number_as_model(ort: Any) -> Any:
    return ort.InferenceSession(17)


@wrong
def empty_bytes(ort: Any) -> Any:
    return ort.InferenceSession(b"", providers=["CPUExecutionProvider"], enable_fallback=0)


@wrong
def empty_path(ort: Any) -> Any:
    return ort.InferenceSession("", providers=["CPUExecutionProvider"])


@wrong
def optimizers_that_are_numbers(ort: Any) -> Any:
    return session(ort, disabled_optimizers=[5])


@wrong
def providers_of_wrong_type(ort: Any) -> Any:
    return ort.InferenceSession(MUL, providers=[17], enable_fallback=0)


@wrong
def providers_no_sequence(ort: Any) -> Any:
    return ort.InferenceSession(MUL, providers=17, enable_fallback=0)


@wrong
def provider_options_too_long(ort: Any) -> Any:
    return ort.InferenceSession(
        MUL, providers=["CPUExecutionProvider"], provider_options=[{}, {}], enable_fallback=0
    )


@wrong
def provider_options_no_dicts(ort: Any) -> Any:
    return ort.InferenceSession(MUL, providers=["CPUExecutionProvider"], provider_options=["x"], enable_fallback=0)


@wrong
def provider_options_with_pairs(ort: Any) -> Any:
    return ort.InferenceSession(
        MUL, providers=[("CPUExecutionProvider", {})], provider_options=[{}], enable_fallback=0
    )


@wrong
def unknown_provider(ort: Any) -> Any:
    return ort.InferenceSession(MUL, providers=["NoSuchProvider"], enable_fallback=0)


@wrong
def input_missing(ort: Any) -> Any:
    return session(ort).run(None, {})


@wrong
def input_of_another_name(ort: Any) -> Any:
    return session(ort).run(None, {"X": X, "Z": X})


@wrong
def input_of_wrong_type(ort: Any) -> Any:
    return session(ort).run(None, {"X": X.astype(np.float64)})


@wrong
def input_of_wrong_rank(ort: Any) -> Any:
    return session(ort).run(None, {"X": np.ones(6, np.float32)})


@wrong
def input_of_wrong_shape(ort: Any) -> Any:
    return session(ort).run(None, {"X": np.ones((2, 3), np.float32)})


def identity(ort: Any, kind: Any) -> Any:
    """Return a session whose input x and output y have this type."""
    from onnx import helper

    ends = [helper.make_value_info("x", kind)], [helper.make_value_info("y", kind)]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def tensor(element: int) -> Any:
    from onnx import helper

    return helper.make_tensor_type_proto(element, ["n"])


@wrong
def float_for_a_float8(ort: Any) -> Any:
    return identity(ort, tensor(17)).run(None, {"x": np.ones(2, np.float32)})


@wrong
def map_for_an_optional_tensor(ort: Any) -> Any:
    from onnx import helper

    return identity(ort, helper.make_optional_type_proto(tensor(1))).run(None, {"x": {"a": 1.0}})


@wrong
def tuple_of_nothing(ort: Any) -> Any:
    return identity(ort, tensor(1)).run(None, {"x": ()})


@wrong
def text_for_a_number(ort: Any) -> Any:
    return session(ort).run(None, {"X": np.array([["a", "b"]] * 3)})


@wrong
def unknown_output(ort: Any) -> Any:
    return session(ort).run(["nope"], {"X": X})


@wrong
def feed_no_mapping(ort: Any) -> Any:
    return session(ort).run(None, [X])


@wrong
def ort_value_from_a_list(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy([1, 2])


@wrong
def ort_value_of_strings(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.array(["a"]))


@wrong
def ort_value_on_unknown_device(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(X, "abacus", 0)


@wrong
def update_with_a_list(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(X.copy()).update_inplace([1])


@wrong
def update_with_text_of_as_many_bytes(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32)).update_inplace(np.array(["a"]))


@wrong
def update_with_dates(ort: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.int64)).update_inplace(np.zeros(1, "M8[s]"))


@wrong
def binding_of_another_session(ort: Any) -> Any:
    return session(ort).run_with_iobinding(session(ort).io_binding())


@wrong
def binding_without_input(ort: Any) -> Any:
    made = session(ort)
    binding = made.io_binding()
    binding.bind_output("Y")
    return made.run_with_iobinding(binding)


@wrong
def binding_of_unknown_input(ort: Any) -> Any:
    return session(ort).io_binding().bind_cpu_input("nope", X)


@wrong
def config_entry_never_set(ort: Any) -> Any:
    return ort.SessionOptions().get_session_config_entry("nope")


@wrong
def config_entry_without_key(ort: Any) -> Any:
    return ort.SessionOptions().add_session_config_entry("", "1")


@wrong
def run_config_entry_never_set(ort: Any) -> Any:
    return ort.RunOptions().get_run_config_entry("nope")


@wrong
def initializer_that_is_no_ort_value(ort: Any) -> Any:
    return ort.SessionOptions().add_initializer("w", X)


@wrong
def custom_ops_that_are_not_there(ort: Any) -> Any:
    options = ort.SessionOptions()
    options.register_custom_ops_library("/no/such/library.so")
    return ort.InferenceSession(MUL, options)


@wrong
def unknown_device(ort: Any) -> Any:
    return ort.OrtDevice.make("abacus", 0)


@wrong
def sparse_tensor_of_an_array(ort: Any) -> Any:
    return ort.SparseTensor(X).values()


@wrong
def plugin_that_is_not_registered(ort: Any) -> Any:
    return ort.unregister_execution_provider_library("nope")


@wrong
def compiler_without_model(ort: Any) -> Any:
    return ort.ModelCompiler(ort.SessionOptions(), "")


@wrong
def compiler_of_a_number(ort: Any) -> Any:
    return ort.ModelCompiler(ort.SessionOptions(), 17)


def since_132(ort: Any) -> Any:
    if not hasattr(ort, "set_default_logger_callback"):
        pytest.skip(f"onnxruntime {ort.__version__} has no such function yet")
    return ort


def set_binary(ort: Any, folder: Any, name: Any) -> Any:
    compiler = since_132(ort).ModelCompiler(ort.SessionOptions(), MUL)
    return compiler.set_ep_context_binary_information(folder, name)


@wrong
def context_binary_in_no_folder(ort: Any) -> Any:
    return set_binary(ort, "", "model.onnx")


@wrong
def context_binary_without_name(ort: Any) -> Any:
    return set_binary(ort, "folder/", "")


@wrong
def context_binary_in_a_folder_without_slash(ort: Any) -> Any:
    return set_binary(ort, Path("folder"), "model.onnx")


@wrong
def context_binary_in_a_number(ort: Any) -> Any:
    return set_binary(ort, 17, "model.onnx")


@wrong
def log_callback_that_is_a_number(ort: Any) -> Any:
    return since_132(ort).set_default_logger_callback(17)


@wrong
def log_callback_of_no_severity(ort: Any) -> Any:
    return since_132(ort).set_default_logger_callback(None, 9)


@wrong
def log_severity_of_no_number(ort: Any) -> Any:
    return ort.set_default_logger_severity(-1)


@wrong
def example_that_does_not_exist(ort: Any) -> Any:
    import importlib

    return importlib.import_module(f"{ort.__name__}.datasets").get_example("nope.onnx")


@wrong
def run_terminated_before_it_began(ort: Any) -> Any:
    options = ort.RunOptions()
    options.terminate = True
    return session(ort).run(None, {"X": X}, options)


@wrong
def dlpack_of_nothing(ort: Any) -> Any:
    return ort.OrtValue.from_dlpack(17)


@wrong
def provider_arguments_that_are_no_sequence(ort: Any) -> Any:
    import importlib

    inner = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_inference_collection")
    return inner.check_and_normalize_provider_args(3, None, ["a"])


@wrong
def write_into_a_sparse_tensor(ort: Any) -> Any:
    cpu = ort.OrtDevice.make("cpu", 0)
    values, places = np.ones(2, np.float32), np.array([0, 2])
    made = ort.SparseTensor.sparse_coo_from_numpy([3], values, places, cpu)
    made.values()[0] = 3
    return made


@wrong
def indices_written_in_a_sparse_tensor(ort: Any) -> Any:
    cpu = ort.OrtDevice.make("cpu", 0)
    values, places = np.ones(2, np.float32), np.array([0, 2])
    made = ort.SparseTensor.sparse_coo_from_numpy([3], values, places, cpu)
    made.as_coo_view().indices()[0] = 1
    return made
