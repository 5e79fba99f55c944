"""Creation of a session if rewriting its model fails."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from qnnbridge_host.create import choose, replaced
from qnnbridge_host.create.order import Creation, WorkOrder
from qnnbridge_host.create.session import MadeSession, SessionMaker
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.request.client import StopSignal
from qnnbridge_host.request.in_flight import Request
from qnnbridge_protocol.errors import BridgeError, Cancelled, ModelChanged, ModelError, PlacementRefused
from qnnbridge_protocol.model_records import CacheReply, CacheSettings
from qnnbridge_protocol.specs import FixSpec, Placement, SessionSpec

# Native steps, in order.
declared: list[str] = []
MODEL = Path(__file__).parents[1] / "models" / "sigmoid.onnx"

HELLO: Any = SimpleNamespace(machine="x86_64")


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the facts about the host, since these tests run without an engine."""
    found = SimpleNamespace(versions={}, simulator=True, machine="x86_64")
    monkeypatch.setattr(SessionMaker, "host_info", property(lambda self: self._info or found))


class Models:
    """Models of which no copy can be made."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[FixSpec] = []

    def fixed_source(self, source: Any, spec: SessionSpec, *_: Any) -> Any:
        assert spec.fix is not None
        self.asked.append(spec.fix)
        raise self.error


class Maker(SessionMaker):
    """Maker of sessions for a model with an operator that QNN computes wrong."""

    refuses = False

    def __init__(self, models: Models) -> None:
        super().__init__(None, HELLO)  # type: ignore[arg-type]
        self.models = models

    def _from_model(self, creation: Creation) -> MadeSession:
        if self.refuses:
            raise PlacementRefused("Not all of it runs on QNN.")
        return MadeSession(7, None, CacheReply("off", ""), "", [])  # type: ignore[arg-type]


def creation_of(fix: FixSpec | None = None, **fields: Any) -> Creation:
    source = ModelSource.open(str(MODEL), ".")
    spec = SessionSpec(str(MODEL), fix=fix, **fields)
    request = Request(4, {"op": "session.create"}, ())
    return Creation(request, declared.append, WorkOrder((), StopSignal(), source), spec, source, ".")


def made(maker: Maker, fix: FixSpec | None = None, **fields: Any) -> MadeSession:
    with (
        patch.object(replaced, "fixed_source", maker.models.fixed_source),
        patch.object(choose, "curing_rewrites", lambda *_: ("edge-padding",)),
        # A worker would have to be asked.
        patch.object(replaced, "suggest_fix", lambda *_, **__: None),
    ):
        return maker.make(creation_of(fix, **fields))


@pytest.mark.parametrize("kind", [ModelError, PlacementRefused])
def test_if_the_copy_cannot_be_made_the_session_uses_the_model_and_reports_why(kind: type[BridgeError]) -> None:
    """If QNN refuses only the copy, the session also uses the model, which QNN accepts without a rewrite."""
    models = Models(kind("There is no room for a copy."))
    session = made(Maker(models))
    assert (session.session, session.changes, session.fix) == (7, (), None)
    (notice,) = session.notices
    assert notice.kind == "model"
    assert "sigmoid.onnx was not rewritten automatically: There is no room for a copy." in notice.text
    (asked,) = models.asked
    assert asked.only == ("constants", "shape-computations", "untaken-branches", "edge-padding")


def test_sizes_are_fixed_in_the_copy() -> None:
    models = Models(ModelError("no"))
    made(Maker(models), free_dimensions_by_name={"n": 4})  # type: ignore[arg-type]
    assert models.asked[0].only[0] == "fixed-shapes"


def test_a_cancelled_request_ends_the_rewrite() -> None:
    with pytest.raises(Cancelled):
        made(Maker(Models(Cancelled("gone"))))


@pytest.mark.parametrize(
    "fields",
    [
        {"fix": FixSpec(when="never")},
        {"config_entries": {"ep.context_enable": "1"}},
        {"initializers": ("w",)},
        {"options": {"optimized_model_filepath": "x.onnx"}},
    ],
)
def test_nothing_is_rewritten_if_the_application_wants_the_model_unchanged(fields: dict[str, Any]) -> None:
    models = Models(ModelError("no"))
    fix = fields.pop("fix", None)
    assert made(Maker(models), fix, **fields).notices == []  # type: ignore[arg-type]
    assert models.asked == []


def test_the_original_refusal_is_reported_if_the_copy_fails_too() -> None:
    models = Models(ModelError("The rewrites do not do."))
    maker = Maker(models)
    maker.refuses = True
    with pytest.raises(PlacementRefused, match="Not all of it") as refused:
        made(maker, FixSpec(when="refused"))
    assert refused.value.evidence == ("The rewritten copy (fix=True) fails as well: The rewrites do not do.",)


INFO = SimpleNamespace(placement=Placement())


class Native:
    """Engine that creates sessions and, the given number of times, rewrites the file meanwhile."""

    def __init__(self, path: Path, touches: int) -> None:
        self.path, self.touches = path, touches
        self.made = self.closed = 0

    def create(self, *_: Any, **__: Any) -> Any:
        self.made += 1
        if self.touches:
            self.touches -= 1
            before, data = self.path.stat(), self.path.read_bytes()
            for contents in (b"for a moment", data):
                self.path.write_bytes(contents)
            os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return SimpleNamespace(info=INFO, close=self.close)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(("touches", "made", "closed"), [(0, 1, 0), (1, 2, 1), (3, 4, 3), (4, 4, 4)])
def test_a_model_that_was_replaced_and_restored_during_loading_is_loaded_again(
    tmp_path: Path, touches: int, made: int, closed: int
) -> None:
    """The dates are restored, too: neither dates nor hashes show what native code has read."""
    native = native_of(tmp_path, touches)
    maker = SessionMaker(native, HELLO)  # type: ignore[arg-type]
    creation = creation_of()._replace(source=ModelSource.open(str(native.path), "."))
    if made == closed:
        with pytest.raises(ModelChanged, match="keeps writing"):
            maker._native(creation, None)
    else:
        assert maker._native(creation, None)[1] is INFO
    assert (native.made, native.closed) == (made, closed)


def test_a_session_that_writes_files_is_created_once(tmp_path: Path) -> None:
    """The session would find its own files the second time."""
    native = native_of(tmp_path, 1)
    maker = SessionMaker(native, HELLO)  # type: ignore[arg-type]
    creation = creation_of(config_entries={"ep.context_enable": "1"})
    with pytest.raises(ModelChanged):
        maker._native(creation._replace(source=ModelSource.open(str(native.path), ".")), None)
    assert (native.made, native.closed) == (1, 1)


def native_of(folder: Path, touches: int) -> Native:
    path = folder / "m.onnx"
    path.write_bytes(MODEL.read_bytes())
    time.sleep(0.05)  # longer than a tick of the file system's clock
    return Native(path, touches)


class TouchedCache:
    """Cache of a model whose entry is touched each time it is loaded."""

    def __init__(self) -> None:
        self.state = "hit"
        self.held = 1

    def find(self, *_: Any) -> Any:
        self.state, self.held = "hit", 1
        return SimpleNamespace(manifest=SimpleNamespace(warning=""))

    def loaded(self, *_: Any) -> None:
        self.release()

    def release(self) -> None:
        self.held = 0

    def off(self, _reason: str) -> None:
        self.state = "off"

    def made_without(self, _info: Any) -> None:
        pass


def test_a_session_that_stops_using_the_cache_is_not_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    session, cache = SimpleNamespace(close=lambda: None), TouchedCache()
    maker = SessionMaker(None, HELLO)  # type: ignore[arg-type]
    maker._info = SimpleNamespace()  # type: ignore[assignment]
    creation = creation_of()

    def native(_creation: Creation, loadable: Any) -> Any:
        creation.request.phase = "creating"
        creation.request.blame = {"fingerprint": "the entry's" if loadable is not None else "the model's"}
        declared.append("creating")
        return session, "info"

    monkeypatch.setattr(maker, "_native", native)
    declared.clear()
    assert maker._from_entry_or_model(creation, cache, cache.find()) == (session, "info", None)  # type: ignore[arg-type]
    assert (cache.state, cache.held) == ("off", 0)
    # A crash between two attempts, while the model is compiled, is not blamed on the entry.
    assert declared == [*["creating", "ready"] * 3, "creating"]


@pytest.mark.parametrize("cached", [True, False])
def test_a_model_that_is_replaced_before_its_rewrite_gives_no_copy(cached: bool, tmp_path: Path) -> None:
    """A copy of another model under the original hash would be found when the original is restored."""
    model = tmp_path / "model.onnx"
    model.write_bytes(MODEL.read_bytes())
    source = ModelSource.open(str(model), ".")

    def rewritten(_source: Any, _wanted: Any, _folder: str, target: Path, _order: Any) -> replaced.FixedModel:
        model.write_bytes((MODEL.parent / "mul_1.onnx").read_bytes())
        (target / "model.onnx").write_bytes(model.read_bytes())
        return replaced.FixedModel(str(target / "model.onnx"), ("sigmoid",))

    settings = CacheSettings(str(tmp_path / "cache")) if cached else None
    order = WorkOrder((), StopSignal(), source)
    with patch.object(replaced, "_rewritten", rewritten), pytest.raises(ModelChanged):
        replaced.fixed_source(source, SessionSpec(str(model), fix=FixSpec()), settings, ".", order)
    assert not list(tmp_path.glob("cache/v1/fixed/*"))
