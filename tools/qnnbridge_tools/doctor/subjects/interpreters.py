"""The interpreters of a computer: which of them could run the host, and why not the others.

A file is judged by its header, a virtual environment of Windows by the program behind its launcher, packages by the
folders in site-packages; no interpreter is started here. The rules are those of `qnnbridge._launch.installed`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from qnnbridge._launch.installed import HOST_PACKAGES, OLDEST_HOST_PYTHON, WINDOWS_MACHINES, named_bases
from qnnbridge_tools.doctor.facts import Interpreter
from qnnbridge_tools.doctor.machine import Machine, RegisteredInterpreter, paths_of, text_of, variable_of

_ON_PATH: Final = {
    "Windows": re.compile(r"^python(?:3(?:\.\d+)?)?(?:-arm64)?\.exe$", re.IGNORECASE),
    "": re.compile(r"^python3(?:\.\d+)?$"),
}
_QNN: Final = re.compile(r"^onnxruntime_qnn-(\d[^-]*)\.dist-info$")


def survey_interpreters(machine: Machine) -> tuple[Interpreter, ...]:
    """The running one, those of the registry and of the PATH, each file once."""
    found: dict[str, Interpreter] = {}
    running = machine.running()
    # The running one first: its version and its packages are known, those of the same file on the PATH are not.
    candidates = [RegisteredInterpreter("", running.version, running.executable, running.prefix)]
    sources = ["running"]
    for python in machine.registered_pythons():
        candidates.append(python)
        sources.append("registry")
    for path in _on_path(machine):
        candidates.append(RegisteredInterpreter("", "", path, ""))
        sources.append("PATH")
    for candidate, source in zip(candidates, sources, strict=True):
        if not candidate.executable:
            continue
        # One file under several sources is one interpreter; its sources are joined.
        key = _identity(machine, candidate.executable)
        if key in found:
            known = found[key]
            joined = tuple(dict.fromkeys((*known.sources, source)))
            found[key] = dataclasses.replace(known, sources=joined, tag=known.tag or candidate.tag or None)
        else:
            found[key] = examine(machine, candidate, source)
    return tuple(found.values())


def examine(machine: Machine, candidate: RegisteredInterpreter, source: str) -> Interpreter:
    """Whether one interpreter could be the host here."""
    path = candidate.executable
    file = machine.library(path, version=False)
    base = base_interpreter(machine, path)
    base_file = machine.library(base, version=False) if base else None
    site = _site_packages(machine, candidate)
    interpreter = Interpreter(
        path=path,
        sources=(source,),
        machine=file.machine if file else None,
        base=base,
        base_machine=base_file.machine if base_file else None,
        version=candidate.version or _version_by_name(machine, path),
        tag=candidate.tag or None,
        qnn=_qnn_version(machine, site),
    )
    refusal, said = _refusal(machine, interpreter, candidate, site)
    return dataclasses.replace(interpreter, refusal=refusal, said=said)


def why_not_machine(machine: Machine, found: str | None) -> str | None:
    """Why a program of this machine type cannot be the host here; ``None`` if it can."""
    if machine.system != "Windows":
        return "it is a Windows program" if found in WINDOWS_MACHINES else None
    if found is None or found not in WINDOWS_MACHINES:
        return "it is no Windows program"
    if found == machine.machine:
        return None
    return f"it is an {found} program and this computer is {machine.machine}"


def base_interpreter(machine: Machine, path: str) -> str | None:
    """The program that a Windows virtual environment's python.exe starts, whether it is there or not."""
    if machine.system != "Windows":
        return None
    paths = paths_of(machine.system)
    return next(named_bases(path, lambda file: text_of(machine, file, 1 << 14), paths), None)


def _refusal(
    machine: Machine, interpreter: Interpreter, candidate: RegisteredInterpreter, site: tuple[str, ...]
) -> tuple[str, str]:
    # In the order of the repair: what is no interpreter, what is broken, what can never be the host, and what lacks
    # packages only.
    path = interpreter.path
    if machine.is_store_alias(path):
        return "host.store-alias", "it is an alias of the Microsoft Store, not an interpreter"
    if machine.kind(path) != "file":
        return "host.file-missing", "the file does not exist"
    if interpreter.base and machine.kind(interpreter.base) != "file":
        return "host.base-missing", f"it starts {interpreter.base}, which does not exist"
    problem = why_not_machine(machine, interpreter.real_machine)
    if problem:
        return "host.wrong-machine", problem
    found = re.match(r"(\d+)\.(\d+)", interpreter.version or "")
    if found and (int(found[1]), int(found[2])) < OLDEST_HOST_PYTHON:
        return "host.python-too-old", f"it is Python {found[1]}.{found[2]}, and the host needs 3.11 or newer"
    # Without a known folder for packages nothing is said of them: a guess would refuse a usable interpreter.
    if site:
        missing = [name for name in HOST_PACKAGES if not _has(machine, site, name)]
        if missing:
            return "host.packages-missing", f"it does not have {' and '.join(missing)}"
    return "", ""


def _site_packages(machine: Machine, candidate: RegisteredInterpreter) -> tuple[str, ...]:
    """Package folders of an installation with a known prefix, or of the running interpreter."""
    paths = paths_of(machine.system)
    if _key(machine, candidate.executable) == _key(machine, machine.running().executable):
        # `sys.path` names an archive of the standard library (python313.zip), also where there is none.
        return tuple(folder for folder in machine.running().path if not folder.endswith(".zip"))
    prefix = candidate.prefix
    if not prefix and machine.system == "Windows":
        folder = paths.dirname(candidate.executable)
        prefix = paths.dirname(folder) if paths.basename(folder).lower() == "scripts" else folder
    # Elsewhere a prefix does not say where packages are: Debian's own Python has them in dist-packages.
    if not prefix or machine.system != "Windows":
        return ()
    return (str(paths.join(prefix, "Lib", "site-packages")),)


def _has(machine: Machine, site: tuple[str, ...], module: str) -> bool:
    paths = paths_of(machine.system)
    stem = HOST_PACKAGES[module] + "-"
    return any(
        machine.kind(paths.join(folder, module)) == "folder"
        # Also by its metadata: an editable installation has no folder there.
        or any(name.startswith(stem) and name.endswith(".dist-info") for name in machine.names(folder))
        for folder in site
    )


def _qnn_version(machine: Machine, site: tuple[str, ...]) -> str | None:
    for folder in site:
        for name in machine.names(folder):
            match = _QNN.match(name)
            if match:
                return match[1]
    return None


def _on_path(machine: Machine) -> Iterator[str]:
    paths = paths_of(machine.system)
    pattern = _ON_PATH.get(machine.system) or _ON_PATH[""]
    separator = ";" if machine.system == "Windows" else ":"
    for folder in dict.fromkeys(variable_of(machine, "PATH").split(separator)):
        # Windows allows quotes around an entry of the PATH.
        folder = folder.strip('"')
        # A relative entry means another folder for each process.
        if not folder or not paths.isabs(folder):
            continue
        for name in machine.names(folder):
            if pattern.match(name):
                yield str(paths.join(folder, name))


def _key(machine: Machine, path: str) -> str:
    return str(paths_of(machine.system).normcase(path))


def _identity(machine: Machine, path: str) -> str:
    """The same for the names that one interpreter has in one folder. Not in several: an environment's interpreter
    is a link to another one, whose packages it does not have."""
    if machine.system == "Windows":
        return _key(machine, path)
    folder = machine.real_path(paths_of(machine.system).dirname(path))
    return f"{folder}\0{machine.real_path(path)}"


def _version_by_name(machine: Machine, path: str) -> str | None:
    """ "3.11" of python3.11, or of a python3 that is a link to such a name."""
    # Only from the name: the interpreter is not started for it.
    for name in (path, machine.real_path(path)):
        found = re.match(r"python(\d+\.\d+)", paths_of(machine.system).basename(name))
        if found:
            return found[1]
    return None
