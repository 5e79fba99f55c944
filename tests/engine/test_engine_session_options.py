"""Session options of ONNX Runtime as they are sent over the wire."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_models import CPU, assert_same, model, node, relu, tensor
from onnx import external_data_helper

from qnnbridge_protocol import errors

pytest.importorskip("onnxruntime")

X = np.array([[-1, 0, 2, 3]], np.float32)


def scaled(factor: Any) -> onnx.ModelProto:
    """Return a model that computes y = x * factor, with the factor as an initializer."""
    return model(
        [node("Mul", ["x", "factor"], ["y"])], [tensor("x", [1, 4])], [tensor("y", [1, 4])], {"factor": factor}
    )


def test_every_attribute_of_the_installed_session_options_is_passed_on_or_listed_as_an_exception() -> None:
    import onnxruntime as ort

    from qnnbridge_host.engine.options import SESSION_ATTRIBUTES

    options = ort.SessionOptions()
    theirs = {n for n in dir(options) if not n.startswith("_") and not callable(getattr(options, n))}
    assert theirs == set(SESSION_ATTRIBUTES)


def test_every_attribute_of_the_installed_run_options_is_passed_on() -> None:
    import onnxruntime as ort

    from qnnbridge_host.engine.options import RUN_ATTRIBUTES

    options = ort.RunOptions()
    theirs = {n for n in dir(options) if not n.startswith("_") and not callable(getattr(options, n))}
    assert theirs == set(RUN_ATTRIBUTES)


def test_attributes_and_enums_reach_onnx_runtime(create: Any, tmp_path: Path) -> None:
    two = model(
        [node("Identity", ["x"], ["a"]), node("Relu", ["a"], ["y"])], [tensor("x", [1, 4])], [tensor("y", [1, 4])]
    )
    kept = create(two, provider=CPU, settings={"graph_optimization_level": 0, "execution_mode": 1})
    assert kept.info.placement.cpu_nodes == 2
    optimized = tmp_path / "optimized.onnx"
    merged = create(two, provider=CPU, settings={"optimized_model_filepath": str(optimized), "logid": "a"})
    assert merged.info.placement.cpu_nodes == 1
    assert optimized.is_file()


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"intra_op_num_thread": 1}, "'intra_op_num_threads'"),
        ({"intra_op_num_threads": "1"}, "int"),
        ({"intra_op_num_threads": True}, "int"),
        ({"enable_profiling": 1}, "bool"),
        ({"graph_optimization_level": 98}, "99 (ORT_ENABLE_ALL)"),
        ({"terminate": True}, "Allowed attributes: "),
    ],
)
def test_a_wrong_attribute_is_refused_with_an_explanation(create: Any, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(errors.OptionError) as caught:
        create(relu(), provider=CPU, settings=settings)
    assert word in (caught.value.fix or "")


def test_a_misspelt_configuration_key_is_refused(create: Any) -> None:
    with pytest.raises(errors.OptionError, match="not known"):
        create(relu(), provider=CPU, config_entries={"session.use_env_alocators": "1"})


@pytest.mark.simulator
def test_qnn_options_given_as_session_entries_are_checked_and_used(create: Any) -> None:
    session = create(relu(), config_entries={"ep.qnnexecutionprovider.soc_model": "SM8650"})
    assert session.info.placement.soc_model == "57"
    with pytest.raises(errors.OptionError, match="soc_modl"):
        create(relu(), config_entries={"ep.qnnexecutionprovider.soc_modl": "57"})
    with pytest.raises(errors.OptionError, match="given twice"):
        create(relu(), options={"soc_model": "60"}, config_entries={"ep.qnnexecutionprovider.soc_model": "57"})


def test_free_dimensions_are_fixed_by_name_and_by_denotation(create: Any) -> None:
    free = relu(("n", 4))
    assert create(free, provider=CPU, free_dimensions_by_name={"n": 3}).info.inputs[0].shape == (3, 4)
    free.graph.input[0].type.tensor_type.shape.dim[0].denotation = "BATCH"
    assert create(free, provider=CPU, free_dimensions_by_denotation={"BATCH": 5}).info.inputs[0].shape == (5, 4)


def test_an_initializer_is_replaced_and_kept_as_long_as_the_session(create: Any) -> None:
    session = create(
        scaled(np.float32([1, 1, 1, 1])),
        provider=CPU,
        initializers=("factor",),
        values={"factor": np.float32([1, 2, 3, 4])},
    )
    gc.collect()
    assert_same(session.run(None, {"x": X}), [X * np.float32([1, 2, 3, 4])])


def test_external_initializers_are_given_as_values(create: Any, tmp_path: Path) -> None:
    proto = scaled(np.float32([1, 2, 3, 4]))
    external_data_helper.set_external_data(proto.graph.initializer[0], location="weights.bin")
    proto.graph.initializer[0].ClearField("raw_data")
    session = create(
        proto,
        provider=CPU,
        external_initializers=("factor",),
        values={"factor": np.float32([5, 6, 7, 8])},
    )
    assert_same(session.run(None, {"x": X}), [X * np.float32([5, 6, 7, 8])])


def test_a_model_given_as_bytes_finds_its_external_data_in_the_given_folder(create: Any, tmp_path: Path) -> None:
    proto = scaled(np.float32([1, 2, 3, 4]))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    expected = [X * np.float32([1, 2, 3, 4])]
    assert_same(create(path, provider=CPU).run(None, {"x": X}), expected)
    entries = {"session.model_external_initializers_file_folder_path": str(tmp_path)}
    session = create(path.read_bytes(), provider=CPU, config_entries=entries)
    assert_same(session.run(None, {"x": X}), expected)


def test_an_announced_initializer_that_was_not_sent_is_an_error(create: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match="not sent"):
        create(relu(), provider=CPU, external_initializers=("w",))


def test_a_missing_custom_operator_library_is_an_error_of_onnx_runtime(create: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.OrtError):
        create(relu(), provider=CPU, custom_op_libraries=(str(tmp_path / "ops.so"),))


def test_an_optimizer_can_be_disabled_by_name(create: Any) -> None:
    two = model(
        [node("Identity", ["x"], ["a"]), node("Relu", ["a"], ["y"])], [tensor("x", [1, 4])], [tensor("y", [1, 4])]
    )
    kept = create(two, provider=CPU, disabled_optimizers=("EliminateIdentity",))
    assert kept.info.placement.cpu_nodes == 2


def test_profiling_writes_the_file_that_it_reports(create: Any, tmp_path: Path) -> None:
    settings = {"enable_profiling": True, "profile_file_prefix": str(tmp_path / "p")}
    session = create(relu(), provider=CPU, settings=settings)
    session.run(None, {"x": X})
    assert os.path.isfile(session.end_profiling())
    assert session.info.profiling_start_time_ns > 0
