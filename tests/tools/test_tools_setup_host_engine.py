"""`qnnbridge setup-host` with another source of QNN: the catalogue of Windows, or a folder."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from qnnbridge._launch import Surroundings
from qnnbridge_os.programs import RegisteredPython
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import OptionError, ProviderUnavailable
from qnnbridge_protocol.specs import HostInfo
from qnnbridge_tools.doctor.findings import Report
from qnnbridge_tools.setup_host.command import document, print_commands, print_plan, print_result
from qnnbridge_tools.setup_host.environment import AlreadyThere, SetupFailed, python_in
from qnnbridge_tools.setup_host.plan import NpuTraits, SetupOptions, SetupPlan, make_plan, toml_string
from qnnbridge_tools.setup_host.steps import _configured, _run, check_host
from qnnbridge_tools.setup_host.this_machine import PythonTraits
from qnnbridge_tools.versions.packages import COMPANIONS, Source, requirements_without_qnn

ARM64_PYTHON = Path(__file__).parents[1] / "unit" / "data" / "executables" / "arm64.dll"
INFO = HostInfo(1, "ARM64", "3.13.1", "python.exe", __version__, "win32", 1, 0.1, {})


def surroundings(registered: list[RegisteredPython], **environ: str) -> Surroundings:
    return Surroundings(
        environ={"PATH": "", **environ},
        process="ARM64" if registered else "x86_64",
        computer="ARM64" if registered else "x86_64",
        executable="",
        version=(3, 10),
        not_isolated=(),
        registered=lambda: registered,
        origin=lambda name: None,
    )


def provider_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "onnxruntime_providers_qnn.dll").write_bytes(b"MZ")
    return folder


def plan_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str = "", **options: Any) -> SetupPlan:
    """Return the plan on Windows on Arm with a Python 3.13 and this configuration file."""
    file = tmp_path / "config.toml"
    file.write_text(settings, "utf-8")
    python = tmp_path / "arm" / "python.exe"
    python.parent.mkdir(exist_ok=True)
    shutil.copy(ARM64_PYTHON, python)
    python.chmod(0o755)
    registered = [RegisteredPython("PythonCore", "3.13-arm64", (3, 13), str(python), str(python.parent))]
    around = surroundings(registered, QNNBRIDGE_CONFIG=str(file))
    traits = PythonTraits((3, 13, 1), "win-arm64", str(python), "cpython", False, True, None)
    given = SetupOptions(folder=tmp_path / "host", **options)
    monkeypatch.setattr("qnnbridge_tools.versions.packages.installed_from", lambda: None)
    return make_plan(given, NpuTraits("2.51", 73), around, lambda path: traits)


def test_the_catalogue_is_installed_instead_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with(tmp_path, monkeypatch, engine="windowsml")
    (_, install) = plan.commands
    words = list(install[install.index("--prefer-binary") + 1 :])
    assert words == [f"qnnbridge=={__version__}", "onnxruntime>=1.24.2", *COMPANIONS, "windowsml"]
    assert plan.config_text == f"[host]\npython = {toml_string(str(plan.python))}\nengine = 'windowsml'\n"
    assert plan.variables == {"QNNBRIDGE_ENGINE": "windowsml", "QNNBRIDGE_EP_PATH": ""}
    told = document(plan)
    assert (told["engine"], told["onnxruntime_qnn"], told["reasons"]) == ("windowsml", None, [])
    assert told["download_command"] == [str(plan.python), "-m", "qnnbridge_host.windows_ml", "download"]


def test_the_plan_names_the_source_and_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_plan(plan_with(tmp_path, monkeypatch, engine="windowsml"))
    said = capsys.readouterr().out
    assert "the catalogue of Windows (windowsml)" in said
    assert "downloaded only with --download" in said
    plan = plan_with(tmp_path, monkeypatch, engine="windowsml", download=True)
    assert plan.commands[2:] == (plan.download,)
    print_commands(plan)
    assert "-m qnnbridge_host.windows_ml download" in capsys.readouterr().out


def test_after_the_set_up_the_download_is_named_if_the_host_lacks_qnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_with(tmp_path, monkeypatch, engine="windowsml", write_config=False)
    report = Report((), (), "")
    for source, is_named in (({}, True), ({"engine": "windowsml"}, False)):
        print_result(plan, dataclasses.replace(INFO, qnn_source=source), report)
        said = capsys.readouterr().out
        assert ("To download it:" in said) is is_named
        assert "set QNNBRIDGE_ENGINE=windowsml" in said


def test_a_folder_can_be_a_source_and_is_installed_with_what_its_release_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = provider_folder(tmp_path / "provider")
    plan = plan_with(tmp_path, monkeypatch, ep_path=folder)
    assert plan.engine == "folder"
    assert {"onnxruntime>=1.24.2", *COMPANIONS} <= set(plan.commands[1])
    assert not {"windowsml", "onnxruntime-qnn"} & set(plan.commands[1])
    assert f"engine = 'folder'\nep_path = {toml_string(str(folder))}\n" in plan.config_text
    assert plan.provider is not None
    assert plan.provider.library == str(folder / "onnxruntime_providers_qnn.dll")
    assert "onnxruntime>=1.24.2,<1.28" in requirements_without_qnn(Source(), "2.3.0", catalogue=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "folder"}, "no folder is given"),
        ({"engine": "windowsml", "ep_path": Path("x")}, "the folder of a provider is also given"),
        ({"engine": "windowsml", "version": "2.7.0"}, "does not use"),
        ({"engine": "windowsml", "force": True}, "does not use"),
        ({"download": True}, "--download has no meaning with the engine 'wheel'"),
    ],
)
def test_mutually_exclusive_options_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match=said):
        plan_with(tmp_path, monkeypatch, **options)


def test_a_folder_without_a_provider_and_a_catalogue_without_windows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProviderUnavailable, match="does not contain a QNN provider"):
        plan_with(tmp_path, monkeypatch, ep_path=tmp_path)
    with pytest.raises(OptionError, match="Only Windows has a catalogue"):
        make_plan(SetupOptions(engine="windowsml"), NpuTraits(), surroundings([]))


def test_the_setting_of_another_source_is_replaced_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = "[host]\nengine = 'folder'\nquiet = true\nep_path = '/mine'\n"
    for engine in ("wheel", "windowsml"):
        with pytest.raises(AlreadyThere, match=r"selects another source of QNN: .* under \[host\]"):
            plan_with(tmp_path, monkeypatch, old, engine=engine)
    path = f"[host]\npython = {toml_string(str(python_in(tmp_path / 'host')))}\n"
    told = plan_with(tmp_path, monkeypatch, old, engine="windowsml", replace=True).config_text
    assert told == f"{path}engine = 'windowsml'\nquiet = true\n"
    told = plan_with(tmp_path, monkeypatch, old, replace=True).config_text
    assert told == f"{path}engine = 'wheel'\nquiet = true\n"
    assert plan_with(tmp_path, monkeypatch, "[host]\nengine = 'auto'\n").config_text == f"{path}engine = 'auto'\n"


def test_a_setting_that_was_written_during_the_set_up_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_with(tmp_path, monkeypatch, "retry = 1\n", engine="windowsml")
    assert plan.config is not None
    plan.config.write_text("retry = 2\n", "utf-8")
    with _configured(plan):
        pass
    path = toml_string(str(plan.python))
    assert plan.config.read_text("utf-8") == f"retry = 2\n\n[host]\npython = {path}\nengine = 'windowsml'\n"
    plan.config.write_text("host = 1\n", "utf-8")
    with pytest.raises(SetupFailed, match="cannot extend"), _configured(plan):
        pass
    assert plan.config.read_text("utf-8") == "host = 1\n"


def test_a_failed_download_reports_the_message_of_windows(tmp_path: Path) -> None:
    wire = ProviderUnavailable("Windows could not download it.", cause="No network.", fix="Connect.").to_wire()
    for line, said in (
        (json.dumps({"error": wire}), "Connect. The host can also be set up"),
        ("oops", "The host can also be set up"),
    ):
        code = f"import sys; print({line!r}); sys.exit(1)"
        with pytest.raises(SetupFailed, match="cannot be downloaded") as raised:
            _run("download", [sys.executable, "-c", code], lambda line: None, tmp_path)
        assert str(raised.value.fix).startswith(said)
        assert raised.value.details == {"step": "download", "exit_code": 1}
    assert "No network." not in str(raised.value.cause)


@pytest.mark.simulator
def test_a_host_is_checked_with_the_source_that_it_will_use(tmp_path: Path) -> None:
    package = pytest.importorskip("onnxruntime_qnn")
    folder = os.path.dirname(package.get_library_path())
    plan = make_plan(
        SetupOptions(python=sys.executable, ep_path=Path(folder), write_config=False, folder=tmp_path / "host"),
        NpuTraits(),
        Surroundings.current(),
    )
    info = check_host(Path(sys.executable), plan.variables)
    assert info.qnn_source["engine"] == "folder"
    assert info.qnn_source["library"] == package.get_library_path()
