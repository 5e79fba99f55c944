"""Printed commands to install qnnbridge work when they are pasted, and one module creates them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from qnnbridge_protocol import installing
from qnnbridge_protocol.installing import Origin, install_command, installed_from, read_origin, requirement

ROOT = Path(__file__).parents[2]


def record(url: str, **further: Any) -> str:
    return json.dumps({"url": url, **further})


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        (record("file:///home/maria/a%20b", dir_info={"editable": True}), Origin("/home/maria/a b", True)),
        (record("file:///tmp/q-1.0-py3-none-any.whl", archive_info={}), Origin("/tmp/q-1.0-py3-none-any.whl")),
        (record("file:///C:/src/qnnbridge", dir_info={}), Origin(r"C:\src\qnnbridge")),
        (record("file://server/share/q", dir_info={}), Origin(r"\\server\share\q")),
        (record("https://example.org/q.zip"), None),
        (None, None),
        ("{", None),
        ("[]", None),
        (record("file:///q", dir_info=3), None),
    ],
)
def test_the_record_of_pip_names_a_checkout_or_a_wheel(text: str | None, origin: Origin | None) -> None:
    assert read_origin(text) == origin


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(found: Origin | None) -> None:
        monkeypatch.setattr(installing, "installed_from", lambda: found)

    return use


def test_a_package_that_was_installed_from_a_folder_is_installed_from_that_folder_again(origin: Any) -> None:
    origin(Origin("/src/my qnnbridge"))
    assert install_command("host,genai") == 'python -m pip install "/src/my qnnbridge[host,genai]"'
    again = install_command(python="/opt/python", options="--force-reinstall")
    assert again == '/opt/python -m pip install --force-reinstall "/src/my qnnbridge"'


def test_without_a_record_the_command_is_for_a_checkout_with_a_comment(origin: Any) -> None:
    origin(None)
    assert install_command("models") == 'python -m pip install ".[models]"   (in a checkout of qnnbridge)'


def test_an_upgrade_needs_a_newer_checkout_whatever_the_source_was(origin: Any) -> None:
    origin(Origin("/src/qnnbridge"))
    upgrade = install_command(options="--upgrade")
    assert upgrade == 'python -m pip install --upgrade "."   (in a newer checkout of qnnbridge)'


def test_if_an_index_has_the_package_its_name_is_sufficient(origin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    origin(None)
    monkeypatch.setattr(installing, "ON_INDEX", True)
    assert install_command("host") == 'python -m pip install "qnnbridge[host]"'
    assert requirement("host", "1.2.0") == "qnnbridge[host]==1.2.0"
    assert install_command(options="--upgrade") == 'python -m pip install --upgrade "qnnbridge"'


def test_a_deleted_folder_is_not_a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Installed:
        def read_text(self, _name: str) -> str:
            return record((tmp_path / "gone").as_uri())

    monkeypatch.setattr("importlib.metadata.distribution", lambda _name: Installed())
    assert installed_from() is None
    (tmp_path / "gone").mkdir()
    assert installed_from() == Origin(str(tmp_path / "gone"))


# An installation of the package by its name, within one sentence.
_BY_NAME = re.compile(r"pip install(?: (?:(?!\. )[^\n`#])*?)? [\"']?qnnbridge(?:\[[\w,]+\])?(?=[\s\"'`.),=]|$)")
_TEXTS = ("bridge_x86", "daemon", "docs", "examples", "host_arm64", "protocol", "tools")


def installs_by_name(text: str) -> list[str]:
    return [found[0] for found in _BY_NAME.finditer(text)]


def test_the_check_detects_an_installation_by_name() -> None:
    for text in (
        'pip install "qnnbridge[host]"',
        "python -m pip install --upgrade qnnbridge",
        "`pip install qnnbridge`",
        'pip install "qnnbridge[host]" onnxruntime-qnn==2.7.0',
    ):
        assert installs_by_name(text), text
    for text in ('pip install ".[host]"   # in a checkout of qnnbridge', 'pip install "/src/qnnbridge[host]"'):
        assert not installs_by_name(text), text


@pytest.mark.skipif(installing.ON_INDEX, reason="needs an index without qnnbridge")
def test_no_text_installs_qnnbridge_by_name_as_long_as_no_index_has_it() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    sources = [
        path
        for folder in _TEXTS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".json", ".ipynb") and "verification" not in path.name
    ]
    found = {str(path.relative_to(ROOT)): installs_by_name(path.read_text("utf-8")) for path in (*pages, *sources)}
    assert {name: lines for name, lines in found.items() if lines} == {}
