"""The parts of `qnnbridge setup-host`: configuration text, shells, the folder, interpreters, pip's arguments."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import needs

from qnnbridge._launch import Surroundings, configured_host
from qnnbridge_host.model.releases import Release, for_version, generated_on
from qnnbridge_os.programs import RegisteredPython
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import HostNotFound, NoSuchFile, OptionError
from qnnbridge_tools.doctor.machine import path_folders
from qnnbridge_tools.options import SetupOptions
from qnnbridge_tools.reporting import exit_code_of
from qnnbridge_tools.setup_host import made_host
from qnnbridge_tools.setup_host.bring_python import python_folder
from qnnbridge_tools.setup_host.environment import (
    MARKER,
    OLD_SUFFIX,
    RECORD,
    AlreadyThere,
    NewEnvironment,
    NothingFits,
    SetupFailed,
    check_file,
    check_folder,
    check_free,
    recover,
    remove,
)
from qnnbridge_tools.setup_host.plan import HostChoice, NpuTraits, choose, toml_string, with_host
from qnnbridge_tools.setup_host.steps import pip_environment, setup_environment, write_text
from qnnbridge_tools.setup_host.this_machine import BaseCandidate, PythonTraits, ask, candidates
from qnnbridge_tools.versions.packages import COMPANIONS, Source, find_source, requirements

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "tests" / "unit" / "data" / "executables"
NATIVE = HEADERS / "x86_64.so"

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


# --- the configuration file ------------------------------------------------------------------------


def test_a_new_configuration_file_names_the_host() -> None:
    assert with_host("", {"python": r"C:\my hosts\python.exe"}) == "[host]\npython = 'C:\\my hosts\\python.exe'\n"


def test_everything_else_in_the_file_is_kept_including_comments() -> None:
    old = "# mine\nretry = 1\n\n[host] # the host\nquiet = true # yes\npython = '/old' # old\n\n[other]\na = '''\nx'''\n"
    new = "# mine\nretry = 1\n\n[host] # the host\nquiet = true # yes\npython = '/new'\n\n[other]\na = '''\nx'''\n"
    assert with_host(old, {"python": "/new"}) == new


def test_a_missing_table_or_setting_is_added_to_the_file() -> None:
    assert with_host("[host]\nquiet = true\n", {"python": "/new"}) == "[host]\npython = '/new'\nquiet = true\n"
    assert with_host("[other]\na = 1", {"python": "/new"}) == "[other]\na = 1\n\n[host]\npython = '/new'\n"


def test_line_ends_are_kept() -> None:
    assert (
        with_host("# a\x85b\r\n[host]\r\npython = 'x'\r\n", {"python": "/y"})
        == "# a\x85b\r\n[host]\r\npython = '/y'\r\n"
    )
    assert with_host("a = 1", {"python": "/y"}) == "a = 1\n\n[host]\npython = '/y'\n"


@pytest.mark.parametrize(
    "text",
    [
        "host = { python = '/old' }\n",
        "host.python = '/old'\n",
        "host = 1\n",
        "this is not TOML\n",
        "text = '''\n[host]\npython = 1\n'''\n",
        "[host]\npython = '''\n/old'''\n",
    ],
)
def test_a_file_that_would_change_in_other_places_is_not_written(text: str) -> None:
    assert with_host(text, {"python": "/new"}) is None


@given(texts, st.sampled_from(["", "a = 1\n", "[host]\npython = 'x'\nb = 2\n", "[host]\n", "[[many]]\nc = 1\n"]))
def test_any_path_can_be_written_and_is_read_back(path: str, before: str) -> None:
    text = with_host(before, {"python": path})
    assert text is not None
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    assert toml.loads(text)["host"]["python"] == path
    assert toml.loads(f"x = {toml_string(path)}")["x"] == path


def test_the_written_text_is_what_the_application_reads(tmp_path: Path) -> None:
    file = tmp_path / "settings" / "config.toml"
    write_text(file, with_host("", {"python": "/opt/it's mine/bin/python"}) or "")
    assert configured_host(file) == "/opt/it's mine/bin/python"


@needs.posix
def test_a_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles" / "config.toml"
    kept.parent.mkdir()
    kept.write_text("a = 1\n")
    kept.chmod(0o640)
    link = tmp_path / "config.toml"
    link.symlink_to(kept)
    write_text(link, "a = 2\n")
    assert link.is_symlink()
    assert kept.read_text() == "a = 2\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert [path.name for path in kept.parent.iterdir()] == ["config.toml"]


# --- commands to copy ------------------------------------------------------------------------------

# --- the folder ------------------------------------------------------------------------------------


def environment(folder: Path, content: str = "old") -> Path:
    folder.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /nowhere\n")
    (folder / "content").write_text(content)
    return folder


def test_only_a_finished_environment_remains(tmp_path: Path) -> None:
    with NewEnvironment(tmp_path / "deep" / "host", replace=False) as made:
        (made.folder / "content").write_text("new")
        made.keep()
    assert [path.name for path in (tmp_path / "deep" / "host").iterdir()] == ["content"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["host"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failed_set_up_leaves_no_file(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), NewEnvironment(tmp_path / "host", replace=False) as made:
        (made.folder / "content").write_text("half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_set_up_removes_only_the_parent_folders_that_it_created(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError), NewEnvironment(tmp_path / "there" / "deep" / "er" / "host", replace=False):
        raise ValueError
    assert list((tmp_path / "there").iterdir()) == []
    with pytest.raises(ValueError), NewEnvironment(tmp_path / "deep" / "er" / "host", replace=False):
        (tmp_path / "deep" / "notes.txt").write_text("of somebody else")
        raise ValueError
    assert [path.name for path in tmp_path.iterdir() if path.name != "there"] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["notes.txt"]


def test_a_failed_replacement_restores_the_old_environment(tmp_path: Path) -> None:
    folder = environment(tmp_path / "host")
    with pytest.raises(ValueError), NewEnvironment(folder, replace=True) as made:
        assert not (made.folder / "content").exists()
        raise ValueError
    assert (folder / "content").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_a_successful_replacement_leaves_only_the_new_environment(tmp_path: Path) -> None:
    folder = environment(tmp_path / "host")
    with NewEnvironment(folder, replace=True) as made:
        (made.folder / "content").write_text("new")
        made.keep()
    assert (folder / "content").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_the_next_set_up_cleans_up_after_a_killed_one(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / MARKER).write_text("")
    (folder / "content").write_text("half")
    check_free(folder, replace=False)
    with NewEnvironment(folder, replace=False) as made:
        assert [path.name for path in made.folder.iterdir()] == [MARKER]
        made.keep()
    assert folder.is_dir()


def test_a_set_up_that_was_killed_while_replacing_restores_the_old_environment(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    environment(folder.with_name("host" + OLD_SUFFIX))
    folder.mkdir()
    (folder / MARKER).write_text("")
    recover(folder)
    assert (folder / "content").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_a_set_up_that_was_killed_before_it_marked_its_folder_restores_the_old_environment(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    environment(folder.with_name("host" + OLD_SUFFIX))
    folder.mkdir()
    recover(folder)
    assert (folder / "content").read_text() == "old"


def test_a_partially_removed_environment_does_not_reappear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_CONFIG", str(tmp_path / "settings" / "config.toml"))
    folder, options = environment(tmp_path / "host"), SetupOptions(folder=tmp_path / "host")
    (folder / RECORD).write_text("{}")

    def busy(path: Path) -> None:
        raise PermissionError(errno.EACCES, "in use", str(path))

    found = made_host.made_host(options, surroundings("x64"))
    with monkeypatch.context() as patched:
        patched.setattr("qnnbridge_tools.setup_host.environment.remove", busy)
        with pytest.raises(SetupFailed, match="in use"):
            made_host.remove_host(folder, found)
    assert made_host.made_host(options, surroundings("x64")) is None
    assert made_host.to_remove(folder, None) == [folder.with_name("host" + OLD_SUFFIX)]
    recover(folder)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_leftovers_of_interrupted_set_ups_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "host"
    python = python_folder(folder)
    environment(folder.with_name("host" + OLD_SUFFIX))
    for one, name in ((folder, MARKER), (python, RECORD)):
        one.mkdir()
        (one / name).write_text("")
        (one / "content").write_text("half")
    assert len(made_host.remove_host(folder, None)) == 3
    assert [path.name for path in tmp_path.iterdir()] == []
    # A folder without a record is not from a set-up.
    python.mkdir()
    (python / "content").write_text("of somebody else")
    assert made_host.to_remove(folder, None) == []


@needs.posix
def test_a_removal_does_not_follow_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "content").write_text("of somebody else")
    outside.chmod(0o500)
    folder = environment(tmp_path / "host")
    (folder / "link").symlink_to(outside)
    python_folder(folder).symlink_to(outside)
    made_host.remove_host(folder, made_host.MadeHost(folder, tmp_path / "config.toml", is_configured=False))
    assert (outside / "content").read_text() == "of somebody else"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    assert not folder.exists()


@needs.posix
def test_a_link_that_cannot_be_removed_keeps_the_permissions_of_its_target(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("of somebody else")
    target.chmod(0o400)
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "link").symlink_to(target)

    def refused(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(errno.EACCES, "refused")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "unlink", refused)
        with pytest.raises(PermissionError):
            remove(folder)
    assert stat.S_IMODE(target.stat().st_mode) == 0o400


def test_a_set_up_that_was_killed_after_finishing_stays_finished(tmp_path: Path) -> None:
    folder = environment(tmp_path / "host", "new")
    environment(folder.with_name("host" + OLD_SUFFIX))
    recover(folder)
    assert (folder / "content").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


def test_only_a_folder_with_an_environment_is_replaced(tmp_path: Path) -> None:
    folder = environment(tmp_path / "host")
    with pytest.raises(AlreadyThere, match=r"environment in .* already") as raised:
        check_free(folder, replace=False)
    assert "--replace" in str(raised.value.fix)
    (folder / "pyvenv.cfg").unlink()
    with pytest.raises(AlreadyThere, match="is not an environment"):
        check_free(folder, replace=True)
    with pytest.raises(AlreadyThere, match="is a file"):
        check_free(folder / "content", replace=True)
    assert (folder / "content").read_text() == "old"


def test_a_place_that_cannot_hold_the_environment_is_reported_before_the_work(tmp_path: Path) -> None:
    check_folder(tmp_path / "deep" / "host")
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupFailed, match=r"cannot be made: .*file is a file"):
        check_folder(tmp_path / "file" / "host")
    with pytest.raises(SetupFailed, match=r"cannot be written: .*file is a file"):
        check_file(tmp_path / "file" / "config.toml")
    with pytest.raises(SetupFailed, match=r"has \d+ MB left") as raised:
        check_folder(tmp_path / "host", needed_bytes=1 << 60)
    assert "--dir" in str(raised.value.fix)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_the_system_refuses_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SetupFailed, match="cannot be made"),
        NewEnvironment(tmp_path / "file" / "host", replace=False),
    ):
        raise AssertionError("it cannot have been made")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_environment_with_read_only_files_can_be_replaced(tmp_path: Path) -> None:
    folder = environment(tmp_path / "host")
    (folder / "content").chmod(0o400)
    folder.chmod(0o500)
    with NewEnvironment(folder, replace=True) as made:
        made.keep()
    assert [path.name for path in tmp_path.iterdir()] == ["host"]


# --- interpreters ----------------------------------------------------------------------------------


def surroundings(
    process: str = "x86_64",
    computer: str | None = None,
    *,
    executable: str = "",
    path: str = "",
    registered: list[RegisteredPython] | None = None,
) -> Surroundings:
    return Surroundings(
        environ={"PATH": path},
        process=process,
        computer=computer or process,
        executable=executable,
        version=(3, 10),
        not_isolated=(),
        registered=lambda: registered or [],
        origin=lambda name: None,
    )


def answer(
    version: tuple[int, int], platform: str = "linux-x86_64", base: str = "/base", **more: bool
) -> PythonTraits:
    return PythonTraits(
        version=(*version, 1),
        platform=platform,
        base=base,
        implementation="cpython",
        free_threaded=more.get("free_threaded", False),
        has_venv=more.get("has_venv", True),
        glibc=None,
    )


def program(path: Path, header: str = "x86_64.so") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(HEADERS / header, path)
    path.chmod(0o755)
    return str(path)


def asker(answers: dict[str, PythonTraits | str]) -> Callable[[str], PythonTraits | str]:
    return lambda path: answers[path]


def test_a_real_interpreter_reports_its_version_and_machine() -> None:
    told = ask(sys.executable)
    assert isinstance(told, PythonTraits)
    assert told.version == sys.version_info[:3]
    assert told.has_venv
    assert os.path.samefile(told.base, sys._base_executable)  # type: ignore[attr-defined]


@needs.posix
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\necho no such version >&2\nexit 127\n", "exit code 127 (no such version)"),
        ("#!/bin/sh\nkill -SEGV $$\n", "exit code -11"),
        ("#!/bin/sh\necho hello\n", "exit code 0"),
        ("#!/no/such/shell\n", "cannot be started"),
    ],
)
def test_the_reason_why_an_interpreter_does_not_run_is_reported(tmp_path: Path, script: str, told: str) -> None:
    path = tmp_path / "python3.13"
    path.write_text(script)
    path.chmod(0o755)
    said = ask(str(path))
    assert isinstance(said, str)
    assert told in said


@needs.posix
def test_a_script_for_a_python_that_is_not_installed_is_reported_with_its_first_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "python3.13"
    path.write_text("#!/bin/sh\necho 'pyenv: python3.13: command not found\n\nNote: See help' >&2\nexit 127\n")
    path.chmod(0o755)
    with pytest.raises(HostNotFound, match=r"a Python that is not installed: exit code 127 \(pyenv: python3\.13"):
        candidates(surroundings(), str(path), [])


@pytest.mark.parametrize("text", ["3.9", "python3.10", "3.10.14", "2.7"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_requested_version_that_is_too_old_is_refused_whether_it_runs_or_not(
    text: str, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_there:
        monkeypatch.setattr(shutil, "which", lambda name, path=None: program(tmp_path / "python"))
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostNotFound, match=r"is too old: the host needs 3\.11 or newer"):
        candidates(surroundings(), text, [], lambda path: "does not run as Python does: exit code 1")


def test_candidates_on_the_path_are_listed_newest_first_and_each_once(tmp_path: Path) -> None:
    old, new = program(tmp_path / "a" / "python3.11"), program(tmp_path / "b" / "python3.13")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "python3").symlink_to(new)
    answers: dict[str, PythonTraits | str] = {
        old: answer((3, 11), base=old),
        new: answer((3, 13), base=new),
        str(tmp_path / "c" / "python3"): answer((3, 13), base=new),
    }
    around = surroundings(path=os.pathsep.join(str(tmp_path / name) for name in "abc"))
    found = candidates(around, None, [], asker(answers))
    assert [one.path for one in found] == [new, old]


def test_an_invalid_interpreter_that_was_requested_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(HostNotFound) as refused:
        candidates(surroundings(), str(tmp_path / "python"), [])
    assert exit_code_of(refused.value) == 2


def test_a_python_in_the_current_folder_is_not_found_through_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "python3")
    monkeypatch.chdir(tmp_path)
    assert candidates(surroundings(path=os.pathsep.join(("", ".", os.devnull))), None, []) == []


def test_folders_on_the_path_are_listed_once_without_quotes_or_relative_ones() -> None:
    text = r'"C:\Program Files\Py";.;C:\A;;py;C:\A'
    assert path_folders(text, "Windows") == [r"C:\Program Files\Py", r"C:\A"]
    assert path_folders("/b:.:/a b:/b:", "Linux") == ["/b", "/a b"]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (answer((3, 10)), "is Python 3.10, and the host needs 3.11 or newer"),
        (answer((3, 13), free_threaded=True), "not CPython with the GIL"),
        (answer((3, 13), has_venv=False), "lacks venv or ensurepip"),
        ("does not run: exit code 1", "does not run: exit code 1"),
    ],
)
def test_the_reason_for_skipping_an_interpreter_is_reported(
    tmp_path: Path, told: PythonTraits | str, why: str
) -> None:
    path = program(tmp_path / "python3.12")
    looked_at: list[str] = []
    assert candidates(surroundings(path=str(tmp_path)), None, looked_at, asker({path: told})) == []
    assert len(looked_at) == 1
    assert why in looked_at[0]
    assert path in looked_at[0]


def test_on_windows_on_arm_an_x64_python_is_never_run(tmp_path: Path) -> None:
    x64, arm = (
        program(tmp_path / "x64" / "python.exe", "x64.dll"),
        program(tmp_path / "arm" / "python.exe", "arm64.dll"),
    )
    registered = [
        RegisteredPython("PythonCore", "3.13", (3, 13), x64, str(tmp_path / "x64")),
        RegisteredPython("PythonCore", "3.12-arm64", (3, 12), arm, str(tmp_path / "arm")),
        RegisteredPython("PythonCore", "3.11-arm64", (3, 11), str(tmp_path / "gone.exe"), str(tmp_path)),
    ]
    around = surroundings("x64", "ARM64", executable=x64, registered=registered)
    answers = asker({arm: answer((3, 12), "win-arm64", base=arm)})
    looked_at: list[str] = []
    (found,) = candidates(around, None, looked_at, answers)
    assert found.path == arm
    assert "x64" in " ".join(looked_at)
    assert candidates(around, "3.12-arm64", [], answers)[0].path == arm
    assert candidates(around, "3.12", [], answers)[0].path == arm
    with pytest.raises(HostNotFound, match="cannot be the host") as raised:
        candidates(around, x64, [], answers)
    assert "Windows installer (ARM64)" in str(raised.value.fix)


def test_a_requested_interpreter_that_does_not_exist_is_reported_with_the_registered_ones(tmp_path: Path) -> None:
    registered = [RegisteredPython("PythonCore", "3.12-arm64", (3, 12), "C:/python.exe", "C:/")]
    with pytest.raises(HostNotFound, match="there is no such interpreter") as raised:
        candidates(surroundings(registered=registered), str(tmp_path / "none"), [])
    assert raised.value.evidence == ("registered: 3.12-arm64",)


# --- the choice ------------------------------------------------------------------------------------


def arm(*versions: tuple[int, int]) -> list[BaseCandidate]:
    return [BaseCandidate(f"C:/Python{v[1]}/python.exe", answer(v, "win-arm64")) for v in versions]


def chosen(
    found: list[BaseCandidate], version: str | None = None, system_sdk: str | None = "2.40", *, force: bool = False
) -> HostChoice:
    return choose(found, version, NpuTraits(system_sdk, 73), surroundings("ARM64"), [], force=force)


def test_the_release_decides_which_interpreter_is_used() -> None:
    choice = chosen(arm((3, 14), (3, 13), (3, 11)))
    assert choice.release.version == "1.23.2"
    assert choice.candidate.answer.minor == (3, 13), "3.14 has no wheel whose QNN is old enough"
    assert chosen(arm((3, 14), (3, 13)), system_sdk="2.51").candidate.answer.minor == (3, 14)


def test_if_nothing_fits_the_reason_and_an_alternative_are_reported() -> None:
    with pytest.raises(NothingFits) as raised:
        chosen(arm((3, 14)))
    assert "newer than the 2.40 of the NPU driver" in str(raised.value)
    assert "onnxruntime-qnn 1.23.2 would, with Python 3.11 to 3.13." in str(raised.value.fix)


def test_a_version_that_does_not_fit_is_refused_and_can_be_forced() -> None:
    with pytest.raises(NothingFits, match=r"onnxruntime-qnn 2\.7\.0 does not work on this computer") as raised:
        chosen(arm((3, 13)), "2.7.0")
    assert "--force" in str(raised.value.fix)
    assert chosen(arm((3, 13)), "2.7.0", force=True).release.version == "2.7.0"


def test_a_release_without_a_wheel_cannot_be_forced() -> None:
    with pytest.raises(NothingFits) as raised:
        chosen(arm((3, 14)), "1.23.2", force=True)
    assert "--force" not in str(raised.value.fix)
    with pytest.raises(NothingFits, match=r"There is no onnxruntime-qnn 1\.23\.2 for linux_x86_64"):
        choose([BaseCandidate("/p", answer((3, 13)))], "1.23.2", NpuTraits(), surroundings(), [], force=True)


def test_an_unknown_version_is_bad_input() -> None:
    words = {
        "9.9": "newer than this table",
        "2.8.0rc1": "newer than this table",
        "2.6.7": "not in this table",
        "0.9": "older than this table",
        "newest": "a version that this table cannot judge",
    }
    for version, position in words.items():
        with pytest.raises(OptionError, match=f"does not contain onnxruntime-qnn {version}") as raised:
            chosen(arm((3, 13)), version)
        assert generated_on() in raised.value.message, "it may have come since"
        assert raised.value.message.endswith(f": it is {position}.")
        assert "update qnnbridge" in str(raised.value.fix)


def test_without_any_interpreter_the_error_names_what_to_install() -> None:
    with pytest.raises(HostNotFound) as raised:
        choose([], None, NpuTraits(), surroundings("x64", "ARM64"), ["PATH: nothing"], force=False)
    assert raised.value.evidence == ("PATH: nothing",)
    assert "Windows installer (ARM64)" in str(raised.value.fix)


# --- arguments of pip ------------------------------------------------------------------------------


def only(version: str, platform: str = "win_arm64") -> Release:
    (release,) = for_version(version, platform)
    return release


def test_a_current_release_is_installed_through_the_extra() -> None:
    assert requirements(only("2.7.0"), Source()) == [f"qnnbridge[host]=={__version__}", "onnxruntime-qnn==2.7.0"]


def test_a_release_that_contains_onnxruntime_is_installed_without_another_one() -> None:
    words = requirements(only("1.23.2"), Source())
    assert words == [f"qnnbridge=={__version__}", "onnxruntime-qnn==1.23.2", *COMPANIONS]


def test_an_old_plugin_is_installed_with_an_onnxruntime_that_works() -> None:
    assert "onnxruntime>=1.24.2,<1.28" in requirements(only("2.3.0"), Source())


def test_the_packages_equal_those_of_the_extra() -> None:
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    extra = toml.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]["host"]
    assert [text for text in extra if not text.startswith("onnxruntime")] == list(COMPANIONS)
    assert any(text.startswith("onnxruntime-qnn>=2.4;") for text in extra), "HOST_EXTRA_TAKES says the same"


def test_a_wheel_a_checkout_and_the_installed_package_can_be_the_source(tmp_path: Path) -> None:
    wheel = tmp_path / "with space" / f"qnnbridge-{__version__}-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    (first, *_) = requirements(only("2.7.0"), find_source(wheel))
    assert first == f"qnnbridge[host] @ {wheel.as_uri()}"
    assert find_source(ROOT).path == ROOT
    assert requirements(only("2.7.0"), Source(ROOT, editable=True))[:2] == ["--editable", f"{ROOT}[host]"]
    with pytest.raises(NoSuchFile):
        find_source(tmp_path / "none.whl")
    with pytest.raises(OptionError, match=r"contains neither pyproject\.toml nor wheels"):
        find_source(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(OptionError, match="neither a wheel nor an sdist"):
        find_source(tmp_path / "notes.txt")


def test_a_folder_that_qnnbridge_was_installed_from_is_found_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a b%20c"
    folder.mkdir()
    noted = json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})
    installed = types.SimpleNamespace(read_text=lambda name: noted if name == "direct_url.json" else None)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: installed)
    assert find_source(None) == Source(folder, editable=True)


def test_pip_keeps_its_index_and_loses_settings_for_other_target_folders() -> None:
    base = {
        "PIP_INDEX_URL": "kept",
        "PIP_TARGET": "/elsewhere",
        "PIP_USER": "1",
        "VIRTUAL_ENV": "/other",
        "PYTHONHOME": "/other",
        "PYTHONPATH": "/other",
        "HTTPS_PROXY": "kept",
    }
    assert setup_environment(base) == {
        "PIP_INDEX_URL": "kept",
        "HTTPS_PROXY": "kept",
        "PYTHONUTF8": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
    }


@pytest.mark.process
def test_a_target_folder_in_the_configuration_of_pip_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    environ = {**setup_environment(os.environ), "PIP_CONFIG_FILE": str(file), "PIP_TIMEOUT": "9"}
    file.write_text("[global]\nindex-url = http://127.0.0.1:9/simple\n")
    assert pip_environment(sys.executable, environ) == environ
    file.write_text(
        "[global]\nretries = 2\ntimeout = 5\nuser = yes\ntrusted-host =\n  b\n  c\n"
        "[install]\ntarget = /elsewhere\nretries = 3\n[list]\nformat = json\n"
    )
    found = pip_environment(sys.executable, environ)
    assert found["PIP_CONFIG_FILE"] == os.devnull
    assert (found["PIP_RETRIES"], found["PIP_TIMEOUT"]) == ("3", "9")
    assert found["PIP_TRUSTED_HOST"].split() == ["b", "c"]
    assert not found.keys() & {"PIP_TARGET", "PIP_USER", "PIP_FORMAT"}
