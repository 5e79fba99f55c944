"""Is there an interpreter that can be the host, does it start, and has it what it needs?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from qnnbridge_tools.doctor import advice
from qnnbridge_tools.doctor.catalogue import finding
from qnnbridge_tools.doctor.checks import Check
from qnnbridge_tools.doctor.facts import Death, Facts
from qnnbridge_tools.doctor.findings import Finding

OLDEST: Final = (3, 11)
NEEDED: Final = ("qnnbridge_host", "qnnbridge_protocol", "msgpack", "numpy")
"""Modules; onnxruntime has findings of its own."""

_PLATFORMS: Final = {"win32": "x86", "win-amd64": "x64", "win-arm64": "ARM64"}
_NAMED: Final = ("--host-python", "QNNBRIDGE_HOST_PYTHON", "configuration file")
_REPAIR: Final = "Repair or reinstall this Python, or name another one with QNNBRIDGE_HOST_PYTHON."
MAX_SEEN: Final = 8
MAX_OTHERS: Final = 4


def find(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    if host.refusal:
        yield _refused(facts)
    elif host.death is not None:
        yield _dead(facts, host.death)
    elif host.answer is not None:
        yield from _unfit(facts)
    else:
        yield finding(
            "host.none", "no interpreter was found that could run the host", *host.looked_at, fix=_install(facts)
        )


def _refused(facts: Facts) -> Finding:
    host = facts.host
    path = host.path or host.source
    titles: dict[str, str] = {
        "host.config-broken": f"the configuration file {host.source} cannot be used",
        "host.file-missing": f"the host's interpreter {path} is not there",
        "host.store-alias": f"{path} is an alias of the Microsoft Store and not an interpreter",
        "host.base-missing": f"the virtual environment of {path} has lost its Python",
        "host.wrong-machine": f"the host's interpreter is not an {facts.computer.machine} program",
        "host.only-emulated": "the only Pythons with onnxruntime-qnn are emulated ones",
        "host.python-too-old": "the host's interpreter is older than Python 3.11"
        if host.source in _NAMED
        else f"the only {facts.computer.machine} Python is older than 3.11",
        "host.packages-missing": "the interpreter that could be the host lacks its packages",
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
    """What else was found, with the reason against it."""
    others = [
        one for one in facts.interpreters if one.path != facts.host.path and not _was_looked_at(facts, one.path)
    ]
    seen = [f"also found: {one.path}: {one.said or 'could be the host, if it has the packages'}" for one in others]
    return [*seen[:MAX_OTHERS], f"and {len(seen) - MAX_OTHERS} more"] if len(seen) > MAX_OTHERS else seen


def _was_looked_at(facts: Facts, path: str) -> bool:
    return any(path in line for line in facts.host.looked_at)


def _install(facts: Facts) -> str:
    """How to get a host here."""
    if facts.is_windows and facts.is_arm:
        return _fix_packages(facts) if _native(facts) else advice.INSTALL_ARM64
    return 'Run with Python 3.11 or newer: python -m pip install "qnnbridge[host]"'


def _native(facts: Facts) -> str | None:
    """An ARM64 Python of the registry that is new enough."""
    for one in facts.interpreters:
        if one.real_machine == "ARM64" and one.tag and one.refusal in ("", "host.packages-missing"):
            return one.path
    return None


def _fix_packages(facts: Facts) -> str:
    path = _native(facts) if facts.is_windows and facts.is_arm else facts.host.path
    return advice.pip(facts, 'install "qnnbridge[host]"', path or facts.host.path)


def _fix_path(facts: Facts) -> str:
    # Of one that was merely found on the PATH nobody knows what it has installed.
    known = [one for one in facts.interpreters if one.tag or "running" in one.sources]
    usable = next((one for one in known if not one.refusal and one.path != facts.host.path), None)
    if usable is not None:
        return _name_it(facts, usable.path)
    return _install(facts)


def _name_it(facts: Facts, path: str) -> str:
    """Sets what named the wrong one."""
    if facts.host.source == "--host-python":
        return f'qnnbridge doctor --host-python "{path}"'
    if facts.host.source == "QNNBRIDGE_HOST_PYTHON":
        return (
            f'setx QNNBRIDGE_HOST_PYTHON "{path}"' if facts.is_windows else f'export QNNBRIDGE_HOST_PYTHON="{path}"'
        )
    return f"Name it in the configuration file: [host] python = '{path}'"


def _fix_user(facts: Facts) -> str:
    return advice.pip(facts, 'install --ignore-installed "qnnbridge[host]"') + "   (not with --user)"


_FIXES: Final[dict[str, Callable[[Facts], str]]] = {
    "host.config-broken": lambda facts: (
        f"Correct or remove {facts.host.source}. In TOML write paths in single "
        r"quotes: python = 'C:\Python313-arm64\python.exe'"
    ),
    "host.file-missing": _fix_path,
    "host.store-alias": _fix_path,
    "host.base-missing": lambda facts: (
        f"Make it again: py -V:3.13-arm64 -m venv --clear {facts.host.path.rpartition('Scripts')[0] or 'ENV'}"
        if facts.is_windows
        else f"python3 -m venv --clear {facts.host.path.rpartition('bin/')[0]}"
    ),
    "host.wrong-machine": _fix_path,
    "host.only-emulated": _install,
    "host.python-too-old": lambda facts: (
        _fix_path(facts)
        if facts.host.source in _NAMED
        else advice.INSTALL_ARM64
        if facts.is_windows and facts.is_arm
        else _install(facts)
    ),
    "host.packages-missing": _fix_packages,
    "host.user-packages": _fix_user,
    "host.none": _install,
}


def _dead(facts: Facts, death: Death) -> Finding:
    """The interpreter itself does not come up: no package of ours is involved yet."""
    from qnnbridge.diagnosis.crash import CrashRecord, diagnose
    from qnnbridge.diagnosis.exit_status import ExitStatus, Platform

    platform: Platform = "win32" if facts.is_windows else "posix"
    status = ExitStatus(death.exit_code, platform) if death.exit_code is not None else None
    said = [line for line in death.said.splitlines() if line.strip()][-3:]
    named = facts.host.source in _NAMED
    if status is None or death.exit_code == 0:
        what = "is no Python interpreter" if death.exit_code == 0 else "does not start"
        return finding(
            "host.does-not-start",
            f"the host's interpreter {facts.host.path} {what}",
            *said,
            fix=_fix_path(facts) if named else _REPAIR,
        )
    best = diagnose(CrashRecord(status, "starting", stderr_tail=death.said, ready=False))[0]
    return finding(
        "host.does-not-start",
        f"the host's interpreter {facts.host.path} ends at once",
        f"exit code {status.describe()}",
        *said,
        fix=best.fix or _REPAIR,
        notes=(best.cause,),
    )


def _unfit(facts: Facts) -> Iterator[Finding]:
    """What only the interpreter itself could tell."""
    answer, packages = facts.host.answer, facts.host.packages
    assert answer is not None
    machine = _PLATFORMS.get(answer.platform)
    if machine is not None and machine != facts.computer.machine:
        yield finding(
            "host.wrong-machine",
            f"the host's interpreter is not an {facts.computer.machine} program",
            f"{answer.executable} says that it is {answer.platform}",
            fix=_fix_path(facts),
        )
        return
    if answer.minor < OLDEST:
        yield finding(
            "host.python-too-old",
            f"the host's interpreter is Python {answer.version}",
            f"{answer.executable}, named by: {facts.host.source}",
            fix=_fix_path(facts),
        )
        return
    missing = [name for name in NEEDED if packages is not None and name not in packages.modules]
    if missing:
        yield finding(
            "host.packages-missing",
            f"the host's interpreter lacks {', '.join(missing)}",
            f"{answer.executable} (Python {answer.version})",
            fix=advice.pip(facts, 'install "qnnbridge[host]"'),
        )


def healthy(facts: Facts) -> str | None:
    answer = facts.host.answer
    if answer is None:
        return None
    text = f"Python {answer.version}, {answer.platform}, {facts.host.path} ({facts.host.source})"
    others = sum(1 for one in facts.interpreters if one.path != facts.host.path)
    return text + (f"; {others} more found" if others else "")


CHECK = Check("host", find, healthy)
