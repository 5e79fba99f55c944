"""Fixes: the release that a fix installs fits the computer, and each command of a fix can be copied and run."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from broken_machines import BROKEN
from documented_attempts import ATTEMPTS
from machines import (
    DRIVER_FOLDER,
    File,
    Python,
    SimulatedMachine,
    add_python,
    install,
    install_bridge,
    install_small,
    linux,
    make_host,
    snapdragon,
    windows_on_arm,
    x64_pc,
)
from tests import needs

from qnnbridge_host.model.releases import for_version, load_releases, sdk_is_newer
from qnnbridge_protocol import __version__
from qnnbridge_tools.doctor import examine, fixes, running_interpreter
from qnnbridge_tools.doctor.examine import SurveyOptions, diagnose, survey
from qnnbridge_tools.doctor.facts import ProbeResult
from qnnbridge_tools.doctor.findings import Finding, Remedy
from qnnbridge_tools.doctor.fixes import python_lines
from qnnbridge_tools.doctor.machine import Library, answer_of
from qnnbridge_tools.versions.fitness import HostMachine, ort_bounds, platform_of_release
from qnnbridge_tools.versions.view import advice as what_would_fit

SYSTEMS = ("2.40.0.0", "2.48.40.0")
HERE = (None, *SYSTEMS[: needs.length(1, 2)])
UNINSTALL = "py -V:3.13-arm64 -m pip uninstall -y onnxruntime onnxruntime-qnn"


def only(machine: SimulatedMachine, order: SurveyOptions | None = None) -> Finding:
    (found,) = diagnose(survey(machine, order or SurveyOptions())).findings
    return found


# --- which release ---


@pytest.mark.parametrize("qnn", ["1.23.2", "1.24.1"])
def test_a_1x_release_that_is_shadowed_is_replaced_by_the_release_that_fits_the_driver(qnn: str) -> None:
    machine, _, host = snapdragon(qnn, system_qnn="2.42.0.0")
    install(host, "onnxruntime", "1.31.1")
    found = only(machine)
    assert found.code == "packages.shadowed"
    assert found.remedy.commands == (
        UNINSTALL,
        'py -V:3.13-arm64 -m pip install "onnxruntime>=1.24.2,<1.28" onnxruntime-qnn==2.0.0',
    )


def test_on_an_x64_computer_the_fix_fits_and_no_driver_is_checked() -> None:
    machine = x64_pc()
    make_host(add_python(machine, r"C:\Python311", "3.11.9", "x64", running=True), "1.23.2")
    found = only(machine)
    assert found.code == "packages.arm-only"
    assert found.remedy.commands[-1].endswith("onnxruntime-qnn==2.7.0")


def test_every_suggested_version_is_compared_with_the_driver() -> None:
    """The catalogue is the default."""
    facts = survey(snapdragon(system_qnn="2.40.0.0")[0], SurveyOptions())
    assert fixes.fitting_version(facts) == "1.23.2"
    assert fixes.fits(facts, "1.23.2")
    assert not fixes.fits(facts, "2.7.0")
    assert fixes.fits(facts, "99.0.0"), "of what the table does not know nothing bad is known"


def test_the_fix_for_a_host_without_packages_installs_packages_that_fit() -> None:
    machine = windows_on_arm(system_qnn="2.40.0.0")
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    native = add_python(machine, r"C:\Python313-arm64")
    found = only(machine)
    assert (found.code, found.remedy) == ("host.packages-missing", Remedy("", ("qnnbridge setup",)))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = native.executable
    found = only(machine)
    assert found.code == "host.packages-missing"
    (line,) = found.remedy.commands
    assert line.startswith(r"py -V:3.13-arm64 -m pip install C:\src\qnnbridge ")
    assert "onnxruntime-qnn==1.23.2" in line
    assert "onnxruntime>" not in line, "1.x is an onnxruntime of its own"
    assert "[host]" not in line


def test_without_a_known_source_of_qnnbridge_no_command_installs_it_by_its_name() -> None:
    """No package index has qnnbridge, so `pip install qnnbridge` would fail."""
    machine = windows_on_arm()
    application = add_python(machine, r"C:\App", "3.12.4", "x64", running=True)
    install_bridge(application)
    native = add_python(machine, r"C:\Python313-arm64")
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = native.executable
    assert r"C:\src\qnnbridge[host]" in only(machine).remedy.commands[0]
    machine.remove_folder(application.path(f"qnnbridge-{__version__}.dist-info"))
    (command, *_) = only(machine).remedy.commands
    assert command == "qnnbridge setup"


def test_both_sides_get_the_same_qnnbridge_from_the_source_of_the_application() -> None:
    machine, application, host = snapdragon()
    machine.remove_folder(host.path(f"qnnbridge-{__version__}.dist-info"))
    for module in ("qnnbridge_host", "qnnbridge_protocol", "qnnbridge"):
        install_small(host, module, "qnnbridge", "0.0.1")
    found = only(machine)
    assert found.code == "packages.other-qnnbridge"
    assert found.remedy.commands == (r"py -V:3.13-arm64 -m pip install C:\src\qnnbridge",)
    machine.remove_folder(application.path(f"qnnbridge-{__version__}.dist-info"))
    assert only(machine).remedy.commands == ("qnnbridge setup",)


def test_a_plugin_that_is_too_old_for_onnxruntime_is_replaced_by_one_that_fits_the_driver() -> None:
    found = only(snapdragon("2.3.0", "1.31.1", system_qnn="2.48.40.0")[0])
    assert found.code == "packages.qnn-too-old"
    assert found.remedy.commands == (
        UNINSTALL,
        'py -V:3.13-arm64 -m pip install "onnxruntime>=1.24.2" onnxruntime-qnn==2.4.0',
    )


def test_the_fix_names_another_python_if_that_is_sufficient() -> None:
    machine, _, _ = snapdragon(version="3.14.0", system_qnn="2.40.0.0")
    found = only(machine)
    assert found.code == "sdk.newer-than-system"
    would = what_would_fit(HostMachine("win_arm64", "ARM64", (3, 14), system_sdk="2.40.0", hexagon=73))
    assert "1.23.2 would, with Python 3.11 to 3.13" in would
    assert would in found.remedy.words
    assert "Install Python 3.13" in found.remedy.words
    assert "driver" not in found.remedy.words
    assert found.remedy.commands == ("qnnbridge setup",)
    add_python(machine, r"C:\Python312-arm64", "3.12.4")
    found = diagnose(survey(machine, SurveyOptions())).findings[0]
    assert "Install Python" not in found.remedy.words, "one that fits is here already"


def test_the_fix_for_a_python_that_is_too_old_does_not_also_install_packages() -> None:
    machine = linux()
    make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    old = add_python(machine, "/opt/old", "3.10.13", "x86_64")
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = old.executable
    found = only(machine)
    assert found.code == "host.python-too-old"
    assert found.remedy.commands == ("export QNNBRIDGE_HOST_PYTHON=/opt/python/bin/python3",)


def test_an_empty_python_without_a_fitting_release_is_not_sufficient() -> None:
    machine = windows_on_arm(system_qnn="2.40.0.0")
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    add_python(machine, r"C:\Python314-arm64", "3.14.0")
    found = only(machine)
    assert found.code == "host.packages-missing"
    assert "No release of onnxruntime-qnn fits Python 3.14 and QNN 2.40.0." in found.remedy.words
    assert "Install Python 3.13" in found.remedy.words


def test_the_fix_is_a_driver_update_if_nothing_else_helps() -> None:
    found = only(snapdragon(system_qnn="2.20.0.0")[0])
    assert found.code == "sdk.newer-than-system"
    assert "update the NPU driver" in found.remedy.words
    assert found.remedy.commands == ("start ms-settings:windowsupdate-optionalupdates",)


def test_explanations_and_commands_are_on_separate_lines() -> None:
    found = only(snapdragon(system_qnn="2.40.0.0")[0])
    assert found.remedy.words == "Install the release that fits, or update the NPU driver."
    assert found.remedy.commands == (UNINSTALL, "py -V:3.13-arm64 -m pip install onnxruntime-qnn==1.23.2")
    assert found.fix.splitlines() == [found.remedy.words, *found.remedy.commands]
    assert found.to_json()["commands"] == list(found.remedy.commands)


def test_the_version_bounds_of_onnxruntime_are_those_of_the_known_faults() -> None:
    facts = survey(snapdragon()[0], SurveyOptions())
    plugins = [
        one for one in load_releases() if one.layout == "2.x plugin" and platform_of_release(one) == "win_arm64"
    ]
    assert len(plugins) > 5
    for release in plugins:
        assert fixes.ort_requirement(facts, release.version) == f"onnxruntime{ort_bounds(release)}"


def test_a_release_that_does_not_fit_is_not_reinstalled() -> None:
    """A library of a release that is too new for the driver is damaged: repairing it would only lead to the next
    finding.
    """
    machine, _, host = snapdragon(system_qnn="2.40.0.0")
    machine.remove(host.path("onnxruntime_qnn/QnnSystem.dll"))
    found = diagnose(survey(machine, SurveyOptions())).findings[0]
    assert found.code == "files.missing"
    assert "onnxruntime-qnn 2.7.0 does not run on this computer" in found.remedy.words
    assert found.remedy.commands[-1].endswith("install onnxruntime-qnn==1.23.2")


def test_an_sdk_that_a_variable_names_is_used_if_the_driver_reports_no_version() -> None:
    machine = windows_on_arm()
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    add_python(machine, r"C:\Python313-arm64")
    machine.put(r"C:\qairt\2.40.0.251030\sdk.yaml", text="version: 2.40.0.251030\n")
    machine.environ["QNN_SDK_ROOT"] = r"C:\qairt\2.40.0.251030"
    assert only(machine).remedy.commands == ("qnnbridge setup --system-sdk 2.40.0",)


def test_a_package_that_is_installed_twice_is_uninstalled_twice() -> None:
    case = next(one for one in BROKEN if one.code == "packages.twice")
    built = case.build()
    assert isinstance(built, SimulatedMachine)
    commands = only(built).remedy.commands
    assert sum(" uninstall -y " in line and line.endswith("onnxruntime-qnn") for line in commands) == 2


# --- all findings ---


def _machines() -> Iterator[tuple[str, SimulatedMachine, SurveyOptions, str | None]]:
    """Yield all findings of the broken computers, as they are and with drivers of two older versions of QNN.

    Probes have no message, since the message of a probe would replace the doctor's own text.
    """
    for case in (*ATTEMPTS, *BROKEN):
        for system in HERE:
            built = case.build()
            machine, order = built if isinstance(built, tuple) else (built, SurveyOptions())
            if system is not None:
                if machine.system != "Windows" or machine.machine != "ARM64":
                    continue
                machine.put(rf"{DRIVER_FOLDER}\HTP\HtpUsrDrv.dll", File(9, library=Library("ARM64", system)))
            yield case.build.__name__, machine, order, system


@functools.cache
def _all_found() -> list[tuple[str, SimulatedMachine, str | None, Finding]]:
    found = []
    for name, machine, order, _ in _machines():
        facts = survey(machine, order)
        system = fixes.system_sdk(facts)
        found += [(name, machine, system[0] if system else None, one) for one in diagnose(facts).findings]
    return found


def test_no_fix_installs_a_qnn_that_is_newer_than_that_of_the_system() -> None:
    checked = 0
    for name, _, system, found in _all_found():
        for line in found.remedy.commands:
            if " -m pip install " not in line:
                continue
            named = re.findall(r"onnxruntime-qnn==([\w.]+)", line)
            wants = re.search(r"(?:^|[\s\"])onnxruntime-qnn(?![=\w])|\[host\]", line)
            assert named or not wants, (name, line, "any version")
            for version in named if system else []:
                checked += 1
                for release in for_version(version):
                    assert release.qnn_sdk, (name, line)
                    assert not sdk_is_newer(release.qnn_sdk, ".".join(system.split(".")[:3])), (name, system, line)
    assert checked > 50 * (len(HERE) - 1)


@pytest.mark.process
def test_every_command_is_one_line_that_each_shell_of_the_computer_runs() -> None:
    lines = {(one.system, line): name for name, one, _, found in _all_found() for line in found.remedy.commands}
    assert len(lines) > 40
    for (system, line), name in lines.items():
        assert line == " ".join(line.split()), (name, line)
        assert line.count('"') % 2 == 0, (name, line)
        outside = re.sub(r'"[^"]+"', "Q", line)
        assert not re.search(r"[&|;<>()'`]", outside), (name, line, "an operator of some shell")
        assert not re.search(r"\b(?:or|then)\b", outside), (name, line, "words")
        if system == "Windows":
            assert '""' not in line, "PowerShell drops an empty argument"
            assert not line.startswith(('"', "'")), "PowerShell prints a text"
            assert not re.search(r'"[^"]*[$%][^"]*"', line), "one shell or the other replaces it"
            assert "," not in outside, "PowerShell makes a list of it"
        first = line.split()[0]
        assert first in KNOWN_PROGRAMS[system] or re.fullmatch(PYTHON[system], first), (name, line)
        if system != "Windows":
            subprocess.run(["sh", "-n", "-c", line], check=True)


KNOWN_PROGRAMS = {
    "Windows": {"py", "qnnbridge", "setx", "powershell", "start", "winget", "sc.exe", "pushd", "popd"},
    "Linux": {"qnnbridge", "sudo", "unset", "python3"} | {"export"},
}
PYTHON = {"Windows": r"(?:\.|[A-Z]:|\\\\)\\[\w.\\~-]*python\.exe", "Linux": r"/[\w./-]*python3?"}


def test_explanations_contain_no_command() -> None:
    for name, _, _, found in _all_found():
        words = found.remedy.words
        assert not re.search(r" -m (?:pip|venv) |&&|\bsetx |\bpy -V|\bqnnbridge (?:setup|cache|run)", words), (
            name,
            words,
        )
        assert words or found.remedy.commands


# --- effects of --fix ---


def test_fix_sets_up_a_host_with_the_options_in_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the arguments only; tests of `setup` run the set-up itself."""
    machine = windows_on_arm(home=r"C:\Users\Jürgen")
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    add_python(machine, r"C:\Python313-arm64")
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = r"C:\gone\python.exe"
    report = diagnose(survey(machine, SurveyOptions()))
    ran: list[tuple[str, ...]] = []

    def record(*arguments: str) -> str:
        ran.append(arguments)
        return "ran"

    monkeypatch.setattr(examine, "_run_command", record)
    asked: list[str] = []
    lines = examine.apply_fixes(report, lambda question: not asked.append(question))  # type: ignore[func-returns-value]
    assert [one for one in ran if one[0] == "setup"] == [("setup", "--dir", r"C:\qnnbridge\host")]
    assert any("then run: powershell" in line and "QNNBRIDGE_HOST_PYTHON" in line for line in lines)


def test_a_finding_without_a_set_up_command_is_not_fixed_by_a_set_up() -> None:
    report = diagnose(survey(snapdragon(system_qnn="2.40.0.0")[0], SurveyOptions()))
    asked: list[str] = []
    lines = examine.apply_fixes(report, lambda question: bool(asked.append(question)))  # type: ignore[func-returns-value]
    assert asked == []
    assert lines == ["not fixed by --fix (sdk.newer-than-system): follow the fix in the report"]


# --- commands ---


def _in_program_files() -> tuple[SimulatedMachine, Python]:
    machine, _, _ = snapdragon()
    python = make_host(add_python(machine, r"C:\Program Files\Py", registered=False))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = python.executable
    return machine, python


def test_a_command_for_a_path_with_spaces_changes_the_folder_first_and_works_in_both_shells() -> None:
    machine, python = _in_program_files()
    machine.remove(python.path("onnxruntime_qnn/QnnSystem.dll"))
    assert only(machine).remedy.commands == (
        r'pushd "C:\Program Files\Py"',
        r".\python.exe -m pip install --force-reinstall --no-deps onnxruntime-qnn==2.7.0",
        "popd",
    )


def test_a_path_with_spaces_is_quoted_for_sh() -> None:
    machine = linux()
    make_host(add_python(machine, "/opt/my python", "3.11.7", "x86_64", running=True))
    facts = survey(machine, SurveyOptions())
    (line,) = python_lines(facts, facts.host.path, "-m pip list")
    assert line == "'/opt/my python/bin/python3' -m pip list"


@pytest.mark.process
def test_the_command_that_removes_the_folder_of_an_old_release_works(tmp_path: object) -> None:
    machine = linux()
    host = make_host(add_python(machine, "/opt/python", "3.11.7", "x86_64", running=True))
    install_small(host, "unrelated")
    facts = survey(machine, SurveyOptions())
    folder = f"{tmp_path}/site/onnxruntime"
    remedy = fixes.after_removal(facts, folder, "2.7.0")
    line = remedy.commands[1].replace("/opt/python/bin/python3", shutil.which("python3") or "python3")
    subprocess.run(["mkdir", "-p", f"{folder}/capi"], check=True)
    subprocess.run(["sh", "-c", line], check=True)
    assert subprocess.run(["test", "-e", folder], check=False).returncode == 1


def test_a_variable_that_would_override_the_new_host_is_removed() -> None:
    machine = windows_on_arm(home=r"C:\Users\Jürgen")
    install_bridge(add_python(machine, r"C:\App", "3.12.4", "x64", running=True))
    machine.environ["QNNBRIDGE_HOST_PYTHON"] = r"C:\gone\python.exe"
    found = next(
        one for one in diagnose(survey(machine, SurveyOptions())).findings if one.code == "host.file-missing"
    )
    assert found.remedy.commands == (
        r"qnnbridge setup --dir C:\qnnbridge\host",
        "powershell -Command \"[Environment]::SetEnvironmentVariable('QNNBRIDGE_HOST_PYTHON', '', 'User')\"",
    )


@pytest.mark.parametrize(
    ("failed", "words", "command"),
    [
        ("timeout", "Restart the computer", "qnnbridge doctor --timeout 300"),
        ("numbers", "update the NPU driver", "onnxruntime-qnn==2.7.0"),
        ("import", "", "onnxruntime-qnn==2.7.0"),
    ],
)
def test_a_failed_probe_without_an_explanation_gets_the_fix_of_its_stage(
    failed: str, words: str, command: str
) -> None:
    machine, _, _ = snapdragon()
    machine.probe_result = ProbeResult(failed=failed, message="?")
    remedy = only(machine).remedy
    assert words in remedy.words
    assert remedy.commands[-1].endswith(command)


# --- Pythons of a Linux computer ---


def test_an_interpreter_without_packages_is_not_reported_as_having_good_packages() -> None:
    machine = linux()
    install_bridge(add_python(machine, "/opt/app", "3.12.4", "x86_64", running=True))
    bare = add_python(machine, "/opt/bare", "3.11.7", "x86_64")
    report = diagnose(survey(machine, SurveyOptions(host_python=bare.executable)))
    assert "packages" not in [one.check for one in report.healthy]
    (found,) = report.findings
    assert found.title.endswith(
        "lacks qnnbridge_host, qnnbridge_protocol, msgpack, numpy, onnxruntime, onnxruntime-qnn"
    )
    assert found.remedy.commands[0].startswith("/opt/bare/bin/python3 -m pip install ")


@pytest.mark.parametrize("running", [False, True])
def test_the_fix_creates_an_environment_if_pip_must_not_install(running: bool) -> None:
    machine = linux()
    if not running:
        install_bridge(add_python(machine, "/opt/app", "3.12.4", "x86_64", running=True))
    managed = add_python(machine, "/usr", "3.11.7", "x86_64", running=running)
    managed.answer(externally_managed=True)
    facts = survey(machine, SurveyOptions(host_python=None if running else managed.executable))
    found = next(one for one in diagnose(facts).findings if one.code == "host.packages-missing")
    assert found.remedy.commands == ("qnnbridge setup",)
    assert "belongs to the system" in found.remedy.words
    for remedy in (
        fixes.install_fitting(facts),
        fixes.install_again(facts, "numpy", "2.4.6"),
        fixes.after_removal(facts, None, "2.7.0"),
        fixes.by_pip(facts, "install qnnbridge"),
    ):
        assert remedy.commands == ("qnnbridge setup",)


def test_an_externally_managed_interpreter_is_recognised_as_pip_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path) if name == "stdlib" else "")
    assert not answer_of(running_interpreter.describe()).externally_managed
    (tmp_path / "EXTERNALLY-MANAGED").write_text("")
    assert answer_of(running_interpreter.describe()).externally_managed
    monkeypatch.setattr(sys, "base_prefix", "/elsewhere")
    assert not answer_of(running_interpreter.describe()).externally_managed, (
        "a virtual environment is the user's own"
    )


def linux_with_an_old_application() -> SimulatedMachine:
    machine = linux()
    machine.environ["PATH"] = "/opt/app/bin:/usr/bin:/bin:/opt/shims"
    install_bridge(add_python(machine, "/opt/app", "3.10.14", "x86_64", running=True))
    for folder in ("/opt/app/bin", "/usr/bin"):
        for name in ("python3.10",) if folder.startswith("/opt") else ("python3.11", "python3"):
            machine.put(f"{folder}/{name}", File(6_000_000, library=Library("x86_64")))
    machine.links = {
        "/opt/app/bin/python3": "/opt/pythons/python3.10",
        "/opt/app/bin/python3.10": "/opt/pythons/python3.10",
        "/usr/bin/python3": "/usr/bin/python3.11",
        "/bin": "/usr/bin",
        "/bin/python3": "/usr/bin/python3.11",
        "/bin/python3.11": "/usr/bin/python3.11",
    }
    machine.put("/opt/shims/python3.13", File(400))
    return machine


def test_each_interpreter_on_the_path_is_listed_once_even_with_several_names() -> None:
    machine = linux_with_an_old_application()
    for name in ("python3", "python3.11"):
        machine.put(f"/bin/{name}", File(6_000_000, library=Library("x86_64")))
    found = survey(machine, SurveyOptions()).interpreters
    assert [(one.path, one.version) for one in found] == [
        ("/opt/app/bin/python3", "3.10.14"),
        ("/usr/bin/python3", "3.11"),
        ("/opt/shims/python3.13", "3.13"),
    ]
    assert found[0].sources == ("running", "PATH")


def test_virtual_environments_of_the_same_python_are_different_interpreters() -> None:
    machine = linux_with_an_old_application()
    machine.environ["PATH"] += ":/opt/other/bin"
    machine.put("/opt/other/bin/python3", File(6_000_000, library=Library("x86_64")))
    machine.links["/opt/other/bin/python3"] = "/opt/pythons/python3.10"
    other = survey(machine, SurveyOptions()).interpreters[-1]
    assert (other.path, other.refusal) == ("/opt/other/bin/python3", "host.python-too-old")


def test_a_python_that_was_found_becomes_the_host_and_none_is_installed() -> None:
    found = only(linux_with_an_old_application())
    assert found.code == "host.none"
    assert found.remedy == Remedy(
        "Create a host from /usr/bin/python3.", ("qnnbridge setup --python /usr/bin/python3",)
    )


def test_the_fix_installs_a_python_if_the_newer_one_is_only_a_script() -> None:
    machine = linux_with_an_old_application()
    machine.environ["PATH"] = "/opt/app/bin:/opt/shims"
    found = only(machine)
    assert "Install Python 3.11 or newer" in found.remedy.words
    assert found.remedy.commands == ("qnnbridge setup",)
