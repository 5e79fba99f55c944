"""The cache speeds up the second start, and costs little for models that need no compilation.

Ratios and bounds are much wider than the measured ones (docs/dev/verification.md), and the best of several tries
counts, so that a busy machine does not matter.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qnnbridge
from qnnbridge_host.cache import memo
from qnnbridge_host.cache.key import key_of, key_parts
from qnnbridge_host.cache.memo import HashMemo, memo_of
from qnnbridge_host.cache.store import Store
from qnnbridge_host.create.lookup import SessionCache
from qnnbridge_host.create.order import Creation, WorkOrder
from qnnbridge_host.model import source as source_module
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.request.client import StopSignal
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.settings import cache_dir, cache_settings
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec
from tests.contract.small_models import model, node, tensor
from tests.fakes.fair_clock import FairClock
from tests.unit.cache_entries import put

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parents[1] / "models"
QNN = "QNNExecutionProvider"
TRIES = 7
FASTER = 5
BOOKKEEPING_S = 0.020
LARGE_BYTES = 100 * 1024**2


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")


def test_a_second_start_is_at_least_five_times_as_fast_as_compiling(host: qnnbridge.Host) -> None:
    """Use the voice detector, which takes 1.0 s to compile and 0.02 s to load."""
    path = MODELS / "silero_vad_openvino_16k.onnx"

    def seconds(cache: bool) -> float:
        clock = FairClock()
        options = [(QNN, {"soc_model": "60"})]
        with qnnbridge.InferenceSession(path, providers=options, host=host, cache=cache) as session:
            took_s = clock.seconds
            assert session.cache.state == ("hit" if cache else "off")
        return took_s

    compiling_s = min(seconds(cache=False) for _ in range(2))
    qnnbridge.InferenceSession(path, providers=[(QNN, {"soc_model": "60"})], host=host).close()
    assert min(seconds(cache=True) for _ in range(TRIES)) * FASTER < compiling_s


def large(folder: Path) -> Path:
    weights = np.zeros(LARGE_BYTES // 4, np.float32)
    path = folder / "large.onnx"
    made = model(
        [node("Gather", ["w", "i"], ["y"])],
        [tensor("i", [1], onnx.TensorProto.INT64)],
        [tensor("y", [1])],
        {"w": weights},
    )
    onnx.save(made, str(path))
    return path


def test_an_unchanged_model_of_100_mb_is_opened_in_less_than_20_ms_without_reading_it(
    host: qnnbridge.Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure everything that a session does before it loads the entry: open, scan, key, lock, check of 100 MB,
    count.
    """
    path = large(tmp_path)
    spec = SessionSpec(str(path), providers=(ProviderSpec(QNN),))
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)  # the files count as settled now
    known = Store(cache_dir())
    source = ModelSource.open(path, memo=HashMemo(known.folder))
    info = host.learn(None)
    put(known, key_of(key_parts(source.fingerprint, spec, (), info, _hash)), bytes(LARGE_BYTES))

    def look() -> float:
        clock = FairClock()
        settings = cache_settings()
        opened = ModelSource.open(str(path), memo=memo_of(settings))
        order = WorkOrder((), StopSignal(), opened, emit=_not_now)
        creation = Creation(_not_now, _not_now, order, spec, opened, ".", settings)  # type: ignore[arg-type]
        cache = SessionCache(creation, settings, Hello())
        assert cache.reason_against is None
        found = cache.find(info)
        took_s = clock.seconds
        assert cache.reply.state == "hit"
        assert found is not None
        cache.release()
        return took_s

    look()
    read: list[Any] = []
    for module in (memo, source_module):
        monkeypatch.setattr(module, "hash_file", read.append)
    assert min(look() for _ in range(TRIES)) < BOOKKEEPING_S
    assert read == []


def _hash(path: str) -> str | None:
    raise AssertionError(f"no option names {path}")


def _not_now(*_: Any) -> Any:
    raise AssertionError("it is compiled, or waited for")
