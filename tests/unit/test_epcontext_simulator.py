"""Findings about a compiled model match the behaviour of the real QNN on its simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qnnbridge
from qnnbridge_host.model.compatibility import HostTraits, examine
from qnnbridge_host.model.scan import scan_model
from qnnbridge_protocol.errors import BridgeError, CompiledModelRefused, ContextUnusable
from qnnbridge_tools.inspection import installation_of

pytest.importorskip("onnxruntime_qnn")
pytest.importorskip("onnx")

from tests.fakes import models as build
from tests.unit import epcontext_models as models

pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parents[1] / "models"
X = {"x": np.load(MODELS / "x.npz")["x"]}
TARGETS = {"60": {"soc_model": "60"}, "88": {"soc_model": "88"}, "several": {"soc_model": "60,88"}}


def providers(**options: str) -> list[Any]:
    return [("QNNExecutionProvider", options)]


@pytest.fixture(scope="module")
def host() -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host() as made:
        yield made


def traits_of(host: qnnbridge.Host, **options: str) -> HostTraits:
    return HostTraits.of_installation(host.info.versions, host.info.simulator, options)


@pytest.fixture(scope="module")
def compiled(host: qnnbridge.Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("compiled")
    made = {}
    for name, options in TARGETS.items():
        made[name] = folder / f"{name}_ctx.onnx"
        entries = qnnbridge.SessionOptions()
        entries.add_session_config_entry("ep.context_enable", "1")
        entries.add_session_config_entry("ep.context_file_path", str(made[name]))
        entries.add_session_config_entry("ep.context_embed_mode", "0")
        qnnbridge.InferenceSession(MODELS / "f.onnx", entries, providers(**options), host=host).close()
    return made


@pytest.mark.parametrize("simulated", ["60", "88"])
@pytest.mark.parametrize("made_for", TARGETS)
def test_the_verdict_predicts_whether_the_session_loads(
    made_for: str, simulated: str, compiled: dict[str, Path], host: qnnbridge.Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = compiled[made_for]
    verdict = examine(path, scan_model(path), traits_of(host, soc_model=simulated)).verdict
    monkeypatch.setenv("QNNBRIDGE_CONTEXT_CHECK", "warn")
    try:
        qnnbridge.InferenceSession(path, providers=providers(soc_model=simulated), host=host).close()
        loads = True
    except BridgeError as error:
        assert "contextCreateFromBinary failed" in error.message
        loads = False
    assert verdict.can_run == loads, verdict


def test_a_model_for_another_chip_is_refused_before_it_is_loaded(
    compiled: dict[str, Path], host: qnnbridge.Host
) -> None:
    with pytest.raises(ContextUnusable, match=r"compiled with QNN .* for SoC 88 \(V81\)"):
        qnnbridge.InferenceSession(compiled["88"], providers=providers(soc_model="60"), host=host)
    session = qnnbridge.InferenceSession(compiled["88"], providers=providers(soc_model="88"), host=host)
    assert session.run(None, X)[0].shape == (1, 10)


def test_an_embedded_model_of_several_parts_loads_in_this_release(host: qnnbridge.Host, tmp_path: Path) -> None:
    from onnx import helper, numpy_helper

    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32) * 2, name) for name in ("v", "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Erf", ["a"], ["b"]),  # QNN lacks this operator: one part before it and one after it
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    model = build.model(nodes, [build.tensor("x", [4, 8])], [build.tensor("y", [4, 8])], weights)
    original, path = models.save(model, tmp_path / "m.onnx"), tmp_path / "m_ctx.onnx"
    options = qnnbridge.SessionOptions()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(path))
    options.add_session_config_entry("ep.context_embed_mode", "1")
    asked = providers(soc_model="60")
    qnnbridge.InferenceSession(original, options, asked, host=host, fallback="cpu").close()
    examined = examine(path, scan_model(path), traits_of(host))
    assert [node.owns_blob for node in scan_model(path).ep_contexts] == [True, False]
    assert examined.verdict.level == "ok"
    assert len(examined.found.blobs[0].facts.graphs) == 2
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    with qnnbridge.InferenceSession(path, providers=asked, host=host, fallback="cpu") as session:
        (result,) = session.run(None, {"x": x})
    import math

    assert np.abs(result - 2 * np.vectorize(math.erf)(2 * x)).max() < 0.01


def test_the_context_binary_records_what_it_was_compiled_for(compiled: dict[str, Path]) -> None:
    made = {name: examine(path, scan_model(path), HostTraits()).made for name, path in compiled.items()}
    assert [target.soc_model for target in made["60"].targets] == [60]
    assert [target.known_arch for target in made["88"].targets] == [81]
    assert [target.soc_model for target in made["several"].targets] == [60, 88]
    assert made["several"].multi
    assert not made["88"].notes


def test_a_context_binary_of_other_weights_under_the_same_name_is_detected(
    compiled: dict[str, Path], host: qnnbridge.Host, tmp_path: Path
) -> None:
    """Two compilers that write to the same path may leave such files: they would load and compute wrong results."""
    import shutil

    import onnx

    model = onnx.load(MODELS / "f.onnx")
    weights = model.graph.initializer[0]
    weights.raw_data = bytes(len(weights.raw_data))
    other = models.save(model, tmp_path / "other.onnx")
    entries = qnnbridge.SessionOptions()
    entries.add_session_config_entry("ep.context_enable", "1")
    entries.add_session_config_entry("ep.context_file_path", str(tmp_path / "60_ctx.onnx"))
    entries.add_session_config_entry("ep.context_embed_mode", "0")
    qnnbridge.InferenceSession(other, entries, providers(soc_model="60"), host=host).close()
    shutil.copy(compiled["60"], tmp_path / "60_ctx.onnx")
    with pytest.raises(ContextUnusable, match=r"60_ctx_qnn\.bin belongs to another model"):
        qnnbridge.InferenceSession(tmp_path / "60_ctx.onnx", providers=providers(soc_model="60"), host=host)


def test_a_session_on_the_cpu_is_refused_with_an_explanation(
    compiled: dict[str, Path], host: qnnbridge.Host
) -> None:
    with pytest.raises(CompiledModelRefused, match="a session on the CPU needs the original model"):
        qnnbridge.InferenceSession(compiled["60"], providers=["CPUExecutionProvider"], host=host)
    with qnnbridge.InferenceSession(compiled["60"], host=host) as session:
        with pytest.raises(CompiledModelRefused):
            session.set_providers(["CPUExecutionProvider"])
        session.run(None, X)


def test_models_given_as_bytes_refer_to_the_folder_of_the_application(
    compiled: dict[str, Path], host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host was started in another folder, and QNN assumes that a model without a name is in the host's folder."""
    data = compiled["60"].read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContextUnusable, match="is missing"):
        qnnbridge.InferenceSession(data, providers=providers(soc_model="60"), host=host)
    monkeypatch.chdir(compiled["60"].parent)
    with qnnbridge.InferenceSession(data, providers=providers(soc_model="60"), host=host) as session:
        monkeypatch.chdir(tmp_path)
        host.restart()
        assert session.run(None, X)[0].shape == (1, 10)


def test_the_facts_of_an_interpreter_equal_those_of_its_running_host(host: qnnbridge.Host) -> None:
    assert installation_of(host.info.executable).traits({}) == traits_of(host)
