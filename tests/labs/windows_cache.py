"""Use the cache of compiled models on Windows and print the behaviour of sessions, entries and locks as JSON.

    windows_cache.py MODEL INPUTS.npz OWN OWN_INPUTS.npz CACHE

OWN is a model that the user compiled. CACHE, and the target folder of a compiled model, have names that no code
page can represent. The simulator is the real one. On Windows an open file can be neither renamed nor removed, which
is the subject of this script.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import qnnbridge
from qnnbridge_host.cache.store import Store, evict, shrink
from qnnbridge_protocol.settings import cache_dir

BLOB = "model_ctx_qnn.bin"


def main() -> None:
    model, inputs, own, own_inputs, os.environ["QNNBRIDGE_CACHE_DIR"] = sys.argv[1:]
    os.environ["QNNBRIDGE_CACHE"] = "1"
    feeds, own_feeds = arrays(inputs), arrays(own_inputs)
    store = Store(cache_dir())
    report: dict[str, Any] = {}

    def result(session: qnnbridge.InferenceSession, feeds: dict[str, Any] = feeds) -> str:
        return hashlib.sha256(session.run(None, feeds)[0].tobytes()).hexdigest()

    def open_session(host: qnnbridge.Host, cache: bool = True, model: str = model) -> qnnbridge.InferenceSession:
        return qnnbridge.InferenceSession(
            model, providers=[("QNNExecutionProvider", {"soc_model": "60"})], host=host, cache=cache
        )

    with qnnbridge.Host() as host:
        with open_session(host, cache=False) as plain:
            report["right"] = result(plain)
        with open_session(host, cache=False, model=own) as plain:
            report["own right"] = result(plain, own_feeds)
        first, second = open_session(host), open_session(host)
        report["states"] = [str(s.cache) for s in (first, second)]
        report["results"] = [result(first), result(second)]
        (key,) = store.all_keys()
        report["evicted while in use"] = evict(store, key)
        for session in (first, second):
            session.close()

        blob = store.entry_folder(key) / BLOB
        data = bytearray(blob.read_bytes())
        data[34993] ^= 0xFF
        blob.write_bytes(data)
        with open_session(host) as third:
            report["states"].append(str(third.cache))
            report["results"].append(result(third))
        report["set aside"] = [bad.fault for bad in store.invalid_entries()]
        report["crashes"] = host.stats.crashes
    made = qnnbridge.compile(own, Path(own).with_name("compiled.onnx"), soc_model=60)
    report["own compared"] = [made.validation.skipped, len(made.validation.differences)]
    compiled = Path(made.path)
    folder = compiled.with_name("模型 ü")
    folder.mkdir()
    for file in compiled.parent.glob("compiled*"):
        file.rename(folder / file.name)
    with qnnbridge.Host() as host:
        report["a user's own"] = result(qnnbridge.InferenceSession(folder / compiled.name, host=host), own_feeds)
        report["own crashes"] = host.stats.crashes
    report["shrunk"] = shrink(store, 0) == [key]
    report["left"] = [str(file) for name in ("entries", "tmp", "bad", "uses") for file in _under(store.root / name)]
    print(json.dumps(report))


def arrays(path: str) -> dict[str, Any]:
    with np.load(path) as archive:
        return dict(archive)


def _under(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


if __name__ == "__main__":
    main()
