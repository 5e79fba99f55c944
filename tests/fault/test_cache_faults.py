"""Faults of the cache: damaged, swapped and crashing entries, killed compilers, full and read-only disks.

The cache guarantees that no incomplete or damaged entry is loaded, that a session computes the same as without the
cache, and that a bad entry is blamed instead of its model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import needs
from tests.fakes.hosts import patched_host
from tests.fakes.stopping import stop

import qnnbridge
from qnnbridge._supervision.blame import Quarantine
from qnnbridge._transport.open_requests import OpenRequests
from qnnbridge.errors import HostCrashed, ModelQuarantined
from qnnbridge_host.cache.entry import MODEL, EntryFile, EntryManifest
from qnnbridge_host.cache.memo import NegativeEntries
from qnnbridge_host.cache.store import Store
from qnnbridge_host.model.source import hash_file
from qnnbridge_protocol.settings import cache_dir

pytest.importorskip("onnxruntime_qnn")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.simulator

MODELS = Path(__file__).parents[1] / "models"
COMPILED = MODELS / "compiled"
COMPILE_HOST = Path(__file__).parents[1] / "fakes" / "compile_host.py"
F = MODELS / "f.onnx"
BLOB = "model_ctx_qnn.bin"
SOC = [("QNNExecutionProvider", {"soc_model": "60"})]
INPUT = {"x": np.load(MODELS / "x.npz")["x"]}
APPLICATION_TIMEOUT_S = 100
KILLED = 9


@pytest.fixture(autouse=True)
def cache_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CACHE", "1")


@pytest.fixture(scope="module")
def right(host: qnnbridge.Host) -> bytes:
    """Return the model's result without the cache."""
    with qnnbridge.InferenceSession(F, providers=SOC, host=host, cache=False) as session:
        return result(session)


@pytest.fixture(scope="module")
def compiled(host: qnnbridge.Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that contains the model."""
    folder = tmp_path_factory.mktemp("compiled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNBRIDGE_CACHE", "1")
        patch.setenv("QNNBRIDGE_CACHE_DIR", str(folder))
        open_session(host).close()
    return folder


@pytest.fixture
def entry(compiled: Path) -> Path:
    """The folder of the entry, in a separate cache for each test."""
    shutil.copytree(compiled, cache_dir())
    (key,) = store().all_keys()
    return store().entry_folder(key)


def store() -> Store:
    return Store(cache_dir())


def open_session(host: qnnbridge.Host, path: Path = F, **keywords: Any) -> qnnbridge.InferenceSession:
    return qnnbridge.InferenceSession(path, providers=SOC, host=host, **keywords)


def result(session: qnnbridge.InferenceSession) -> bytes:
    output: bytes = session.run(None, INPUT)[0].tobytes()
    return output


def faults() -> list[str]:
    return [bad.fault for bad in store().invalid_entries()]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def other_weights(folder: Path) -> Path:
    """Return the same model with one changed weight."""
    made = onnx.load(F)
    tensor = next(t for t in made.graph.initializer if t.data_type == 1 and len(t.raw_data) > 4)
    tensor.raw_data = np.float32(2.0).tobytes() + tensor.raw_data[4:]
    path = folder / "other.onnx"
    onnx.save(made, path)
    return path


# --- damaged entries ---

DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a flipped byte that kills at load": lambda f: overwrite(f / BLOB, 34993, b"\xff"),
    "a flipped bit that kills at run": lambda f: overwrite(f / BLOB, 36906, b"\x04"),
    "a flipped byte that hangs": lambda f: overwrite(f / BLOB, 35278, b"\xff"),
    "a zeroed page": lambda f: overwrite(f / BLOB, 16 * 4096, bytes(4096)),
    "the blob of another model": lambda f: shutil.copy(COMPILED / "pnet60_qnn.bin", f / BLOB),
    "truncated": lambda f: os.truncate(f / BLOB, 40_000),
    "empty": lambda f: os.truncate(f / BLOB, 0),
    "renamed": lambda f: (f / BLOB).rename(f / "other_qnn.bin"),
    "gone": lambda f: (f / BLOB).unlink(),
    "the .onnx of another model": lambda f: shutil.copy(COMPILED / "F.onnx", f / MODEL),
    "no manifest": lambda f: (f / "manifest.json").unlink(),
}


@pytest.mark.parametrize("damage", needs.some(DAMAGES))
def test_a_damaged_entry_is_detected_before_qnn_reads_it_and_compiled_again(
    damage: str, entry: Path, host: qnnbridge.Host, right: bytes
) -> None:
    DAMAGES[damage](entry)
    before = host.stats
    session = open_session(host)
    assert (session.cache.state, faults()) == ("miss", ["damaged"])
    assert result(session) == right
    assert (host.stats.crashes, host.stats.generation) == (before.crashes, before.generation)
    assert host.stats.cache_set_aside == before.cache_set_aside + 1
    assert open_session(host).cache.state == "hit"


def test_damage_that_keeps_size_and_dates_is_detected(entry: Path, host: qnnbridge.Host, right: bytes) -> None:
    blob = entry / BLOB
    dates = blob.stat()
    overwrite(blob, 34993, b"\xff")
    os.utime(blob, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    session = open_session(host)
    assert (session.cache.state, faults(), result(session)) == ("miss", ["damaged"], right)


def test_an_entry_for_other_weights_is_not_used(
    entry: Path, host: qnnbridge.Host, right: bytes, tmp_path: Path
) -> None:
    """Move the entry of another model: all its files are valid."""
    with open_session(host, other_weights(tmp_path)) as session:
        assert session.cache.state == "miss"
        other_key = str(session.cache.key)
    shutil.rmtree(entry)
    os.rename(store().entry_folder(other_key), entry)
    session = open_session(host)
    assert (session.cache.state, faults(), result(session)) == ("miss", ["foreign"], right)


def test_a_context_binary_of_other_weights_is_detected(
    entry: Path, host: qnnbridge.Host, right: bytes, tmp_path: Path
) -> None:
    with open_session(host, other_weights(tmp_path)) as session:
        assert result(session) != right
        shutil.copy(store().entry_folder(str(session.cache.key)) / BLOB, entry / BLOB)
    session = open_session(host)
    assert (session.cache.state, faults(), result(session)) == ("miss", ["damaged"], right)


# --- valid entries with wrong contents, as a faulty compiler writes them ---


def believe(folder: Path) -> None:
    """Update the manifest so that it matches the files."""
    manifest = EntryManifest.read(folder)
    assert manifest is not None
    files = tuple(
        EntryFile(file.name, (folder / file.name).stat().st_size, hash_file(folder / file.name))
        for file in manifest.files
    )
    EntryManifest(**{**plain(manifest), "files": files, "id": os.urandom(16).hex()}).write(folder)


def plain(manifest: EntryManifest) -> dict[str, Any]:
    import dataclasses

    return {field.name: getattr(manifest, field.name) for field in dataclasses.fields(manifest)}


@pytest.fixture(scope="module")
def compiled_quantized(host: qnnbridge.Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with an entry for the model whose files are in `tests/models/compiled`."""
    folder = tmp_path_factory.mktemp("quantized") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QNNBRIDGE_CACHE", "1")
        patch.setenv("QNNBRIDGE_CACHE_DIR", str(folder))
        open_quantized(host).close()
    return folder


@pytest.fixture(scope="module")
def right_quantized(host: qnnbridge.Host) -> bytes:
    with open_quantized(host, cache=False) as session:
        return result(session)


def open_quantized(host: qnnbridge.Host, **keywords: Any) -> qnnbridge.InferenceSession:
    return open_session(host, MODELS / "q.onnx", **{"cache": True, "fallback": "cpu", **keywords})


def deadly(compiled: Path, at: int, value: int) -> None:
    """Store the files of `tests/models/compiled` with one changed byte as a valid entry of the test's cache."""
    shutil.copytree(compiled, cache_dir())
    (key,) = store().all_keys()
    folder = store().entry_folder(key)
    model = onnx.load(COMPILED / "good.onnx")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "ep_cache_context":
                attribute.s = BLOB.encode()
    onnx.save(model, folder / MODEL)
    shutil.copy(COMPILED / "a_qnn.bin", folder / BLOB)
    overwrite(folder / BLOB, at, bytes([value]))
    believe(folder)


def test_an_entry_that_crashes_the_host_is_invalidated_and_the_model_is_compiled_again(
    compiled_quantized: Path, right_quantized: bytes
) -> None:
    deadly(compiled_quantized, 34993, 0xFF)
    with qnnbridge.Host() as host:
        session = open_quantized(host, retry=0)
        assert (session.cache.state, faults(), result(session)) == ("miss", ["crashed"], right_quantized)
        assert host.stats.crashes == 1
        assert open_quantized(host).cache.state == "hit"
    assert Quarantine().accounts() == []
    (bad,) = store().invalid_entries()
    assert "SIGSEGV" in bad.reason


def test_an_entry_that_crashes_in_a_run_is_invalidated_and_the_run_is_repeated(
    compiled_quantized: Path, right_quantized: bytes
) -> None:
    deadly(compiled_quantized, 36906, 0x04)
    with qnnbridge.Host() as host:
        session = open_quantized(host)
        assert session.cache.state == "hit"
        assert result(session) == right_quantized
        assert (session.cache.state, faults()) == ("off", ["crashed"])
        assert "SIGSEGV" in session.cache.reason
        assert open_quantized(host).cache.state == "miss"
    assert Quarantine().accounts() == []


def test_a_run_with_retry_0_is_not_repeated(compiled_quantized: Path) -> None:
    deadly(compiled_quantized, 36906, 0x04)
    with qnnbridge.Host() as host:
        session = open_quantized(host)
        with pytest.raises(HostCrashed):
            session.run(None, INPUT, retry=0)
        assert open_quantized(host).cache.state == "miss", "the next host is told of the entry"
        assert faults() == ["crashed"]


def test_only_a_session_with_the_cache_can_invalidate_an_entry_after_a_crash(
    compiled_quantized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a session that uses the cache can invalidate the entry; other sessions may be recreated earlier."""
    deadly(compiled_quantized, 36906, 0x04)
    with qnnbridge.Host() as host:
        other = open_session(host, cache=False)
        session = open_quantized(host)
        with pytest.raises(HostCrashed):
            session.run(None, INPUT, retry=0)
        result(other)
        with monkeypatch.context() as patch:
            patch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "another cache"))
            open_session(host, cache=True)
        assert open_quantized(host).cache.state == "miss"
        assert faults() == ["crashed"]


@pytest.mark.parametrize(
    ("number", "set_aside"), [(signal.SIGKILL, []), (signal.SIGTERM, []), (signal.SIGSEGV, ["crashed"])]
)
def test_an_entry_is_not_blamed_when_the_host_is_killed_from_outside(
    number: signal.Signals, set_aside: list[str], entry: Path, right: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with qnnbridge.Host() as host:
        session = open_session(host)
        pid = host.info.pid
        stop(pid)  # so that the host has certainly received the call, and has not answered it
        really = OpenRequests.sent

        def sent(self: OpenRequests, request_id: int) -> None:
            really(self, request_id)
            monkeypatch.setattr(OpenRequests, "sent", really)
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)

        monkeypatch.setattr(OpenRequests, "sent", sent)
        assert result(session) == right
        assert host.stats.crashes == 1
        crash = host.supervisor.counters.last_crash
        assert crash is not None
        details = crash.details
        assert (details["exit"]["signal"], [one["phase"] for one in details["suspects"]]) == (number, ["running"])
        assert faults() == set_aside
        assert session.cache.state == ("off" if set_aside else "hit")
        assert host.stats.cache_set_aside == len(set_aside)


def test_an_entry_that_qnn_refuses_is_invalidated_and_the_model_is_compiled_again(
    entry: Path, host: qnnbridge.Host, right: bytes
) -> None:
    (entry / BLOB).write_bytes(b"no context binary" * 4000)
    believe(entry)
    session = open_session(host)
    assert (session.cache.state, faults(), result(session)) == ("miss", ["unloadable"], right)


def test_a_model_whose_second_entry_is_bad_too_is_not_compiled_again(
    entry: Path, right: bytes, tmp_path: Path
) -> None:
    (entry / BLOB).write_bytes(b"no context binary" * 4000)
    believe(entry)
    built = tmp_path / "built"
    code = f"""
        import os
        from qnnbridge_host.cache.entry import EntryManifest
        from qnnbridge_host.model.source import hash_file
        from qnnbridge_host.create import lookup
        from qnnbridge_host.model.manifest import FileRecord

        real = lookup.build_entry

        def faulty(*arguments, **keywords):
            made = real(*arguments, **keywords)
            with open({str(built)!r}, "a") as file:
                print(made.key, file=file)
            (made.folder / {BLOB!r}).write_bytes(b"no context binary" * 4000)
            read = EntryManifest.read(made.folder)
            files = tuple(
                FileRecord(file.name, (made.folder / file.name).stat().st_size, hash_file(made.folder / file.name))
                for file in read.files
            )
            fields = {{name: getattr(read, name) for name in read.__dataclass_fields__}}
            EntryManifest(**{{**fields, "files": files, "id": os.urandom(16).hex()}}).write(made.folder)
            return made

        lookup.build_entry = faulty
        """
    with patched_host(tmp_path, code) as host:
        for _ in range(2):
            session = open_session(host)
            assert (session.cache.state, result(session)) == ("off", right)
            assert "two cache entries of the model could not be used" in session.cache.reason
    assert len(built.read_text().split()) == 1
    assert faults() == ["unloadable"] * 2


# --- compilers that crash ---


def compile_host(step: str, once: Path | None = None, file_bytes: int | None = None) -> qnnbridge.Host:
    """Return a real host whose worker crashes at `step`."""
    command = [sys.executable, "-I", "-u", "-X", "utf8", "-X", "faulthandler", str(COMPILE_HOST), f"--step={step}"]
    command += [f"--once={once}"] if once is not None else []
    command += [f"--file-bytes={file_bytes}"] if file_bytes is not None else []
    return qnnbridge.Host(_command=[*command, "--parent", str(os.getpid())])


@pytest.mark.parametrize("step", needs.some(["before", "native", "blob", "half", "both", "teardown"]))
def test_a_killed_compiler_is_started_once_more_and_the_serving_host_keeps_running(
    step: str, tmp_path: Path, right: bytes
) -> None:
    with compile_host(step, once=tmp_path / "died") as host:
        session = open_session(host)
        assert (tmp_path / "died").exists()
        assert (session.cache.state, result(session)) == ("miss", right)
        assert (host.stats.generation, host.stats.crashes) == (1, 0)
        assert open_session(host).cache.state == "hit"
    (key,) = store().all_keys()
    kept = store().find(key)
    assert kept is not None
    assert kept.manifest.salvaged == (step == "teardown")
    assert list((store().root / "tmp").iterdir()) == []


def test_the_second_compiler_sends_heartbeats_however_long_the_first_one_ran(right: bytes, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    code = f"""
        import os
        from pathlib import Path
        from qnnbridge_host.create.lookup import ModelNotDescribed
        from qnnbridge_host.create import lookup

        real = lookup.build_entry
        alive = []

        def dies_once(store, key, parts, creation, hello, on_progress):
            for sign in store.root.rglob("*.beat"):
                os.utime(sign, (1, 1))
            on_progress(0.0 if alive else 1000.0)
            alive.append([sign.stat().st_mtime > 1 for sign in store.root.rglob("*.beat")] == [True])
            Path({str(alive)!r}).write_text(repr(alive))
            if len(alive) == 1:
                raise ModelNotDescribed
            return real(store, key, parts, creation, hello, on_progress)

        lookup.build_entry = dies_once
        """
    with patched_host(tmp_path, code) as host:
        session = open_session(host)
        assert (session.cache.state, result(session)) == ("miss", right)
    assert alive.read_text() == "[True, True]"
    assert not any(store().root.rglob("*.beat"))


def test_a_model_that_crashes_every_compiler_is_quarantined_as_without_the_cache(right: bytes) -> None:
    with compile_host("segv") as host:
        with pytest.raises(HostCrashed, match=r"compiling f\.onnx"):
            open_session(host)
        with pytest.raises(ModelQuarantined, match=r"f\.onnx is in quarantine"):
            open_session(host)
        assert (host.stats.generation, host.stats.crashes) == (1, 0)
    assert [account.model for account in Quarantine().accounts()] == ["f.onnx"]


KILLED_AT = """
    import os, signal
    from qnnbridge_host.cache import store
    from qnnbridge_host.cache.entry import EntryManifest
    from qnnbridge_host.create import compiler

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def before(owner, name):
        setattr(owner, name, die)

    def behind(owner, name):
        real = getattr(owner, name)
        setattr(owner, name, lambda *a, **k: (real(*a, **k), die()))

    steps = {
        "the folder is made": lambda: before(compiler, "compile_together"),
        "the files are written": lambda: behind(compiler, "compile_together"),
        "the files are on the disk": lambda: before(EntryManifest, "write"),
        "the manifest is half written": lambda: setattr(
            EntryManifest, "write", lambda self, folder: ((folder / "manifest.json").write_bytes(b"{"), die())
        ),
        "the manifest is written": lambda: behind(EntryManifest, "write"),
        "the entry is in its place": lambda: behind(store.Store, "publish"),
        "the entry is in use": lambda: behind(store.Store, "use"),
    }
"""
# Whether the entry exists after the host was killed at each step.
STEPS = {
    "the folder is made": False,
    "the files are written": False,
    "the files are on the disk": False,
    "the manifest is half written": False,
    "the manifest is written": False,
    "the entry is in its place": True,
    "the entry is in use": True,
}


@pytest.mark.parametrize("step", needs.some(STEPS))
def test_a_host_killed_while_it_fills_the_cache_leaves_no_partial_entry(
    step: str, host: qnnbridge.Host, right: bytes, tmp_path: Path
) -> None:
    doomed = patched_host(tmp_path, textwrap.dedent(KILLED_AT) + f"steps[{step!r}]()\n")
    with doomed, pytest.raises(HostCrashed, match="SIGKILL"):
        open_session(doomed, retry=0)
    assert len(store().all_keys()) == STEPS[step]
    session = open_session(host)
    assert session.cache.state == ("hit" if STEPS[step] else "miss")
    assert result(session) == right
    assert faults() == []
    store().sweep()
    assert list((store().root / "tmp").iterdir()) == []


OPENS = """
    import hashlib, json, sys
    import numpy as np
    import qnnbridge

    session = qnnbridge.InferenceSession(sys.argv[1], providers=[("QNNExecutionProvider", {"soc_model": "60"})])
    output = session.run(None, {"x": np.load(sys.argv[2])["x"]})[0]
    print(json.dumps([session.cache.state, session.placement.qnn_nodes, hashlib.sha256(output.tobytes()).hexdigest()]))
"""


def test_eight_processes_that_open_the_same_model_at_the_same_time_compile_it_once(right: bytes) -> None:
    command = [sys.executable, "-c", textwrap.dedent(OPENS), str(F), str(MODELS / "x.npz")]
    applications = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(8)
    ]
    told = []
    for application in applications:
        out, error = application.communicate(timeout=APPLICATION_TIMEOUT_S)
        assert application.returncode == 0, error
        told.append(json.loads(out))
    assert sorted(state for state, _, _ in told) == ["hit"] * 7 + ["miss"]
    assert {tuple(facts) for _, *facts in told} == {(13, hashlib.sha256(right).hexdigest())}


def test_a_record_of_a_bad_model_is_removed_by_clearing_the_cache(entry: Path, host: qnnbridge.Host) -> None:
    NegativeEntries(store().root).write(entry.name, "crashes", "twice", "f.onnx")
    shutil.rmtree(entry)
    assert open_session(host).cache.reason == "twice"
    NegativeEntries(store().root).remove(entry.name)
    assert open_session(host).cache.state == "miss"
