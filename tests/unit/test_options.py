"""`SessionOptions`, `RunOptions`, enumerations and node descriptions compared with those of onnxruntime."""

from __future__ import annotations

import copy
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from direct_ort import assert_same_class, outcome, session

from qnnbridge._options import fields as enums
from qnnbridge._options.fields import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtExecutionProviderDevicePolicy,
)
from qnnbridge._options.providers import normalize_providers
from qnnbridge._session.runs import (
    LoraAdapter,
    ModelMetadata,
    NodeArg,
    RunOptions,
    coerce_run_options,
    coerce_session_options,
)
from qnnbridge._session_options import CPU, KNOWN_PROVIDERS, QNN, SessionOptions
from qnnbridge._values.ort_value import OrtValue
from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import NodeInfo, ProviderSpec, RunSpec, SessionSpec


class Index:
    def __index__(self) -> int:
        return 3


class Int:
    def __int__(self) -> int:
        return 3


VALUES: list[Any] = [
    0, 1, -5, 7, True, False, None, "", "a", "ü", "a\0b", "\ud800", b"a", 1.0, 1.5, [], (), {}, object(),
    2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**64, Index(), Int(), np.bool_(True), np.int64(3), np.float32(3.7),
    np.float64(3.0), np.array(3), np.array([1, 2]), pathlib.PurePosixPath("x/y"),
]  # fmt: skip


def _plain(value: Any) -> Any:
    return int(value) if hasattr(type(value), "__members__") else value


def _attributes(ort: Any, name: str) -> dict[str, Any]:
    cls = getattr(ort, name)
    return {key: getattr(cls(), key) for key, value in vars(cls).items() if isinstance(value, property)}


# --- comparison with onnxruntime -------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [SessionOptions, RunOptions], ids=lambda cls: cls.__name__)
def test_attributes_and_defaults_equal_those_of_onnxruntime(cls: Any) -> None:
    theirs = _attributes(pytest.importorskip("onnxruntime"), cls.__name__)
    names = {*cls.fields(), *(name for name in ("terminate",) if hasattr(cls, name))}
    assert names >= set(theirs)  # an older onnxruntime has fewer
    for name, default in theirs.items():
        assert _plain(getattr(cls(), name)) == _plain(default)
        assert type(_plain(getattr(cls(), name))) is type(_plain(default))


@pytest.mark.parametrize("cls", [SessionOptions, RunOptions], ids=lambda cls: cls.__name__)
def test_assignment_converts_and_refuses_as_in_onnxruntime(cls: Any) -> None:
    ort = pytest.importorskip("onnxruntime")

    def assigned(owner: Any, name: str, value: Any) -> Any:
        options = owner()
        setattr(options, name, value)
        return _plain(getattr(options, name))

    for name in _attributes(ort, cls.__name__):
        for value in VALUES:
            theirs = outcome(assigned, getattr(ort, cls.__name__), name, value)
            ours = outcome(assigned, cls, name, value)
            if isinstance(theirs, Exception):
                assert isinstance(ours, Exception), f"{name} = {value!r}"
                assert_same_class(ours, theirs)
            else:
                assert ours == theirs, f"{name} = {value!r}"
                assert type(ours) is type(theirs)


@pytest.mark.parametrize("cls", [SessionOptions, RunOptions], ids=lambda cls: cls.__name__)
def test_no_public_method_of_onnxruntime_is_missing(cls: Any) -> None:
    theirs = getattr(pytest.importorskip("onnxruntime"), cls.__name__)
    missing = [name for name in vars(theirs) if not name.startswith("_") and not hasattr(cls, name)]
    assert not missing


ENTRY_CALLS: list[Callable[[Any], Any]] = [
    lambda o: o.add("a", "b"),
    lambda o: (o.add("a", "b"), o.add("a", "c"), o.get("a")),
    lambda o: (o.add("a", ""), o.get("a")),
    lambda o: (o.add(b"a", b"b"), o.get("a")),
    lambda o: o.get("a"),
    lambda o: o.add("", "b"),
    lambda o: o.add("k" * 1024, "v" * 8192),
    lambda o: o.add("k" * 1025, "v"),
    lambda o: o.add("k", "v" * 8193),
    lambda o: o.add("k", 1),
    lambda o: o.add(1, "v"),
    lambda o: o.add("k"),
    lambda o: o.get(1),
]


class _Entries:
    """The entry methods of either class under one name."""

    def __init__(self, options: Any) -> None:
        kind = "run" if type(options).__name__ == "RunOptions" else "session"
        self.add = getattr(options, f"add_{kind}_config_entry")
        self.get = getattr(options, f"get_{kind}_config_entry")


@pytest.mark.parametrize("cls", [SessionOptions, RunOptions], ids=lambda cls: cls.__name__)
def test_configuration_entries_behave_as_in_onnxruntime(cls: Any) -> None:
    ort = pytest.importorskip("onnxruntime")
    ort.set_default_logger_severity(4)  # it warns of each replaced entry
    for call in ENTRY_CALLS:
        theirs = outcome(call, _Entries(getattr(ort, cls.__name__)()))
        ours = outcome(call, _Entries(cls()))
        _assert_same(ours, theirs)
    ort.set_default_logger_severity(2)


SESSION_CALLS: list[Callable[[Any, Any], Any]] = [
    lambda o, m: o.add_free_dimension_override_by_name("N", 3),
    lambda o, m: o.add_free_dimension_override_by_name("N", -3),
    lambda o, m: o.add_free_dimension_override_by_name("N", 1.5),
    lambda o, m: o.add_free_dimension_override_by_name(1, 1),
    lambda o, m: o.add_free_dimension_override_by_name("N", 2**63),
    lambda o, m: o.add_free_dimension_override_by_denotation("DATA_BATCH", 1),
    lambda o, m: o.has_providers(),
    lambda o, m: (o.add_provider("CPUExecutionProvider", {}), o.has_providers())[1],
    lambda o, m: o.add_provider("Nope", {}),
    lambda o, m: o.add_provider("CPUExecutionProvider", {"a": 1}),
    lambda o, m: o.add_provider("CPUExecutionProvider", None),
    lambda o, m: o.add_provider("CPUExecutionProvider"),
    lambda o, m: o.add_provider_for_devices([], {}),
    lambda o, m: o.add_provider_for_devices(["CPUExecutionProvider"], {}),
    lambda o, m: o.set_provider_selection_policy(m.OrtExecutionProviderDevicePolicy.PREFER_CPU),
    lambda o, m: o.set_provider_selection_policy(1),
    lambda o, m: o.set_load_cancellation_flag(False),
    lambda o, m: o.set_load_cancellation_flag("x"),
    lambda o, m: o.set_load_cancellation_flag(True),
    lambda o, m: o.set_provider_selection_policy_delegate(3),
    lambda o, m: (o.set_provider_selection_policy_delegate(None), o.has_providers())[1],
    lambda o, m: (o.set_provider_selection_policy_delegate(lambda *_: []), o.has_providers())[1],
    lambda o, m: o.clear_ep_context_data_read_func(),
    lambda o, m: o.register_custom_ops_library("/no/such/library.so"),
    lambda o, m: o.register_custom_ops_library(3),
    lambda o, m: o.register_custom_ops_library(pathlib.PurePosixPath("/no/such/library.so")),
    lambda o, m: o.add_initializer("x", _one(m)),
    lambda o, m: (o.add_initializer("x", _one(m)), o.add_initializer("x", _one(m))),
    lambda o, m: o.add_initializer("x", np.zeros(3)),
    lambda o, m: o.add_external_initializers(["x"], [_one(m)]),
    lambda o, m: o.add_external_initializers(["x", "y"], [_one(m)]),
    lambda o, m: o.add_external_initializers(("x",), (_one(m),)),
    lambda o, m: o.add_external_initializers([], []),
    lambda o, m: setattr(o, "enable_profilling", True),
    lambda o, m: o.enable_profilling,
    lambda o, m: delattr(o, "logid"),
    lambda o, m: copy.copy(o),
    lambda o, m: copy.deepcopy(o),
    lambda o, m: pickle.dumps(o),
]


def _one(module: Any) -> Any:
    return module.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32))


class _Ours:
    OrtValue = OrtValue
    OrtExecutionProviderDevicePolicy = OrtExecutionProviderDevicePolicy


@pytest.mark.parametrize("index", range(len(SESSION_CALLS)))
def test_methods_of_session_options_behave_as_in_onnxruntime(index: int) -> None:
    ort = pytest.importorskip("onnxruntime")
    call = SESSION_CALLS[index]
    theirs = outcome(lambda: call(ort.SessionOptions(), ort))
    ours = outcome(lambda: call(SessionOptions(), _Ours))
    _assert_same(ours, theirs)


def _assert_same(ours: Any, theirs: Any) -> None:
    if not isinstance(theirs, Exception):
        assert ours == theirs
        return
    assert isinstance(ours, Exception), f"direct: {theirs!r}"
    assert_same_class(ours, theirs)
    said = str(theirs).splitlines()[0]
    if isinstance(ours, errors.BridgeError) and not re.search("onnxruntime_src|incompatible function", said):
        assert ours.message.split(" with error")[0] == said.split(" with error")[0]


def test_enumerations_have_the_members_and_numbers_of_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime")
    for name in enums.__all__:
        ours, theirs = getattr(enums, name), getattr(ort, name, None)
        if theirs is None:  # an older onnxruntime
            continue
        assert {k: int(v) for k, v in ours.__members__.items()} == {
            k: int(v) for k, v in theirs.__members__.items()
        }
        for key, member in theirs.__members__.items():
            assert getattr(ours, key).value == member.value
            assert repr(getattr(ours, key)) == repr(member)
            if name not in (
                "OrtCompileApiFlags",
                "OrtDeviceVendorId",
            ):  # onnxruntime has plain Python enumerations, too
                assert str(getattr(ours, key)) == str(member)
                assert f"{getattr(ours, key)}" == f"{member}"


def test_every_provider_that_onnxruntime_knows_can_be_added_by_name() -> None:
    ort = pytest.importorskip("onnxruntime")
    assert set(KNOWN_PROVIDERS) >= set(ort.get_all_providers())


@pytest.mark.parametrize("name", ["ACLExecutionProvider", "NvTensorRTRTXExecutionProvider"])
def test_a_provider_that_onnxruntime_has_removed_can_still_be_requested(name: str) -> None:
    """1.32 no longer lists them, but older applications use them."""
    options = SessionOptions()
    options.add_provider(name, {})
    assert options.has_providers()


def test_node_arguments_have_the_repr_of_onnxruntime() -> None:
    h = pytest.importorskip("onnx.helper")
    direct = session(
        [h.make_node("Identity", ["x"], ["y"])],
        [h.make_tensor_value_info("x", 1, [4, "N", None, 0])],
        [h.make_tensor_value_info("y", 1, None)],
    )
    for theirs in (*direct.get_inputs(), *direct.get_outputs()):
        ours = NodeArg(NodeInfo(theirs.name, theirs.type, tuple(theirs.shape)))
        assert (ours.name, ours.type, ours.shape) == (theirs.name, theirs.type, theirs.shape)
        assert str(ours) == str(theirs)
        assert repr(ours) == str(theirs)
    with pytest.raises(AttributeError):
        NodeArg(NodeInfo("x", "tensor(float)")).name = "y"  # type: ignore[misc]


def test_model_metadata_has_the_attributes_of_onnxruntime() -> None:
    ort = pytest.importorskip("onnxruntime")
    ours = ModelMetadata({"producer_name": "p", "version": 2**63 - 1, "custom_metadata_map": {"a": "b"}, "new": 1})
    for name in [key for key, value in vars(ort.ModelMetadata).items() if isinstance(value, property)]:
        getattr(ours, name)
    assert (ours.producer_name, ours.version, ours.custom_metadata_map) == ("p", 2**63 - 1, {"a": "b"})
    assert ModelMetadata().graph_name == ""


# --- session options without a comparison ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (lambda o: setattr(o, "intra_op_num_thread", 1), "Did you mean 'intra_op_num_threads'"),
        (lambda o: o.get_sesion_config_entry, "Did you mean 'get_session_config_entry'"),
        (lambda o: setattr(o, "graph_optimization_level", 99), "GraphOptimizationLevel.ORT_ENABLE_ALL"),
        (lambda o: setattr(o, "execution_mode", "parallel"), "One of: ORT_SEQUENTIAL, ORT_PARALLEL"),
        (lambda o: setattr(o, "optimized_model_filepath", pathlib.Path("x")), "os.fspath"),
        (lambda o: o.add_provider("QNNExecutionProvidr", {}), f"Did you mean '{QNN}'"),
        (lambda o: o.add_provider(QNN, {"soc_model": 60}), "write '60'"),
        (lambda o: (o.add_session_config_entry("ab.cd", "1"), o.get_session_config_entry("ab.c")), "'ab.cd'"),
    ],
)
def test_the_error_for_a_mistake_names_the_alternative(
    action: Callable[[SessionOptions], Any], expected: str
) -> None:
    with pytest.raises((errors.BridgeError, AttributeError), match=re.escape(expected)):
        action(SessionOptions())


@pytest.mark.parametrize(
    "policy", [OrtExecutionProviderDevicePolicy.PREFER_GPU, OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE]
)
def test_options_that_cannot_be_transferred_are_refused_with_reason_and_alternative(
    policy: OrtExecutionProviderDevicePolicy,
) -> None:
    with pytest.raises(errors.OptionError, match="qnnbridge") as caught:
        SessionOptions().set_provider_selection_policy(policy)
    assert caught.value.cause
    assert caught.value.fix


def test_unchanged_options_produce_an_empty_specification() -> None:
    spec = SessionSpec(model_path=None, **SessionOptions().to_spec_parts())
    assert spec == SessionSpec(model_path=None)


def test_only_values_that_differ_from_the_default_are_transferred_and_enumerations_as_numbers() -> None:
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.execution_mode = ExecutionMode.ORT_PARALLEL
    options.execution_order = ExecutionOrder.DEFAULT
    options.intra_op_num_threads = 2
    options.enable_mem_pattern = False
    options.logid = "x"
    options.logid = ""
    spec = SessionSpec(model_path=None, **options.to_spec_parts())
    assert spec.options == {
        "graph_optimization_level": 1,
        "execution_mode": 1,
        "intra_op_num_threads": 2,
        "enable_mem_pattern": False,
    }
    assert type(spec.options["execution_mode"]) is int
    assert SessionSpec.from_wire(spec.to_wire()) == spec


def test_entries_overrides_tensors_and_providers_are_transferred(tmp_path: pathlib.Path) -> None:
    library = tmp_path / "ops.so"
    library.write_bytes(b"")
    array = np.zeros(3, np.float32)
    options = SessionOptions()
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_free_dimension_override_by_name("N", 4)
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 1)
    options.add_initializer("w", OrtValue.ortvalue_from_numpy(array))
    options.add_external_initializers(["e"], [OrtValue.ortvalue_from_numpy(array)])
    options.register_custom_ops_library(str(library))
    options.add_provider(QNN, {"soc_model": "60"})
    options.add_provider(CPU, {})
    spec = SessionSpec(model_path=None, **options.to_spec_parts())
    assert spec == SessionSpec(
        model_path=None,
        providers=(ProviderSpec(QNN, {"soc_model": "60"}), ProviderSpec(CPU)),
        config_entries={"session.set_denormal_as_zero": "1"},
        free_dimensions_by_name={"N": 4},
        free_dimensions_by_denotation={"DATA_BATCH": 1},
        initializers=("w",),
        external_initializers=("e",),
        custom_op_libraries=(str(library),),
    )
    assert list(options.initializer_values()) == ["w", "e"]
    # Copied, so that a session that is created again has the values of its first creation.
    copy = options.initializer_values()["w"]
    assert np.array_equal(copy, array)
    assert not np.shares_memory(copy, array)


def test_later_changes_do_not_affect_parts_that_were_created_before() -> None:
    options = SessionOptions()
    options.add_session_config_entry("a", "1")
    parts = options.to_spec_parts()
    options.add_session_config_entry("a", "2")
    options.add_provider(CPU, {})
    assert parts["config_entries"] == {"a": "1"}
    assert "providers" not in parts


def test_relative_paths_are_resolved_in_the_folder_of_the_application(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.so").write_bytes(b"")
    options = SessionOptions()
    options.optimized_model_filepath = "out/ü.onnx"
    options.enable_profiling = True
    options.add_session_config_entry("ep.context_file_path", "ctx.onnx")
    options.add_session_config_entry("ep.context_model_external_initializers_file_name", "beside.bin")
    options.register_custom_ops_library("ops.so")
    options.register_custom_ops_library("libelsewhere.so")
    parts = options.to_spec_parts()
    here = os.getcwd()
    assert parts["options"]["optimized_model_filepath"] == os.path.join(here, "out", "ü.onnx")
    assert parts["options"]["profile_file_prefix"] == os.path.join(here, "onnxruntime_profile_")
    assert parts["config_entries"]["ep.context_file_path"] == os.path.join(here, "ctx.onnx")
    assert parts["config_entries"]["ep.context_model_external_initializers_file_name"] == "beside.bin"
    assert parts["custom_op_libraries"] == (os.path.join(here, "ops.so"), "libelsewhere.so")
    options.profile_file_prefix = "traces/"
    assert options.to_spec_parts()["options"]["profile_file_prefix"] == os.path.join(here, "traces", "")


def test_relative_paths_in_options_of_qnn_are_resolved_in_the_folder_of_the_application(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {
        "op_affinity": "a/o.json",
        "profiling_file_path": "p.csv",
        "backend_path": "libQnnHtp.so",
        "vtcm_mb": "8",
    }
    here = os.getcwd()
    expected = {**given, "op_affinity": os.path.join(here, "a", "o.json"), "profiling_file_path": f"{here}/p.csv"}
    (normalized,) = normalize_providers([(QNN, given)], None)
    assert normalized.options == expected
    options = SessionOptions()
    options.add_provider(QNN, given)
    options.add_provider(CPU, {"profiling_file_path": "p.csv"})
    options.add_session_config_entry("ep.qnnexecutionprovider.backend_path", "../libQnnHtp.so")
    parts = options.to_spec_parts()
    assert [one.options for one in parts["providers"]] == [expected, {"profiling_file_path": "p.csv"}]
    beside = os.path.join(os.path.dirname(here), "libQnnHtp.so")
    assert parts["config_entries"] == {"ep.qnnexecutionprovider.backend_path": beside}


def test_a_policy_that_prefers_the_npu_selects_qnn_and_then_the_cpu() -> None:
    options = SessionOptions()
    options.set_provider_selection_policy(OrtExecutionProviderDevicePolicy.PREFER_NPU)
    assert options.has_providers()
    assert options.to_spec_parts()["providers"] == (ProviderSpec(QNN), ProviderSpec(CPU))
    options.set_provider_selection_policy(OrtExecutionProviderDevicePolicy.DEFAULT)
    assert not options.has_providers()


def test_devices_of_one_provider_are_added_by_its_name() -> None:
    class Device:
        def __init__(self, ep_name: str) -> None:
            self.ep_name = ep_name

    options = SessionOptions()
    options.add_provider_for_devices([Device(QNN), Device(QNN)], {"backend_type": "htp"})
    assert options.to_spec_parts()["providers"] == (ProviderSpec(QNN, {"backend_type": "htp"}),)
    with pytest.raises(errors.InvalidArgument, match="same execution provider"):
        options.add_provider_for_devices([Device(QNN), Device(CPU)], {})


def test_one_name_cannot_be_both_kinds_of_initializer() -> None:
    options = SessionOptions()
    options.add_initializer("w", OrtValue.ortvalue_from_numpy(np.zeros(1)))
    with pytest.raises(RuntimeError, match="already been added: w"):
        options.add_external_initializers(["w"], [OrtValue.ortvalue_from_numpy(np.zeros(1))])


# --- run options -----------------------------------------------------------------------------------------


def test_only_run_options_that_were_set_are_transferred() -> None:
    options = RunOptions()
    assert options.to_spec() == RunSpec()
    options.logid = "r"
    options.terminate = True
    options.add_run_config_entry("qnn.htp_perf_mode", "burst")
    assert options.to_spec() == RunSpec({"logid": "r", "terminate": True}, {"qnn.htp_perf_mode": "burst"})


def test_terminate_set_in_another_thread_notifies_the_listeners() -> None:
    options = RunOptions()
    heard: list[tuple[bool, int]] = []
    remove = options.add_terminate_listener(lambda flag: heard.append((flag, threading.get_ident())))
    thread = threading.Thread(target=setattr, args=(options, "terminate", 1))
    thread.start()
    thread.join()
    assert heard == [(True, thread.ident)]
    assert options.terminate is True
    remove()
    remove()
    options.terminate = False
    assert len(heard) == 1


def test_a_listener_may_remove_itself_and_use_the_options_during_its_call() -> None:
    options = RunOptions()
    heard: list[bool] = []

    def listener(flag: bool) -> None:
        remove()
        heard.append(options.terminate)
        if flag:
            options.terminate = False

    remove = options.add_terminate_listener(listener)
    options.terminate = True
    assert heard == [True]
    assert options.terminate is False


def test_a_lora_adapter_is_transferred_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "delta.onnx_adapter"
    path.write_bytes(b"")
    adapter = LoraAdapter()
    adapter.Load(path)
    options = RunOptions()
    options.add_active_adapter(adapter)
    assert options.to_spec().options == {"active_adapters": [str(path)]}


def test_an_object_that_is_not_a_loaded_lora_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="LoraAdapter"):
        RunOptions().add_active_adapter(object())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Load"):
        RunOptions().add_active_adapter(LoraAdapter())
    with pytest.raises(errors.NoSuchFile):
        LoraAdapter().Load(tmp_path / "missing")


@pytest.mark.process
def test_importing_the_classes_of_the_application_loads_nothing_heavy() -> None:
    script = (
        "import sys, qnnbridge._session_options, qnnbridge._session.runs, qnnbridge._values.feeds, qnnbridge._io_binding, qnnbridge.errors, qnnbridge._session.runs; "
        "print([m for m in ('onnxruntime', 'onnx', 'ml_dtypes', 'rich', 'typer', 'asyncio') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- options of a real onnxruntime -----------------------------------------------------------------------


def test_options_of_qnnbridge_and_none_need_no_conversion() -> None:
    options, run = SessionOptions(), RunOptions()
    assert coerce_session_options(options) is options
    assert coerce_run_options(run) is run
    assert coerce_session_options(None).to_spec_parts() == SessionOptions().to_spec_parts()
    assert coerce_run_options(None).to_spec() == RunSpec()


@pytest.mark.parametrize("coerce", [coerce_session_options, coerce_run_options])
def test_other_objects_are_refused_as_options(coerce: Callable[[object], object]) -> None:
    for wrong in (3, "x", {}, object(), RunOptions if coerce is coerce_session_options else SessionOptions):
        with pytest.raises(TypeError, match="must be a"):
            coerce(wrong)


def test_session_options_of_onnxruntime_are_converted_with_attributes_and_entries() -> None:
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.SessionOptions()
    theirs.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    theirs.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    theirs.enable_cpu_mem_arena = False
    theirs.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    theirs.add_session_config_entry("ep.context_enable", "1")
    with pytest.warns(UserWarning, match="free dimension overrides"):
        parts = coerce_session_options(theirs).to_spec_parts()
    assert parts["options"] == {"graph_optimization_level": 1, "execution_order": 1, "enable_cpu_mem_arena": False}
    assert parts["config_entries"] == {"session.disable_cpu_ep_fallback": "1", "ep.context_enable": "1"}


def test_session_options_of_onnxruntime_with_hidden_providers_are_refused_unless_others_are_given() -> None:
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.SessionOptions()
    theirs.add_provider(CPU, {})
    with pytest.raises(errors.OptionError, match="cannot be read"):
        coerce_session_options(theirs)
    with pytest.warns(UserWarning, match="custom op libraries"):
        assert "providers" not in coerce_session_options(theirs, providers_given=True).to_spec_parts()


def test_run_options_of_onnxruntime_are_converted() -> None:
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.RunOptions()
    theirs.log_severity_level = 3
    theirs.terminate = True
    theirs.add_run_config_entry("qnn.rpc_control_latency", "100")
    assert coerce_run_options(theirs).to_spec() == RunSpec(
        {"log_severity_level": 3, "terminate": True}, {"qnn.rpc_control_latency": "100"}
    )


def test_enumerations_of_onnxruntime_may_be_assigned_to_options_of_qnnbridge() -> None:
    ort = pytest.importorskip("onnxruntime")
    options = SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.raises(TypeError):
        options.execution_mode = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
