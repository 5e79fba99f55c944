"""The source of the host's QNN: how the setting reaches the host, and the choice in the host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from qnnbridge._launch import engine_setting
from qnnbridge_host.engine.sources import choose
from qnnbridge_host.machine import Installed, installed_versions
from qnnbridge_host.windows_ml import CatalogueEntry, listed, ready_qnn
from qnnbridge_protocol.errors import HostNotFound, OptionError, ProviderUnavailable
from qnnbridge_protocol.settings import ENGINES, engine_of, engine_variables

NOT_THERE = Installed({}, onnxruntime="1.32.0")
CATALOGUED = Installed({"windowsml": "2.5.96"}, onnxruntime="1.32.0")


@pytest.mark.parametrize(
    ("environ", "engine"),
    [
        ({}, ("auto", None)),
        ({"QNNBRIDGE_ENGINE": ""}, ("auto", None)),
        ({"QNNBRIDGE_ENGINE": " WindowsML "}, ("windowsml", None)),
        ({"QNNBRIDGE_EP_PATH": "/p"}, ("folder", "/p")),
        ({"QNNBRIDGE_ENGINE": "folder", "QNNBRIDGE_EP_PATH": "/p"}, ("folder", "/p")),
    ],
)
def test_the_environment_variable_selects_the_engine(
    environ: dict[str, str], engine: tuple[str, str | None]
) -> None:
    assert engine_of(environ) == engine


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"QNNBRIDGE_ENGINE": "winml"}, "The engine 'winml' does not exist"),
        ({"QNNBRIDGE_ENGINE": "folder"}, "no folder is given"),
        ({"QNNBRIDGE_ENGINE": "wheel", "QNNBRIDGE_EP_PATH": "/p"}, "also given: /p"),
        ({"QNNBRIDGE_ENGINE": "windowsml", "QNNBRIDGE_EP_PATH": "/p"}, "also given: /p"),
    ],
)
def test_missing_or_contradictory_engine_settings_are_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        engine_of(environ)
    assert caught.value.fix


def test_an_argument_overrides_both_variables(tmp_path: Path) -> None:
    assert engine_variables("windowsml", None) == {"QNNBRIDGE_ENGINE": "windowsml", "QNNBRIDGE_EP_PATH": ""}
    folder = engine_variables(None, tmp_path / "x" / "..")
    assert folder == {"QNNBRIDGE_ENGINE": "folder", "QNNBRIDGE_EP_PATH": os.fspath(tmp_path)}
    assert engine_variables(None, None) == {}
    assert engine_variables(None, "~/ep")["QNNBRIDGE_EP_PATH"] == os.path.abspath(os.path.expanduser("~/ep"))
    assert {engine_of(engine_variables(name, None))[0] for name in ENGINES if name != "folder"} == {*ENGINES} - {
        "folder"
    }


def test_the_configuration_file_is_used_if_nothing_else_sets_the_engine(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[host]\nengine = 'folder'\nep_path = 'qnn'\n", "utf-8")
    environ = {"QNNBRIDGE_CONFIG": str(file)}
    assert engine_setting({}, environ) == {
        "QNNBRIDGE_ENGINE": "folder",
        "QNNBRIDGE_EP_PATH": os.fspath(tmp_path / "qnn"),
    }
    assert engine_setting({"QNNBRIDGE_ENGINE": "wheel"}, environ) == {}
    assert engine_setting({}, {**environ, "QNNBRIDGE_ENGINE": "wheel"}) == {}
    with pytest.raises(OptionError):
        engine_setting({}, {**environ, "QNNBRIDGE_ENGINE": "winml"})
    file.write_text("[host]\nengine = 'winml'\n", "utf-8")
    with pytest.raises(OptionError, match="engine 'winml' does not exist"):
        engine_setting({}, environ)
    file.write_text("[host]\nengine = 3\n", "utf-8")
    with pytest.raises(HostNotFound, match=r"'engine' in \[host\] is not a string"):
        engine_setting({}, environ)


def test_hello_does_not_report_a_wheel_that_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNNBRIDGE_ENGINE", raising=False)
    monkeypatch.delenv("QNNBRIDGE_EP_PATH", raising=False)
    before = installed_versions()
    if "onnxruntime_qnn" not in before:
        pytest.skip("onnxruntime-qnn has no package for this Python")
    monkeypatch.setenv("QNNBRIDGE_ENGINE", "windowsml")
    assert installed_versions().keys() == before.keys() - {"onnxruntime_qnn", "qnn_sdk"}


# --- the choice in the host ------------------------------------------------------------------------------


def entry(folder: Path) -> CatalogueEntry:
    library = folder / "onnxruntime_providers_qnn.dll"
    library.write_bytes(b"")
    (folder / "QnnHtp.dll").write_bytes(b"\0v2.45.40.251028153101_1\0")
    return CatalogueEntry("QNNExecutionProvider", "1.8.21.0", "A_b", str(library), "Ready")


def test_the_catalogue_is_used_if_no_wheel_is_installed(tmp_path: Path) -> None:
    source = choose(CATALOGUED, {}, lambda: entry(tmp_path))
    assert source.engine == "windowsml"
    assert source.sdk == "2.45.40.251028153101_1"
    assert source.words == "Windows ML QNNExecutionProvider 1.8.21.0, QNN 2.45.40"
    assert "onnxruntime-qnn is not installed" in source.reason
    assert source.versions() == {
        "qnn_sdk": "2.45.40.251028153101_1",
        "ep_source": "windowsml",
        "ep_version": "1.8.21.0",
        "ep_package": "A_b",
    }


def test_the_catalogue_is_not_queried_if_its_package_is_not_installed(tmp_path: Path) -> None:
    def never() -> CatalogueEntry:
        raise AssertionError("the catalogue was asked")

    with pytest.raises(ProviderUnavailable, match="not available") as caught:
        choose(NOT_THERE, {}, never)
    assert ("pip install windowsml" in (caught.value.fix or "")) is (sys.platform == "win32")
    with pytest.raises(ProviderUnavailable):
        choose(CATALOGUED, {"QNNBRIDGE_ENGINE": "wheel"}, never)


def test_a_folder_may_contain_the_library_one_level_down(tmp_path: Path) -> None:
    inner = tmp_path / "ExecutionProvider"
    inner.mkdir()
    library = entry(inner).library
    source = choose(NOT_THERE, {"QNNBRIDGE_EP_PATH": str(tmp_path)})
    assert (source.engine, source.library, source.release) == ("folder", library, None)
    assert choose(NOT_THERE, {"QNNBRIDGE_EP_PATH": library}).library == library


class Provider:
    """A provider of the package windowsml. failure: error of Windows when the library is requested."""

    name, version, package_family_name = "QNNExecutionProvider", "1.8.21.0", "A_b"
    ready_state, certification = SimpleNamespace(name="Ready"), SimpleNamespace(name="Certified")

    def __init__(self, library: str, failure: Exception | None = None) -> None:
        self._library, self._failure = library, failure

    @property
    def library_path(self) -> str:
        if self._failure is not None:
            raise self._failure
        return self._library


def test_a_provider_without_a_description_in_windows_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def windows_has(*providers: Provider) -> None:
        catalogue = SimpleNamespace(find_all_providers=lambda: providers, close=lambda: None)
        monkeypatch.setitem(sys.modules, "windowsml", SimpleNamespace(EpCatalog=lambda: catalogue))

    library = entry(tmp_path).library
    refused = OSError(0x80070490, "Element not found")
    later = ValueError("7 is not a valid EpReadyState")
    windows_has(Provider("", refused), Provider("", later), Provider(library))
    assert ready_qnn().library == library
    assert [one.library for one in listed()] == [library]
    for failure, words in ((refused, "0x80070490"), (later, "7 is not a valid EpReadyState")):
        windows_has(Provider("", failure))
        with pytest.raises(ProviderUnavailable, match="cannot describe") as caught:
            listed()
        assert words in (caught.value.cause or "")
