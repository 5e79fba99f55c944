"""The choice of the host's interpreter, and the error if none is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from qnnbridge._launch import (
    HostInterpreter,
    Surroundings,
    configuration_file,
    find_host,
    find_host_in,
    host_command,
    host_environment,
)
from qnnbridge_os.programs import RegisteredPython
from qnnbridge_protocol.errors import HostNotFound
from qnnbridge_protocol.installing import install_command
from qnnbridge_protocol.process_names import name_of

HEADERS = Path(__file__).with_name("data") / "executables"


def surroundings(
    config: Path | str = "/nowhere/config.toml",
    *,
    environ: Mapping[str, str] | None = None,
    process: str = "x86_64",
    computer: str | None = None,
    executable: str = sys.executable,
    version: tuple[int, int] = (3, 12),
    not_isolated: tuple[str, ...] = (),
    registered: list[RegisteredPython] | None = None,
    packages: Mapping[str, str] | None = None,
) -> Surroundings:
    if packages is None:
        packages = {name: f"/site-packages/{name}/__init__.py" for name in ("qnnbridge_host", "onnxruntime")}
    config_setting = {"XDG_CONFIG_HOME": "/nowhere"} if config == "/nowhere/config.toml" else {}
    config_variable = {} if config_setting else {"QNNBRIDGE_CONFIG": str(config)}
    return Surroundings(
        environ={**config_setting, **config_variable, **(environ or {})},
        process=process,
        computer=computer or process,
        executable=executable,
        version=version,
        not_isolated=not_isolated,
        registered=lambda: registered or [],
        origin=packages.get,
    )


def program(path: Path, header: str = "x86_64.so") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(HEADERS / header, path)
    path.chmod(0o755)
    return path


def arm64_python(
    folder: Path, version: tuple[int, int], *packages: str, header: str = "arm64.dll"
) -> RegisteredPython:
    executable = program(folder / "python.exe", header)
    for name in packages:
        (folder / "Lib" / "site-packages" / name).mkdir(parents=True)
    tag = "{}.{}-arm64".format(*version)
    return RegisteredPython("PythonCore", tag, version, str(executable), str(folder))


BOTH = ("qnnbridge_host", "onnxruntime")


# --- order of the sources --------------------------------------------------------------------------------------


def test_the_interpreter_is_taken_from_argument_variable_file_and_this_process_in_that_order(
    tmp_path: Path,
) -> None:
    first, second, third = (str(program(tmp_path / name)) for name in ("first", "second", "third"))
    config = tmp_path / "config.toml"
    config.write_text(f"[host]\npython = '{third}'\n")
    variable = {"QNNBRIDGE_HOST_PYTHON": second}

    def found(environ: Mapping[str, str], explicit: str | None = None) -> HostInterpreter:
        return find_host_in(surroundings(config, environ=environ), explicit)

    assert found(variable, first) == HostInterpreter(first, "argument", "x86_64")
    assert found(variable) == HostInterpreter(second, "QNNBRIDGE_HOST_PYTHON", "x86_64")
    assert found({"QNNBRIDGE_HOST_PYTHON": ""}) == HostInterpreter(third, "configuration file", "x86_64")
    config.write_text("[other]\n")
    assert found({}) == HostInterpreter(sys.executable, "running interpreter", "x86_64")


def test_a_path_object_a_bare_name_and_a_link_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = program(tmp_path / "bin" / "python3.99")
    link = tmp_path / "venv" / "python"
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.setenv("PATH", str(real.parent))
    assert find_host_in(surroundings(), link).path == str(link), "a virtual environment is its link"
    assert find_host_in(surroundings(), "python3.99").path == str(real)


def test_a_script_may_start_the_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "python-arm64"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert find_host_in(surroundings(), script) == HostInterpreter(str(script), "argument", None)


def test_an_arm64_program_is_left_to_the_kernel_on_linux(tmp_path: Path) -> None:
    python = program(tmp_path / "python", "aarch64.so")
    assert find_host_in(surroundings(), python).machine == "aarch64"


# --- invalid settings are refused, never skipped -----------------------------------------------------------------


def test_the_error_for_a_wrong_setting_names_its_source(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[host]\npython = 'gone/python'\n")
    gone = str(tmp_path / "gone" / "python")
    for explicit, environ, place in (
        (gone, {}, f"{gone!r} was given as the host's interpreter"),
        (None, {"QNNBRIDGE_HOST_PYTHON": gone}, "variable QNNBRIDGE_HOST_PYTHON"),
        (None, {}, f"configuration file {config}"),
    ):
        with pytest.raises(HostNotFound) as caught:
            find_host_in(surroundings(config, environ=environ), explicit)
        assert place in caught.value.message
        assert gone in caught.value.message
        assert "does not exist" in caught.value.message


def test_a_file_that_is_not_a_program_is_refused_with_an_explanation(tmp_path: Path) -> None:
    text = tmp_path / "python.txt"
    text.write_text("")
    stub = tmp_path / "Microsoft" / "WindowsApps" / "python.exe"
    stub.parent.mkdir(parents=True)
    stub.touch()
    for path, says in (
        (tmp_path, "folder"),
        (text, "not executable"),
        (stub, "Microsoft Store"),
        ("", "empty"),
        ("no-such-python", "the PATH contains no program"),
        (program(tmp_path / "python.exe", "x64_python.exe"), "Windows program"),
    ):
        with pytest.raises(HostNotFound, match=says):
            find_host_in(surroundings(), path)


@pytest.mark.parametrize(
    ("computer", "header", "says"),
    [
        ("ARM64", "x64.dll", "Python for x64, and the machine type of this computer is ARM64.*simulator"),
        ("ARM64", "x86.pyd", "Python for x86, and the machine type of this computer is ARM64"),
        ("ARM64", "arm64ec.dll", "Python for ARM64EC"),
        ("x64", "arm64.dll", "Python for ARM64, and the machine type of this computer is x64"),
        ("x64", "x86_64.so", "not a Windows program"),
    ],
)
def test_on_windows_an_interpreter_of_the_wrong_machine_is_refused(
    tmp_path: Path, computer: str, header: str, says: str
) -> None:
    python = program(tmp_path / "python.exe", header)
    with pytest.raises(HostNotFound, match=says):
        find_host_in(surroundings(process="x64", computer=computer), python)


def test_on_windows_on_arm_an_arm64_interpreter_is_used_from_an_x86_application(tmp_path: Path) -> None:
    python = program(tmp_path / "python.exe", "arm64.dll")
    found = find_host_in(surroundings(process="x86", computer="ARM64"), python)
    assert found == HostInterpreter(str(python), "argument", "ARM64")


# --- the configuration file ---------------------------------------------------------------------------------------


def test_the_configuration_file_is_that_of_the_user_unless_the_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert configuration_file({}) == tmp_path / "qnnbridge" / "config.toml"
    assert configuration_file({"QNNBRIDGE_CONFIG": "/etc/q.toml"}) == Path("/etc/q.toml")


def test_a_path_in_the_file_is_relative_to_the_file_and_may_start_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = program(tmp_path / "env" / "python")
    config = tmp_path / "config.toml"
    config.write_text("[host]\npython = './env/python'\n")
    assert find_host_in(surroundings(config)).path == str(python)
    monkeypatch.setenv("HOME", str(tmp_path))
    config.write_text("[host]\npython = '~/env/python'\n")
    assert find_host_in(surroundings(config)).path == str(python)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[host]\npython = "C:\\Users\\me\\python.exe"\n', "not valid TOML"),
        ("host = 'python'\n", "not a table"),
        ("[host]\npython = 3\n", "not a string"),
        ("[host]\npython = ''\n", "empty"),
    ],
)
def test_an_invalid_configuration_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    config = tmp_path / "config.toml"
    config.write_text(text)
    with pytest.raises(HostNotFound, match=says) as caught:
        find_host_in(surroundings(config))
    assert str(config) in caught.value.message


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    python = program(tmp_path / "env" / "python")
    config = tmp_path / "config.toml"
    config.write_text(f"[host]\r\npython = '{python}'\r\n", encoding="utf-8-sig", newline="")
    assert find_host_in(surroundings(config)).path == str(python)


def test_a_configuration_file_that_a_variable_names_must_exist(tmp_path: Path) -> None:
    with pytest.raises(HostNotFound, match="does not exist"):
        find_host_in(surroundings(tmp_path / "none.toml"))


# --- the registry ---------------------------------------------------------------------------------------------


def test_the_newest_arm64_python_that_has_the_packages_is_chosen(tmp_path: Path) -> None:
    pythons = [
        arm64_python(tmp_path / "311", (3, 11), *BOTH),
        arm64_python(tmp_path / "313", (3, 13), "qnnbridge-0.1.0.dist-info", "onnxruntime"),
        arm64_python(tmp_path / "312", (3, 12), *BOTH),
        arm64_python(tmp_path / "314", (3, 14), "onnxruntime"),
        arm64_python(tmp_path / "315x64", (3, 15), *BOTH, header="x64_python.exe"),
        arm64_python(tmp_path / "310", (3, 10), *BOTH),
    ]
    found = find_host_in(surroundings(process="x64", computer="ARM64", registered=pythons))
    assert found == HostInterpreter(pythons[1].executable, "registry", "ARM64")


def test_the_registry_is_not_read_on_a_computer_without_arm64(tmp_path: Path) -> None:
    pythons = [arm64_python(tmp_path / "313", (3, 13), *BOTH)]
    found = find_host_in(surroundings(process="x64", registered=pythons))
    assert found.source == "running interpreter"


def test_the_reason_for_skipping_each_registered_python_is_reported(tmp_path: Path) -> None:
    gone = RegisteredPython("PythonCore", "3.12-arm64", (3, 12), str(tmp_path / "gone.exe"), str(tmp_path))
    pythons = [
        gone,
        arm64_python(tmp_path / "310", (3, 10), *BOTH),
        arm64_python(tmp_path / "x", (3, 14), *BOTH, header="x64_python.exe"),
        arm64_python(tmp_path / "313", (3, 13), "onnxruntime"),
    ]
    with pytest.raises(HostNotFound) as caught:
        find_host_in(surroundings(process="x64", computer="ARM64", registered=pythons))
    error = caught.value
    evidence = "\n".join(error.evidence)
    for says in (
        "QNNBRIDGE_HOST_PYTHON: not set",
        "config.toml: does not exist",
        "no longer exists",
        "needs Python 3.11 or newer",
        "Python for x64, and the machine type of this computer is ARM64",
        "does not have qnnbridge_host",
        "running interpreter",
    ):
        assert says in evidence
    assert error.fix is not None
    assert error.fix.startswith("Run: qnnbridge setup ")
    assert f"By hand: {install_command('host', python='py -V:3.13-arm64')}" in error.fix
    assert error.retry == "pointless"


def test_with_nothing_installed_on_windows_on_arm_each_step_is_named() -> None:
    with pytest.raises(HostNotFound) as caught:
        find_host_in(surroundings(process="x64", computer="ARM64"))
    fix = str(caught.value.fix)
    for step in (
        "qnnbridge setup",
        "Windows installer (ARM64)",
        install_command("host", python="py -V:3.13-arm64"),
        "QNNBRIDGE_HOST_PYTHON",
    ):
        assert step in fix
    assert (
        fix.index("qnnbridge setup")
        < fix.index("installer")
        < fix.index("pip install")
        < fix.index("QNNBRIDGE_HOST_PYTHON")
    )


# --- the running interpreter -----------------------------------------------------------------------------------


def test_the_host_finds_an_environment_inside_of_a_folder_on_pythonpath() -> None:
    """A project with its environment in ``.venv``, and ``PYTHONPATH=.``."""
    names = ("qnnbridge_host", "onnxruntime")
    packages = {name: f"/project/.venv/lib/site-packages/{name}/__init__.py" for name in names}
    assert find_host_in(surroundings(packages=packages, not_isolated=("/project",))).path == sys.executable


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"packages": {"qnnbridge_host": "/s/qnnbridge_host/__init__.py"}}, "does not have onnxruntime"),
        ({"packages": {}}, "does not have qnnbridge_host"),
        ({"version": (3, 10)}, "needs Python 3.11 or newer, this is 3.10"),
        ({"executable": ""}, "not a Python interpreter"),
        (
            {"not_isolated": ("/site-packages",)},
            "has qnnbridge_host in /site-packages, which the host ignores",
        ),
        ({"process": "x86", "computer": "x64"}, "Python for x86, and the machine type of this computer is x64"),
    ],
)
def test_the_running_interpreter_is_used_only_if_the_host_would_run_in_it(
    changes: dict[str, object], says: str
) -> None:
    with pytest.raises(HostNotFound) as caught:
        find_host_in(surroundings(**changes))  # type: ignore[arg-type]
    assert says in caught.value.evidence[-1]
    assert str(caught.value.fix).startswith("Run: qnnbridge setup ")
    assert f"By hand: {install_command('host')}" in str(caught.value.fix)


def test_packages_are_located_without_importing_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Importing onnxruntime in the application would defeat the purpose of this project."""
    monkeypatch.setenv("QNNBRIDGE_CONFIG", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    if sys.version_info >= (3, 11):
        assert find_host() == HostInterpreter(sys.executable, "running interpreter", os.uname().machine)
    else:
        with pytest.raises(HostNotFound):
            find_host()
    assert "onnxruntime" not in sys.modules


def test_a_registry_entry_is_parsed_with_its_fields() -> None:
    from qnnbridge_os.programs import registered_python

    def read(values: dict[str, str], install: dict[str, str], tag: str = "3.13-arm64") -> RegisteredPython | None:
        return registered_python("PythonCore", tag, values, install)

    named = read({"SysVersion": "3.13"}, {"": "/py/", "ExecutablePath": "/py/python3.exe"})
    assert named == RegisteredPython("PythonCore", "3.13-arm64", (3, 13), "/py/python3.exe", "/py/")
    by_tag = read({}, {"": "/py"})
    assert by_tag == RegisteredPython("PythonCore", "3.13-arm64", (3, 13), "/py/python.exe", "/py")
    assert read({"Version": "3.12.1"}, {"ExecutablePath": "/a/b.exe"}, "Store") == RegisteredPython(
        "PythonCore", "Store", (3, 12), "/a/b.exe", "/a"
    )
    assert read({}, {}) is None
    assert read({}, {"": "/py"}, "nameless") is None


def test_the_interpreter_is_isolated_and_unbuffered_and_gets_the_id_of_its_parent() -> None:
    command = host_command("/py", "--role", "compile")
    assert command[0] == "/py"
    assert command[1:9] == ["-I", "-u", "-X", "utf8", "-X", "faulthandler", "-m", "qnnbridge_host"]
    assert command[9:] == [
        "--parent",
        name_of(os.getpid()),
        "--worker",
        json.dumps(command[:9]),
        "--role",
        "compile",
    ]


@pytest.mark.process
def test_a_real_interpreter_accepts_the_flags() -> None:
    flags = host_command(sys.executable)[1:7]
    code = (
        "import faulthandler, os, sys\n"
        "print(sys.flags.isolated, sys.flags.utf8_mode, faulthandler.is_enabled(), sys.stdout.write_through)\n"
    )
    ran = subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=host_environment({"PYTHONHOME": "/poison"}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == ["1", "1", "True", "True"]


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONHOME",
        "PYTHONPATH",
        "PythonStartup",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DLL_SEARCH_MODIFICATION_ENABLE",
        "_CE_CONDA",
        "__PYVENV_LAUNCHER__",
        "PIP_INDEX_URL",
        "LD_PRELOAD",
    ],
)
def test_variables_that_describe_another_interpreter_are_dropped(name: str) -> None:
    assert name not in host_environment(base={name: "poison", "PATH": "/bin"})


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "LANG"])
def test_variables_that_the_host_needs_are_kept(name: str) -> None:
    assert host_environment(base={name: "kept"})[name] == "kept"


def test_variables_of_the_caller_override_all_others() -> None:
    defaults = host_environment(base={})
    assert defaults == {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
    env = host_environment({"OPENBLAS_NUM_THREADS": "4", "PYTHONMALLOC": "debug"}, base={"PYTHONMALLOC": "x"})
    assert env["OPENBLAS_NUM_THREADS"] == "4"
    assert env["PYTHONMALLOC"] == "debug"


def test_the_environment_of_the_application_is_the_base_and_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_TEST_VALUE", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    env = host_environment()
    assert env["QNNBRIDGE_TEST_VALUE"] == "1"
    assert "PYTHONHASHSEED" not in env
    assert os.environ["PYTHONHASHSEED"] == "1"
