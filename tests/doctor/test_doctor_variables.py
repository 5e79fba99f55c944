"""The doctor and docs/settings.md cover every environment variable that the sources read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from machines import snapdragon
from tests import needs

from qnnbridge._launch import configuration_file, configured_host
from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.subjects.environment import FOR_DEVELOPERS, KNOWN_VARIABLES, survey_unknown_variables

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text("utf-8")
THE_LIST = ROOT / "tools" / "qnnbridge_tools" / "doctor" / "survey" / "surroundings.py"


def of_the_sources() -> set[str]:
    """Return the variables in the sources, also those that occur only in a message."""
    found: set[str] = set()
    for root in ("protocol", "host_arm64", "bridge_x86", "daemon", "tools"):
        for path in (ROOT / root).rglob("*.py"):
            if path != THE_LIST:
                found.update(re.findall(r"\bQNNBRIDGE_[A-Z0-9_]+", path.read_text("utf-8")))
    return {name for name in found if name != "QNNBRIDGE_" and not name.startswith(FOR_DEVELOPERS)}


def test_doctor_knows_every_variable_and_no_other() -> None:
    assert of_the_sources() == set(KNOWN_VARIABLES)


def test_the_page_of_settings_lists_every_variable_once_and_no_other() -> None:
    assert sorted(re.findall(r"^\| `(QNNBRIDGE_\w+)` \|", PAGE, re.MULTILINE)) == sorted(of_the_sources())


@needs.posix
def test_the_page_gives_the_path_of_the_configuration_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import platformdirs.unix

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(
        "platformdirs.user_config_dir", lambda *a, **k: platformdirs.unix.Unix(*a, **k).user_config_dir
    )
    assert f"`~/{configuration_file({}).relative_to(tmp_path).as_posix()}`" in PAGE


def test_the_example_configuration_file_of_the_page_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    file = tmp_path / "config.toml"
    file.write_text(example[1], encoding="utf-8")
    assert str(configured_host(file)).endswith(r"C:\Python313-arm64\python.exe")


@pytest.mark.parametrize("name", ["QNNBRIDGE_DROPIN_PROVIDER", "QNNBRIDGE_DROPIN", "QNNBRIDGE_REPORT_DIR"])
def test_a_variable_of_the_drop_in_is_not_reported_as_unknown(name: str) -> None:
    machine, _, _ = snapdragon()
    machine.environ[name] = "qnn"
    assert survey_unknown_variables(machine) == ()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QNNBRIDGE_HOST_PYTHN", "QNNBRIDGE_HOST_PYTHON"),
        ("QNNBRIDGE_CACHEDIR", "QNNBRIDGE_CACHE_DIR"),
        ("qnnbridge_dropin_providers", "QNNBRIDGE_DROPIN_PROVIDER"),
        ("QNNBRIDGE_CACHE_SIZE", None),
        ("QNNBRIDGE_LOG_LEVEL", None),
        ("QNNBRIDGE_PROXY", None),
    ],
)
def test_only_a_name_that_is_close_is_suggested(name: str, meant: str | None) -> None:
    machine, _, _ = snapdragon()
    machine.environ[name] = "x"
    (found,) = diagnose(survey(machine, SurveyOptions())).findings
    assert found.code == "env.unknown-variable"
    if meant is None:
        assert "Rename" not in found.fix
        assert "Remove it" in found.fix
    else:
        assert found.fix == f"Rename {name} to {meant}."
