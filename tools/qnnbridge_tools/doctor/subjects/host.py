"""The host's interpreter and its packages: survey and check.

The search order equals the order of `qnnbridge._launch.find_host`: argument, environment variable,
configuration file, registry (on Windows on Arm), running interpreter. An explicit setting is used or refused,
never ignored.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from qnnbridge._launch import (
    CONFIG_VARIABLE,
    HOST_PACKAGES,
    OLDEST_HOST_PYTHON,
    VARIABLE,
    WINDOWS_MACHINES,
    named_bases,
)
from qnnbridge_tools.doctor import fixes
from qnnbridge_tools.doctor.facts import Facts, HostFacts, Interpreter, PythonReport, StartFailure
from qnnbridge_tools.doctor.findings import Finding, Remedy, SubjectCheck, finding
from qnnbridge_tools.doctor.fixes import python_lines, set_variable, word
from qnnbridge_tools.doctor.machine import (
    Machine,
    RegisteredInterpreter,
    expanded,
    parsed_toml,
    path_folders,
    paths_of,
    text_of,
    variable_of,
)
from qnnbridge_tools.doctor.subjects.environment import folder_of
from qnnbridge_tools.doctor.subjects.packages import lacking, survey_packages

# --- the interpreters of a computer: which of them can run the host, and why the others cannot ---

_ON_PATH: Final = {
    "Windows": re.compile(r"^python(?:3(?:\.\d+)?)?(?:-arm64)?\.exe$", re.IGNORECASE),
    "": re.compile(r"^python3(?:\.\d+)?$"),
}
_QNN: Final = re.compile(r"^onnxruntime_qnn-(\d[^-]*)\.dist-info$")


def survey_interpreters(machine: Machine) -> tuple[Interpreter, ...]:
    """Find interpreters: the running one, and those in the registry and on the PATH, without duplicates."""
    found: dict[str, Interpreter] = {}
    running = machine.running()
    # Begin with the running interpreter: its version and packages are known, unlike the version and packages of
    # a file on the PATH.
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
        # A file found in several places is one interpreter with several sources.
        key = _identity(machine, candidate.executable)
        if key in found:
            known = found[key]
            joined = tuple(dict.fromkeys((*known.sources, source)))
            found[key] = dataclasses.replace(known, sources=joined, tag=known.tag or candidate.tag or None)
        else:
            found[key] = examine(machine, candidate, source)
    return tuple(found.values())


def examine(machine: Machine, candidate: RegisteredInterpreter, source: str) -> Interpreter:
    """Describe an interpreter, and check whether it can be the host. source: where it was found."""
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
    """Return why a program built for the machine type `found` cannot be the host here; ``None`` if it can."""
    if machine.system != "Windows":
        return "it is a Windows program" if found in WINDOWS_MACHINES else None
    if found is None or found not in WINDOWS_MACHINES:
        return "it is not a Windows program"
    if found == machine.machine:
        return None
    return f"it is an {found} program and this computer is {machine.machine}"


def base_interpreter(machine: Machine, path: str) -> str | None:
    """Return the program that the python.exe of a virtual environment on Windows starts, even if it is missing."""
    if machine.system != "Windows":
        return None
    paths = paths_of(machine.system)
    return next(named_bases(path, lambda file: text_of(machine, file, 1 << 14), paths), None)


def _refusal(
    machine: Machine, interpreter: Interpreter, candidate: RegisteredInterpreter, site: tuple[str, ...]
) -> tuple[str, str]:
    # Report the most basic fault: first files that are not interpreters, then broken interpreters, interpreters
    # that can never be the host, and interpreters that only lack packages.
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
    # If the package folder is unknown, skip this check, because a usable interpreter must not be refused.
    if site:
        missing = [name for name in HOST_PACKAGES if not _has(machine, site, name)]
        if missing:
            return "host.packages-missing", f"it does not have {' and '.join(missing)}"
    return "", ""


def _site_packages(machine: Machine, candidate: RegisteredInterpreter) -> tuple[str, ...]:
    """Return the package folders of an installation with a known prefix, or of the running interpreter."""
    paths = paths_of(machine.system)
    if _key(machine, candidate.executable) == _key(machine, machine.running().executable):
        # `sys.path` contains an archive of the standard library (python313.zip) even if it does not exist.
        return tuple(folder for folder in machine.running().path if not folder.endswith(".zip"))
    prefix = candidate.prefix
    if not prefix and machine.system == "Windows":
        folder = paths.dirname(candidate.executable)
        prefix = paths.dirname(folder) if paths.basename(folder).lower() == "scripts" else folder
    # On other systems the prefix does not determine the folder: Debian's own Python uses dist-packages.
    if not prefix or machine.system != "Windows":
        return ()
    return (str(paths.join(prefix, "Lib", "site-packages")),)


def _has(machine: Machine, site: tuple[str, ...], module: str) -> bool:
    paths = paths_of(machine.system)
    stem = HOST_PACKAGES[module] + "-"
    return any(
        machine.kind(paths.join(folder, module)) == "folder"
        # Check the metadata, too, because an editable installation lacks the folder.
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
    for folder in path_folders(variable_of(machine, "PATH"), machine.system):
        for name in machine.names(folder):
            if pattern.match(name):
                yield str(paths.join(folder, name))


def _key(machine: Machine, path: str) -> str:
    return str(paths_of(machine.system).normcase(path))


def _identity(machine: Machine, path: str) -> str:
    """Return a key that is equal for all links to the same interpreter within one folder.

    Links in different folders have different keys: a virtual environment's interpreter may link to an interpreter
    with other packages.
    """
    if machine.system == "Windows":
        return _key(machine, path)
    folder = machine.real_path(paths_of(machine.system).dirname(path))
    return f"{folder}\0{machine.real_path(path)}"


def _version_by_name(machine: Machine, path: str) -> str | None:
    """Return the Python version in the file name of the program or of its link's target, such as python3.11. Do
    not start the program.
    """
    for name in (path, machine.real_path(path)):
        found = re.match(r"python(\d+\.\d+)", paths_of(machine.system).basename(name))
        if found:
            return found[1]
    return None


def survey_host(
    machine: Machine, explicit: str | None, interpreters: Sequence[Interpreter], *, complete: bool
) -> HostFacts:
    """Choose the host's interpreter, start it, and describe its packages.

    Args:
        machine: the computer.
        explicit: the value of --host-python.
        interpreters: the result of `survey_interpreters`.
        complete: whether to compare hashes of libraries.
    """
    chosen = _choose(machine, explicit, interpreters)
    if chosen.refusal or not chosen.path:
        return chosen
    answer = machine.ask(chosen.path)
    if not isinstance(answer, PythonReport):
        return dataclasses.replace(chosen, death=answer)
    return dataclasses.replace(chosen, answer=answer, packages=survey_packages(machine, answer, complete=complete))


def _choose(machine: Machine, explicit: str | None, interpreters: Sequence[Interpreter]) -> HostFacts:
    # Search in the order of `find_host`, so that the doctor examines the interpreter that sessions would use.
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
        return HostFacts(path or text or '""', source, "host.file-missing", where)
    if machine.kind(path) == "folder":
        return HostFacts(path, source, "host.file-missing", "it is a folder")
    examined = examine(machine, RegisteredInterpreter("", "", path, ""), source)
    # Ignore missing packages here: the interpreter itself will report them.
    refusal = "" if examined.refusal == "host.packages-missing" else examined.refusal
    return HostFacts(path, source, refusal, examined.said if refusal else "")


def _full_path(machine: Machine, text: str) -> str | None:
    paths = paths_of(machine.system)
    if paths.dirname(text):
        whole = expanded(machine, text)
        return str(paths.abspath(whole) if machine.system != "Windows" else paths.normpath(whole))
    separator = ";" if machine.system == "Windows" else ":"
    names = (text, text + ".exe") if machine.system == "Windows" else (text,)
    for folder in variable_of(machine, "PATH").split(separator):
        for name in names:
            if folder and machine.kind(paths.join(folder, name)) == "file":
                return str(paths.join(folder, name))
    return None


def configuration_path(machine: Machine) -> str:
    """Return the path of the configuration file."""
    named = machine.environ.get(CONFIG_VARIABLE)
    if named:
        return expanded(machine, named)
    return str(paths_of(machine.system).join(folder_of(machine, "XDG_CONFIG_HOME", (".config",)), "config.toml"))


def _configured(machine: Machine) -> str | HostFacts | None:
    """Return the interpreter that the configuration file sets, ``None`` if none, or why the file is unusable."""
    path = configuration_path(machine)
    # Read at most 64 KiB, because `CONFIG_VARIABLE` may be set to any file.
    text = text_of(machine, path, 1 << 16)
    if text is None:
        # A file given in the variable must exist; the default file need not.
        if machine.environ.get(CONFIG_VARIABLE):
            return HostFacts("", path, "host.config-broken", "the file does not exist")
        return None
    try:
        host = parsed_toml(text).get("host", {})
    except ValueError as error:
        said = "it is not a UTF-8 text" if "\ufffd" in text else str(error)
        return HostFacts("", path, "host.config-broken", said)
    if not isinstance(host, dict):
        return HostFacts("", path, "host.config-broken", "its entry 'host' is not a table: write [host] on a line")
    python = host.get("python")
    if python is None:
        return None
    if not isinstance(python, str):
        return HostFacts("", path, "host.config-broken", "its entry 'python' in [host] is not a string")
    paths = paths_of(machine.system)
    return str(paths.join(paths.dirname(path), expanded(machine, python))) if paths.dirname(python) else python


def _registered(interpreters: Sequence[Interpreter], looked_at: list[str]) -> HostFacts | None:
    """Return the newest usable ARM64 Python of the registry, or what is wrong with the most suitable one."""
    registered = [one for one in interpreters if "registry" in one.sources]
    registered.sort(key=lambda one: _version(one.version), reverse=True)
    native = [one for one in registered if one.real_machine == "ARM64"]
    looked_at += [f"{one.tag}: {one.path}: {one.said}" for one in registered if one.refusal]
    # Prefer a usable older Python to a newer one that lacks packages.
    for one in native:
        if not one.refusal:
            return HostFacts(one.path, "registry", looked_at=tuple(looked_at))
    # Prefer the fault that is easiest to repair: installing packages is easier than installing a Python.
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
    return HostFacts("", "", "host.none", "none of the examined interpreters can run it", looked_at)


def _hidden_packages(machine: Machine) -> str:
    """Return evidence if the running interpreter uses packages of the user (``pip install --user``); else "".

    The host is started with -I, which disables packages of the user.
    """
    answer = machine.running()
    paths = paths_of(machine.system)
    for name in ("qnnbridge_host", "onnxruntime"):
        folders = [f for f in answer.path if machine.kind(paths.join(f, name, "__init__.py")) == "file"]
        # An interpreter without a home folder has no `user_site`: compare with " ", which equals no folder.
        if folders and paths.normcase(folders[0]) == paths.normcase(answer.user_site or " "):
            return f"the interpreter has {name} in {folders[0]}, a folder that the host ignores"
    return ""


def _version(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text or ""))


# Platform of a Windows interpreter (`sysconfig.get_platform`) -> its machine type.
PLATFORMS: Final = {"win32": "x86", "win-amd64": "x64", "win-arm64": "ARM64"}
_NAMED: Final = ("--host-python", VARIABLE, "configuration file")
_REPAIR: Final = "Repair or reinstall this Python, or set QNNBRIDGE_HOST_PYTHON to another one."
MAX_SEEN: Final = 8
MAX_OTHERS: Final = 4


def find(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the host's interpreter."""
    host = facts.host
    if host.refusal:
        yield _refused(facts)
    elif host.death is not None:
        yield _dead(facts, host.death)
    elif host.answer is not None:
        yield from _unfit(facts)
    else:
        yield finding(
            "host.none",
            "no interpreter was found that could run the host",
            *host.looked_at,
            fix=fixes.set_up_host(facts),
        )


def _refused(facts: Facts) -> Finding:
    host = facts.host
    path = host.path or host.source
    titles: dict[str, str] = {
        "host.config-broken": f"the configuration file {host.source} cannot be used",
        "host.file-missing": f"the host's interpreter {path} is not there",
        "host.store-alias": f"{path} is an alias of the Microsoft Store and not an interpreter",
        "host.base-missing": f"the base interpreter of the virtual environment of {path} no longer exists",
        "host.wrong-machine": f"the host's interpreter is not an {facts.computer.machine} program",
        "host.only-emulated": "onnxruntime-qnn is installed only in emulated Pythons",
        "host.python-too-old": "the host's interpreter is older than Python 3.11"
        if host.source in _NAMED
        else f"the only {facts.computer.machine} Python is older than 3.11",
        "host.packages-missing": "the interpreter that could be the host lacks the host's packages",
        "host.user-packages": "the host's packages are installed for the user only",
        "host.none": "no interpreter was found that could run the host",
    }
    seen = [f"{path}: {host.said}"] if host.path else [host.said]
    if host.source and host.path:
        seen.append(f"named by: {host.source}")
    seen += [line for line in host.looked_at if host.path not in line or not host.path]
    seen += _others(facts)
    return finding(
        host.refusal, titles[host.refusal], *dict.fromkeys(seen[:MAX_SEEN]), fix=_FIXES[host.refusal](facts)
    )


def _others(facts: Facts) -> list[str]:
    """Return a line for each other interpreter, with the reason why it cannot be the host."""
    host = facts.host
    others = [
        one
        for one in facts.interpreters
        if one.path != host.path and not any(one.path in line for line in host.looked_at)
    ]
    seen = [f"also found: {one.path}: {one.said or 'could be the host, if it has the packages'}" for one in others]
    return [*seen[:MAX_OTHERS], f"and {len(seen) - MAX_OTHERS} more"] if len(seen) > MAX_OTHERS else seen


def _fix_packages(facts: Facts) -> Remedy:
    """Return the fix that installs the packages into the configured interpreter, or else creates an environment."""
    if facts.is_windows and facts.is_arm and facts.host.source not in _NAMED:
        return fixes.set_up_host(facts)
    return fixes.host_packages(facts, facts.host.path)


def _fix_path(facts: Facts) -> Remedy:
    # The packages of an interpreter on the PATH are unknown, so do not suggest it.
    known = [one for one in facts.interpreters if one.tag or "running" in one.sources]
    usable = next((one for one in known if not one.refusal and one.path != facts.host.path), None)
    if usable is not None:
        return _fix_setting(facts, usable.path)
    return fixes.set_up_host(facts)


def _fix_setting(facts: Facts, path: str) -> Remedy:
    """Return the fix that changes the setting of the wrong interpreter to another path."""
    if facts.host.source == "--host-python":
        return Remedy(
            "Choose an interpreter that can be the host.", (f"qnnbridge doctor --host-python {word(path)}",)
        )
    if facts.host.source == VARIABLE:
        words = "Choose an interpreter that can be the host" + (
            "; then open a new window." if facts.is_windows else "."
        )
        return Remedy(words, set_variable(facts, VARIABLE, path))
    return Remedy(f"Set an interpreter that can be the host in the configuration file: [host] python = '{path}'")


def _fix_config(facts: Facts) -> Remedy:
    if "does not exist" in facts.host.said:
        words = "Correct or remove the variable QNNBRIDGE_CONFIG, or create a host: `setup` then writes the file."
        return fixes.set_up_host(facts, words)
    return Remedy(
        f"Correct or remove {facts.host.source}. In TOML write paths in single "
        r"quotes: python = 'C:\Python313-arm64\python.exe'"
    )


def _fix_base(facts: Facts) -> Remedy:
    """Return the fix that creates the environment again, from another suitable Python if there is one."""
    folder = facts.host.path.rpartition("Scripts" if facts.is_windows else "bin/")[0].rstrip("\\/")
    base = next(
        (one.path for one in facts.interpreters if one.tag and one.refusal in ("", "host.packages-missing")), None
    )
    if facts.is_windows and base is None:
        return fixes.set_up_host(facts)
    make = python_lines(facts, base, f"-m venv --clear {word(folder)}") if base else ()
    make = make or (f"python3 -m venv --clear {word(folder)}",)
    packages = fixes.host_packages(facts, base or facts.host.path)
    if any(line.startswith(fixes.SETUP_HOST) for line in packages.commands):
        return packages  # the commands run `setup`, which also creates the environment
    return Remedy("Create the virtual environment again.", (*make, *packages.commands))


_FIXES: Final[dict[str, Callable[[Facts], Remedy]]] = {
    "host.config-broken": _fix_config,
    "host.file-missing": _fix_path,
    "host.store-alias": _fix_path,
    "host.base-missing": _fix_base,
    "host.wrong-machine": _fix_path,
    "host.only-emulated": fixes.set_up_host,
    "host.python-too-old": lambda facts: (
        _fix_path(facts) if facts.host.source in _NAMED else fixes.set_up_host(facts)
    ),
    "host.packages-missing": _fix_packages,
    "host.user-packages": lambda facts: fixes.set_up_host(
        facts, "Give the host a separate environment, or install without --user."
    ),
    "host.none": fixes.set_up_host,
}


def _dead(facts: Facts, death: StartFailure) -> Finding:
    """Return the finding for an interpreter that fails before any package of qnnbridge is loaded."""
    from qnnbridge._diagnosis.crash import CrashRecord, diagnose
    from qnnbridge._diagnosis.exit_codes import ExitStatus, Platform

    platform: Platform = "win32" if facts.is_windows else "posix"
    status = ExitStatus(death.exit_code, platform) if death.exit_code is not None else None
    said = [line for line in death.said.splitlines() if line.strip()][-3:]
    named = facts.host.source in _NAMED
    # Exit code 0 without a description means a different program, which ignores the arguments.
    if status is None or death.exit_code == 0:
        what = "is not a Python interpreter" if death.exit_code == 0 else "does not start"
        return finding(
            "host.does-not-start",
            f"the host's interpreter {facts.host.path} {what}",
            *said,
            fix=_fix_path(facts) if named else _REPAIR,
        )
    # Skip causes that a restart fixes: only hosts that have loaded QNN and a model can have them.
    causes = diagnose(CrashRecord(status, "starting", stderr_tail=death.said, ready=False))
    best = next((one for one in causes if not one.curable), None)
    return finding(
        "host.does-not-start",
        f"the host's interpreter {facts.host.path} ends at once",
        f"exit code {status.describe()}",
        *said,
        fix=Remedy((best.fix if best else "") or _REPAIR),
        notes=(best.cause if best else "The interpreter ends before it loads qnnbridge, onnxruntime or QNN.",),
    )


def _unfit(facts: Facts) -> Iterator[Finding]:
    """Yield findings about an interpreter that starts, but is unsuitable according to its description of itself."""
    answer, packages = facts.host.answer, facts.host.packages
    assert answer is not None
    machine = PLATFORMS.get(answer.platform)
    if machine is not None and machine != facts.computer.machine:
        yield finding(
            "host.wrong-machine",
            f"the host's interpreter is not an {facts.computer.machine} program",
            f"{answer.executable} reports the platform {answer.platform}",
            fix=_fix_path(facts),
        )
        # Skip findings about packages of an interpreter that cannot be the host.
        return
    if answer.minor < OLDEST_HOST_PYTHON:
        yield finding(
            "host.python-too-old",
            f"the host's interpreter is Python {answer.version}",
            f"{answer.executable}, named by: {facts.host.source}",
            fix=_fix_path(facts),
        )
        return
    missing = lacking(packages) if packages is not None else []
    if missing:
        # Report all missing packages in one finding, because a single command installs them.
        if packages is not None and packages.version(fixes.QNN) is None:
            missing += [fixes.QNN] if packages.runtime else ["onnxruntime", fixes.QNN]
        yield finding(
            "host.packages-missing",
            f"the host's interpreter lacks {', '.join(missing)}",
            f"{answer.executable} (Python {answer.version})",
            fix=_fix_modules(facts),
        )


def _fix_modules(facts: Facts) -> Remedy:
    """Return the fix for missing modules. pip also installs missing dependencies of an installed qnnbridge."""
    packages = facts.host.packages
    if packages is None or packages.version(fixes.QNN) is None:
        return fixes.host_packages(facts)
    words = "The missing packages are installed together with qnnbridge."
    return fixes.install_qnnbridge(facts, words)


def healthy(facts: Facts) -> str | None:
    """Describe the host's interpreter in one line."""
    answer = facts.host.answer
    if answer is None:
        return None
    text = f"Python {answer.version}, {answer.platform}, {facts.host.path} ({facts.host.source})"
    others = sum(1 for one in facts.interpreters if one.path != facts.host.path)
    return text + (f"; {others} more found" if others else "")


CHECK = SubjectCheck("host", find, healthy)
