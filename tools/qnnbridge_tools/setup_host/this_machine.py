"""Describe the machine for `versions` and `setup`, and find interpreters that can be the base of the host.

On Windows only programs for the computer's own processor are run. An interpreter selected by the user is used or
refused, never replaced by another. An interpreter that does not answer in time is refused with this reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qnnbridge._launch import OLDEST_HOST_PYTHON, Surroundings, interpreter_machine
from qnnbridge_host.model.releases import sdk_numbers, version_key
from qnnbridge_os.programs import RegisteredPython, registered_pythons
from qnnbridge_protocol.errors import HostNotFound, OptionError
from qnnbridge_tools.doctor import running_interpreter
from qnnbridge_tools.doctor.machine import RealMachine, last_line, path_folders, run_interpreter
from qnnbridge_tools.options import MachineOptions
from qnnbridge_tools.versions.fitness import PLATFORM_MACHINES, HostMachine, read_chip, read_platform, read_python

ASK_TIMEOUT_S = 30.0
SHOWN_CHARACTERS = 160
# Exit code of a shell, or of scripts such as pyenv's, if a program does not exist.
NOT_FOUND = 127


@dataclasses.dataclass(frozen=True, slots=True)
class PythonTraits:
    """Properties of an interpreter.

    Args:
        platform: result of `sysconfig.get_platform`.
        base: path of the interpreter on which an environment is based.
    """

    version: tuple[int, int, int]
    platform: str
    base: str
    implementation: str
    free_threaded: bool
    has_venv: bool
    glibc: tuple[int, int] | None

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]


def ask(python: str) -> PythonTraits | str:
    """Return the properties of an interpreter, or why it is unusable, as the rest of a sentence "it ..."."""
    try:
        done = run_interpreter(python, running_interpreter.__file__, timeout_s=ASK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"does not answer within {ASK_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"cannot be started ({error.strerror or error})"
    if done.returncode == 0:
        # A program with different output is not a Python.
        with contextlib.suppress(LookupError, TypeError, ValueError):
            return _traits(last_line(done))
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode == NOT_FOUND:
        first = f" ({said[0].strip()[:SHOWN_CHARACTERS]})" if said else ""
        return f"refers to a Python that is not installed: exit code {NOT_FOUND}{first}"
    last = f" ({said[-1].strip()[:SHOWN_CHARACTERS]})" if said else ""
    return f"does not run as Python does: exit code {done.returncode}{last}"


def _traits(answer: dict[str, Any]) -> PythonTraits:
    library, library_version = answer["libc"]
    numbers = library_version.split(".") if library == "glibc" else []
    return PythonTraits(
        version=tuple(answer["version_info"]),
        platform=answer["platform"],
        base=answer["base_executable"],
        implementation=answer["implementation"],
        free_threaded=answer["free_threaded"],
        has_venv=answer["has_venv"],
        glibc=(int(numbers[0]), int(numbers[1])) if len(numbers) > 1 else None,
    )


_VERSION = re.compile(r"(?:python)?(\d)\.(\d+)(?:\.\d+)?")
# The last two names may be of any Python version.
PATH_NAMES = ("python3.14", "python3.13", "python3.12", "python3.11", "python3", "python")


@dataclasses.dataclass(frozen=True, slots=True)
class BaseCandidate:
    """Interpreter that can be the base of an environment.

    Args:
        path: path of the base interpreter, never of an environment.
        answer: its traits.
    """

    path: str
    answer: PythonTraits

    @property
    def text(self) -> str:
        return "Python {}.{}.{}, {}, {}".format(*self.answer.version, self.answer.platform, self.path)


def candidates(
    surroundings: Surroundings,
    asked_for: str | None,
    looked_at: list[str],
    asker: Callable[[str], PythonTraits | str] = ask,
) -> list[BaseCandidate]:
    """Return the usable interpreters, newest Python first. Add to `looked_at` why each other interpreter cannot be
    used.
    """
    if asked_for is not None:
        try:
            return [_named(surroundings, asked_for, asker)]
        except HostNotFound as error:
            error.details["source"] = "argument"  # the command then exits with the code for bad input
            raise
    found: dict[str, BaseCandidate] = {}
    for place, path in _places(surroundings):
        if os.path.realpath(path) in found:
            continue
        judged = _judge(surroundings, path, asker)
        if isinstance(judged, str):
            looked_at.append(f"{place}: {path} {judged}")
        else:
            # Several environments may have the same base interpreter, so list it once.
            found.setdefault(os.path.realpath(judged.path), judged)
    return sorted(found.values(), key=lambda one: one.answer.version, reverse=True)


def _named(surroundings: Surroundings, text: str, asker: Callable[[str], PythonTraits | str]) -> BaseCandidate:
    path = _path_of(surroundings, text)
    judged = _judge(surroundings, path, asker) if path is not None else ""
    version = _VERSION.fullmatch(text)
    # Refuse an old version even if it is not installed, so that the user does not install it in vain.
    if isinstance(judged, str) and version and (int(version[1]), int(version[2])) < OLDEST_HOST_PYTHON:
        raise HostNotFound(
            f"--python {version[1]}.{version[2]} is too old: the host needs 3.11 or newer.",
            fix="Give a newer version, or omit --python to use the best interpreter.",
        )
    if path is None:
        raise HostNotFound(
            f"--python {text!r}: there is no such interpreter.",
            fix="Give the path of a python.exe, a name on the PATH, or a tag that `py --list` shows.",
            evidence=[f"registered: {python.launcher_tag}" for python in surroundings.registered()],
        )
    if isinstance(judged, str):
        raise HostNotFound(
            f"The interpreter {path} of --python cannot be the host: it {judged}.", fix=install_text(surroundings)
        )
    return judged


def _path_of(surroundings: Surroundings, text: str) -> str | None:
    """Find an interpreter by a path, a tag of the py launcher, a version, or a name on the PATH."""
    if os.path.isdir(text):
        names = (Path(text, "python.exe"), Path(text, "Scripts", "python.exe"), Path(text, "bin", "python"))
        return next((str(path) for path in names if path.is_file()), None)
    if os.path.isfile(text):
        return os.path.abspath(text)
    for python in surroundings.registered():
        # A version selects a native interpreter. A full tag may also select an emulated one, which is then refused
        # with the reason.
        if text.lower() in (python.launcher_tag.lower(), "{}.{}".format(*python.version)) and (
            _is_native(surroundings, python) or text.lower() == python.launcher_tag.lower()
        ):
            return python.executable
    return program_on_path(text) or (program_on_path(f"python{text}") if text[:1].isdigit() else None)


def program_on_path(name: str, system: str | None = None) -> str | None:
    """Return the path of a program; ``None`` if the PATH does not contain it.

    On Windows `shutil.which` looks in the current folder first, where a downloaded file may have the same name.
    """
    system = system or platform.system()
    file = f"{name}.exe" if system == "Windows" and not name.lower().endswith(".exe") else name
    folders = path_folders(os.environ.get("PATH", ""), system)
    return next((found for folder in folders if (found := shutil.which(os.path.join(folder, file)))), None)


def _places(surroundings: Surroundings) -> Iterator[tuple[str, str]]:
    # Report an interpreter that is found in several places only once, with the first place.
    for python in surroundings.registered():
        yield f"registry, {python.launcher_tag}", python.executable
    if surroundings.executable:
        yield "running interpreter", surroundings.executable
    folders = path_folders(surroundings.environ.get("PATH", ""), platform.system())
    for name in PATH_NAMES:
        for folder in folders:
            found = os.path.join(folder, name + (".exe" if os.name == "nt" else ""))
            # Skip aliases of the Microsoft Store: such a file may open the Store instead of starting a Python.
            if os.path.isfile(found) and os.access(found, os.X_OK) and "windowsapps" not in found.lower():
                yield "PATH", found


def _judge(
    surroundings: Surroundings, path: str, asker: Callable[[str], PythonTraits | str]
) -> BaseCandidate | str:
    """Return the candidate, or why the interpreter cannot be a base, as the rest of a sentence "it ..."."""
    try:
        # Read the machine type from the file's header, so that no emulated program is started on Windows.
        problem = surroundings.why_not_machine(interpreter_machine(path))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if problem is not None:
        return f"cannot be used: {problem}"
    answer = asker(path)
    if isinstance(answer, str):
        return answer
    if answer.minor < OLDEST_HOST_PYTHON:
        return "is Python {}.{}, and the host needs 3.11 or newer".format(*answer.minor)
    # onnxruntime-qnn has wheels only for CPython with the GIL.
    if answer.implementation != "cpython" or answer.free_threaded:
        return "is not CPython with the GIL, the only Python that onnxruntime-qnn has wheels for"
    if not answer.has_venv:
        known = "as Python's embeddable package does" if surroundings.is_windows else "apt install python3-venv"
        return f"lacks venv or ensurepip ({known})"
    return BaseCandidate(answer.base, answer)


def _is_native(surroundings: Surroundings, python: RegisteredPython) -> bool:
    try:
        return surroundings.why_not_machine(interpreter_machine(python.executable)) is None
    except OSError:
        return False


def install_text(surroundings: Surroundings) -> str:
    """Return advice on which Python to install if no interpreter can be the host."""
    if surroundings.is_windows:
        kind = "ARM64" if surroundings.is_windows_on_arm else "64-bit"
        return (
            f'Install Python 3.13 with the "Windows installer ({kind})" from '
            "https://www.python.org/downloads/windows/ and run this command again."
        )
    return "Install Python 3.11 or newer, with its venv module, and run this command again."


# --- the machine: given values, or else this computer's values ---


def found_machine() -> HostMachine:
    """Return this computer. Raise `OptionError` if QNN does not exist for this kind of computer."""
    machine, npu = HostMachine.current(), driver_facts()
    python = host_python(machine.python) or _newest_arm64_python()
    return dataclasses.replace(machine, system_sdk=npu.system_sdk, hexagon=npu.hexagon, python=python)


def host_python(running: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the running Python version if it can run a host. Otherwise the host's version is unknown: ``None``."""
    return running if running is not None and running >= OLDEST_HOST_PYTHON else None


def machine_of(given: MachineOptions) -> HostMachine:
    """Return this machine, with the given values replacing its own. A different platform means a different
    computer.
    """
    if given.platform is None:
        machine = found_machine()
    else:
        wanted = read_platform(given.platform)
        try:
            machine = found_machine()
        except OptionError:
            # Continue although QNN does not exist for this computer: the user asks about a different computer.
            machine = HostMachine(wanted)
        if machine.platform != wanted:
            machine = _other_platform(machine, wanted)
    return dataclasses.replace(
        machine,
        system_sdk=machine.system_sdk if given.system_sdk is None else checked_sdk(given.system_sdk),
        hexagon=machine.hexagon if given.chip is None else read_chip(given.chip),
        python=machine.python if given.python is None else read_python(given.python),
        ort=machine.ort if given.ort is None else _checked(given.ort, version_key, "--ort 1.24.4"),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NpuTraits:
    """QNN version of the NPU's driver, and the NPU's Hexagon version; ``None`` if unknown."""

    system_sdk: str | None = None
    hexagon: int | None = None


def npu_traits(system_sdk: str | None, chip: str | None) -> NpuTraits:
    """Return the given values, else the values of this computer's driver."""
    found = driver_facts()
    return NpuTraits(
        found.system_sdk if system_sdk is None else checked_sdk(system_sdk),
        found.hexagon if chip is None else read_chip(chip),
    )


def driver_facts() -> NpuTraits:
    from qnnbridge_tools.doctor.subjects.computer import survey_computer, survey_driver

    # Survey only computer and driver, because a complete survey starts the host's interpreter.
    machine = RealMachine()
    driver = survey_driver(machine)
    return NpuTraits(_usable_sdk(driver.runtime), survey_computer(machine, driver).arch)


def _other_platform(machine: HostMachine, platform: str) -> HostMachine:
    """Return the machine for another platform: this computer with x64 Python on Arm, else another computer."""
    asked = HostMachine(read_platform(platform))
    if machine.computer == "ARM64" and asked.platform == "win_amd64":
        # The Python version is unknown, because the host would not run in the running interpreter.
        return dataclasses.replace(machine, platform="win_amd64", python=None)
    return dataclasses.replace(asked, computer=PLATFORM_MACHINES[asked.platform])


def _newest_arm64_python() -> tuple[int, int] | None:
    """Return the version of the newest registered ARM64 Python, which a set-up would use."""
    versions = []
    for python in registered_pythons():
        try:
            if python.version >= OLDEST_HOST_PYTHON and interpreter_machine(python.executable) == "ARM64":
                versions.append(python.version)
        except OSError:
            continue  # a Python that was uninstalled but is still in the registry
    return max(versions, default=None)


def _usable_sdk(text: str | None) -> str | None:
    try:
        return text if text is not None and sdk_numbers(text) else None
    except ValueError:
        return None


def checked_sdk(text: str) -> str:
    return _checked(text, sdk_numbers, "--system-sdk 2.40")


def _checked(text: str, read: Callable[[str], object], example: str) -> str:
    try:
        read(text)
    except ValueError as error:
        raise OptionError(f"{error}.", fix=f"For example {example}.") from None
    return text.strip()
