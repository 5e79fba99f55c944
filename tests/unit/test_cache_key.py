"""The key of a compiled model changes with everything that changes the result, and with nothing else."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qnnbridge._host import HostInfo
from qnnbridge_host.cache import key as module
from qnnbridge_host.cache.key import key_of, key_parts, libraries_digest
from qnnbridge_host.model.source import hash_file
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

QNN = "QNNExecutionProvider"
DEVICE = {
    "ep_name": QNN,
    "device_type": "NPU",
    "device_vendor_id": 1,
    "device_id": 2,
    "device_metadata": {"LUID": "7"},
}
HOST = HostInfo(
    pid=1,
    machine="ARM64",
    python="3.13.0",
    executable="python.exe",
    qnnbridge="1.0",
    platform="win32",
    generation=1,
    startup_seconds=1.0,
    versions={
        "onnxruntime": "1.31.1",
        "onnxruntime_qnn": "2.7.0",
        "qnn_sdk": "2.51.0",
        "driver": "30.0",
        "numpy": "2",
    },
    devices=(DEVICE,),
    simulator=False,
)
SPEC = SessionSpec(
    model_path="/a/m.onnx",
    providers=(ProviderSpec(QNN, {"soc_model": "60", "htp_arch": "73"}),),
    options={"graph_optimization_level": 99, "log_severity_level": 2},
    config_entries={"session.disable_quant_qdq": "0"},
    free_dimensions_by_name={"N": 1},
    free_dimensions_by_denotation={"DATA_BATCH": 1},
    initializers=("w",),
    disabled_optimizers=("ConstantFolding",),
)
VALUES = (np.ones(3, np.float32),)


# Fields that need not be in the key. Each other field of `SessionSpec` is in the key.
NOT_IN_THE_KEY = {
    "model_path": "the fingerprint has the model's contents",
    "files_in_memory": "among the values",
    "external_initializers": "among the values",
    "custom_op_libraries": "such a session is not cached",
    "fix": "a rewritten copy has another fingerprint",
}


def test_each_field_of_a_session_is_in_the_key_or_has_a_reason_not_to_be() -> None:
    """A field that changes the compiled model, but is not in the key, would give sessions the wrong model."""
    read = set(re.findall(r"\bspec\.(\w+)", inspect.getsource(key_parts))) - {"value_names"} | {"initializers"}
    assert read | NOT_IN_THE_KEY.keys() == {field.name for field in dataclasses.fields(SessionSpec)}
    assert not read & NOT_IN_THE_KEY.keys()


def key(
    fingerprint: str = "f", spec: SessionSpec = SPEC, values: tuple[Any, ...] = VALUES, host: HostInfo = HOST
) -> str:
    return key_of(key_parts(fingerprint, spec, values, host, hash_or_none))


def hash_or_none(path: str) -> str | None:
    return hash_file(path) if os.path.isfile(path) else None


def with_spec(**changes: Any) -> Callable[[], str]:
    return lambda: key(spec=dataclasses.replace(SPEC, **changes))


def with_options(**options: str) -> Callable[[], str]:
    return with_spec(providers=(ProviderSpec(QNN, {"soc_model": "60", "htp_arch": "73", **options}),))


def with_host(**changes: Any) -> Callable[[], str]:
    return lambda: key(host=dataclasses.replace(HOST, **changes))


def with_version(name: str) -> Callable[[], str]:
    return with_host(versions={**HOST.versions, name: "0.0.1"})


CHANGES: dict[str, Callable[[], str]] = {
    "the model's contents": lambda: key(fingerprint="g"),
    "the chip": with_options(soc_model="88"),
    "the architecture": with_options(htp_arch="81"),
    "a QNN option": with_options(enable_htp_fp16_precision="1"),
    "an option that nobody knows": with_options(invented="1"),
    "an option of QNN given as an entry": with_spec(config_entries={"ep.qnnexecutionprovider.vtcm_mb": "8"}),
    "another provider behind": with_spec(providers=(*SPEC.providers, ProviderSpec("CPUExecutionProvider"))),
    "the CPU allowed": with_spec(fallback="cpu"),
    "the level of optimization": with_spec(options={"graph_optimization_level": 0}),
    "an attribute that nobody knows": with_spec(options={**SPEC.options, "invented": 1}),
    "a configuration entry": with_spec(config_entries={"session.disable_quant_qdq": "1"}),
    "no record of where the nodes are": with_spec(
        config_entries={**SPEC.config_entries, "session.record_ep_graph_assignment_info": "0"}
    ),
    "a free dimension by name": with_spec(free_dimensions_by_name={"N": 2}),
    "a free dimension by denotation": with_spec(free_dimensions_by_denotation={"DATA_BATCH": 2}),
    "another name of a free dimension": with_spec(free_dimensions_by_name={"M": 1}),
    "a disabled optimizer": with_spec(disabled_optimizers=()),
    "the name of a given initializer": with_spec(initializers=("v",)),
    "the value of a given initializer": lambda: key(values=(np.full(3, 2, np.float32),)),
    "the type of a given initializer": lambda: key(values=(np.ones(3, np.float32).view(np.int32),)),
    "the shape of a given initializer": lambda: key(values=(np.ones((1, 3), np.float32),)),
    "no given initializer": lambda: key(spec=dataclasses.replace(SPEC, initializers=()), values=()),
    "onnxruntime": with_version("onnxruntime"),
    "onnxruntime-qnn": with_version("onnxruntime_qnn"),
    "the QNN SDK": with_version("qnn_sdk"),
    "the driver": with_version("driver"),
    "the host's qnnbridge": with_host(qnnbridge="1.1"),
    "the machine": with_host(machine="x86_64"),
    "the platform": with_host(platform="linux"),
    "the simulator": with_host(simulator=True),
    "the device": with_host(devices=({**DEVICE, "device_id": 3},)),
}

THE_SAME: dict[str, Callable[[], str]] = {
    "another place of the model": with_spec(model_path="/b/other.onnx"),
    "how much is logged": with_spec(options={"graph_optimization_level": 99, "log_severity_level": 0}),
    "how much is logged, as an entry": with_spec(
        config_entries={**SPEC.config_entries, "session.log_severity_level": "0"}
    ),
    "threads": with_spec(options={**SPEC.options, "intra_op_num_threads": 2}),
    "profiling": with_spec(options={**SPEC.options, "enable_profiling": True, "profile_file_prefix": "p"}),
    "the folder of external data": with_spec(
        config_entries={**SPEC.config_entries, "session.model_external_initializers_file_folder_path": "/x"}
    ),
    "the record of where the nodes are, which is the default": with_spec(
        config_entries={**SPEC.config_entries, "session.record_ep_graph_assignment_info": "1"}
    ),
    "the clock": with_options(htp_performance_mode="burst", rpc_control_latency="100"),
    "versions that do not matter": with_version("numpy"),
    "the host's process": with_host(pid=2, generation=3, startup_seconds=9.0, executable="other"),
    "what changes with every start of the machine": with_host(
        devices=({**DEVICE, "device_metadata": {"LUID": "8"}},)
    ),
    "a device that is not QNN's": with_host(devices=(DEVICE, {"ep_name": "DmlExecutionProvider", "device_id": 9})),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_setting_that_changes_the_result_changes_the_key(what: str) -> None:
    assert CHANGES[what]() != key()


@pytest.mark.parametrize("what", THE_SAME)
def test_a_setting_that_does_not_change_the_result_does_not_change_the_key(what: str) -> None:
    assert THE_SAME[what]() == key()


def test_all_changes_give_different_keys() -> None:
    assert len({change() for change in CHANGES.values()}) == len(CHANGES)


def test_another_schema_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(module, "SCHEMA", module.SCHEMA + 1)
    assert key() != before


def test_no_providers_give_the_same_key_as_qnn() -> None:
    asked = dataclasses.replace(SPEC, providers=(ProviderSpec(QNN),))
    assert key(spec=dataclasses.replace(SPEC, providers=())) == key(spec=asked)


def test_a_library_in_an_option_is_keyed_by_its_contents_and_not_its_folder(tmp_path: Path) -> None:
    def named(folder: str, contents: bytes) -> str:
        library = tmp_path / folder / "libQnnHtp.so"
        library.parent.mkdir(exist_ok=True)
        library.write_bytes(contents)
        return with_options(backend_path=str(library))()

    assert named("a", b"1") == named("b", b"1")
    assert named("a", b"1") != named("a", b"2")


@pytest.mark.parametrize("option", ["backend_path", "op_affinity"])
def test_a_file_in_a_session_entry_is_keyed_as_one_in_a_provider_option(option: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    keys = set()
    for contents in (b"1", b"2"):
        file.write_bytes(contents)
        entries = {f"ep.qnnexecutionprovider.{option}": str(file)}
        keys.add(key(spec=dataclasses.replace(SPEC, config_entries=entries)))
    assert len(keys) == 2


def test_a_replaced_library_is_detected_and_other_files_in_its_folder_are_ignored(tmp_path: Path) -> None:
    library = tmp_path / "libQnnHtp.so"
    library.write_bytes(b"one")
    os.utime(library, ns=(1, 1))
    first = libraries_digest(str(tmp_path))
    (tmp_path / "LICENSE").write_text("text")
    assert libraries_digest(str(tmp_path)) == first
    library.write_bytes(b"two")
    assert libraries_digest(str(tmp_path)) != first
    assert key(host=dataclasses.replace(HOST, library_folder=str(tmp_path))) != key()


def test_a_deleted_folder_of_libraries_is_not_an_error() -> None:
    assert libraries_digest("/nowhere/at/all") is None
