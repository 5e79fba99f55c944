"""The runtime folder and its file must be private to this user; otherwise they are refused with an explanation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import qnnbridge
from qnnbridge._daemon.discovery import (
    FILE_NAME,
    make_runtime_folder,
    read_discovery,
    remove_discovery,
    runtime_folder,
    variables_from_anywhere,
    write_discovery,
)
from qnnbridge_daemon.main import log_file, stderr_file
from qnnbridge_protocol.errors import HostStartFailed
from tests import needs
from tests.daemon.daemons import StandIn, new_discovery, open_listener

ROOT = Path(__file__).parents[2]


def test_the_runtime_folder_is_created_for_this_user_only() -> None:
    folder = make_runtime_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    write_discovery(folder, new_discovery(folder))
    assert (folder / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_the_discovery_file_is_read_back_and_its_repr_shows_no_token() -> None:
    folder = make_runtime_folder()
    written = new_discovery(folder, started=12.5, log_file="/somewhere/daemon.log")
    write_discovery(folder, written)
    assert read_discovery(folder) == written
    assert written.token.hex() not in repr(written)
    assert str(written.token) not in repr(written)


@needs.posix
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o704])
def test_a_folder_that_other_users_may_use_is_refused(mode: int) -> None:
    make_runtime_folder().chmod(mode)
    with pytest.raises(HostStartFailed, match=f"other users have access to it.*{mode:o}") as caught:
        qnnbridge.connect()
    assert "chmod go-rwx" in str(caught.value.fix)
    assert "QNNBRIDGE_RUNTIME_DIR" in str(caught.value.fix)


@needs.posix
def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    runtime_folder().parent.mkdir(parents=True, exist_ok=True)
    runtime_folder().symlink_to(elsewhere)
    with pytest.raises(HostStartFailed, match="symbolic link") as caught:
        qnnbridge.connect()
    assert "chmod" not in str(caught.value.fix)
    assert not list(elsewhere.iterdir())


@needs.posix
def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    make_runtime_folder()
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(HostStartFailed, match=f"belongs to user {me}, not to you") as caught:
        make_runtime_folder()
    assert "chmod" not in str(caught.value.fix), "that would not work"


@needs.posix
@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_token_that_other_users_could_have_read_is_not_used(mode: int) -> None:
    with open_listener(StandIn().serve) as (_, _, folder):
        (folder / FILE_NAME).chmod(mode)
        with pytest.raises(HostStartFailed, match=r"daemon\.json cannot be used"):
            qnnbridge.connect(start=False)


@pytest.mark.parametrize("mode", [0o600, 0o644])
@pytest.mark.parametrize("start", [True, False])
def test_the_error_for_a_file_in_place_of_the_folder_suggests_another_folder(start: bool, mode: int) -> None:
    runtime_folder().parent.mkdir(parents=True, exist_ok=True)
    runtime_folder().write_text("")
    runtime_folder().chmod(mode)
    with pytest.raises(HostStartFailed, match="it is not a folder") as caught:
        qnnbridge.connect(start=start)
    assert caught.value.fix == "Set QNNBRIDGE_RUNTIME_DIR to a folder that only you can access."


def test_daemons_of_two_folders_have_separate_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two processes that write and rotate the same file lose lines; on Windows neither process could rotate it."""
    here = {log_file(), stderr_file(log_file())}
    assert {log_file(), stderr_file(log_file())} == here
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", str(tmp_path / "other"))
    there = {log_file(), stderr_file(log_file())}
    monkeypatch.delenv("QNNBRIDGE_RUNTIME_DIR")
    usual = {log_file(), stderr_file(log_file())}
    assert len(here | there | usual) == 6
    assert log_file().name == "daemon.log"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"endpoint": 1}', "\xff", "null", "[" * 100_000],
    ids=["empty", "cut", "list", "nothing", "number", "no text", "null", "deep"],
)
def test_a_damaged_discovery_file_counts_as_no_daemon(text: str) -> None:
    folder = make_runtime_folder()
    (folder / FILE_NAME).write_text(text, "latin-1")
    (folder / FILE_NAME).chmod(0o600)
    assert read_discovery(folder) is None
    with pytest.raises(HostStartFailed, match="No qnnbridge daemon"):
        qnnbridge.connect(start=False)


def test_the_error_in_a_frozen_application_names_no_command_that_it_does_not_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(HostStartFailed, match="Start one: qnnbridge host start"):
        qnnbridge.connect(start=False)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(HostStartFailed) as caught:
        qnnbridge.connect(start=False)
    assert "python -m qnnbridge_tools host start  (with the host's Python)" in str(caught.value)
    assert "qnnbridge host" not in str(caught.value)


@pytest.mark.parametrize("name", ["endpoint", "instance", "token", "pid", "started", "qnnbridge", "log_file"])
def test_an_incomplete_discovery_file_counts_as_no_daemon(name: str) -> None:
    folder = make_runtime_folder()
    data = new_discovery(folder).to_json()
    del data[name]
    (folder / FILE_NAME).write_text(json.dumps(data))
    (folder / FILE_NAME).chmod(0o600)
    assert read_discovery(folder) is None


def test_a_daemon_removes_only_its_own_discovery_file() -> None:
    folder = make_runtime_folder()
    ours, others = new_discovery(folder), new_discovery(folder)
    write_discovery(folder, others)
    remove_discovery(folder, ours.instance)
    assert read_discovery(folder) == others
    remove_discovery(folder, others.instance)
    assert [entry.name for entry in folder.iterdir()] == []


WRITES_WITHOUT_ROOM = """
import resource, signal
from tests.daemon.daemons import new_discovery
from qnnbridge._daemon.discovery import write_discovery
from qnnbridge._daemon.discovery import make_runtime_folder
folder = make_runtime_folder()
discovery = new_discovery(folder)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    write_discovery(folder, discovery)
except OSError as error:
    print(type(error).__name__, error.filename)
"""


@needs.posix
def test_a_failed_write_leaves_no_file() -> None:
    """On a full disk a file can be created but not filled."""
    ran = subprocess.run(
        [sys.executable, "-c", WRITES_WITHOUT_ROOM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["OSError", str(runtime_folder() / FILE_NAME)]
    assert [entry.name for entry in make_runtime_folder().iterdir()] == []


@needs.posix
@pytest.mark.parametrize("length", [40, 95, 104, 200], ids=lambda n: f"{n} bytes")
def test_an_endpoint_works_in_a_folder_with_a_path_of_any_length(
    length: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's socket addresses are limited to 108 bytes."""
    folder = tmp_path_factory.mktemp("f")
    while len(str(folder)) < length:
        folder = folder / ("n" * min(60, max(1, length - len(str(folder)) - 1)))
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", str(folder))
    with open_listener(StandIn().serve), qnnbridge.connect(start=False) as host:
        assert host.ping() >= 0


def test_a_home_folder_written_as_a_tilde_is_the_same_folder_for_applications_and_the_daemon(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Service managers and .env files pass a tilde unchanged; the daemon is started with absolute paths."""
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    monkeypatch.setenv("QNNBRIDGE_RUNTIME_DIR", "~/run")
    monkeypatch.setenv("QNNBRIDGE_STATE_DIR", "~/state")
    seen = (runtime_folder(), log_file())
    for name, value in variables_from_anywhere(os.environ).items():
        monkeypatch.setenv(name, value)
    assert seen == (runtime_folder(), log_file())
    assert seen[0] == tmp_path / "run"


@needs.posix
def test_the_default_folder_is_in_the_runtime_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("QNNBRIDGE_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_folder() == tmp_path / "qnnbridge"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert runtime_folder().name == f"qnnbridge-{os.getuid()}"


@pytest.mark.parametrize("name", ["QNNBRIDGE_CONFIG", "QNNBRIDGE_CACHE_DIR", "QNNBRIDGE_EP_PATH"])
def test_a_relative_path_of_the_application_is_the_same_for_a_daemon(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = variables_from_anywhere({name: "provider", "QNNBRIDGE_ENGINE": "folder"})
    assert kept == {name: str(tmp_path / "provider"), "QNNBRIDGE_ENGINE": "folder"}
