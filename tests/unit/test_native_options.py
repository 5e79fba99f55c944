"""Options of a genai_config.json that need the caller's permission."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qnnbridge_host.model.genai_folder import CONFIG
from qnnbridge_host.model.native_options import native_options, refuse_native
from qnnbridge_protocol.errors import NativeCodeRefused


def found(folder: Path, config: Any, own: Path | None = None) -> list[tuple[str, str]]:
    (folder / CONFIG).write_text(config if isinstance(config, str) else json.dumps(config), "utf-8")
    return [(one.key, one.value) for one in native_options(str(folder), None if own is None else str(own))]


def session(**options: Any) -> dict[str, Any]:
    return {"model": {"decoder": {"filename": "model.onnx", "session_options": options}}}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("custom_ops_library", value) for value in ("/tmp/a.so", "a.so", "sub/a", "../a.dll", "a")),
        *(("enable_profiling", value) for value in ("/any/path", "profile", "")),
        *(("Custom_Ops_Library", value) for value in ("a",)),
        ("ep.context_file_path", "out.onnx"),
        ("ep.qnnexecutionprovider.backend_path", "/tmp/QnnHtp.so"),
        ("session.collect_node_memory_stats_to_file", "stats.csv"),
        ("session.some_newer_option", "/etc/passwd"),
        ("session.some_newer_option", "C:\\a"),
        ("session.some_newer_option", "evil.DLL"),
        ("library_path", "ep"),
        *(("ep.context_enable", value) for value in ("1", "true")),
        *(("dump_json_qnn_graph", value) for value in ("1", "ON")),
        ("enable_framework_op_trace", "1"),
        ("profiling_level", "optrace"),
    ],
)
def test_session_options_need_permission(key: str, value: str, tmp_path: Path) -> None:
    assert found(tmp_path, session(**{key: value})) == [(key, value)]


@pytest.mark.parametrize(
    "value",
    ["/tmp/libQnnHtp.so", "./QnnHtp.dll", "sub/QnnHtp.dll", "..\\QnnHtp.dll", "C:QnnHtp.dll", "evil.dll", "evil"],
)
@pytest.mark.parametrize("name", ["QNN", "QNNExecutionProvider", "newer"])
def test_backends_from_outside_of_the_host_need_permission(name: str, value: str, tmp_path: Path) -> None:
    provider = [{name: {"backend_path": value}}]
    assert found(tmp_path, session(provider_options=provider)) == [("backend_path", value)]


def test_backends_of_the_host_need_no_permission(tmp_path: Path) -> None:
    own = tmp_path / "onnxruntime_qnn"
    own.mkdir()
    (tmp_path / "link.so").symlink_to("/bin/true")
    for value in ("QnnHtp.dll", "libQnnHtp.so", "qnngpu", str(own / "libQnnHtp.so")):
        assert found(tmp_path, session(provider_options=[{"QNN": {"backend_path": value}}]), own) == [], value
    for value in (str(own / ".." / "x.so"), str(own / "sub" / "x.so")):
        assert found(tmp_path, session(provider_options=[{"QNN": {"backend_path": value}}]), own), value


def test_disabled_switches_need_no_permission(tmp_path: Path) -> None:
    off = {"ep.context_enable": "0", "dump_json_qnn_graph": "0", "dump_qnn_ir_dlc": "", "profiling_level": "basic"}
    assert found(tmp_path, session(**off)) == []


def test_a_link_out_of_the_folder_of_the_host_needs_permission(tmp_path: Path) -> None:
    own, value = tmp_path / "own", tmp_path / "own" / "libQnnHtp.so"
    own.mkdir()
    value.symlink_to(tmp_path / "evil.so")
    assert found(tmp_path, session(provider_options=[{"QNN": {"backend_path": str(value)}}]), own)


@pytest.mark.parametrize("section", ["encoder", "embedding", "vision", "speech", "decoder", "newer"])
def test_options_of_every_stage_are_found(section: str, tmp_path: Path) -> None:
    stage = {"stage": {"filename": "a.onnx", "session_options": {"custom_ops_library": "a.so"}}}
    assert found(tmp_path, {"model": {section: {"pipeline": [stage]}}}) == [("custom_ops_library", "a.so")]
    assert found(tmp_path, {"model": {section: {"pipeline": stage}}}) == [("custom_ops_library", "a.so")]


def test_a_duplicate_key_is_found(tmp_path: Path) -> None:
    """onnxruntime-genai merges objects with the same name; Python's JSON parser keeps the last one."""
    text = (
        '{"model": {"decoder": {"session_options": {"custom_ops_library": "a.so"}, "session_options": {},'
        ' "filename": "m.onnx"}}}'
    )
    assert found(tmp_path, text) == [("custom_ops_library", "a.so")]
    assert found(tmp_path, '{"custom_ops_\\u006cibrary": ["a.so"]}') == [("custom_ops_library", "a.so")]


@pytest.mark.parametrize(
    "value", ["/etc/a.onnx", "../a.onnx", "sub/../../a.onnx", "\\\\host\\a.onnx", "C:\\a.onnx"]
)
@pytest.mark.parametrize("key", ["filename", "adapter_filename", "config_filename", "data_file"])
def test_files_outside_of_the_folder_need_permission(key: str, value: str, tmp_path: Path) -> None:
    assert found(tmp_path, {"model": {"decoder": {key: value}}}) == [(key, value)]


def test_ordinary_exported_configs_need_no_permission(tmp_path: Path) -> None:
    config = session(
        log_id="onnxruntime-genai",
        intra_op_num_threads=4,
        enable_profiling=None,
        provider_options=[
            {"QNN": {"backend_path": "QnnHtp.dll", "htp_performance_mode": "burst", "soc_model": "60"}}
        ],
        **{"session.intra_op.allow_spinning": "0", "ep.share_ep_contexts": "1"},
    )
    config["model"]["decoder"] |= {
        "inputs": {"input_ids": "/model/embed/Output_0"},
        "pipeline": [{"context": {"filename": "sub/context.onnx", "run_options": {"qnn.htp_perf_mode": "burst"}}}],
    }
    assert found(tmp_path, config) == []
    for damaged in ("", "[", "[" * 100_000, "[]", '"text"'):
        assert found(tmp_path, damaged) == []


def test_a_permission_is_for_one_option_name(tmp_path: Path) -> None:
    config = session(custom_ops_library="a.so", enable_profiling="/any/path")
    found(tmp_path, config)
    refuse_native(str(tmp_path), {"custom_ops_library", "enable_profiling"}, None)
    with pytest.raises(NativeCodeRefused) as refused:
        refuse_native(str(tmp_path), {"custom_ops_library"}, None)
    assert "enable_profiling" in refused.value.message
    assert "/any/path" in refused.value.message
    assert "allow_native=['enable_profiling']" in refused.value.fix
    assert "--allow-native enable_profiling" in refused.value.fix
    assert refused.value.details["option"] == "enable_profiling"
    # A name in a command that a user pastes must not become another command.
    found(tmp_path, session(**{"a;reboot": "/x"}))
    with pytest.raises(NativeCodeRefused) as refused:
        refuse_native(str(tmp_path), (), None)
    assert "--allow-native 'a;reboot'" in refused.value.fix
