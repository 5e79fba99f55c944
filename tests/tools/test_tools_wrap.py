"""Context binaries without an ONNX file, of five releases: described, wrapped and run, bit for bit as QNN's own model.

`tests/models/README.md` lists the origin of the binaries.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.commands import qnnbridge as command_line

import qnnbridge
from qnnbridge_protocol.errors import ContextUnusable, InvalidProtobuf, OptionError, PlacementRefused
from qnnbridge_protocol.shell import shell_word

pytest.importorskip("onnxruntime_qnn")
onnx = pytest.importorskip("onnx")

pytestmark = [pytest.mark.simulator, pytest.mark.process]

RELEASES = Path(__file__).parents[1] / "models" / "compiled" / "releases"
SDK = {"2.3.0": "2.47", "2.4.0": "2.48", "2.5.0": "2.49", "2.6.0": "2.50", "2.7.0": "2.51"}
QNN: Any = [("QNNExecutionProvider", {"soc_model": "60"})]
RANDOM = np.random.default_rng(3)
FEEDS = {name: RANDOM.integers(0, 256, (4, 8)).astype(np.uint8) for name in ("a", "b")}
OUTPUTS = ["y", "z"]
NEWEST = "2.7.0_qnn.bin"


def session(host: qnnbridge.Host, path: Path, entries: dict[str, str] | None = None, **how: Any) -> Any:
    options = qnnbridge.SessionOptions()
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return qnnbridge.InferenceSession(path, options, QNN, host=host, **how)


def run(host: qnnbridge.Host, path: Path, feeds: Any = None, **how: Any) -> list[Any]:
    with session(host, path, **how) as made:
        return [np.array(one) for one in made.run(OUTPUTS, feeds or FEEDS)]


def command(*words: object) -> dict[str, Any]:
    result = command_line(*words, "--json")
    assert result.stdout.strip(), result.output
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def same(found: list[Any], wanted: list[Any]) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.fixture(scope="module")
def expected(host: qnnbridge.Host) -> dict[str, list[Any]]:
    return {release: run(host, RELEASES / f"{release}.onnx") for release in SDK}


@pytest.mark.parametrize("release", SDK)
def test_a_session_of_the_context_binary_computes_what_its_model_computes(
    release: str, host: qnnbridge.Host, expected: dict[str, list[Any]]
) -> None:
    with session(host, RELEASES / f"{release}_qnn.bin") as made:
        assert [(one.name, one.type, one.shape) for one in made.get_inputs()] == [
            ("a", "tensor(uint8)", [4, 8]),
            ("b", "tensor(uint8)", [4, 8]),
        ]
        found = [np.array(one) for one in made.run(OUTPUTS, FEEDS)]
    assert same(found, expected[release])
    assert len(set(found[0].ravel())) > 5, "the numbers say something"


@pytest.mark.parametrize("release", ["2.3.0", "2.7.0"])
def test_inspect_shows_graph_types_scales_and_verdict(release: str) -> None:
    told = command("inspect", RELEASES / f"{release}_qnn.bin")
    assert told["format"] == "qnn_context_binary"
    assert told["qnn_sdk"].startswith(SDK[release])
    assert (told["backend"], told["soc_model"], told["verdict"]["level"]) == ("htp", 60, "ok")
    (graph,) = told["graphs"]
    assert [(one["name"], one["type"], one["shape"]) for one in graph["inputs"]] == [
        ("a", "UINT8", [4, 8]),
        ("b", "UINT8", [4, 8]),
    ]
    scales = [(one["quantisation"]["scales"], one["quantisation"]["offsets"]) for one in graph["outputs"]]
    assert [(round(scale[0], 6), offset[0]) for scale, offset in scales] == [(0.11, -128), (0.09, -128)]
    shown = command_line("inspect", str(RELEASES / f"{release}_qnn.bin")).stdout
    assert "ufixed8[4,8] scale 0.05 offset -128" in shown


def test_a_context_binary_in_the_folder_is_kept_and_damage_is_detected(
    host: qnnbridge.Host, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    binary = Path(shutil.copy(RELEASES / NEWEST, tmp_path / "model.bin"))
    target = tmp_path / "model_ctx.onnx"
    told = command("wrap", binary, "-o", target)
    assert (told["copied"], [one["path"] for one in told["models"]]) == (False, [str(target)])
    names = {"model.bin", "model_ctx.onnx", "model_ctx.qnnbridge.json"}
    assert {one.name for one in tmp_path.iterdir()} == names
    assert same(run(host, target), expected["2.7.0"])
    refused = command("wrap", binary, "-o", target)["error"]
    assert "exists already" in refused["message"]
    assert command("wrap", binary, "-o", target, "--overwrite")["models"]
    data = bytearray(binary.read_bytes())
    data[-600] ^= 1
    binary.write_bytes(data)
    with pytest.raises(ContextUnusable, match="differs from the manifest"):
        session(host, target)


def test_a_context_binary_is_not_overwritten_by_the_model_around_it(tmp_path: Path) -> None:
    binary = Path(shutil.copy(RELEASES / NEWEST, tmp_path / "model.onnx"))
    error = command("wrap", binary, "-o", binary, "--overwrite")["error"]
    assert "is the context binary itself" in error["message"]
    assert binary.read_bytes() == (RELEASES / NEWEST).read_bytes()


def test_float_inputs_and_outputs_have_the_same_values(
    host: qnnbridge.Host, expected: dict[str, list[Any]], tmp_path: Path
) -> None:
    target = tmp_path / "models" / "float_ctx.onnx"
    told = command("wrap", RELEASES / NEWEST, "-o", target, "--float-io")
    assert told["copied"]
    assert (target.parent / NEWEST).exists()
    scales = {"a": 0.05, "b": 0.02, "y": 0.11, "z": 0.09}
    feeds = {name: (one.astype(np.int32) - 128) * np.float32(scales[name]) for name, one in FEEDS.items()}
    feeds = {name: one.astype(np.float32) for name, one in feeds.items()}
    wanted = [
        (one.astype(np.float32) - 128) * np.float32(scales[name])
        for name, one in zip(OUTPUTS, expected["2.7.0"], strict=True)
    ]
    assert same(run(host, target, feeds), wanted)
    assert same(run(host, RELEASES / NEWEST, feeds, entries={"qnnbridge.wrap_float_io": "1"}), wanted)
    # The CPU may only convert: with a further node, the session reports that node.
    model = onnx.load(target)
    model.graph.node.append(onnx.helper.make_node("Neg", ["y"], ["n"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("n", 1, [4, 8]))
    onnx.save(model, target.with_name("more.onnx"))
    with pytest.raises(PlacementRefused):
        session(host, target.with_name("more.onnx"))


def test_a_session_of_several_graphs_needs_a_choice(host: qnnbridge.Host, tmp_path: Path) -> None:
    binary = RELEASES / "two_graphs_qnn.bin"
    with pytest.raises(OptionError, match="2 graphs, but a session runs only one") as refused:
        session(host, binary)
    assert f"qnnbridge wrap {shell_word(binary)} " in str(refused.value.fix)
    first, second = refused.value.details["graphs"]
    x = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8)
    with session(host, binary, {"qnnbridge.wrap_graph": first}) as made:
        relu = np.array(made.run(None, {"x": x})[0])
    np.testing.assert_allclose(relu, np.maximum(x, 0), atol=2e-3)
    told = command("wrap", binary, "-o", tmp_path / "m.onnx")
    files = [Path(one["path"]) for one in told["models"]]
    assert [one["graphs"] for one in told["models"]] == [[first], [second]]
    with session(host, files[1]) as made:
        sigmoid = np.array(made.run(None, {"e": x})[0])
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-x)), atol=2e-3)
    command("wrap", binary, "-o", tmp_path / "all.onnx", "--together", "--overwrite")
    with session(host, tmp_path / "all.onnx") as made:
        assert same([np.array(one) for one in made.run(["a", "y"], {"x": x, "e": x})], [relu, sigmoid])
    unknown = command("wrap", binary, "-o", tmp_path / "n.onnx", "--graph", "none")["error"]
    assert "no graph 'none'" in unknown["message"]


def parts(path: Path) -> list[Any]:
    """Return the parts of a model that QNN reads: its nodes, inputs and outputs."""
    model = onnx.load(path)
    values = [*model.graph.input, *model.graph.output]
    nodes = [
        (node.name, list(node.input), list(node.output), attributes["partition_name"], attributes["main_context"])
        for node in model.graph.node
        for attributes in [{one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}]
    ]
    return [nodes, [(one.name, one.type.SerializeToString()) for one in values]]


def test_graphs_with_common_weights_get_the_models_that_onnx_runtime_made(
    host: qnnbridge.Host, tmp_path: Path
) -> None:
    """The simulator crashes on such a context binary, so the models are compared."""
    told = command("wrap", RELEASES / "shared_qnn.bin", "-o", tmp_path / "m.onnx")
    assert told["source"]["shares_weights"]
    found = {one["graphs"][0]: parts(Path(one["path"])) for one in told["models"]}
    wanted = [parts(RELEASES / f"{name}.onnx") for name in ("shared_a", "shared_b")]
    assert found == {one[0][0][0]: one for one in wanted}
    for path in (RELEASES / "shared_qnn.bin", Path(told["models"][0]["path"])):
        with pytest.raises(ContextUnusable, match="common weights"):
            session(host, path)


def test_a_killed_host_only_delays_the_run(host: qnnbridge.Host, expected: dict[str, list[Any]]) -> None:
    with session(host, RELEASES / NEWEST) as made:
        made.run(OUTPUTS, FEEDS)
        os.kill(host.info.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        assert same([np.array(one) for one in made.run(OUTPUTS, FEEDS)], expected["2.7.0"])


def test_the_cache_keeps_the_model_and_not_the_context_binary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    binary = Path(shutil.copy(RELEASES / "2.6.0_qnn.bin", tmp_path / "of its own name.bin"))
    with qnnbridge.Host() as host:
        first = run(host, binary, cache=True)
        (kept,) = (tmp_path / "cache" / "v1" / "wrapped").iterdir()
        assert {one.name for one in kept.iterdir()} == {"model.onnx", "fixed.json"}
        before = (kept / "model.onnx").stat().st_mtime_ns
        assert same(run(host, binary, cache=True), first)
        assert (kept / "model.onnx").stat().st_mtime_ns == before
        (kept / "model.onnx").write_bytes(b"damaged")
        assert same(run(host, binary, cache=True), first)


@pytest.mark.parametrize("at", [759, 925, 548, 4096])
def test_a_damaged_description_is_refused_and_the_host_survives(
    at: int, host: qnnbridge.Host, tmp_path: Path
) -> None:
    """QNN's library crashes on some of these."""
    data = bytearray((RELEASES / NEWEST).read_bytes())
    data[at : at + 64] = b"\xff" * 64
    binary = tmp_path / "model.bin"
    binary.write_bytes(data)
    pid = host.info.pid
    if at < 4096:
        with pytest.raises(ContextUnusable) as refused:
            session(host, binary)
        assert refused.value.fix
        told = command("inspect", binary)
        assert told["graphs"] is None
        assert told["verdict"]["level"] == "cannot run here"
        assert command("wrap", binary, "-o", tmp_path / "m.onnx")["error"]["code"] == "model.ContextUnusable"
    assert host.info.pid == pid
    assert not list(tmp_path.glob("*.onnx"))


def test_the_error_for_a_dlc_in_place_of_a_model_names_it(host: qnnbridge.Host, tmp_path: Path) -> None:
    import zipfile

    for name in ("model.dlc", "model.bin"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("dlc.metadata", b"")
        with pytest.raises(InvalidProtobuf, match="DLC") as refused:
            session(host, tmp_path / name)
        assert "Genie" in str(refused.value.cause)


def test_the_error_for_a_model_that_genie_runs_partly_names_genie(host: qnnbridge.Host, tmp_path: Path) -> None:
    from tests.unit import epcontext_models as models

    node = models.context_node(ep_context_type="dlc", ep_dlc_context="weights.dlc", ep_cache_context=None)
    (tmp_path / "weights.dlc").write_bytes(b"PK")
    path = models.save(models.model_of(node), tmp_path / "m.onnx")
    with pytest.raises(ContextUnusable, match=r"DLC weights\.dlc, which Genie runs"):
        session(host, path)
