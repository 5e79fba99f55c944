"""A release of onnxruntime-genai that is newer than the table: a worker tries it before the host calls it.

The installed release stands in for a newer one, under another version and with injected faults.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import qnnbridge
from qnnbridge import genai
from qnnbridge.errors import GenerationUnsupported
from qnnbridge_host.genai.models import ModelRequest
from qnnbridge_host.genai.native import GenaiLibrary, library
from qnnbridge_host.genai.trial_worker import judge, perform
from qnnbridge_host.model.genai_folder import EVERY_LAYOUT, TRIED, standing_of
from tests import needs
from tests.fakes.hosts import patched_host
from tests.genai.conftest import Folders, prompt
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_multimodal import write_multimodal

NEWER = "0.99.0"

# The host and its workers see another version of genai. Each import and each generation of a process is recorded.
PATCH = """
import importlib.metadata as metadata, os, sys
real = metadata.version
metadata.version = lambda name: {version!r} if name == "onnxruntime-genai" else real(name)

import qnnbridge_host.genai.native as native
load = native._load

def noted():
    with open({log!r}, "a") as file:
        print(os.getpid(), "--worker" if "worker" in where else "host", file=file)
    found = load()
    found.version = {version!r}
    return found

import qnnbridge_host.genai.trial_worker as trial
where, perform = set(), trial.perform

def performed(*arguments):
    where.add("worker")
    {fault}
    return perform(*arguments)

native._load, trial.perform = noted, performed
"""


def newer_host(folder: Path, fault: str = "pass", version: str = NEWER) -> qnnbridge.Host:
    return patched_host(folder, PATCH.format(version=version, log=str(folder / "loads"), fault=fault))


def loads(folder: Path) -> list[str]:
    path = folder / "loads"
    return [line.split()[1] for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def greedy(model: genai.Model, count: int) -> list[int]:
    one, made = genai.Generator(model, genai.GeneratorParams(model)), []
    one.append_tokens(prompt(9))
    for _ in range(count):
        one.generate_next_token()
        made.append(int(one.get_next_tokens()[0]))
    return made


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("onnxruntime_genai")
    monkeypatch.delenv("QNNBRIDGE_CACHE", raising=False)
    monkeypatch.setenv("QNNBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_installed_release_is_in_the_table() -> None:
    """Otherwise hosts would try the installed release at every first load, and these tests could not simulate a
    newer one.
    """
    import onnxruntime_genai

    assert standing_of(onnxruntime_genai.__version__) == "listed"


# Only Whisper supports several prompts, and it generates nothing without audio, which a trial does not have.
UNUSED = {"OgaProcessorProcessImagesAndAudiosAndPrompts"}


def test_a_trial_calls_every_function_that_the_host_calls(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = set()
    function = GenaiLibrary._function

    def noted(self: GenaiLibrary, name: str) -> Any:
        called.add(name)
        return function(self, name)

    monkeypatch.setattr(GenaiLibrary, "_function", noted)
    found = perform(ModelRequest({"folder": str(folders("dynamic"))}, {}), None)
    assert found == {"problem": "", "words": "", "compared": ""}
    perform(ModelRequest({"folder": str(folders("window"))}, {}), None)  # requires a history
    pictures = write_multimodal(tmp_path / "gemma3", "gemma3")
    assert perform(ModelRequest({"folder": str(pictures)}, {}), None) == found
    present = {name for name in library()._functions if not name.startswith(("OgaDestroy", "OgaResult"))}
    assert present - called - UNUSED == set()


@pytest.mark.process
@pytest.mark.simulator
@needs.posix
class TestHosts:
    # Unique versions, since a process shows a warning only once.
    @pytest.mark.parametrize(
        ("kind", "version"), [("dynamic", "0.19.0"), ("window-qnn", "0.20.0rc1"), ("window", "0.19.1+site")]
    )
    def test_an_unknown_release_is_tried_once_and_then_used(
        self, kind: str, version: str, folders: Folders, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        says = f"onnxruntime-genai {version} is newer than this table ({TRIED[-1]})"
        for expected in (["--worker", "host"], ["--worker", "host", "host"]):
            with newer_host(tmp_path, version=version) as host:
                model = genai.Model(folders(kind), host=host)
                assert greedy(model, 8) == PlainLoop(folders(kind)).generate(prompt(9), 8)
                assert model.info.genai == version
                assert model.info.notes[0].startswith(says)
                assert "the release's Python module" in model.info.notes[0]
                assert genai.Model(folders(kind), host=host).info.notes == model.info.notes
            assert loads(tmp_path) == expected, "the second host has the result"
        assert caplog.text.count(says) == 1

    def test_a_crash_in_a_trial_does_not_affect_the_host(self, folders: Folders, tmp_path: Path) -> None:
        for attempt in (1, 2):
            with newer_host(tmp_path, "import ctypes; ctypes.string_at(0)") as host:
                with pytest.raises(GenerationUnsupported, match="ended the process that tried it") as refused:
                    genai.Model(folders("dynamic"), host=host)
                assert host.stats.crashes == 0
                assert host.info.pid
            assert "newer than this table" in str(refused.value)
            assert f"onnxruntime-genai=={TRIED[-1]}" in str(refused.value)
            assert "host" not in loads(tmp_path), f"the host never imports it (attempt {attempt})"
        # The failure is remembered for a day, or until its record is removed as the message says.
        (record,) = (tmp_path / "cache").rglob("trial-*.json")
        assert str(record) in str(refused.value)
        record.unlink()
        with newer_host(tmp_path) as host:
            genai.Model(folders("dynamic"), host=host)

    @pytest.mark.parametrize(
        ("fault", "match"),
        [
            ("trial._by_host = lambda *_: [1, 2, 3, 4]", "generates different tokens"),
            ("trial._by_host = lambda *_: 1 / 0", "fails through its C interface"),
        ],
    )
    def test_a_release_whose_answer_differs_from_that_of_its_own_module_is_refused(
        self, fault: str, match: str, folders: Folders, tmp_path: Path
    ) -> None:
        with newer_host(tmp_path, fault) as host:
            with pytest.raises(GenerationUnsupported, match=match):
                genai.Model(folders("dynamic"), host=host)

    def test_the_trial_detects_a_layout_that_the_release_cannot_run(self, folders: Folders, tmp_path: Path) -> None:
        """The table refuses the sliding layout up to 0.18, and does not cover newer releases."""
        with newer_host(tmp_path) as host:
            with pytest.raises(GenerationUnsupported, match=f"{NEWER} cannot run") as refused:
                genai.Model(folders("sliding"), host=host)
            assert host.stats.crashes == 0
        assert "invalid dimensions" in str(refused.value)
        assert "newer than this table" in str(refused.value)
        assert f"onnxruntime-genai=={EVERY_LAYOUT}" in str(refused.value)
        assert loads(tmp_path) == ["--worker"]

    def test_a_model_that_the_release_cannot_load_raises_its_own_error(
        self, folders: Folders, tmp_path: Path
    ) -> None:
        folder = tmp_path / "model"
        shutil.copytree(folders("dynamic"), folder)
        whole = (folder / "model.onnx").read_bytes()
        (folder / "model.onnx").write_bytes(whole.replace(b"GroupQueryAttention", b"GroupQueryAttentioX"))
        with newer_host(tmp_path) as host:
            with pytest.raises(qnnbridge.errors.BridgeError, match="GroupQueryAttentioX") as failed:
                genai.Model(folder, host=host)
            assert "newer than this table" in str(failed.value)
            assert not list((tmp_path / "cache").rglob("trial-*.json")), "it says nothing of the release"
            (folder / "model.onnx").write_bytes(whole)
            genai.Model(folder, host=host)

    def test_a_version_that_is_not_a_number_is_tried_too(self, folders: Folders, tmp_path: Path) -> None:
        with newer_host(tmp_path, version="nightly") as host:
            genai.Model(folders("dynamic"), host=host)
        assert loads(tmp_path) == ["--worker", "host"]

    def test_a_timeout_ends_the_trial_and_not_the_host(self, folders: Folders, tmp_path: Path) -> None:
        with newer_host(tmp_path, "import time; time.sleep(100)") as host:
            host.start()
            begun = time.monotonic()
            with pytest.raises(qnnbridge.errors.DeadlineExceeded):
                genai.Model(folders("dynamic"), host=host, timeout=4)
            assert time.monotonic() - begun < 30
            assert host.stats.crashes == 0
            assert not list((tmp_path / "cache").rglob("trial-*.json")), "it says nothing of the release"

    def test_the_trial_uses_copied_files(self, folders: Folders, tmp_path: Path) -> None:
        folder = tmp_path / "model"
        folder.mkdir()
        for path in folders("dynamic").iterdir():
            if path.suffix != ".onnx":
                (folder / path.name).write_bytes(path.read_bytes())
        with newer_host(tmp_path) as host:
            config = genai.Config(str(folder))
            config.add_model_data("model.onnx", (folders("dynamic") / "model.onnx").read_bytes())
            model = genai.Model(config, host=host)
            assert greedy(model, 4) == PlainLoop(folders("dynamic")).generate(prompt(9), 4)
        assert loads(tmp_path) == ["--worker", "host"]


@pytest.mark.parametrize(
    ("ours", "theirs", "problem", "compared"),
    [
        ([1, 2], [1, 2], "", False),
        ([1, 2], [1, 3], "differs", False),
        ([], [], "", True),
        ([1], ValueError("x"), "", True),
        (ValueError("x"), [1], "fails", False),
        (ValueError("x"), ValueError("y"), "", True),
        (GenerationUnsupported("x"), ValueError("y"), "layout", False),
    ],
)
def test_a_trial_is_judged_by_comparing_the_two_answers(
    ours: Any, theirs: Any, problem: str, compared: bool
) -> None:
    found = judge(ours, theirs)
    assert found["problem"] == problem
    assert bool(found["compared"]) is compared
    assert json.dumps(found)
