"""Replace models and cache entries after they are checked and before they are used. No session may mix two models.

The cache must not store one model's compilation under the key of another.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import qnnbridge
from lab.attack.report import Report
from qnnbridge import errors
from qnnbridge_host.cache.store import Store

OPTIONS: dict[str, Any] = {
    "providers": [("QNNExecutionProvider", {"soc_model": "60"})],
    "fallback": "cpu",
    "cache": True,
    "verify": "off",
}
X = np.arange(1, 9, dtype=np.float32)
# Longest pause between two replacements, about the duration of a compilation.
PAUSE_S = 0.3
# Sessions per check: the second one uses the cache.
TWICE = 2


def times(scale: float) -> bytes:
    """Return a model that multiplies by `scale`. The size of the model is the same for every scale."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in "xy"]
    constant = numpy_helper.from_array(np.full(8, scale, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [value[0]], [value[1]], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    return bytes(model.SerializeToString())


def attack(count: int, seed: int) -> Report:
    report = Report("exchanged files")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, qnnbridge.Host() as host:
        settings = {"QNNBRIDGE_CACHE_DIR": os.path.join(folder, "cache"), "QNNBRIDGE_CACHE": "1"}
        with patch.dict(os.environ, settings):
            for number in range(count):
                rng = random.Random(f"{seed} {number}")
                attack_on = rng.choice([_models, _models, _entries])
                attack_on(report, host, Path(folder), f"{seed} {number}", rng, number)
                report.count("rounds")
        report.expect(not host.stats.crashes, f"{host.stats.crashes} hosts died: {host.stats.last_crash}")
    return report


def _models(report: Report, host: qnnbridge.Host, folder: Path, name: str, rng: random.Random, number: int) -> None:
    """Alternate two models in one file while sessions are created from the file."""
    scales = (2.0 * number + 2, 2.0 * number + 3)
    path = folder / f"model{number}.onnx"
    path.write_bytes(times(scales[0]))
    with _repeatedly(lambda: _write(path, times(rng.choice(scales)), rng), rng):
        for _ in range(TWICE):
            got = _result(report, path, host)
            report.expect(
                got is None or got in scales, f"{name}: a session multiplies by {got}, not by one of {scales}"
            )
    for scale in scales:
        path.write_bytes(times(scale))
        for _ in range(TWICE):
            got = _result(report, path, host)
            report.expect(got == scale, f"{name}: the model for {scale} multiplies by {got} after the attack")


def _entries(
    report: Report, host: qnnbridge.Host, folder: Path, name: str, rng: random.Random, number: int
) -> None:
    """Overwrite the files of a cache entry with the files of two entries in turn while a session loads the
    entry."""
    scales = (2.0 * number + 2, 2.0 * number + 3)
    paths = [folder / f"entry{number}-{scale}.onnx" for scale in scales]
    keys = []
    for path, scale in zip(paths, scales, strict=True):
        path.write_bytes(times(scale))
        with qnnbridge.InferenceSession(path, host=host, **OPTIONS) as session:
            keys.append(str(session.cache.key))
    store = Store(Path(os.environ["QNNBRIDGE_CACHE_DIR"]))
    victim = store.entry_folder(keys[0])
    originals = folder / f"originals{number}"
    for key in keys:
        shutil.copytree(store.entry_folder(key), originals / key)
    names = sorted(file.name for file in (originals / keys[0]).iterdir() if file.suffix == ".bin")

    def exchange() -> None:
        for one in names:
            source = originals / rng.choice(keys) / one
            if victim.exists() and source.exists():
                _write(victim / one, source.read_bytes(), rng)

    with _repeatedly(exchange, rng):
        for _ in range(TWICE):
            got = _result(report, paths[0], host)
            report.expect(got in (None, scales[0]), f"{name}: the model for {scales[0]} multiplies by {got}")
    got = _result(report, paths[0], host)
    report.expect(got == scales[0], f"{name}: the model for {scales[0]} multiplies by {got} after the attack")


def _result(report: Report, path: Path, host: qnnbridge.Host) -> float | None:
    """Return the factor by which a new session multiplies; ``None`` if it was refused because its file changed."""
    try:
        with qnnbridge.InferenceSession(path, host=host, **OPTIONS) as session:
            (y,) = session.run(None, {"x": X})
            report.count(f"cache {session.cache.state}")
    except (errors.ModelChanged, errors.InvalidProtobuf, errors.NoSuchFile) as error:
        report.count(type(error).__name__)
        return None
    except Exception as error:
        report.finding(f"{path.name}: {type(error).__name__}: {error}")
        return None
    report.count("sessions")
    factors = {round(float(factor), 1) for factor in y / X}
    return factors.pop() if len(factors) == 1 else float("nan")


@contextmanager
def _repeatedly(act: Callable[[], None], rng: random.Random) -> Iterator[None]:
    done = threading.Event()

    def work() -> None:
        while not done.wait(rng.random() * PAUSE_S):
            act()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _write(path: Path, data: bytes, rng: random.Random) -> None:
    """Write the data in one of four ways: to a new file, in place, in place with the old dates, or in place and
    then restore the old contents."""
    way = rng.choice(["replace", "in place", "dates kept", "put back"])
    try:
        if way == "replace":
            new = path.with_name(f".{path.name}.new")
            new.write_bytes(data)
            os.replace(new, path)
            return
        before, old = path.stat(), path.read_bytes()
        for written in (data, old)[: 2 if way == "put back" else 1]:
            with open(path, "r+b") as file:
                file.write(written)
                file.truncate()
            time.sleep(rng.random() * PAUSE_S if way == "put back" else 0)
        if way != "in place":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    except OSError:
        time.sleep(0)  # another thread has moved the entry away: let that thread continue
