"""Descriptions behave like ordinary dataclasses, although they do not generate code."""

from __future__ import annotations

import dataclasses
import pickle
import re

import pytest

from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.specs import FixSpec, NodeInfo, Placement, ProviderSpec, SessionSpec

SPEC = SessionSpec("m.onnx", (ProviderSpec("CPUExecutionProvider"),), fallback="cpu", initializers=("w",))


def test_fields_are_given_by_position_or_by_name_or_have_their_defaults() -> None:
    assert (SPEC.model_path, SPEC.fallback, SPEC.initializers, SPEC.options) == ("m.onnx", "cpu", ("w",), {})
    assert SPEC.options is not SessionSpec("m.onnx").options


def test_arguments_that_no_dataclass_accepts_are_refused() -> None:
    for values, named in (
        ((), {}),
        (("x", "tensor(float)", (), "more"), {}),
        (("x",), {"name": "y", "type": "tensor(float)"}),
        (("x", "tensor(float)"), {"colour": "red"}),
    ):
        with pytest.raises(TypeError, match="NodeInfo takes name, type, shape"):
            NodeInfo(*values, **named)


def test_a_field_cannot_be_changed_or_deleted() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.fallback = "error"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del SPEC.fallback
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.colour = "red"  # type: ignore[attr-defined]
    assert SPEC.fallback == "cpu"


def test_copies_are_equal_until_a_field_is_replaced() -> None:
    same = dataclasses.replace(SPEC)
    assert same == SPEC
    assert same is not SPEC
    assert dataclasses.replace(SPEC, fallback="error") != SPEC
    assert pickle.loads(pickle.dumps(SPEC)) == SPEC
    assert SessionSpec.from_wire(SPEC.to_wire()) == SPEC
    assert hash(Placement(qnn_nodes=3)) == hash(Placement(qnn_nodes=3))
    assert "fallback='cpu'" in repr(SPEC)


# --- documents -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    name: str
    place: Place | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Whole:
    parts: tuple[Part, ...]
    sizes: dict[str, float] = dataclasses.field(default_factory=dict)


Place = tuple[str, int]


def test_a_document_is_converted_to_the_dataclass_that_it_declares() -> None:
    document = {"parts": [{"name": "a", "place": ["b", 3], "new": 1}], "sizes": {"c": 2}}
    assert read_document(Whole, document, "file") == Whole((Part("a", ("b", 3)),), {"c": 2})


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "file is null, not a map"),
        ({}, "file has no parts"),
        ({"parts": [{"name": 3}]}, "file.parts[0].name is int 3, not str"),
        ({"parts": [{"name": "a", "place": ["b"]}]}, "file.parts[0].place has 1 items, not 2"),
        ({"parts": [], "sizes": {"a": True}}, "file.sizes['a'] is bool True, not float"),
    ],
)
def test_an_invalid_document_is_refused_with_the_location(document: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        read_document(Whole, document, "file")


def test_a_session_with_the_fields_of_earlier_releases_keeps_its_hash() -> None:
    """Computed with 0.2.0. Quarantines and manifests contain these hashes."""
    assert SessionSpec("m").options_hash == SessionSpec("n").options_hash == "76e275aac21625bf"
    first = {"fallback": "cpu", "initializers": ("w",), "options": {"a": 1}}
    providers = (ProviderSpec("Q", {"b": "1"}),)
    assert SessionSpec("m", providers, **first).options_hash == "0ab40a60ab7370b1"  # type: ignore[arg-type]
    younger = SessionSpec("m", files_in_memory=("a",), fix=FixSpec())
    assert younger.options_hash == "015e7401a335e995"
