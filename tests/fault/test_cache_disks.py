"""The cache on full, read-only or missing disks: the session works without it and reports the problem once.

The tests use real file systems: small tmpfs volumes, mounted in a namespace that ends with the process.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.hosts import patched_host

import qnnbridge
from qnnbridge_host.cache.store import Store
from qnnbridge_protocol.settings import cache_dir

pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parents[1] / "models"
COMPILE_HOST = Path(__file__).parents[1] / "fakes" / "compile_host.py"
F = MODELS / "f.onnx"
SOC = [("QNNExecutionProvider", {"soc_model": "60"})]
INPUT = {"x": np.load(MODELS / "x.npz")["x"]}
APPLICATION_TIMEOUT_S = 200


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")
    monkeypatch.setattr("qnnbridge._session.create._said", set())


@pytest.fixture(scope="module")
def right(host: qnnbridge.Host) -> bytes:
    """Return the model's result without the cache."""
    with open_session(host, cache=False) as session:
        return result(session)


def store() -> Store:
    return Store(cache_dir())


def open_session(host: qnnbridge.Host, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(F, providers=SOC, host=host, **keywords)


def result(session: qnnbridge.InferenceSession) -> bytes:
    output: bytes = session.run(None, INPUT)[0].tobytes()
    return output


def assert_made_without(host: qnnbridge.Host, right: bytes, words: str) -> None:
    """Check that the session works, and that the problem is reported once."""
    with pytest.warns(qnnbridge.CacheWarning, match=words) as caught:
        session = open_session(host)
    with warnings.catch_warnings():
        warnings.simplefilter("error", qnnbridge.CacheWarning)
        again = open_session(host)
    (said,) = [warning for warning in caught if warning.category is qnnbridge.CacheWarning]
    assert Path(said.filename).name == Path(__file__).name
    for one in (session, again):
        assert (one.cache.state, result(one)) == ("off", right)
        assert "the cache cannot be used" in one.cache.reason
    assert "cannot be used" in str(host.stats.cache_problem)


@pytest.mark.parametrize("where", ["under a file", "where nobody may write"])
def test_a_cache_folder_that_cannot_be_created_costs_only_the_cache(
    where: str, host: qnnbridge.Host, right: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "cache" if where == "under a file" else Path("/proc/self/cache")
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(folder))
    assert_made_without(host, right, "cannot be used")


def test_a_disk_that_is_too_small_for_the_compiled_model_costs_only_the_cache(right: bytes) -> None:
    """Neither process can write a file of more than 20,000 bytes; the context binary has 70,000."""
    command = [sys.executable, "-I", "-u", "-X", "utf8", str(COMPILE_HOST), "--step=none", "--file-bytes=20000"]
    with qnnbridge.Host(_command=[*command, "--parent", str(os.getpid())]) as host:
        assert_made_without(host, right, "full|limit|large")
    assert store().all_keys() == []
    assert list((store().root / "tmp").iterdir()) == []


FULL = """
    import errno, os
    from qnnbridge_host.cache import entry

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    entry.write_json = full
"""


def test_a_full_disk_costs_only_the_cache(right: bytes, tmp_path: Path) -> None:
    """Limit the size so that only the manifest does not fit."""
    with patched_host(tmp_path, FULL) as host:
        assert_made_without(host, right, "No space left on device")
    assert store().all_keys() == []
    assert list((store().root / "tmp").iterdir()) == []


# --- real volumes ---

ON_VOLUMES = """
    import hashlib, json, os, subprocess, sys, warnings
    from pathlib import Path
    import numpy as np
    import qnnbridge

    model, inputs, base = sys.argv[1], np.load(sys.argv[2])["x"], Path(sys.argv[3])
    told = {}

    def volume(name, size):
        folder = base / name
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
        os.environ["QNNBRIDGE_CACHE_DIR"] = str(folder)
        return folder

    def fill(folder):
        with open(folder / "filler", "wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def read_only(folder):
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)

    def open_session():
        session = qnnbridge.InferenceSession(model, providers=[("QNNExecutionProvider", {"soc_model": "60"})], host=host)
        digest = hashlib.sha256(session.run(None, {"x": inputs})[0].tobytes()).hexdigest()
        session.close()
        return {"state": session.cache.state, "reason": session.cache.reason, "digest": digest}

    def sessions(name, folder):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", qnnbridge.CacheWarning)
            opened = [open_session(), open_session()]
        said = [str(w.message) for w in caught if w.category is qnnbridge.CacheWarning]
        drafts = [str(file) for file in folder.glob("v1/tmp/*")]
        entries = [str(file) for file in folder.glob("v1/entries/*")]
        told[name] = {"opened": opened, "said": said, "drafts": drafts, "entries": entries}

    with qnnbridge.Host() as host:
        folder = volume("full", "64k")
        fill(folder)
        sessions("full", folder)
        sessions("full while compiling", volume("small", "100k"))
        folder = volume("read", "4m")
        read_only(folder)
        sessions("read-only", folder)
        folder = volume("filled", "4m")
        open_session()
        fill(folder)
        sessions("full, with the entry on it", folder)
        folder = volume("sealed", "4m")
        open_session()
        read_only(folder)
        sessions("read-only, with the entry on it", folder)
        told["crashes"] = host.stats.crashes
    print(json.dumps(told))
"""
# Expected state of a session's cache for each kind of volume.
VOLUMES = {
    "full": "off",
    "full while compiling": "off",
    "read-only": "off",
    "full, with the entry on it": "hit",
    "read-only, with the entry on it": "off",
}


@pytest.fixture(scope="module")
def on_volumes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run an application on each of the volumes, in a namespace that ends with it; return its output."""
    own_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = ["unshare", *own_root, "--mount", "--propagation", "private", sys.executable, "-c"]
    arguments = [
        textwrap.dedent(ON_VOLUMES),
        str(F),
        str(MODELS / "x.npz"),
        str(tmp_path_factory.mktemp("volumes")),
    ]
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "QNNBRIDGE_CACHE": "1"},
        capture_output=True,
        text=True,
        timeout=APPLICATION_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("volume", VOLUMES)
def test_on_any_volume_the_session_works_and_a_problem_is_reported_once(
    volume: str, on_volumes: dict[str, Any], right: bytes
) -> None:
    told = on_volumes[volume]
    state = VOLUMES[volume]
    assert [one["state"] for one in told["opened"]] == [state] * 2, told
    assert {one["digest"] for one in told["opened"]} == {hashlib.sha256(right).hexdigest()}
    assert len(told["said"]) == (state == "off"), told["said"]
    for text in told["said"]:
        assert "cannot be used: " in text
        assert ("Read-only file system" if "read-only" in volume else "The disk is full") in text
    assert told["drafts"] == []
    assert len(told["entries"]) == ("with the entry" in volume)
    assert on_volumes["crashes"] == 0
