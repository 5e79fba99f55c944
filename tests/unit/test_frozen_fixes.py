"""Fixes in errors of frozen applications, whose users lack the command `qnnbridge` and cannot install packages."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from qnnbridge._launch import Surroundings, find_host_in
from qnnbridge.speech._folder import load_tokenizer
from qnnbridge_protocol.connection import Hello, negotiate
from qnnbridge_protocol.errors import BridgeError, HostNotFound, VersionMismatch
from qnnbridge_protocol.installing import extra_fix, install_command


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("named", ["{}/python3", "", "{}"])
def test_the_fix_for_a_wrong_host_of_a_frozen_application_addresses_its_author(named: str, tmp_path: Path) -> None:
    here = dataclasses.replace(Surroundings.current(), environ={"XDG_CONFIG_HOME": str(tmp_path)})
    with pytest.raises(HostNotFound) as caught:
        find_host_in(here, named.format(tmp_path))
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("The application has to be shipped with a host: ")
    assert "qnnbridge setup" not in caught.value.fix


def test_the_fix_for_an_older_host_of_a_frozen_application_does_not_mention_setup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = Hello(api=(3, 4), qnnbridge="0.9.0"), Hello(api=(1, 2), qnnbridge="0.3.0")
    with pytest.raises(VersionMismatch, match=r"Upgrade the host: qnnbridge setup --upgrade"):
        negotiate(*sides)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(VersionMismatch) as caught:
        negotiate(*sides)
    assert str(caught.value.fix).startswith("Upgrade the host that the application is shipped with")
    assert "setup" not in str(caught.value.fix)


def test_the_fix_for_a_missing_extra_of_a_frozen_application_is_a_new_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert extra_fix("speech") == install_command("speech")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BridgeError) as caught:
        load_tokenizer(tmp_path)
    assert (
        caught.value.fix == "Build this application again in an environment with the extra [speech] of qnnbridge."
    )
