"""Records of the cache with a correct hash and values of another build are moved away or ignored, without an error."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests import needs
from tests.fakes.commands import qnnbridge
from tests.unit.cache_entries import key_number, put

from qnnbridge_host.cache.files import Damaged, _digest, read_json
from qnnbridge_host.cache.memo import HashMemo, NegativeEntries, OptimizerChoice, OptimizerChoices, Verdicts
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.model_records import NumbersReport, OutputNumbers
from qnnbridge_protocol.settings import cache_dir

KEY = key_number(1)
# Unchanged for long enough that its hash is cached.
RESTED = pytest.__file__
EXTREMES: tuple[Any, ...] = (
    *(float("inf"), float("-inf"), float("nan"), 10**400, -(10**400), 2**63, -1, 0, 1e300, -0.0),
    *("", "\ud800", "x" * 100_000, "\x1b]0;title\x07", "a\u202eb", None, True, [], {}, [[]], {"": {}}, ["\udfff"]),
)
# Every position in a record gets one of this many values.
STEP = needs.length(7, 2)
COMMANDS = (["list"], ["verify"], ["prune"], ["clear", "--all"])


def write_with_hash(path: Path, content: Any) -> None:
    """Write a record as the cache does, whatever its values are."""
    path.write_text(json.dumps({"content": content, "sha256": _digest(content)}), "utf-8", "surrogatepass")


def records() -> dict[str, Path]:
    """Create one record of each kind, in a separate cache for each test."""
    folder = cache_dir()
    store = Store(folder)
    entry = put(store, KEY)
    store.count_hit(KEY)
    HashMemo(folder).sha256(RESTED)
    NegativeEntries(store.root).write(KEY, "slow", "it took long", "m.onnx")
    outputs = (OutputNumbers("y", snr_db=60.0, max_abs=0.1),)
    Verdicts(store.root).write(KEY, NumbersReport("agrees", outputs=outputs, when=1.7e9, calls=4, compared=2))
    OptimizerChoices(store.root).write(KEY, OptimizerChoice(("ConstantFolding",), why="it changes the model"))
    (memo,) = HashMemo(folder)._files()
    return {
        "manifest": entry.folder / "manifest.json",
        "hits": store._uses(KEY) / "hits.json",
        "memo": memo,
        "note": store.root / "notes" / f"{KEY}.json",
        "verdict": store.root / "verdicts" / f"{KEY}.json",
        "optimizers": store.root / "optimizers" / f"{KEY}.json",
    }


def read_everything() -> None:
    store = Store(cache_dir())
    try:
        entry = store.find(KEY)
        if entry is not None:
            json.dumps(dataclasses.asdict(entry.manifest.info), default=str)
    except Damaged:
        pass
    store.hits(KEY)
    store.count_hit(KEY)
    HashMemo(cache_dir()).sha256(RESTED)
    NegativeEntries(store.root).read(KEY)
    OptimizerChoices(store.root).read(KEY)
    verdicts = Verdicts(store.root)
    report = verdicts.read(KEY)
    if report is not None:
        str(report).encode()
        report.to_wire()
    verdicts.begin(KEY)
    verdicts.count(KEY, 3)
    verdicts.add(KEY, NumbersReport("agrees", when=1.7e9), 2)


def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the positions of values in a record, as keys and indices from its root."""
    inner = (
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    )
    for key, value in inner:
        yield (*before, key)
        yield from places(value, (*before, key))


def replaced(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[place[0]] = replaced(copy[place[0]], place[1:], value)
    return copy


@pytest.mark.parametrize("kind", ["manifest", "hits", "memo", "note", "verdict", "optimizers"])
def test_a_record_with_any_unexpected_value_is_tolerated(kind: str) -> None:
    path = records()[kind]
    content = read_json(path)
    assert content is not None
    for at, place in enumerate(places(content)):
        for value in EXTREMES[at % STEP :: STEP]:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_with_hash(path, replaced(content, place, value))
            read_everything()


@pytest.mark.parametrize("kind", ["manifest", "hits", "memo", "note", "verdict", "optimizers"])
@pytest.mark.parametrize(
    "value", [float("inf"), 10**400, "\ud800", {"a": [1]}], ids=["inf", "huge", "half", "shape"]
)
def test_commands_tolerate_an_unexpected_record_and_clear_removes_it(kind: str, value: Any) -> None:
    path = records()[kind]
    content = read_json(path)
    assert content is not None
    write_with_hash(path, {name: value if name != "schema" else 1 for name in content})
    for arguments in COMMANDS:
        done = qnnbridge("cache", *arguments)
        assert done.returncode in (0, 1), done.output
        assert "Traceback" not in done.output
    assert not path.exists()


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=json_values)
def test_a_record_with_any_json_document_is_tolerated(value: Any) -> None:
    for path in records().values():
        write_with_hash(path, value)
    read_everything()


def test_a_verdict_of_another_build_is_moved_away_and_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    path = records()["verdict"]
    content = read_json(path)
    assert content is not None
    write_with_hash(path, {**content, "report": {**content["report"], "outputs": [{"other": "shape"}]}})
    verdicts = Verdicts(Store(cache_dir()).root)
    with caplog.at_level(logging.WARNING, logger="qnnbridge.cache"):
        assert verdicts.read(KEY) is None
        assert verdicts.read(KEY) is None
    assert len([one for one in caplog.records if "set aside" in one.getMessage()]) == 1
    verdicts.add(KEY, NumbersReport("agrees", when=1.7e9), 1)
    assert not path.with_suffix(".json.odd").exists()
