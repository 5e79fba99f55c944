"""Windows ML as a source of QNN: the real wheel's Python with a replacement of its library, and real sessions."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labs import demand

import qnnbridge

pytestmark = [pytest.mark.process, pytest.mark.simulator]

MODEL = Path(__file__).parents[1] / "models" / "q.onnx"
FAMILY = "MicrosoftCorporationII.WinML.Qualcomm.QNN.EP.1.8_8wekyb3d8bbwe"
NO_NETWORK = -2147012889  # 0x80072EE7: the name of a server was not found

Table = Callable[..., Path]


def library() -> str:
    import onnxruntime_qnn

    return str(onnxruntime_qnn.get_library_path())


def provider(**changed: Any) -> dict[str, Any]:
    return {
        "name": "QNNExecutionProvider",
        "version": "1.8.21.0",
        "package": FAMILY,
        "library": library(),
        "state": 0,
        "certification": 1,
        **changed,
    }


@pytest.fixture
def table(tmp_path: Path) -> Table:
    def write(*providers: dict[str, Any], **more: Any) -> Path:
        path = tmp_path / "table.json"
        path.write_text(json.dumps({"providers": providers, **more}), "utf-8")
        return path

    return write


def python(kind: str = "linux") -> Path:
    return demand(f"windowsml/{kind}/bin/python", "setup_windowsml.sh")


def host(table: Path, engine: str | None = "windowsml", kind: str = "linux", **more: Any) -> qnnbridge.Host:
    return qnnbridge.Host(python=python(kind), engine=engine, env={"WINDOWSML_TABLE": str(table)}, **more)  # type: ignore[arg-type]


def calls(table: Path) -> list[str]:
    file = Path(f"{table}.calls")
    return file.read_text("utf-8").split() if file.exists() else []


def command(table: Path, *words: str, kind: str = "linux") -> tuple[int, list[dict[str, Any]]]:
    ran = subprocess.run(
        [python(kind), "-I", "-m", "qnnbridge_host.windows_ml", *words],
        env={**os.environ, "WINDOWSML_TABLE": str(table)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.returncode, [json.loads(line) for line in ran.stdout.splitlines()]


def run(one: qnnbridge.Host, **more: Any) -> tuple[list[Any], qnnbridge.InferenceSession]:
    session = qnnbridge.InferenceSession(MODEL, host=one, **more)
    (node,) = session.get_inputs()
    feed = np.random.default_rng(0).random([d if isinstance(d, int) else 1 for d in node.shape or ()])
    return session.run(None, {node.name: feed.astype(np.float32)}), session


@pytest.fixture
def reference() -> list[Any]:
    with qnnbridge.Host(python=python(), engine="wheel") as one:
        results, session = run(one)
        assert session.placement.source.startswith("onnxruntime-qnn 2.")
        session.close()
    return results


def test_a_session_runs_with_every_source_and_its_placement_names_it(table: Table, reference: list[Any]) -> None:
    catalogue = table(provider(name="VitisAIExecutionProvider", state=2), provider())
    with host(catalogue) as one:
        results, session = run(one)
        assert session.placement.source.startswith("Windows ML QNNExecutionProvider 1.8.21.0, QNN 2.")
        assert session.placement.qnn_nodes
        source = one.info.qnn_source
        assert (source["engine"], source["version"], source["package"]) == ("windowsml", "1.8.21.0", FAMILY)
        assert source["sdk"].count(".") == 3, "the build, read from the library of the backend"
        assert source["library"] == library()
        assert "onnxruntime_qnn" not in one.info.versions, "its release is not known"
        assert "QNNBRIDGE_ENGINE=windowsml" in source["reason"]
    np.testing.assert_array_equal(results[0], reference[0])
    assert "WinMLEpEnsureReadyAsync" not in calls(catalogue), "a provider that is ready is not touched"
    with host(table(), engine=None, ep_path=Path(library()).parent) as one:
        results, session = run(one)
        assert session.placement.source.startswith("the provider in ")
        assert one.info.qnn_source["engine"] == "folder"
    np.testing.assert_array_equal(results[0], reference[0])


def test_a_compiled_model_is_judged_by_the_loaded_provider(table: Table, tmp_path: Path) -> None:
    with host(table(provider())) as one:
        made = qnnbridge.compile(MODEL, tmp_path / "q_ctx.onnx", host=one)
        assert made.versions["ep_version"] == "1.8.21.0"
        with qnnbridge.InferenceSession(made.path, host=one) as session:
            assert session.placement.source.startswith("Windows ML")


def test_by_default_the_wheel_is_preferred_to_the_catalogue(table: Table) -> None:
    with host(table(provider()), engine=None) as one:
        source = one.info.qnn_source
        assert source["engine"] == "wheel"
        assert "the settings choose no other source" in source["reason"]
    with host(table(provider()), engine=None, kind="linux-without") as one:
        source = one.info.qnn_source
        assert source["engine"] == "windowsml"
        assert "onnxruntime-qnn is not installed" in source["reason"]


def test_a_provider_that_is_not_ready_is_prepared(table: Table) -> None:
    catalogue = table(provider(state=1, library="", library_after=library(), progress=[0.5], seconds=0.1))
    with host(catalogue) as one:
        assert one.info.qnn_source["library"] == library()
    assert "WinMLEpEnsureReadyAsync" in calls(catalogue)
    assert "WinMLAsyncClose" in calls(catalogue)


def refusal(one: qnnbridge.Host) -> qnnbridge.BridgeError:
    with one, pytest.raises(qnnbridge.BridgeError) as caught:
        qnnbridge.InferenceSession(MODEL, host=one)
    return caught.value


def test_a_provider_that_is_not_present_is_downloaded_only_on_request(table: Table) -> None:
    catalogue = table(
        provider(state=2, library="", library_after=library(), progress=[0.0, 0.4, 0.8, 1.0], seconds=0.1)
    )
    error = refusal(host(catalogue))
    assert "not on this computer" in error.message
    assert "windows_ml download" in (error.fix or "")
    assert "WinMLEpEnsureReadyAsync" not in calls(catalogue)
    code, lines = command(catalogue, "download")
    assert code == 0
    assert [line["progress"] for line in lines[:-1]] == [0.0, 0.4, 0.8, 1.0]
    assert lines[-1]["providers"][0]["state"] == "Ready"
    assert lines[-1]["providers"][0]["library"] == library()
    assert lines[-1]["package"] == "2.5.96"


def test_without_a_network_the_download_is_an_error_with_the_fix(table: Table) -> None:
    code, lines = command(table(provider(state=2, library="", ready=NO_NETWORK)), "download")
    error = lines[-1]["error"]
    assert code == 1
    assert "could not download QNNExecutionProvider 1.8.21.0" in error["message"]
    assert "0x80072EE7" in error["cause"]
    assert "internet" in error["fix"]
    assert "engine='wheel'" in error["fix"]


@pytest.mark.parametrize(
    ("more", "providers", "words"),
    [
        ({"create": -2147221164}, [], ["cannot open its catalogue", "0x80040154", "24H2"]),
        ({"enumerate": -2147024891}, [], ["cannot open its catalogue", "0x80070005"]),
        ({}, [], ["has no provider for QNN", "The catalogue is empty", "engine='wheel'"]),
        (
            {},
            [{"name": "VitisAIExecutionProvider", "version": "1.8.1"}],
            ["VitisAIExecutionProvider 1.8.1 (Ready)"],
        ),
        ({}, [{"library": "/gone/onnxruntime_providers_qnn.dll"}], ["its library is missing", "/gone/"]),
        ({}, [{"state": 1, "refused": -2147024891}], ["could not prepare", "0x80070005", "repair the package"]),
    ],
)
def test_a_refusal_of_the_catalogue_is_an_error_with_cause_and_fix(
    more: dict[str, Any], providers: list[dict[str, Any]], words: list[str], table: Table
) -> None:
    text = str(refusal(host(table(*(provider(**one) for one in providers), **more))))
    for word in words:
        assert word in text


def test_a_library_of_another_provider_is_refused_before_it_is_loaded(table: Table, tmp_path: Path) -> None:
    other = tmp_path / "onnxruntime_providers_other.dll"
    other.write_bytes(b"MZ" + b"CreateEpFactories" * 100)
    catalogue = table(provider(library=str(other)))
    for one in (host(catalogue), host(catalogue, engine=None, ep_path=other)):
        error = refusal(one)
        assert "not a library of the QNN provider" in error.message
        assert "QnnInterface_getProviders" in (error.cause or "")
    assert "does not contain a QNN provider" in refusal(host(table(), engine=None, ep_path=tmp_path)).message
    assert "does not exist" in refusal(host(table(), engine=None, ep_path=tmp_path / "gone")).message


def test_a_model_is_compiled_again_if_windows_has_another_version(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("QNNBRIDGE_CACHE", raising=False)

    def state(version: str) -> tuple[str, str]:
        with caplog.at_level(logging.WARNING), host(table(provider(version=version))) as one:
            caplog.clear()
            _, session = run(one, cache=True)
            told = [record.message for record in caplog.records if "compiled again" in record.message]
            return session.cache.state, " ".join(told)

    assert state("1.8.21.0") == ("miss", "")
    assert state("1.8.21.0") == ("hit", "")
    again, told = state("1.8.30.0")
    assert again == "miss"
    assert "q.onnx is compiled again" in told
    assert "windowsml 1.8.21.0" in told
    assert "windowsml 1.8.30.0" in told
    assert state("1.8.21.0") == ("hit", ""), "the older entry stays until the cache needs its room"


@pytest.mark.parametrize("deaf", [False, True], ids=["", "windows does not answer the cancelling"])
def test_a_download_that_makes_no_progress_is_abandoned(deaf: bool, table: Table) -> None:
    code = "import qnnbridge_host.windows_ml as w; w.STALLED_S = w.CANCEL_S = 0.5; w.end(w.main(['download']))"
    stuck = table(provider(state=2, library="", seconds="hang"), deaf=deaf)
    ran = subprocess.run(
        [python(), "-I", "-c", code],
        env={**os.environ, "WINDOWSML_TABLE": str(stuck)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    error = json.loads(ran.stdout.splitlines()[-1])["error"]
    assert ran.returncode == 1
    assert "no progress for 0.5 s" in error["message"]
    assert "has stopped" in error["cause"]


def test_the_setting_in_the_configuration_file_reaches_the_host(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "sideloaded"
    shutil.copytree(Path(library()).parent, folder, symlinks=True, copy_function=os.symlink)
    file = tmp_path / "config.toml"
    file.write_text(f"[host]\npython = '{python()}'\nep_path = 'sideloaded'\n", "utf-8")
    monkeypatch.setenv("QNNBRIDGE_CONFIG", str(file))
    monkeypatch.delenv("QNNBRIDGE_HOST_PYTHON", raising=False)
    with qnnbridge.Host() as one:
        assert one.info.qnn_source["engine"] == "folder"
        assert one.info.qnn_source["library"].startswith(str(folder))
        assert one.info.qnn_source["release"], "a copy of the wheel says its release"
