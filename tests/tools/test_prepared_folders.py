"""A folder of `qnnbridge prepare` as a model: which of its files is chosen and why, and which folders are
refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import needs
from tests.daemon.real_daemon import daemon_of_its_own
from tests.fakes.commands import qnnbridge as command
from tests.serve.serving import serving

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxruntime_qnn")

import model_work_models as models
import onnxruntime as real
import verify_models

import qnnbridge
from qnnbridge import ort
from qnnbridge_host.engine.ort_objects import package_variants
from qnnbridge_host.model.compatibility import HostTraits
from qnnbridge_host.model.prepared import Chosen, choose
from qnnbridge_host.model.source import hash_file
from qnnbridge_models.prepare import PrepareOptions, prepare_model
from qnnbridge_protocol.errors import (
    BridgeError,
    ContextUnusable,
    InvalidProtobuf,
    ModelChanged,
    ModelRequiresCompilation,
    OptionError,
)
from qnnbridge_protocol.specs import ProviderSpec

pytestmark = pytest.mark.simulator

CPU, QNN = "CPUExecutionProvider", "QNNExecutionProvider"
X = np.arange(8, dtype=np.float32).reshape(2, 4) / 8
NO_COMPILING = "session.disable_model_compile"


def prepared(model: Any, folder: Path, *chips: str, **options: Any) -> Path:
    source = models.saved(model, folder / "m.onnx")
    made = prepare_model(source, folder / "out", PrepareOptions(soc_models=chips, extreme=False, **options))
    assert made.ready, made.verdict
    return folder / "out"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for two chips; the simulator loads the model of the newer one only if it simulates that chip."""
    return prepared(verify_models.free_batch(), tmp_path_factory.mktemp("both"), "60", "88", dims=sizes(2))


@pytest.fixture(scope="module")
def bucketed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    buckets = ({"batch": 1}, {"batch": 2})
    return prepared(verify_models.free_batch(), tmp_path_factory.mktemp("buckets"), "60", buckets=buckets)


def sizes(batch: int) -> Any:
    from qnnbridge_host.graph.shapes import Dimensions

    return Dimensions({"batch": batch})


@pytest.fixture(scope="module")
def host() -> Iterator[qnnbridge.Host]:
    with qnnbridge.Host() as one:
        one.start()
        yield one


@pytest.fixture
def copy(both: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(both, tmp_path / "copy", symlinks=True))


def opened(folder: Path, host: qnnbridge.Host, chip: str = "60", **entries: str) -> qnnbridge.InferenceSession:
    options = qnnbridge.SessionOptions()
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return qnnbridge.InferenceSession(
        folder, options, providers=[QNN], provider_options=[{"soc_model": chip}], host=host, verify=True
    )


def expected(folder: Path, host: qnnbridge.Host) -> Any:
    with qnnbridge.InferenceSession(folder / "models/m.onnx", providers=[CPU], host=host) as session:
        return session.run(None, {"x": X})[0]


@pytest.mark.parametrize("chip", ["60", "88"])
def test_a_session_of_the_folder_uses_the_compiled_model_for_its_chip(
    chip: str, both: Path, host: qnnbridge.Host
) -> None:
    with opened(both, host, chip) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(both, host), rtol=2e-2)
        assert session.placement.qnn_nodes == 1
        assert session.placement.cpu_nodes == 0
        words = session.placement.variant
        assert words.startswith(f"compiled/soc{chip}/m_ctx.onnx: compiled with QNN ")
        assert f"for SoC {chip} " in words
        assert f"(soc_model={chip})" in words
        assert session.verified.state == "agrees", "the numbers that `prepare` verified are those of this session"


def test_a_session_of_a_single_file_reports_no_choice(both: Path, host: qnnbridge.Host) -> None:
    with qnnbridge.InferenceSession(both / "compiled/soc60/m_ctx.onnx", host=host) as session:
        assert not session.placement.variant


def test_other_providers_use_the_original_model(both: Path, host: qnnbridge.Host) -> None:
    with opened(both, host) as session:
        session.set_providers([CPU])
        assert session.placement.variant == "models/m.onnx: the session does not ask for QNN"
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected(both, host))
        session.set_providers([QNN], [{"soc_model": "88"}])
        assert session.placement.variant.startswith("compiled/soc88/")


def test_unpickling_chooses_again(both: Path, host: qnnbridge.Host) -> None:
    with opened(both, host, "88") as session:
        data = pickle.dumps(session)
    assert os.fsencode(both) in data
    with pickle.loads(data) as again:
        assert again.placement.variant.startswith("compiled/soc88/")
        assert again.run(None, {"x": X})[0].shape == (2, 3)
    qnnbridge.default_host().close()


def test_the_drop_in_accepts_the_folder(both: Path) -> None:
    session = ort.InferenceSession(str(both), providers=[QNN, CPU])
    assert session.placement.variant.startswith("compiled/soc60/")
    assert session.run(None, {"x": X})[0].shape == (2, 3)
    session.close()
    plain = ort.InferenceSession(str(both), providers=[CPU])
    assert plain.placement.variant.startswith("models/m.onnx: ")
    plain.close()
    with pytest.raises(InvalidProtobuf, match="is a folder, not a model"):
        ort.InferenceSession(str(both / "compiled"), providers=[QNN])
    qnnbridge.default_host().close()


def test_run_names_the_file_that_it_ran(both: Path) -> None:
    done = command("run", both, "--random", "--json")
    assert done.returncode == 0, done.output
    assert json.loads(done.stdout)["placement"]["variant"].startswith("compiled/soc60/m_ctx.onnx: ")
    assert "made from    compiled/soc60/m_ctx.onnx: " in command("run", both, "--random").stdout
    wrong = command("run", both, "--random", "--dim", "bach=2")
    assert (wrong.returncode, 'no free dimension "bach"' in wrong.output) == (2, True)
    assert "is a folder, not a model" in command("run", both / "compiled", "--random").output


def test_the_daemon_chooses_for_its_host(both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon_of_its_own(tmp_path, monkeypatch) as daemon:
        for chip in ("60", "88"):
            with opened(both, daemon, chip) as session:
                assert session.placement.variant.startswith(f"compiled/soc{chip}/m_ctx.onnx: ")
                assert session.run(None, {"x": X})[0].shape == (2, 3)
        with pytest.raises(InvalidProtobuf, match="is a folder, not a model"):
            opened(both / "compiled", daemon)


def test_the_folder_can_be_served(both: Path) -> None:
    pytest.importorskip("uvicorn")
    words = ("--host", "private", "--provider-option", "soc_model=60", "--http", "127.0.0.1:0")
    with serving(*words, "--model", f"m={both}") as server:
        assert any(
            line.startswith("m: 1 node on QNN, ") and "compiled/soc60/m_ctx.onnx" in line for line in server.said
        )
        inputs = [{"name": "x", "shape": [2, 4], "datatype": "FP32", "data": X.ravel().tolist()}]
        answer = server.ask("POST", "/v2/models/m/infer", {"inputs": inputs})
        assert answer.status == 200
        assert answer.document["outputs"][0]["shape"] == [2, 3]


# --- choice of the file ---


def npu(chip: int | None, arch: int | None, sdk: str = "2.51.0") -> HostTraits:
    return HostTraits("1.32.0", "2.7.0", sdk, False, chip, arch)


def chosen(folder: Path, host: HostTraits, *, may_compile: bool = True, **by_name: int) -> Chosen:
    return choose(
        os.fspath(folder), host, (), by_name, hash_file, may_compile=may_compile, read_package=package_variants
    )


FITTING = {
    "its own chip": (npu(60, 73), "compiled/soc60/"),
    "its own newer chip": (npu(88, 81), "compiled/soc88/"),
    "another chip of the same architecture": (npu(53, 73), "compiled/soc60/"),
    "an architecture between the two": (npu(57, 75), "compiled/soc60/"),
    "a newer SDK": (npu(60, 73, "2.60.1"), "compiled/soc60/"),
    "a chip that nobody knows": (npu(None, None), "compiled/soc60/"),
    "an older SDK": (npu(60, 73, "2.48.0"), "models/m.onnx: no compiled model fits, so it is compiled here ("),
    "an older architecture": (npu(37, 68), "models/m.onnx: no compiled model fits"),
    "no QNN": (HostTraits("1.32.0"), "models/m.onnx: this host has no QNN"),
}


@pytest.mark.parametrize("case", FITTING)
def test_the_choice_follows_the_offline_verdict(case: str, both: Path) -> None:
    host, words = FITTING[case]
    found = chosen(both, host)
    assert found.reason.startswith(words)
    assert found.path == os.path.join(both, found.reason.partition(": ")[0])
    assert found.compiles == ("no compiled model fits" in words)
    if found.compiles:
        assert "compiled/soc60/m_ctx.onnx cannot run here: compiled with QNN 2." in found.reason
        with pytest.raises(ModelRequiresCompilation, match="No compiled model of out can run here") as refusal:
            chosen(both, host, may_compile=False)
        assert len(refusal.value.evidence) == 2
        assert "--soc-model" in str(refusal.value.fix)


def test_a_model_that_should_be_recompiled_is_the_second_choice(both: Path) -> None:
    found = chosen(both, npu(57, 75))
    assert "recompile recommended" in found.reason


def test_other_providers_need_no_verdict(both: Path) -> None:
    on_cpu = [ProviderSpec(CPU, {})]
    options: dict[str, Any] = {"may_compile": False, "read_package": package_variants}
    found = choose(os.fspath(both), npu(60, 73), on_cpu, {}, hash_file, **options)
    assert found.path == os.path.join(both, "models/m.onnx")


def test_a_folder_without_a_fitting_model_is_compiled_here_or_refused(copy: Path, host: qnnbridge.Host) -> None:
    keep_only(copy, 88)
    shutil.rmtree(copy / "compiled/soc60")
    with opened(copy, host) as session:
        assert session.placement.variant.startswith("models/m.onnx: no compiled model fits, so it is compiled here")
        assert "compiled/soc88/m_ctx.onnx cannot run here" in session.placement.variant
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(copy, host), rtol=2e-2)
        assert session.placement.cpu_nodes == 0
    with pytest.raises(ModelRequiresCompilation, match="No compiled model of copy can run here"):
        opened(copy, host, **{NO_COMPILING: "1"})
    with opened(copy, host, "88", **{NO_COMPILING: "1"}) as session:
        assert session.placement.variant.startswith("compiled/soc88/")


def test_folders_for_other_chips_can_be_omitted(copy: Path, host: qnnbridge.Host) -> None:
    shutil.rmtree(copy / "compiled/soc88")
    with opened(copy, host) as session:
        assert session.placement.variant.startswith("compiled/soc60/")
    with pytest.raises(ContextUnusable, match=r"soc88/m_ctx.onnx cannot be read \(No such file"):
        opened(copy, host, "88")


def manifest(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return document


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = manifest(folder)
    change(document)
    (folder / "manifest.json").write_text(json.dumps(document))


def keep_only(folder: Path, chip: int) -> None:
    def change(document: dict[str, Any]) -> None:
        document["chips"] = [one for one in document["chips"] if one["soc_model"] == chip]

    rewrite(folder, change)


# --- buckets ---


def test_given_sizes_choose_the_bucket(bucketed: Path, host: qnnbridge.Host) -> None:
    for size in (1, 2):
        options = qnnbridge.SessionOptions()
        options.add_free_dimension_override_by_name("batch", size)
        with qnnbridge.InferenceSession(bucketed, options, host=host) as session:
            assert session.placement.variant.startswith(f"compiled/soc60/m_batch{size}_ctx.onnx: ")
            assert session.run(None, {"x": X[:size]})[0].shape == (size, 3)
            session.set_providers([CPU])
            assert session.placement.variant.startswith(f"models/m_batch{size}.onnx: ")
    with pytest.raises(OptionError, match="the session chooses none of these sizes") as refusal:
        qnnbridge.InferenceSession(bucketed, host=host)
    assert "Prepared: batch=1; batch=2. Given: none." in str(refusal.value)
    assert "Given: batch=3" in str(command("run", bucketed, "--random", "--dim", "batch=3").output)
    assert command("run", bucketed, "--random", "--dim", "batch=2").returncode == 0


def test_a_bucket_is_not_guessed_if_an_older_manifest_does_not_name_its_model(
    bucketed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(bucketed, tmp_path / "copy"))

    def change(document: dict[str, Any]) -> None:
        for one in document["chips"]:
            del one["model"]

    rewrite(copy, change)
    assert chosen(copy, npu(60, 73, "2.40"), batch=1).reason.startswith("models/m_batch1.onnx: ")
    with pytest.raises(ContextUnusable, match="contains neither the model before compilation nor its path"):
        chosen(copy, npu(60, 73, "2.40"), batch=2)


# --- faults ---

BLOB = "compiled/soc60/m_ctx_qnn.bin"


def changed(name: str) -> Callable[[Path], None]:
    def fault(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return fault


def linked_outside(folder: Path) -> None:
    (folder / BLOB).rename(folder.parent / "elsewhere.bin")
    (folder / BLOB).symlink_to(folder.parent / "elsewhere.bin")


def with_field(**fields: Any) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lambda document: document.update(fields))


def renamed_in_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace("compiled/soc60/m_ctx.onnx", "../soc60/m_ctx.onnx"))


def without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / ".qnnbridge-prepare.json").unlink()


FAULTS: dict[str, tuple[Callable[[Path], None], type[BridgeError], str]] = {
    "no manifest": (without_manifest, InvalidProtobuf, "is a folder, not a model"),
    "the manifest of something else": (
        lambda f: (f / "manifest.json").write_text('{"name": "a page"}') and None,
        InvalidProtobuf,
        "A program other than `qnnbridge prepare` wrote",
    ),
    "prepare was interrupted": (
        lambda f: (f / "manifest.json").unlink(),
        ContextUnusable,
        "has no manifest.json",
    ),
    "a manifest that is cut off": (
        lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes()[:500]) and None,
        ContextUnusable,
        "its manifest.json is damaged",
    ),
    "a newer manifest": (with_field(schema=9), ContextUnusable, "a newer qnnbridge made it"),
    "a manifest without its files": (
        with_field(files=[]),
        ContextUnusable,
        "is not in the manifest's list of files",
    ),
    "a size without end": (
        with_field(files=[{"name": "m", "size": float("inf"), "sha256": "", "from": "fix"}]),
        ContextUnusable,
        "its manifest.json is damaged",
    ),
    "a manifest of lists in lists": (
        lambda f: (f / "manifest.json").write_text("[" * 100_000) and None,
        ContextUnusable,
        "its manifest.json is damaged",
    ),
    "chips that are none": (with_field(chips=5), ContextUnusable, "its manifest.json is damaged"),
    "a name that leads out": (renamed_in_manifest, ContextUnusable, "leads out of the model's folder"),
    "a link that leads out": (linked_outside, ContextUnusable, "m_ctx_qnn.bin is a link to"),
    "a changed byte in the binary": (
        changed(BLOB),
        ContextUnusable,
        "have changed since the folder was prepared",
    ),
    "a changed byte in the model": (
        changed("compiled/soc60/m_ctx.onnx"),
        ContextUnusable,
        "have changed since the folder was prepared",
    ),
    "a binary that is cut off": (
        lambda f: os.truncate(f / BLOB, 1000),
        ContextUnusable,
        "m_ctx_qnn.bin has 1000 bytes, but had",
    ),
    "no binary": (lambda f: (f / BLOB).unlink(), ContextUnusable, r"m_ctx_qnn.bin cannot be read \(No such file"),
    "no compiled model": (
        lambda f: shutil.rmtree(f / "compiled"),
        ContextUnusable,
        r"m_ctx.onnx cannot be read \(No such file",
    ),
    "no manifest beside the compiled model": (
        lambda f: (f / "compiled/soc60/m_ctx.qnnbridge.json").unlink(),
        ContextUnusable,
        r"m_ctx.qnnbridge.json cannot be read \(No such file",
    ),
}


@needs.posix
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_refused_with_an_explanation(fault: str, copy: Path, host: qnnbridge.Host) -> None:
    change, error, words = FAULTS[fault]
    change(copy)
    with pytest.raises(error, match=words) as raised:
        opened(copy, host)
    assert raised.value.fix


def test_a_damaged_original_is_not_compiled(copy: Path) -> None:
    changed("models/m.onnx")(copy)
    assert chosen(copy, npu(60, 73)).reason.startswith("compiled/soc60/"), "the original is not needed"
    with pytest.raises(ContextUnusable, match=r"the contents of models/m.onnx have changed"):
        chosen(copy, npu(60, 73, "2.40"))


def test_commands_for_files_refuse_the_folder(both: Path, host: qnnbridge.Host) -> None:
    with pytest.raises(InvalidProtobuf, match="is a folder, not a model"):
        qnnbridge.compile(both, host=host)


# --- the chosen file behaves like any other model ---


def test_after_a_crash_the_session_has_the_same_file_or_an_error(copy: Path) -> None:
    with qnnbridge.Host() as own, opened(copy, own) as session:
        before = session.run(None, {"x": X})[0]
        # A new choice would now select another model.
        keep_only(copy, 88)
        kill(own)
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], before)
        assert session.placement.variant.startswith("compiled/soc60/")
        changed(BLOB)(copy)
        kill(own)
        with pytest.raises(ModelChanged, match=r"m_ctx_qnn\.bin"):
            session.run(None, {"x": X})


def kill(host: qnnbridge.Host) -> None:
    os.kill(host.info.pid, signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)


# --- model packages of ONNX Runtime ---


@pytest.fixture(scope="module")
def package(both: Path) -> Path:
    """The folder as `prepare --package` writes it, with completed steps and a manifest of both kinds."""
    folder = Path(shutil.copytree(both.parent, both.parent.parent / "package"))
    options = PrepareOptions(soc_models=("60", "88"), extreme=False, dims=sizes(2), package=True)
    made = prepare_model(folder / "m.onnx", folder / "out", options)
    assert {step.state for step in made.steps} == {"kept"}
    return folder / "out"


@pytest.fixture
def foreign(package: Path, tmp_path: Path) -> Path:
    """A package that is described only by ONNX Runtime's own fields."""
    copy = Path(shutil.copytree(package, tmp_path / "foreign"))
    rewrite(copy, lambda document: document.pop("additional_metadata"))
    return copy


needs_packages = pytest.mark.skipif(
    not hasattr(real, "ModelPackage"), reason="needs the model packages of onnxruntime 1.32"
)


@needs_packages
def test_onnxruntime_reads_what_prepare_wrote(package: Path) -> None:
    opened = real.ModelPackage.open(str(package), strict_unknown_fields=True)
    (component,) = opened.get_info()["components"]
    opened.close()
    assert component["name"] == "model"
    found = {one["name"]: (one["ep"], one["compatibility_string"]) for one in component["variants"]}
    assert found["soc60"][1].split(":")[5] == "60"
    assert found["soc88"][1].split(":")[5] == "88"
    assert [found[name][0] for name in ("soc60", "soc88", "original")] == [QNN, QNN, CPU]
    options = real.SessionOptions()
    options.add_provider(CPU, {})
    context = real.ModelPackageContext(str(package))
    chosen_by_it = context.select_component("model", real.ModelPackageOptions(options))
    assert chosen_by_it.get_selected_variant_folder_path() == str(package / "models")
    assert chosen_by_it.create_session(options).run(None, {"x": X})[0].shape == (2, 3)


@needs_packages
def test_the_drop_in_runs_the_variant_that_onnxruntime_chooses(package: Path) -> None:
    options = ort.SessionOptions()
    options.add_provider(QNN, {"soc_model": "60"})
    context = ort.ModelPackageContext(str(package))
    chosen_by_it = context.select_component("model", ort.ModelPackageOptions(options))
    assert chosen_by_it.get_selected_variant_name() == "soc60"
    session = chosen_by_it.create_session()
    assert session.run(None, {"x": X})[0].shape == (2, 3)
    assert session.placement.qnn_nodes == 1
    session.close()
    qnnbridge.default_host().close()


@needs_packages
def test_a_package_is_checked_like_a_prepared_folder(package: Path, tmp_path: Path, host: qnnbridge.Host) -> None:
    with opened(package, host, "88") as session:
        assert session.placement.variant.startswith("compiled/soc88/")
    copy = Path(shutil.copytree(package, tmp_path / "copy"))
    changed(BLOB)(copy)
    with pytest.raises(ContextUnusable, match="have changed since the folder was prepared"):
        opened(copy, host)


@needs_packages
def test_a_package_of_another_program_can_be_opened_as_a_model(foreign: Path, host: qnnbridge.Host) -> None:
    for chip in ("60", "88"):
        with opened(foreign, host, chip) as session:
            assert session.placement.variant.startswith(f"compiled/soc{chip}/m_ctx.onnx: compiled with QNN ")
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(foreign, host), rtol=2e-2)
            session.set_providers([CPU])
            assert session.placement.variant == "models/m.onnx: the session does not ask for QNN"
    assert command("run", foreign, "--random").returncode == 0
    found = chosen(foreign, npu(60, 73, "2.40"))
    assert found.reason.startswith("models/m.onnx: no compiled model fits")
    with pytest.raises(ModelRequiresCompilation):
        chosen(foreign, npu(60, 73, "2.40"), may_compile=False)


@needs_packages
def test_options_of_a_package_are_used_unless_the_application_sets_others(
    foreign: Path, host: qnnbridge.Host
) -> None:
    def change(document: dict[str, Any]) -> None:
        settings = document["components"]["model"]["variants"]["soc60"]["executor_info"]["ort"]
        settings["provider_options"] |= {"htp_performance_mode": "burst"}
        settings["session_options"] = {"session.disable_prepacking": "1", "session.use_env_allocators": "1"}

    rewrite(foreign, change)
    with opened(foreign, host, **{"session.use_env_allocators": "0"}) as session:
        spec = session._remote.recipe.spec
        assert dict(spec.config_entries) == {"session.disable_prepacking": "1", "session.use_env_allocators": "0"}
        assert spec.providers[0].options["htp_performance_mode"] == "burst"
        assert session.get_provider_options()[QNN]["htp_performance_mode"] == "burst"
        session.set_providers([CPU])
        assert not session._remote.recipe.spec.config_entries.get("session.disable_prepacking")


def two_components(document: dict[str, Any]) -> None:
    document["components"]["other"] = document["components"]["model"]


def of_variant(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["components"]["model"]["variants"]["soc60"].update(fields)


# Manifests that ONNX Runtime's own reader refuses, and those that it reads but from which no session can be
# created.
REFUSED_BY_READER: dict[str, Callable[[dict[str, Any]], None]] = {
    "an unknown field": lambda document: document.update(more=1),
    "a newer schema": lambda document: document.update(schema_version="2.0"),
    "a folder that is not there": of_variant(variant_directory="gone"),
    "a folder outside": of_variant(variant_directory="../out"),
    "components of another type": lambda document: document.update(components=3),
}
REFUSED: dict[str, tuple[Callable[[dict[str, Any]], None], type[BridgeError], str]] = {
    "two components": (two_components, OptionError, "has several components"),
    "no model": (of_variant(executor_info={}), ContextUnusable, "its variant soc60 names no model_file"),
    "a model outside": (
        of_variant(executor_info={"ort": {"model_file": "../../../m.onnx"}}),
        ContextUnusable,
        "leads out of the model's folder",
    ),
}


@needs_packages
@pytest.mark.parametrize("case", REFUSED_BY_READER)
def test_an_invalid_package_raises_the_error_of_onnxruntime(case: str, foreign: Path, host: qnnbridge.Host) -> None:
    rewrite(foreign, REFUSED_BY_READER[case])
    with pytest.raises((ValueError, OSError, RuntimeError)) as theirs:
        real.ModelPackage.open(str(foreign))
    with pytest.raises(ContextUnusable, match="The model package foreign cannot be used") as ours:
        opened(foreign, host)
    assert str(theirs.value) in str(ours.value)


@needs_packages
@pytest.mark.parametrize("case", REFUSED)
def test_a_package_without_a_unique_model_is_refused(case: str, foreign: Path, host: qnnbridge.Host) -> None:
    change, error, words = REFUSED[case]
    rewrite(foreign, change)
    real.ModelPackage.open(str(foreign)).close()
    with pytest.raises(error, match=words):
        opened(foreign, host)


@needs_packages
def test_each_bucket_is_a_component(bucketed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bucketed.parent, tmp_path / "copy"))
    buckets = ({"batch": 1}, {"batch": 2})
    options = PrepareOptions(soc_models=("60",), extreme=False, buckets=buckets, package=True)
    prepare_model(folder / "m.onnx", folder / "out", options)
    context = real.ModelPackageContext(str(folder / "out"))
    assert context.get_component_names() == ["batch=1", "batch=2"]
    assert sorted(context.get_variant_names("batch=2")) == ["original", "soc60"]
    assert chosen(folder / "out", npu(60, 73), batch=2).path.endswith("compiled/soc60/m_batch2_ctx.onnx")


# --- inspect ---


def test_inspect_shows_each_verdict_and_the_choice(both: Path, copy: Path) -> None:
    found = json.loads(command("inspect", both, "--soc-model", "60", "--json").stdout)
    assert found["chosen"].startswith("compiled/soc60/m_ctx.onnx: ")
    assert [one["soc_model"] for one in found["compiled"]] == [60, 88]
    assert found["compiled"][0]["verdict"] == "ok"
    assert found["compiled"][1]["verdict"].startswith("cannot run here: ")
    newer = command("inspect", both, "--soc-model", "88").stdout
    assert "a session runs      compiled/soc88/m_ctx.onnx: " in newer
    changed(BLOB)(copy)
    damaged = json.loads(command("inspect", copy, "--soc-model", "60", "--json").stdout)
    assert damaged["chosen"] is None
    assert "have changed since the folder was prepared" in damaged["error"]["message"]
    assert "have changed since the folder was prepared" in damaged["compiled"][0]["verdict"]
    assert "refuse" not in command("inspect", both, "--load").stdout


@needs.posix
def test_links_in_the_cache_of_a_hub_are_followed(both: Path, tmp_path: Path, host: qnnbridge.Host) -> None:
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(one for one in both.rglob("*") if one.is_file())):
        link = tmp_path / "snapshots/1" / file.relative_to(both)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(shutil.copy(file, blobs / str(number)))
    with opened(tmp_path / "snapshots/1", host) as session:
        assert session.placement.variant.startswith("compiled/soc60/")
        assert session.run(None, {"x": X})[0].shape == (2, 3)
