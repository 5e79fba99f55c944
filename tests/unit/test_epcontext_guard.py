"""The guard refuses compiled models and nothing else, with an explained error."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from qnnbridge_host.model.scan import refuse_compiled
from qnnbridge_protocol.errors import CompiledModelRefused, InvalidProtobuf

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from tests.unit import epcontext_models as models  # noqa: E402

MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.parametrize("place", models.PLACES)
def test_a_compiled_model_is_refused(place: str, tmp_path: Path) -> None:
    model = models.PLACES[place](models.context_node("part_7"))
    path = models.save(model, tmp_path / "m.onnx")
    for source in (path, str(path), path.read_bytes()):
        with pytest.raises(CompiledModelRefused):
            refuse_compiled(source, "qnnbridge optimize")


def test_the_message_says_what_the_file_is_and_what_to_do(tmp_path: Path) -> None:
    path = models.real(tmp_path)
    with pytest.raises(CompiledModelRefused) as caught:
        refuse_compiled(path, "qnnbridge quantize")
    text = str(caught.value)
    assert "good.onnx is a compiled model (EPContext) made by QNNExecutionProvider" in text
    assert "qnnbridge quantize needs the original model" in text
    assert "inside of a context binary" in text
    assert "Run qnnbridge quantize on the original ONNX model before its compilation." in text
    assert "QNNExecutionProvider_QNNExecutionProvider_10254387147049496059_1_0 in the main graph" in text
    assert "v2.51.0.260929181845" in text


def test_another_provider_is_named(tmp_path: Path) -> None:
    model = models.model_of(
        models.context_node(source="OpenVINOExecutionProvider"), models.context_node(source=None)
    )
    with pytest.raises(CompiledModelRefused) as caught:
        refuse_compiled(model.SerializeToString(), "x")
    assert "made by OpenVINOExecutionProvider and an unnamed execution provider" in str(caught.value)


def test_many_parts_are_not_all_listed() -> None:
    model = models.model_of(*(models.context_node(f"part_{index}") for index in range(40)))
    with pytest.raises(CompiledModelRefused) as caught:
        refuse_compiled(model.SerializeToString(), "x")
    assert len(caught.value.evidence) == 6
    assert caught.value.evidence[-1] == "and 35 more compiled parts"


def test_the_error_survives_pickling_and_is_not_retried() -> None:
    with pytest.raises(CompiledModelRefused) as caught:
        refuse_compiled(models.model_of(models.context_node()).SerializeToString(), "x")
    assert caught.value.retry == "pointless"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "node",
    [
        models.context_node(domain="someone.else"),
        models.context_node(domain=""),
        helper.make_node("Relu", ["x"], ["y"], name="EPContext"),
        helper.make_node("EPContextual", ["x"], ["y"], domain="com.microsoft"),
        helper.make_node("epcontext", ["x"], ["y"], domain="com.microsoft"),
    ],
    ids=["a foreign domain", "ONNX's own domain", "only the name", "a longer name", "another case"],
)
@pytest.mark.parametrize("place", models.PLACES)
def test_a_similar_operator_of_another_domain_is_not_refused(node: object, place: str) -> None:
    refuse_compiled(models.PLACES[place](node).SerializeToString(), "x")


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.name)
def test_original_models_are_not_refused(path: Path) -> None:
    refuse_compiled(path, "x")


def test_the_ort_format_of_onnx_runtime_is_refused_with_an_explanation(tmp_path: Path) -> None:
    (tmp_path / "m.ort").write_bytes(b"\x18\x00\x00\x00ORTM" + bytes(100))
    with pytest.raises(InvalidProtobuf, match=r"m\.ort is in ONNX Runtime's own format") as caught:
        refuse_compiled(tmp_path / "m.ort", "qnnbridge optimize")
    assert "qnnbridge optimize" in str(caught.value.fix)
