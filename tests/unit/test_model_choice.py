"""The choice of the model to load: as given, without operators that QNN computes wrong, or with separated gates."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cache_entries import put

from qnnbridge_host.cache.key import key_of, key_parts
from qnnbridge_host.cache.memo import NegativeEntries, Verdicts
from qnnbridge_host.cache.store import Store
from qnnbridge_host.create import parting
from qnnbridge_host.create.choose import AS_GIVEN, ModelChoice, choose_model, may_rewrite
from qnnbridge_host.create.lookup import SessionCache
from qnnbridge_host.create.order import Creation, WorkOrder
from qnnbridge_host.model.known_wrong import table
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.request.client import StopSignal
from qnnbridge_host.request.in_flight import Request
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.model_records import CacheSettings, NumbersReport
from qnnbridge_protocol.specs import QNN, FixSpec, HostInfo, ProviderSpec, SessionSpec

MODEL = Path(__file__).parents[1] / "models" / "sigmoid.onnx"
HOST = HostInfo(1, "AMD64", "3.13", "python", "1.0", "linux", 1, 0.1, {}, simulator=True)
DIFFERS = NumbersReport("differs", reason="y: 12.0 dB", when=time.time())


@pytest.fixture
def known_wrong(tmp_path: Path) -> str:
    """Path of a model with an operator of the table."""
    onnx = pytest.importorskip("onnx")
    from lab.sweep.cases import float_model

    from qnnbridge_host.numerics.cases import Case

    row = next(row for row in table() if row.name == "conv-equal-padding")
    path = tmp_path / "wrong.onnx"
    onnx.save(float_model(Case.from_words(row.example)), str(path))
    return str(path)


@pytest.fixture
def settings(tmp_path: Path) -> CacheSettings:
    return CacheSettings(str(tmp_path / "cache"), wanted=True)


def creation_of(path: str, settings: CacheSettings | None = None, **fields: Any) -> Creation:
    source = ModelSource.open(path, ".")
    spec = SessionSpec(path, providers=(ProviderSpec(QNN, {"soc_model": "60"}),), **fields)
    request = Request(4, {"op": "session.create"}, ())
    order = WorkOrder((), StopSignal(), source)
    return Creation(request, lambda _: None, order, spec, source, ".", settings)


def choice_of(creation: Creation, host: HostInfo = HOST) -> ModelChoice:
    settings = creation.settings
    return choose_model(creation, host, settings and SessionCache(creation, settings, Hello()))


def key_for(creation: Creation) -> str:
    return key_of(key_parts(creation.source.fingerprint, creation.spec, (), HOST, lambda _: None))


def test_a_model_without_known_faults_is_loaded_as_given(settings: CacheSettings) -> None:
    assert choice_of(creation_of(str(MODEL))) == AS_GIVEN
    assert choice_of(creation_of(str(MODEL), settings)) == AS_GIVEN


def test_a_model_with_a_known_fault_is_loaded_from_a_rewritten_copy(
    known_wrong: str, settings: CacheSettings
) -> None:
    for kept in (None, settings):
        choice = choice_of(creation_of(known_wrong, kept))
        assert choice.rewrites == ("conv-padding",)
        assert choice.fix is not None
        assert choice.fix.only == ("constants", "shape-computations", "untaken-branches", "conv-padding")
        assert choice.parting is None


def test_sizes_of_free_dimensions_are_fixed_in_the_copy(known_wrong: str) -> None:
    choice = choice_of(creation_of(known_wrong, free_dimensions_by_name={"n": 4}))
    assert choice.fix is not None
    assert choice.fix.only[0] == "fixed-shapes"


def test_a_host_without_qnn_loads_the_model_as_given(known_wrong: str) -> None:
    assert choice_of(creation_of(known_wrong), dataclasses.replace(HOST, simulator=None)) == AS_GIVEN


@pytest.mark.parametrize(("warning", "given"), [("", True), ("Conv is wrong.", False)])
def test_an_entry_without_a_warning_replaces_the_search_for_faults(
    known_wrong: str, settings: CacheSettings, warning: str, given: bool
) -> None:
    creation = creation_of(known_wrong, settings)
    put(Store(Path(settings.folder)), key_for(creation), warning=warning)
    assert (choice_of(creation) == AS_GIVEN) is given


def test_an_entry_that_the_session_will_not_use_is_ignored(known_wrong: str, settings: CacheSettings) -> None:
    creation = creation_of(known_wrong, settings)
    store = Store(Path(settings.folder))
    entry = put(store, key_for(creation))
    small = creation._replace(settings=dataclasses.replace(settings, wanted=None))
    assert choice_of(small).rewrites
    # An entry that was copied here from another key.
    entry.folder.rename(store.entry_folder("0" * 32))
    put(store, "1" * 32).folder.rename(entry.folder)
    assert choice_of(creation).rewrites
    (entry.folder / "manifest.json").write_text("{")
    assert choice_of(creation).rewrites


def test_a_verdict_that_differs_selects_a_copy_with_separated_gates(settings: CacheSettings) -> None:
    creation = creation_of(str(MODEL), settings)
    store = Store(Path(settings.folder))
    store.prepare()
    put(store, key_for(creation))
    Verdicts(store.root).write(key_for(creation), DIFFERS)
    choice = choice_of(creation)
    assert choice.rewrites == (parting.GATES,)
    assert choice.fix is not None
    assert choice.fix.only[-1] == parting.GATES
    assert choice.parting is not None
    assert choice.parting.report.reason == DIFFERS.reason
    # The next session does not try again after a record that the copy was no better.
    NegativeEntries(store.root).write(choice.parting.note, "gates", "no better", "m.onnx")
    assert choice_of(creation) == AS_GIVEN


def test_a_verdict_with_a_known_cause_or_a_disabled_cache_selects_no_copy(settings: CacheSettings) -> None:
    creation = creation_of(str(MODEL), settings)
    store = Store(Path(settings.folder))
    store.prepare()
    Verdicts(store.root).write(key_for(creation), DIFFERS)
    assert choice_of(creation).parting is not None
    off = dataclasses.replace(settings, enabled=False)
    assert choice_of(creation._replace(settings=off)) == AS_GIVEN
    Verdicts(store.root).write(key_for(creation), dataclasses.replace(DIFFERS, cause="Optimizers change it."))
    assert choice_of(creation) == AS_GIVEN


def test_known_faults_are_rewritten_before_gates(settings: CacheSettings, tmp_path: Path, known_wrong: str) -> None:
    import onnx

    model = onnx.load(known_wrong)
    output = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Sigmoid", [output], ["gate"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("gate", onnx.TensorProto.FLOAT, None))
    path = str(tmp_path / "both.onnx")
    onnx.save(model, path)
    creation = creation_of(path, settings)
    store = Store(Path(settings.folder))
    store.prepare()
    Verdicts(store.root).write(key_for(creation), DIFFERS)
    choice = choice_of(creation)
    assert (choice.rewrites, choice.parting) == (("conv-padding",), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"fix": FixSpec(when="never")},
        {"config_entries": {"ep.context_enable": "1"}},
        {"initializers": ("w",)},
        {"options": {"optimized_model_filepath": "x.onnx"}},
    ],
)
def test_the_host_does_not_rewrite_a_model_that_the_application_wants_unchanged(fields: dict[str, Any]) -> None:
    assert may_rewrite(creation_of(str(MODEL)))
    assert not may_rewrite(creation_of(str(MODEL), **fields))
