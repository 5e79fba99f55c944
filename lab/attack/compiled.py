"""Damage compiled models that have a manifest: damaged data must never reach QNN."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import qnnbridge
from lab.attack.report import Report
from qnnbridge import errors
from qnnbridge_tools.compile.compiling import adopt_one

COMPILED = Path(__file__).parents[2] / "tests" / "models" / "compiled"
MODELS = {"F.onnx": "F_qnn.bin", "good.onnx": "a_qnn.bin"}
OPTIONS: dict[str, Any] = {"providers": [("QNNExecutionProvider", {"soc_model": "60"})], "fallback": "cpu"}


def attack(count: int, seed: int) -> Report:
    """Damage a file `count` times without changing its dates, and create a session in the same host each time."""
    report = Report("compiled models")
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, qnnbridge.Host() as host:
        for model, blob in MODELS.items():
            for name in (model, blob):
                shutil.copy(COMPILED / name, folder)
            adopt_one(Path(folder, model), [blob])
            # Let a first session add the intact files to the hash memo: the memo must not hide the later damage.
            qnnbridge.InferenceSession(Path(folder, model), host=host, **OPTIONS).close()
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            model = rng.choice(sorted(MODELS))
            victim = Path(folder, rng.choice([model, MODELS[model], MODELS[model]]))
            what = _damage(victim, rng)
            report.count("damages")
            try:
                session = qnnbridge.InferenceSession(Path(folder, model), host=host, **OPTIONS)
            except (errors.ContextUnusable, errors.InvalidProtobuf) as error:
                report.count(type(error).__name__)
            except Exception as error:
                report.finding(f"{seed} {number}: {what}: {type(error).__name__}: {error}")
            else:
                session.close()
                report.finding(f"{seed} {number}: {what} of {victim.name} was loaded")
            _restore(victim)
        report.count("hosts that died", host.stats.crashes)
        report.expect(not host.stats.crashes, f"{host.stats.crashes} hosts died: {host.stats.last_crash}")
    return report


def _damage(victim: Path, rng: random.Random) -> str:
    """Damage the file in place without changing its size and dates; return a description."""
    before = victim.stat()
    data = bytearray(victim.read_bytes())
    at = rng.randrange(len(data))
    way = rng.choice(["bit", "bit", "byte", "page", "swap"])
    if way == "bit":
        data[at] ^= 1 << rng.randrange(8)
    elif way == "byte":
        data[at] = (data[at] + rng.randrange(1, 256)) % 256
    elif way == "page":
        data[at : at + 4096] = bytes(0xFF ^ byte for byte in data[at : at + 4096])
    else:
        data[at], data[at - 1] = data[at - 1], data[at] ^ 1
    with open(victim, "r+b") as file:
        file.write(data)
    os.utime(victim, ns=(before.st_atime_ns, before.st_mtime_ns))
    return f"{way} at {at}"


def _restore(victim: Path) -> None:
    shutil.copy2(COMPILED / victim.name, victim)
