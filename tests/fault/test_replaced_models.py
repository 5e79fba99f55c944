"""Replacing a model file between a session and its comparison with the CPU does not count as a difference.

The comparison reads the file again. Real hosts wait at three places for the test, which replaces the file
meanwhile.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import save_model
from tests.comparisons import settled
from tests.conformance.real_models import QNN, SOC_MODEL
from tests.contract.small_models import model, node, tensor
from tests.fakes.hosts import patched_host

import qnnbridge
from qnnbridge_host.cache.memo import Verdicts
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.settings import cache_dir

pytest.importorskip("onnxruntime_qnn")
pytestmark = [pytest.mark.simulator, pytest.mark.process]

SOC = [(QNN, {"soc_model": SOC_MODEL})]
X = np.random.default_rng(5).standard_normal((1, 8, 20)).astype(np.float32)
WAIT_S = 60.0
# Steps at which the host waits: before it opens the model again, before the worker reads it, before the worker runs
# it.
PLACES = ("open", "read", "run")
PAUSES = """
    import pathlib, time
    import qnnbridge_host.create.worker as worker
    import qnnbridge_host.serve.numbers_service as numbers

    def wait(place):
        if place in {places!r}:
            pathlib.Path({folder!r}, "begun " + place).touch()
            while not pathlib.Path({folder!r}, "go " + place).exists():
                time.sleep(0.01)

    def before(place, real):
        def call(*arguments, **keywords):
            wait(place)
            return real(*arguments, **keywords)
        return call

    def after(place, real):
        def call(*arguments, **keywords):
            made = real(*arguments, **keywords)
            wait(place)
            return made
        return call

    numbers.open_model = before("open", numbers.open_model)
    numbers._compare = before("read", numbers._compare)
    worker.open_original = after("run", worker.open_original)
"""


def unary(op: str) -> bytes:
    made = model([node(op, ["x"], ["y"])], [tensor("x", [1, 8, 20])], [tensor("y", [1, 8, 20])])
    return bytes(made.SerializeToString())


def scaled(folder: Path, factor: float) -> Path:
    """Write a model that computes y = x * factor, with the factor in ``w.bin``."""
    made = model(
        [node("Mul", ["x", "w"], ["y"])],
        [tensor("x", [1, 8, 20])],
        [tensor("y", [1, 8, 20])],
        {"w": np.full((1, 8, 20), factor, np.float32)},
    )
    path = folder / "m.onnx"
    save_model(made, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


class Waits:
    """A host that waits at some steps of its comparison until `go` is called."""

    def __init__(self, folder: Path, places: tuple[str, ...]) -> None:
        self._folder, self._places = folder, list(places)
        self.host = patched_host(folder, PAUSES.format(folder=str(folder), places=places))

    def begun(self) -> None:
        """Return once the host waits at the next step."""
        until = time.monotonic() + WAIT_S
        while not (self._folder / f"begun {self._places[0]}").exists():
            assert time.monotonic() < until
            time.sleep(0.01)

    def go(self) -> None:
        (self._folder / f"go {self._places.pop(0)}").touch()

    def close(self) -> None:
        while self._places:
            self.go()
        self.host.close()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Callable[..., Waits]]:
    made: list[Waits] = []

    def make(*places: str) -> Waits:
        folder = tmp_path / "seam"
        folder.mkdir()
        made.append(Waits(folder, places))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.delenv("QNNBRIDGE_VERIFY")
    warnings.simplefilter("error", qnnbridge.NumbersWarning)


def open_session(host: qnnbridge.Host, data: Any, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(data, providers=SOC, host=host, fix=False, **keywords)


def replace(path: Path, data: bytes) -> None:
    """Replace the file by another one with the same date, as `rsync -t` and installers do."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(data)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


def assert_not_compared(report: qnnbridge.NumbersReport) -> None:
    assert report.state == "unknown", str(report)
    assert report.reason == "the model or one of its external files has changed since the session was created"


@pytest.mark.parametrize("place", PLACES)
def test_a_model_file_that_was_replaced_is_not_compared(
    place: str, waiting: Callable[..., Waits], tmp_path: Path
) -> None:
    """The names Softmax and Sigmoid have the same length, so both files have the same size."""
    path, waits = tmp_path / "m.onnx", waiting(place)
    path.write_bytes(unary("Sigmoid"))
    with open_session(waits.host, path) as session:
        session.run(None, {"x": X})
        waits.begun()
        replace(path, unary("Softmax"))
        waits.go()
        assert_not_compared(settled(session))
        assert_not_compared(session.verify({"x": X}))
    for op in ("Softmax", "Sigmoid"):  # no verdict was stored for either model
        replace(path, unary(op))
        with open_session(waits.host, path) as session:
            assert session.verified.state == "pending"
            session.run(None, {"x": X})
            assert settled(session).state == "agrees"
    assert len(Verdicts(Store(cache_dir()).root).keys()) == 2


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("in_place", [True, False], ids=["written to", "replaced"])
def test_a_model_with_replaced_external_data_is_not_compared(
    place: str, in_place: bool, waiting: Callable[..., Waits], tmp_path: Path
) -> None:
    path, waits = scaled(tmp_path, 2.0), waiting(place)
    weights, other = tmp_path / "w.bin", np.full((1, 8, 20), 5.0, np.float32).tobytes()
    with open_session(waits.host, path) as session:
        session.run(None, {"x": X})
        waits.begun()
        if in_place:
            weights.write_bytes(other)
        else:
            replace(weights, other)
        waits.go()
        assert_not_compared(settled(session))


@pytest.mark.parametrize("place", PLACES)
def test_a_model_file_that_was_restored_is_compared(
    place: str, waiting: Callable[..., Waits], tmp_path: Path
) -> None:
    path, kept, waits = tmp_path / "m.onnx", tmp_path / "kept", waiting(place)
    path.write_bytes(unary("Sigmoid"))
    with open_session(waits.host, path) as session:
        session.run(None, {"x": X})
        waits.begun()
        os.rename(path, kept)
        path.write_bytes(unary("Neg"))
        os.replace(kept, path)
        waits.go()
        assert settled(session).state == "agrees"


def test_a_model_file_that_was_replaced_during_reading_and_restored_is_compared_again(
    waiting: Callable[..., Waits], tmp_path: Path
) -> None:
    """The worker has read the other model, and the original is restored before the run."""
    path, kept, waits = tmp_path / "m.onnx", tmp_path / "kept", waiting("read", "run")
    path.write_bytes(unary("Sigmoid"))
    with open_session(waits.host, path) as session:
        session.run(None, {"x": X})
        waits.begun()
        os.rename(path, kept)
        path.write_bytes(unary("Softmax"))
        waits.go()
        waits.begun()
        os.replace(kept, path)
        waits.go()
        assert settled(session).state == "agrees"


@pytest.mark.parametrize("place", PLACES)
def test_a_deleted_model_file_is_not_compared(place: str, waiting: Callable[..., Waits], tmp_path: Path) -> None:
    path, waits = tmp_path / "m.onnx", waiting(place)
    path.write_bytes(unary("Sigmoid"))
    with open_session(waits.host, path) as session:
        session.run(None, {"x": X})
        waits.begun()
        path.unlink()
        waits.go()
        assert_not_compared(settled(session))
        session.run(None, {"x": X})


@pytest.mark.parametrize("cached", [False, True], ids=["first", "from the cache"])
def test_a_session_that_raises_does_not_raise_for_a_replaced_model(
    cached: bool, waiting: Callable[..., Waits], tmp_path: Path
) -> None:
    """The model is replaced before the first call; the host does not wait."""
    path, waits = tmp_path / "m.onnx", waiting()
    path.write_bytes(unary("Sigmoid"))
    if cached:
        with open_session(waits.host, path, cache=True, verify=False) as session:
            assert session.cache.state == "miss"
    with open_session(waits.host, path, cache=True, verify="raise") as session:
        assert session.cache.state == ("hit" if cached else "miss")
        replace(path, unary("Softmax"))
        (y,) = session.run(None, {"x": X})
        assert np.allclose(y, 1 / (1 + np.exp(-X)), atol=0.01)
        assert_not_compared(session.verified)


def test_a_model_given_as_bytes_is_compared_whatever_happens_to_its_file(
    waiting: Callable[..., Waits], tmp_path: Path
) -> None:
    path, waits = tmp_path / "m.onnx", waiting("read")
    path.write_bytes(unary("Sigmoid"))
    with open_session(waits.host, path.read_bytes()) as session:
        session.run(None, {"x": X})
        waits.begun()
        replace(path, unary("Softmax"))
        waits.go()
        assert settled(session).state == "agrees"


def test_a_model_given_as_bytes_with_replaced_external_data_is_not_compared(
    waiting: Callable[..., Waits], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data, waits = scaled(tmp_path, 2.0).read_bytes(), waiting("read")
    with open_session(waits.host, data) as session:
        session.run(None, {"x": X})
        waits.begun()
        replace(tmp_path / "w.bin", np.full((1, 8, 20), 5.0, np.float32).tobytes())
        waits.go()
        assert_not_compared(settled(session))
