"""Damage cache entries: no damaged entry may be loaded, and every session must return the right result."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import qnnbridge
from lab.attack.report import Report
from qnnbridge import errors
from qnnbridge_host.cache.store import Store

MODELS = Path(__file__).parents[2] / "tests" / "models"
F = MODELS / "f.onnx"
OPTIONS: dict[str, Any] = {
    "providers": [("QNNExecutionProvider", {"soc_model": "60"})],
    "cache": True,
    "verify": "off",
}
OTHER = MODELS / "mul_1.onnx"


def attack(count: int, seed: int) -> Report:
    """Do this `count` times: copy the cache, damage an entry of the copy, and create two sessions with it."""
    report = Report("cache entries")
    inputs = {"x": np.load(MODELS / "x.npz")["x"]}
    with tempfile.TemporaryDirectory(prefix="attack-") as folder, qnnbridge.Host() as host:
        pristine = Path(folder, "pristine")
        with patch.dict(os.environ, {"QNNBRIDGE_CACHE": "1", "QNNBRIDGE_CACHE_DIR": str(pristine)}):
            with qnnbridge.InferenceSession(F, host=host, **OPTIONS) as session:
                key, right = str(session.cache.key), session.run(None, inputs)[0].tobytes()
            qnnbridge.InferenceSession(OTHER, host=host, **OPTIONS).close()
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            cache = Path(folder, f"cache{number}")
            shutil.copytree(pristine, cache)
            entry = Store(cache).entry_folder(key)
            damage = rng.choice(DAMAGES)
            words = f"{seed} {number}: {damage.__name__}"
            damage(entry, rng)
            report.count("damages")
            with patch.dict(os.environ, {"QNNBRIDGE_CACHE": "1", "QNNBRIDGE_CACHE_DIR": str(cache)}):
                for _ in range(2):
                    try:
                        with qnnbridge.InferenceSession(F, host=host, **OPTIONS) as session:
                            report.count(f"cache {session.cache.state}")
                            report.expect(
                                session.run(None, inputs)[0].tobytes() == right, f"{words}: a wrong result"
                            )
                    except errors.BridgeError as error:
                        report.finding(f"{words}: {type(error).__name__}: {error}")
                    except Exception as error:
                        report.finding(f"{words}: untyped {type(error).__name__}: {error}")
            shutil.rmtree(cache)
        report.count("hosts that died", host.stats.crashes)
        report.expect(not host.stats.crashes, f"{host.stats.crashes} hosts died: {host.stats.last_crash}")
    return report


def _file(entry: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(file for file in entry.iterdir() if file.is_file()))


def flip_bits(entry: Path, rng: random.Random) -> None:
    """Flip bits of a file without changing its date."""
    victim = _file(entry, rng)
    status, data = victim.stat(), bytearray(victim.read_bytes())
    for _ in range(rng.choice([1, 1, 20])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with open(victim, "r+b") as file:
        file.write(data)
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))


def truncate(entry: Path, rng: random.Random) -> None:
    victim = _file(entry, rng)
    os.truncate(victim, rng.choice([0, 1, rng.randrange(victim.stat().st_size)]))


def append(entry: Path, rng: random.Random) -> None:
    with open(_file(entry, rng), "ab") as file:
        file.write(rng.randbytes(rng.choice([1, 100, 10_000])))


def delete(entry: Path, rng: random.Random) -> None:
    _file(entry, rng).unlink()


def add_file(entry: Path, rng: random.Random) -> None:
    (entry / rng.choice(["model_ctx_qnn.bin.old", "x", ".hidden"])).write_bytes(b"stranger")


def replace_by_link(entry: Path, rng: random.Random) -> None:
    """Replace a file with a link to its copy, to a missing file, to itself or to an endless device."""
    victim = _file(entry, rng)
    elsewhere = entry.parent.parent / "elsewhere"
    shutil.copy(victim, elsewhere)
    victim.unlink()
    victim.symlink_to(rng.choice([str(elsewhere), "/nowhere", victim.name, "/dev/zero", "/proc/self/mem"]))


def replace_by_pipe(entry: Path, rng: random.Random) -> None:
    victim = _file(entry, rng)
    victim.unlink()
    os.mkfifo(victim)


def replace_by_folder(entry: Path, rng: random.Random) -> None:
    victim = _file(entry, rng)
    victim.unlink()
    victim.mkdir()


def remove_permissions(entry: Path, rng: random.Random) -> None:
    os.chmod(rng.choice([entry, _file(entry, rng)]), 0)


def replace_by_other_entry(entry: Path, rng: random.Random) -> None:
    """Replace the entry, or one of its files, with the entry or the file of another model."""
    (other,) = (one for one in entry.parent.iterdir() if one != entry)
    if rng.random() < 0.5:
        shutil.rmtree(entry)
        shutil.copytree(other, entry)
        return
    names = sorted({file.name for file in entry.iterdir()} & {file.name for file in other.iterdir()})
    name = rng.choice(names)
    shutil.copy(other / name, entry / name)


def forge_manifest(entry: Path, rng: random.Random) -> None:
    """Write a readable manifest with invalid values and a correct hash."""
    from qnnbridge_host.cache import files

    path = entry / "manifest.json"
    content = json.loads(path.read_text())["content"]
    for name in rng.sample(sorted(content), rng.choice([1, 1, 3])):
        content[name] = rng.choice([None, "", [], {}, 0, -1, 1e308, "../../etc/passwd", [[]], {"a": {}}])
    files.write_json(path, content)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(
        flip_bits,
        flip_bits,
        flip_bits,
        truncate,
        truncate,
        append,
        delete,
        add_file,
        replace_by_link,
        replace_by_pipe,
        replace_by_folder,
        remove_permissions,
    ),
    *(replace_by_other_entry, forge_manifest, forge_manifest),
)
