"""Which interpreter the host would run with, and what that one says of itself and has installed.

The order is that of `qnnbridge._launch.interpreter.find_host`: argument, environment variable, configuration file,
registry (on Windows on ARM), running interpreter. What was set explicitly is used or refused, never passed over.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

from qnnbridge_tools.doctor.facts import Answer, HostFacts, Interpreter
from qnnbridge_tools.doctor.machine import Machine, Registered, paths_of, text_of
from qnnbridge_tools.doctor.survey.interpreters import OLDEST_HOST, WINDOWS_MACHINES, examine
from qnnbridge_tools.doctor.survey.packages import survey_packages

VARIABLE: Final = "QNNBRIDGE_HOST_PYTHON"
CONFIG_VARIABLE: Final = "QNNBRIDGE_CONFIG"


def survey_host(
    machine: Machine, explicit: str | None, interpreters: Sequence[Interpreter], *, complete: bool
) -> HostFacts:
    chosen = _choose(machine, explicit, interpreters)
    if chosen.refusal or not chosen.path:
        return chosen
    answer = machine.ask(chosen.path)
    if not isinstance(answer, Answer):
        return dataclasses.replace(chosen, death=answer)
    return dataclasses.replace(chosen, answer=answer, packages=survey_packages(machine, answer, complete=complete))


def _choose(machine: Machine, explicit: str | None, interpreters: Sequence[Interpreter]) -> HostFacts:
    if explicit is not None:
        return _named(machine, explicit, "--host-python")
    named = machine.environ.get(VARIABLE)
    if named:
        return _named(machine, named, VARIABLE)
    configured = _configured(machine)
    if isinstance(configured, HostFacts):
        return configured
    if configured is not None:
        return _named(machine, configured, "configuration file")
    looked_at: list[str] = []
    if machine.system == "Windows" and machine.machine == "ARM64":
        found = _registered(interpreters, looked_at)
        if found is not None:
            return found
    return _running(machine, interpreters, tuple(looked_at))


def _named(machine: Machine, text: str, source: str) -> HostFacts:
    path = _full_path(machine, text)
    if path is None or machine.kind(path) is None:
        where = "there is no program of that name on the PATH" if path is None else "the file does not exist"
        return HostFacts(path or text, source, "host.file-missing", where)
    if machine.kind(path) == "folder":
        return HostFacts(path, source, "host.file-missing", "it is a folder")
    examined = examine(machine, Registered("", "", path, ""), source)
    # What it has installed it will be asked for itself.
    refusal = "" if examined.refusal == "host.packages-missing" else examined.refusal
    return HostFacts(path, source, refusal, examined.said if refusal else "")


def _full_path(machine: Machine, text: str) -> str | None:
    paths = paths_of(machine.system)
    if paths.dirname(text):
        home = text[:2] in ("~/", "~\\")
        expanded = paths.join(machine.home, text[2:]) if home else text
        return str(paths.abspath(expanded) if machine.system != "Windows" else paths.normpath(expanded))
    separator = ";" if machine.system == "Windows" else ":"
    value = next((value for name, value in machine.environ.items() if name.upper() == "PATH"), "")
    names = (text, text + ".exe") if machine.system == "Windows" else (text,)
    for folder in value.split(separator):
        for name in names:
            if folder and machine.kind(paths.join(folder, name)) == "file":
                return str(paths.join(folder, name))
    return None


def configuration_path(machine: Machine) -> str:
    named = machine.environ.get(CONFIG_VARIABLE)
    if named:
        return named
    paths = paths_of(machine.system)
    if machine.system == "Windows":
        folder = machine.environ.get("LOCALAPPDATA") or paths.join(machine.home, "AppData", "Local")
    else:
        folder = machine.environ.get("XDG_CONFIG_HOME") or paths.join(machine.home, ".config")
    return str(paths.join(folder, "qnnbridge", "config.toml"))


def _configured(machine: Machine) -> str | HostFacts | None:
    """What the configuration file names, ``None`` if nothing, or why the file cannot be used."""
    path = configuration_path(machine)
    text = text_of(machine, path, 1 << 16)
    if text is None:
        if machine.environ.get(CONFIG_VARIABLE):
            return HostFacts("", path, "host.config-broken", "the file does not exist")
        return None
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        host = toml.loads(text).get("host", {})
        python = host.get("python")
    except (ValueError, AttributeError) as error:
        return HostFacts("", path, "host.config-broken", str(error))
    if python is None:
        return None
    if not isinstance(python, str):
        return HostFacts("", path, "host.config-broken", "its entry 'python' in [host] is no text")
    paths = paths_of(machine.system)
    return str(paths.join(paths.dirname(path), python)) if paths.dirname(python) else python


def _registered(interpreters: Sequence[Interpreter], looked_at: list[str]) -> HostFacts | None:
    """The newest usable ARM64 Python of the registry, or what is wrong with the nearest one."""
    registered = [one for one in interpreters if "registry" in one.sources]
    registered.sort(key=lambda one: _version(one.version), reverse=True)
    native = [one for one in registered if one.real_machine == "ARM64"]
    looked_at += [f"{one.tag}: {one.path}: {one.said}" for one in registered if one.refusal]
    for one in native:
        if not one.refusal:
            return HostFacts(one.path, "registry", looked_at=tuple(looked_at))
    for wanted in ("host.packages-missing", "host.python-too-old", "host.base-missing", "host.file-missing"):
        for one in native:
            if one.refusal == wanted:
                return HostFacts(one.path, "registry", one.refusal, one.said, tuple(looked_at))
    return None


def _running(machine: Machine, interpreters: Sequence[Interpreter], looked_at: tuple[str, ...]) -> HostFacts:
    one = next((found for found in interpreters if "running" in found.sources), None)
    if one is None:
        return HostFacts(refusal="host.none", said="no interpreter was found", looked_at=looked_at)
    if not one.refusal:
        hidden = _hidden_packages(machine)
        if hidden:
            return HostFacts(one.path, "running interpreter", "host.user-packages", hidden, looked_at)
        return HostFacts(one.path, "running interpreter", looked_at=looked_at)
    looked_at = (*looked_at, f"running interpreter {one.path}: {one.said}")
    if one.refusal in ("host.packages-missing", "host.python-too-old"):
        code = "host.none" if one.refusal == "host.python-too-old" else one.refusal
        return HostFacts(one.path, "running interpreter", code, one.said, looked_at)
    if machine.system == "Windows" and machine.machine == "ARM64":
        emulated = [found for found in interpreters if found.real_machine in WINDOWS_MACHINES - {"ARM64"}]
        if any(found.qnn for found in emulated):
            return HostFacts(one.path, "running interpreter", "host.only-emulated", one.said, looked_at)
    return HostFacts("", "", "host.none", "nothing that was looked at can run it", looked_at)


def _hidden_packages(machine: Machine) -> str:
    """The running interpreter sees packages of the user (``pip install --user``) that an isolated one does not."""
    answer = machine.running()
    paths = paths_of(machine.system)
    for name in ("qnnbridge_host", "onnxruntime"):
        folders = [f for f in answer.path if machine.kind(paths.join(f, name, "__init__.py")) == "file"]
        if folders and paths.normcase(folders[0]) == paths.normcase(answer.user_site or " "):
            return f"it has {name} in {folders[0]}, which the host does not see"
    return ""


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text or ""))


__all__ = ["OLDEST_HOST", "configuration_path", "survey_host"]
