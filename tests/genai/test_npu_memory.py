"""The NPU's memory and models of onnxruntime-genai: weights that cannot be mapped, and exhausted memory. The faults
are injected."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from qnnbridge import errors, genai
from qnnbridge_host.genai.models import may_change, unmapped_copy, without_mapping
from qnnbridge_host.genai.native import from_genai
from qnnbridge_host.model.genai_folder import read_folder
from tests import needs
from tests.fakes.hosts import patched_host
from tests.genai.conftest import Folders, prompt
from tests.genai.plain_loop import PlainLoop
from tests.genai.tiny_decoders import write_model

UNMAPPED = "disable_file_mapped_weights"
TEXT = "Failed to create context from binary. Error code: 8003"
# genai fails to load if a QNN provider in the config that it reads maps its weights, or if memory is insufficient
# (ROOM).
FAULTS = """
import json, re
from pathlib import Path
from qnnbridge_host.genai.native import from_genai
from qnnbridge_host.genai.native import GenaiLibrary
make, read = GenaiLibrary.make, {{}}

def faulty(self, kind, name, *arguments, keeps=()):
    if name == "OgaCreateConfig":
        read["config"] = (Path(arguments[0].decode()) / "genai_config.json").read_text("utf-8")
    if name == "OgaCreateModelFromConfig":
        with open({tries!r}, "a") as file:
            file.write("x")
        given = re.findall(r'"QNN": (\\{{[^}}]*\\}})', read["config"])
        if {always} or not all(json.loads(one).get({option!r}) == "1" for one in given):
            raise from_genai({text!r}, "0")
    return make(self, kind, name, *arguments, keeps=keeps)

GenaiLibrary.make = faulty
"""


def faults(tries: Path, *, always: str = "False", text: str = TEXT) -> str:
    return FAULTS.format(tries=str(tries), option=UNMAPPED, always=always, text=text)


def greedy(model: genai.Model, tokens: Sequence[int], count: int) -> list[int]:
    one, made = genai.Generator(model, genai.GeneratorParams(model)), []
    one.append_tokens(list(tokens))
    for _ in range(count):
        one.generate_next_token()
        made.append(int(one.get_next_tokens()[0]))
    return made


@pytest.mark.process
@pytest.mark.simulator
@needs.posix
class TestHosts:
    def test_a_pipeline_is_loaded_without_mapping_which_is_remembered_and_reported_once(
        self, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        pytest.importorskip("onnxruntime_genai")
        monkeypatch.delenv("QNNBRIDGE_CACHE", raising=False)
        caplog.set_level(logging.WARNING)
        folder, tries = folders("window-qnn"), tmp_path / "tries"
        for expected in (2, 3):
            with patched_host(tmp_path, faults(tries)) as host:
                model = genai.Model(folder, host=host)
                words = [stage.placement.npu_memory for stage in model.placement]
                assert [f"{UNMAPPED}=1" in one for one in words] == [False, True, True, False]
                assert all(stage.placement.npu_bytes > 0 for stage in model.placement if stage.wanted)
                assert greedy(model, prompt(9), 8) == PlainLoop(folder).generate(prompt(9), 8)
                assert genai.Tokenizer(model).decode(genai.Tokenizer(model).encode("here")) == "here"
            assert len(tries.read_text()) == expected, "the next host needs one attempt"
        assert caplog.text.count(f"{UNMAPPED}=1") == 1

    def test_a_stage_that_cannot_be_mapped_is_probed_without_mapping(
        self, folders: Folders, tmp_path: Path
    ) -> None:
        pytest.importorskip("onnxruntime_genai")
        code = f"""
        from qnnbridge_host.engine.ort_errors import details_of
        from qnnbridge_host.engine.sessions import Sessions
        from qnnbridge_protocol.errors import Fail
        create = Sessions.create

        def faulty(self, request, enter, spec, *others, **more):
            if not any(one.options.get({UNMAPPED!r}) == "1" for one in spec.providers):
                raise Fail({TEXT!r}, details=details_of(Fail, {TEXT!r}))
            return create(self, request, enter, spec, *others, **more)

        Sessions.create = faulty
        """
        with patched_host(tmp_path, code) as host:
            model = genai.Model(folders("window-qnn"), host=host)
            assert any(UNMAPPED in stage.placement.npu_memory for stage in model.placement)
            assert any(stage.placement.qnn_nodes for stage in model.placement)

    def test_the_error_for_insufficient_memory_lists_the_loaded_models(
        self, folders: Folders, tmp_path: Path
    ) -> None:
        pytest.importorskip("onnxruntime_genai")
        tries = tmp_path / "tries"
        code = faults(tries, always=f"Path({str(tries)!r}).stat().st_size > 2")
        with patched_host(tmp_path, code) as host:
            there = genai.Model(folders("window-qnn"), host=host)
            with pytest.raises(errors.GenerationError) as caught:
                genai.Model(write_model(tmp_path / "other", "window", qnn=True, seed=4), host=host)
            text = str(caught.value)
            assert f"With {UNMAPPED}=1" in text
            assert "on the NPU by onnxruntime-genai: window-qnn, " in text
            assert "sessions on the NPU in this host: 0" in text
            assert len(greedy(there, prompt(9), 3)) == 3, "what is there goes on"

    def test_the_option_reaches_onnxruntime_in_every_stage_that_uses_qnn(self, tmp_path: Path) -> None:
        """ONNX Runtime logs the options of a session."""
        genai_module = pytest.importorskip("onnxruntime_genai")
        pytest.importorskip("onnxruntime_qnn")
        assert genai_module
        folder = write_model(tmp_path / "model", "window", qnn=True)
        config = folder / "genai_config.json"
        config.write_text(
            config.read_text("utf-8").replace('"log_severity_level": 3', '"log_severity_level": 0'), "utf-8"
        )
        code = f"""
import onnxruntime_genai as og, onnxruntime_qnn, os
from qnnbridge_host.genai.models import unmapped_copy
og.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
with unmapped_copy({str(folder)!r}, []) as (path, _):
    og.Model(og.Config(path))
os._exit(0)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
        assert (done.stdout + done.stderr).count(f"ep.qnnexecutionprovider.{UNMAPPED}: 1 ".encode()) == 2


def test_the_copy_keeps_every_other_setting(folders: Folders) -> None:
    path = str(folders("window-qnn"))
    overlay = json.dumps({"model": {"decoder": {"session_options": {"provider_options": [{"qnn": {"a": "b"}}]}}}})
    with unmapped_copy(path, [("clear_providers",), ("overlay", overlay)]) as (copy, steps):
        config = json.loads((Path(copy) / "genai_config.json").read_text("utf-8"))
        stages = {name: body for one in config["model"]["decoder"]["pipeline"] for name, body in one.items()}
        qnn = {"backend_path": "libQnnHtp.so", "soc_model": "60", UNMAPPED: "1"}
        assert stages["context"]["session_options"]["provider_options"] == [{"QNN": qnn}]
        assert "session_options" not in stages["embeddings"]
        assert (Path(copy) / stages["lm_head"]["filename"]).samefile(Path(path) / "lm_head.onnx")
        assert json.loads(steps[1][1])["model"]["decoder"]["session_options"]["provider_options"] == [
            {"qnn": {UNMAPPED: "1", "a": "b"}}
        ]
        assert not list(Path(copy).glob("*.onnx")), "weights are linked"
        found = [stage.qnn_options for stage in read_folder(copy, steps).stages]
        assert found == [stage.qnn_options for stage in without_mapping(read_folder(path, steps)).stages]
    assert not Path(copy).exists()


def test_the_option_is_added_to_a_provider_that_the_application_appends(folders: Folders) -> None:
    steps = [("clear_providers",), ("append_provider", "QNN")]
    with unmapped_copy(str(folders("dynamic")), steps) as (_, fitting):
        assert fitting == [*steps, ("set_provider_option", "QNN", UNMAPPED, "1")]


def test_a_setting_of_the_application_is_not_changed(folders: Folders) -> None:
    path = str(folders("dynamic"))
    assert not may_change(read_folder(path)), "no QNN"
    assert may_change(read_folder(path, [("append_provider", "QNN")]))
    own = [("set_provider_option", "QNN", UNMAPPED, "0")]
    assert not may_change(read_folder(path, own))
    with unmapped_copy(path, own) as (_, fitting):
        assert fitting == own


def test_a_folder_that_cannot_be_linked_is_an_error_with_an_explanation(folders: Folders, tmp_path: Path) -> None:
    with pytest.raises(errors.BridgeError), unmapped_copy(str(tmp_path), []):
        pass
    with pytest.raises(errors.GenerationError), unmapped_copy(str(folders("dynamic")), [("overlay", "{")]):
        pass


@pytest.mark.parametrize("text", [TEXT, "contextCreateFromBinary failed. Error: memory allocation, Code: 1002"])
def test_errors_of_genai_about_npu_memory_are_recognised(text: str) -> None:
    found = from_genai(text, "0.18.0")
    assert found.details["npu_memory"] is True
    assert "qnnbridge top" in str(found.fix)
    assert "npu_memory" not in from_genai("finalize QNN graph. Code: 1002", "0.18.0").details
