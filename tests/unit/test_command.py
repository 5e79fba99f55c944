"""The host's command line and environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from qnnbridge._launch.interpreter import host_command, host_environment


def test_the_interpreter_is_isolated_unbuffered_and_names_its_parent() -> None:
    command = host_command("/py", "--role", "compile")
    assert command[0] == "/py"
    assert command[1:9] == ["-I", "-u", "-X", "utf8", "-X", "faulthandler", "-m", "qnnbridge_host"]
    assert command[9:] == ["--parent", str(os.getpid()), "--role", "compile"]


@pytest.mark.process
def test_the_flags_are_what_a_real_interpreter_understands() -> None:
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
def test_what_describes_another_interpreter_is_dropped(name: str) -> None:
    assert name not in host_environment(base={name: "poison", "PATH": "/bin"})


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR", "LANG"])
def test_what_the_host_needs_is_kept(name: str) -> None:
    assert host_environment(base={name: "kept"})[name] == "kept"


def test_the_caller_has_the_last_word() -> None:
    defaults = host_environment(base={})
    assert defaults == {"OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
    env = host_environment({"OPENBLAS_NUM_THREADS": "4", "PYTHONMALLOC": "debug"}, base={"PYTHONMALLOC": "x"})
    assert env["OPENBLAS_NUM_THREADS"] == "4"
    assert env["PYTHONMALLOC"] == "debug"


def test_the_application_s_own_environment_is_the_base_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QNNBRIDGE_TEST_VALUE", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    env = host_environment()
    assert env["QNNBRIDGE_TEST_VALUE"] == "1"
    assert "PYTHONHASHSEED" not in env
    assert os.environ["PYTHONHASHSEED"] == "1"
