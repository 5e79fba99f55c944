"""Compilation by the engine: options for ONNX Runtime, written files, and models without anything to compile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import pytest
from engine_models import CPU, QNN, relu, relu_then_det

from qnnbridge_host.engine.compile import compile_model, context_session
from qnnbridge_protocol.errors import InvalidArgument, OptionError, PlacementRefused, ProtocolDesync
from qnnbridge_protocol.specs import CompileSpec, ProviderSpec, SessionSpec

pytestmark = pytest.mark.simulator


def written(engine: Any, made: onnx.ModelProto, spec: CompileSpec) -> Any:
    phases: list[str] = []
    session = compile_model(engine, spec, made.SerializeToString(), {}, phases.append)
    session.close()
    assert phases == ["creating", "compiling"]
    return session.info


def test_the_compiling_session_has_the_settings_of_the_application_and_writes_a_model() -> None:
    spec = SessionSpec(
        "m.onnx",
        options={"enable_profiling": True, "intra_op_num_threads": 1, "optimized_model_filepath": "o.onnx"},
        config_entries={"ep.context_file_path": "elsewhere", "session.disable_model_compile": "1", "a": "b"},
        providers=(ProviderSpec(QNN, {"soc_model": "60"}),),
        fallback="cpu",
    )
    told = context_session(CompileSpec(spec, "/o/m_ctx.onnx", embed=True))
    assert told.options == {"intra_op_num_threads": 1}
    assert told.config_entries == {
        "a": "b",
        "ep.context_enable": "1",
        "ep.context_file_path": "/o/m_ctx.onnx",
        "ep.context_embed_mode": "1",
    }
    assert told.providers == (ProviderSpec(QNN, {"offload_graph_io_quantization": "0", "soc_model": "60"}),)
    assert told.fallback == "cpu"


@pytest.mark.parametrize(("share", "stop"), [("no", None), ("more", None), ("last", "1")])
def test_all_models_share_contexts_and_the_last_one_ends_the_sharing(share: Any, stop: str | None) -> None:
    entries = context_session(CompileSpec(SessionSpec("m.onnx"), "/o/m.onnx", share=share)).config_entries
    assert entries.get("ep.share_ep_contexts") == (None if share == "no" else "1")
    assert entries.get("ep.stop_share_ep_contexts") == stop


def test_without_qnn_in_the_providers_nothing_can_be_compiled() -> None:
    with pytest.raises(OptionError, match="do not include QNNExecutionProvider"):
        context_session(CompileSpec(SessionSpec("m.onnx", providers=(ProviderSpec(CPU),)), "/o/m.onnx"))


@pytest.mark.parametrize("embed", [False, True])
def test_a_model_is_written_and_its_placement_is_reported(engine: Any, tmp_path: Path, embed: bool) -> None:
    output = tmp_path / "m_ctx.onnx"
    info = written(engine, relu(), CompileSpec(SessionSpec(None), str(output), embed))
    assert (info.placement.qnn_nodes, info.placement.cpu_nodes, info.placement.soc_model) == (1, 0, "60")
    assert sorted(os.listdir(tmp_path)) == (["m_ctx.onnx"] if embed else ["m_ctx.onnx", "m_ctx_qnn.bin"])
    (node,) = onnx.load(str(output)).graph.node
    assert (node.op_type, node.domain) == ("EPContext", "com.microsoft")


def test_nodes_for_the_cpu_stay_in_the_model_if_allowed(engine: Any, tmp_path: Path) -> None:
    output = tmp_path / "m_ctx.onnx"
    info = written(engine, relu_then_det(), CompileSpec(SessionSpec(None, fallback="cpu"), str(output)))
    assert (info.placement.qnn_nodes, info.placement.cpu_nodes) == (1, 1)
    assert [node.op_type for node in onnx.load(str(output)).graph.node] == ["EPContext", "Det"]


def test_nodes_for_the_cpu_are_refused_if_not_allowed(engine: Any, tmp_path: Path) -> None:
    spec = CompileSpec(SessionSpec(None), str(tmp_path / "m_ctx.onnx"))
    with pytest.raises(PlacementRefused, match="1 of 2 nodes"):
        compile_model(engine, spec, relu_then_det().SerializeToString(), {}, lambda phase: None)


def test_a_model_without_nodes_for_qnn_is_refused_whatever_the_fallback(engine: Any, tmp_path: Path) -> None:
    """Without this check, ONNX Runtime creates a session silently and writes nothing."""
    spec = CompileSpec(SessionSpec(None, fallback="cpu"), str(tmp_path / "m_ctx.onnx"))
    with pytest.raises(PlacementRefused, match="No node of the model") as caught:
        compile_model(engine, spec, relu(("N", 4)).SerializeToString(), {}, lambda phase: None)
    assert caught.value.cause is not None
    assert "'x': N" in caught.value.cause
    assert os.listdir(tmp_path) == []


def test_the_session_description_is_complete(engine: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Neither a model path nor a model"):
        compile_model(
            engine, CompileSpec(SessionSpec(None), str(tmp_path / "m.onnx")), None, {}, lambda phase: None
        )


@pytest.mark.parametrize(
    "wire", [{}, {"session": {"model_path": "m"}}, {"session": {}, "output": "x"}, {"output": 1}]
)
def test_an_incomplete_description_is_refused(wire: Any) -> None:
    with pytest.raises(ProtocolDesync, match="CompileSpec"):
        CompileSpec.from_wire(wire)


def test_a_description_survives_encoding() -> None:
    spec = CompileSpec(SessionSpec("m.onnx", providers=(ProviderSpec(QNN, {"a": "b"}),)), "/o/m.onnx", True, "more")
    assert CompileSpec.from_wire(spec.to_wire()) == spec
