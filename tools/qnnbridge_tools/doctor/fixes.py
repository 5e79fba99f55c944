"""The parts of fixes: command lines to copy, the version that fits this host, the commands that install it.

Pure functions of facts and version table. No fix names a release that the next examination would refuse: a
QNN newer than the system's, a wheel that does not exist for the interpreter, a chip that it does not know.

Each command is one line. On Windows it means the same in the Command Prompt and in PowerShell 5.1 and later:
no ``&&``, no program's name in quotes (PowerShell prints it), no empty argument (PowerShell drops it), double
quotes around what one of the two would interpret. Elsewhere it is for `sh`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from qnnbridge._launch import VARIABLE
from qnnbridge_protocol.installing import ON_INDEX, PACKAGE, Origin, requirement
from qnnbridge_tools.doctor.facts import Facts
from qnnbridge_tools.doctor.findings import Remedy
from qnnbridge_tools.versions.fitness import (
    NEWEST_ORT_TRIED,
    HostMachine,
    Reason,
    is_untried,
    known_faults,
    newest_fitting,
    ort_bounds,
    platform_of_release,
    read_platform,
    short_sdk,
)
from qnnbridge_tools.versions.fitness import fits as reasons_against

if TYPE_CHECKING:
    from qnnbridge_host.model.releases import Release

Lines = tuple[str, ...]

_PLAIN: Final = re.compile(r"[\w.:=/\\~+-]+")


def word(text: str) -> str:
    """An argument. Inside of double quotes ``<``, ``>`` and ``,`` are text for each of the shells."""
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def python_lines(facts: Facts, path: str, *arguments: str) -> Lines:
    """Runs the interpreter once with each of the arguments; they are written as they are."""
    tag = next((one.tag for one in facts.interpreters if one.path == path and one.tag), None)
    # By its tag, which has no spaces and no quotes; the py launcher looks up the path in the registry.
    if tag:
        return tuple(f"py -V:{tag} {text}" for text in arguments)
    if _PLAIN.fullmatch(path):
        return tuple(f"{path} {text}" for text in arguments)
    if not facts.is_windows:
        import shlex

        return tuple(f"{shlex.quote(path)} {text}" for text in arguments)
    # A path with spaces cannot be written as a command that both shells run; its folder can be gone to in both.
    folder, _, name = path.rpartition("\\")
    return (f'pushd "{folder}"', *(rf".\{name} {text}" for text in arguments), "popd")


def set_variable(facts: Facts, name: str, value: str) -> Lines:
    return (f"setx {name} {word(value)}",) if facts.is_windows else (f"export {name}={word(value)}",)


def unset_variable(facts: Facts, name: str) -> Lines:
    """``setx NAME ""`` would not do: PowerShell drops the empty text."""
    if facts.is_windows:
        return (f"powershell -Command \"[Environment]::SetEnvironmentVariable('{name}', '', 'User')\"",)
    return (f"unset {name}",)


QNN: Final = "onnxruntime-qnn"
# The name of an SDK that no variable names.
DEFAULT_FOLDER: Final = "default folder"
PLAIN_FOLDER: Final = r"C:\qnnbridge\host"
SETUP_HOST: Final = "qnnbridge setup"
# Each release since 1.21 has a wheel for it, on each platform.
USUAL_PYTHON: Final = (3, 13)
UPDATE_DRIVER: Final = "update the NPU driver"
DRIVER_UPDATES: Final = ("start ms-settings:windowsupdate-optionalupdates",)


# --- which version ---


def system_sdk(facts: Facts) -> tuple[str, str] | None:
    """The QNN version of this computer, and what says so: the driver's own runtime, else the SDK that a
    variable names. An SDK that only lies in its folder is not used."""
    if facts.driver.runtime:
        return facts.driver.runtime, f"NPU driver, HtpUsrDrv.dll in {facts.driver.folder}"
    for root in facts.sdks:
        if root.version and root.name != DEFAULT_FOLDER:
            return root.version, f"{root.name}, {root.folder}"
    return None


def host_machine(facts: Facts, python: tuple[int, int] | None = None) -> HostMachine | None:
    """The host as the version table looks at it; ``None`` for a machine type that no release is for.

    Args:
        python: Version of another interpreter than the host's, of the computer's own machine type.
    """
    from qnnbridge_protocol.errors import OptionError

    answer = facts.host.answer if python is None else None
    if answer is not None:
        named, python = answer.platform, answer.minor
    else:
        machine = facts.computer.machine
        named = f"win-{'arm64' if facts.is_arm else 'amd64'}" if facts.is_windows else f"linux-{machine}"
    try:
        platform = read_platform(named)
    except OptionError:
        return None
    # An interpreter of another machine type runs in an emulator that hides the computer from it.
    computer = facts.computer.machine if facts.is_windows else None
    system = system_sdk(facts)
    sdk = short_sdk(system[0]) if system else None
    return HostMachine(platform, computer, python, system_sdk=sdk, hexagon=facts.computer.arch)


def is_newer(sdk: str, than: str) -> bool:
    """False also where one of them is no version."""
    from qnnbridge_host.model.releases import sdk_is_newer

    try:
        return sdk_is_newer(sdk, short_sdk(than))
    except ValueError:
        return False


def fitting_version(facts: Facts, python: tuple[int, int] | None = None) -> str | None:
    """The newest onnxruntime-qnn for this host whose QNN is not newer than the system's. ``None`` also without a
    table."""
    machine = host_machine(facts, python)
    try:
        release = newest_fitting(machine) if machine is not None else None
    except (OSError, ValueError, LookupError, TypeError):
        # The table is a file of the installation and may be damaged as well. The fix then names no version.
        return None
    return release.version if release else None


def fits(facts: Facts, version: str) -> bool:
    """Whether this release can be used by this host. Of one that the table does not have nothing bad is known but
    what its own files say, if it is installed."""
    machine, release = host_machine(facts), release_of(facts, version)
    if machine is None or release is None:
        return True
    if is_unlisted(release, version):
        return not _is_newer_than_system(facts, version, machine)
    return all(reason.severity != "refused" for reason in reasons_against(release, machine))


def _is_newer_than_system(facts: Facts, version: str, machine: HostMachine) -> bool:
    packages = facts.host.packages
    bundled = packages.qnn_sdk if packages is not None and packages.version(QNN) == version else None
    if bundled is None or machine.system_sdk is None or not machine.has_npu:
        return False
    return is_newer(bundled, machine.system_sdk)


def release_of(facts: Facts, version: str) -> Release | None:
    """The release for this host's platform. Of one that the table does not have, the release that it follows; of
    one that is older than the table, the oldest; of a text that is not a version, the newest."""
    machine = host_machine(facts)
    try:
        from qnnbridge_host.model.releases import load_releases, version_key

        here = [one for one in load_releases() if machine and platform_of_release(one) == machine.platform]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    if not here:
        return None
    try:
        wanted = version_key(version)
    except ValueError:
        return here[0]
    return next((one for one in here if version_key(one.version) <= wanted), here[-1])


def is_unlisted(release: Release, version: str) -> bool:
    """Whether `release_of` gave another release than the version. A local version ("2.7.0+site") is none."""
    from qnnbridge_host.model.releases import standing

    return standing(version, (release.version,)) != "listed"


def known_reasons(facts: Facts) -> dict[str, Reason]:
    """Known faults of the installed onnxruntime and onnxruntime-qnn, by the table's codes."""
    packages, machine = facts.host.packages, host_machine(facts)
    version = packages.version(QNN) if packages else None
    release = release_of(facts, version) if version else None
    if packages is None or machine is None or version is None or release is None:
        return {}
    try:
        # A release that is newer than the table is judged by the rules for all.
        release = dataclasses.replace(release, version=version)
        # The version of the plain package says nothing about a release that is an onnxruntime of its own.
        ort = packages.version("onnxruntime") if not is_1x(version) else None
        return {reason.code: reason for reason in known_faults(release, dataclasses.replace(machine, ort=ort))}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def ort_requirement(facts: Facts, version: str, *, only_tried: bool = False) -> str:
    """The onnxruntime that goes with a 2.x release, as pip wants it.

    Args:
        only_tried: Exclude versions that were never tried.
    """
    release = release_of(facts, version)
    try:
        bounds = ort_bounds(dataclasses.replace(release, version=version)) if release else ""
    except ValueError:  # not a version as this package has them: pip knows its metadata
        bounds = ""
    # A bound of the metadata or of a known fault is narrower and stays.
    if only_tried and not bounds.startswith("==") and "<" not in bounds:
        bounds = f"{bounds},<={NEWEST_ORT_TRIED}".lstrip(",")
    return f"onnxruntime{bounds}"


def is_1x(version: str) -> bool:
    """Whether this onnxruntime-qnn is an onnxruntime of its own, as all before 2.0 are, and no plugin for one."""
    return version.startswith(("0.", "1."))


# --- unknown releases ---


def is_unknown_release(facts: Facts) -> bool:
    """Whether the version table does not have the host's onnxruntime-qnn: then that came later."""
    version = facts.host.packages.version(QNN) if facts.host.packages else None
    release = release_of(facts, version) if version else None
    return version is not None and release is not None and is_unlisted(release, version)


def unknown_packages(facts: Facts) -> dict[str, str]:
    """The host's onnxruntime and onnxruntime-qnn that the table and the tried versions do not cover, and their
    position beside the table ("newer than this table"). That speaks neither for nor against a computer."""
    from qnnbridge_host.model.releases import STANDING_WORDS, standing, standing_of

    packages = facts.host.packages
    version = packages.version(QNN) if packages else None
    if packages is None or version is None:
        return {}
    ort = packages.version("onnxruntime") if not is_1x(version) else None
    found = {}
    if ort is not None and is_untried(ort):
        found[f"onnxruntime {ort}"] = STANDING_WORDS[standing(ort, (NEWEST_ORT_TRIED,))]
    if is_unknown_release(facts):
        found[f"{QNN} {version}"] = STANDING_WORDS[standing_of(version)]
    return found


def unknown_text(unknown: Mapping[str, str]) -> str:
    """ "onnxruntime 1.40.0 is newer than this table and onnxruntime-qnn 2.6.7 is not in this table"."""
    return " and ".join(f"{name} is {words}" for name, words in unknown.items())


# --- commands ---


def pip(facts: Facts, *arguments: str, path: str | None = None) -> Lines:
    """Runs pip with each of the arguments, by the interpreter at this path. Default: the host's."""
    return python_lines(facts, path or facts.host.path, *(f"-m pip {text}" for text in arguments))


def by_pip(facts: Facts, argument: str, words: str = "") -> Remedy:
    """One call of the host's pip, where that is allowed to install."""
    return own_environment(facts) if is_managed(facts) else Remedy(words, pip(facts, argument))


def is_managed(facts: Facts, path: str | None = None) -> bool:
    """Whether pip refuses to install into the interpreter at this path, default the host's (PEP 668)."""
    path = path or facts.host.path
    answer = facts.host.answer if path == facts.host.path else None
    if answer is None and path == facts.application.executable:
        answer = facts.application
    return answer is not None and answer.externally_managed


def own_environment(facts: Facts) -> Remedy:
    """The fix where pip refuses to install."""
    return set_up_host(
        facts,
        "This Python belongs to the system, and pip must not install into it: make an environment for the host.",
    )


def install_version(
    facts: Facts, version: str | None, *, remove: str = "", words: str = "", only_tried: bool = False
) -> Remedy:
    """Installs one onnxruntime-qnn after removing what excludes it.

    A 1.x release and plain onnxruntime exclude each other, a 2.x release needs it.

    Args:
        version: ``None`` gives a remedy that says what would have to be different.
        remove: Other distributions to remove.
        only_tried: As `ort_requirement` has it.
    """
    # pip refuses an interpreter of the system (PEP 668): an environment is the way that it names itself.
    if version is None or is_managed(facts):
        return nothing_fits(facts) if version is None else own_environment(facts)
    others = f" {remove}" if remove else ""
    pair = _pair_words(facts, version, only_tried=only_tried)
    # Both go first: 1.x and plain onnxruntime write the same folder, and pip removes only what its record lists.
    return Remedy(words, pip(facts, f"uninstall -y onnxruntime{others} {QNN}", f"install {pair}"))


def install_known(facts: Facts, words: str) -> Remedy:
    """The newest fitting pair of the table that was tried."""
    return install_version(facts, fitting_version(facts), words=words, only_tried=True)


def install_fitting(facts: Facts, words: str = "") -> Remedy:
    return install_version(facts, fitting_version(facts), words=words)


def install_again(facts: Facts, name: str, version: str, flags: str = "--no-deps") -> Remedy:
    """The same version anew; what does not fit this host in any case is replaced by what does."""
    instead = fitting_instead(facts, version) if name == QNN else None
    return instead or by_pip(facts, f"install --force-reinstall {flags} {name}=={version}")


def fitting_instead(facts: Facts, version: str) -> Remedy | None:
    """The release that fits in place of this one, if that does not."""
    if fits(facts, version):
        return None
    return install_fitting(facts, f"{QNN} {version} does not fit this computer anyway; install the one that does.")


def reinstall(facts: Facts) -> Remedy:
    """Installs again what is there, the same versions."""
    packages = facts.host.packages
    version = packages.version(QNN) if packages else None
    return install_again(facts, QNN, version) if version else install_fitting(facts)


def after_removal(facts: Facts, folder: str | None, version: str | None) -> Remedy:
    """`install_version` for a folder with files that pip does not know."""
    if version is None or is_managed(facts):
        return nothing_fits(facts) if version is None else own_environment(facts)
    lines = [f"-m pip uninstall -y onnxruntime {QNN}"]
    if folder:
        # By Python: the shells have different commands for it. `True` passes over what is already gone.
        lines.append(f"-c \"import shutil; shutil.rmtree(r'{folder}', True)\"")
    lines.append(f"-m pip install {_pair_words(facts, version)}")
    return Remedy(commands=python_lines(facts, facts.host.path, *lines))


def _pair_words(facts: Facts, version: str, *, only_tried: bool = False) -> str:
    names = [f"{QNN}=={version}"]
    if not is_1x(version):
        names.insert(0, ort_requirement(facts, version, only_tried=only_tried))
    return " ".join(word(name) for name in names)


def install_qnnbridge(facts: Facts, words: str = "") -> Remedy:
    """Install the qnnbridge of the application's side into the host, from where that one came."""
    found = facts.application_packages.distribution(PACKAGE)
    origin = Origin(found.origin) if found is not None and found.origin else None
    if origin is None and not ON_INDEX:
        # No command could name the checkout; `setup` asks for it.
        return set_up_host(facts, words)
    return by_pip(facts, f"install {word(requirement('', facts.qnnbridge, origin))}", words)


def host_packages(facts: Facts, path: str | None = None) -> Remedy:
    """Everything that a host needs into one interpreter, with the release that fits it."""
    from qnnbridge_tools.versions.packages import Source, requirements

    version = fitting_version(facts, python_of(facts, path) if path else None)
    release = release_of(facts, version) if version else None
    if release is None:
        return nothing_fits(facts)
    if is_managed(facts, path):
        return own_environment(facts)
    found = facts.application_packages.distribution(PACKAGE)
    origin = found.origin if found is not None else ""
    if not origin and not ON_INDEX:
        return set_up_host(facts)
    names = " ".join(word(name) for name in requirements(release, Source(), origin=origin))
    return Remedy(commands=pip(facts, f"install {names}", path=path))


def python_of(facts: Facts, path: str) -> tuple[int, int] | None:
    """The version of an interpreter that was found."""
    version = next((one.version for one in facts.interpreters if one.path == path), None)
    parts = (version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


# --- a host of its own ---


def set_up_host(facts: Facts, words: str = "") -> Remedy:
    """An environment made by `setup`, which chooses interpreter and release by the same table; before that
    the Python for it, if none is here."""
    pythons = _pythons(facts)
    sentences = [words] if words else []
    if not any(fitting_version(facts, python) for python in pythons):
        # No Python helps here: the driver or the chip excludes every release.
        if facts.is_windows and facts.is_arm and fitting_version(facts, USUAL_PYTHON) is None:
            return nothing_fits(facts)
        if pythons and not words:
            system = system_sdk(facts)
            newest = "Python {}.{}".format(*max(pythons))
            sentences.append(
                f"No release of {QNN} fits {newest}{f' and QNN {short_sdk(system[0])}' if system else ''}."
            )
        sentences.append(_install_python(facts))
    base = _found_on_path(facts) if facts.host.refusal in ("host.none", "host.python-too-old") else None
    if base is not None:
        sentences.append(f"Make a host from {base}.")
    if facts.host.source == VARIABLE:
        sentences.append(f"{VARIABLE} has to go, because it would win over the new host.")
    return Remedy(" ".join(sentences), setup_lines(facts, python=base))


def _found_on_path(facts: Facts) -> str | None:
    """The newest Python of the PATH that a release fits. On Windows the registry knows better; a script that
    stands for some Python is passed over, as is what a command line would have to quote."""
    found = [
        (python, one.path)
        for one in facts.interpreters
        if not one.refusal and one.machine and (python := python_of(facts, one.path)) and word(one.path) == one.path
    ]
    fitting = [pair for pair in found if pair[0] >= (3, 11) and fitting_version(facts, pair[0])]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting and not facts.is_windows else None


def _install_python(facts: Facts) -> str:
    if not facts.is_windows or not facts.is_arm:
        return "Install Python 3.11 or newer, and with it make a host."
    return (
        'Install Python {}.{} with the "Windows installer (ARM64)" from https://www.python.org/downloads/windows/ '
        "and make a host of it.".format(*USUAL_PYTHON)
    )


def setup_lines(facts: Facts, *, plain_folder: bool = False, python: str | None = None) -> Lines:
    """``qnnbridge setup`` such that its result is also what is used afterwards."""
    line = SETUP_HOST + (f" --python {python}" if python else "")
    system = system_sdk(facts)
    # `setup` asks the driver alone: without the option it does not know the version of an SDK, by which this
    # fix chose.
    if system is not None and not facts.driver.runtime and facts.is_arm:
        line += f" --system-sdk {short_sdk(system[0])}"
    # The default folder of `setup` is in the user's profile, where `user_site` is as well.
    if facts.is_windows and (plain_folder or not facts.application.user_site.isascii()):
        line += f" --dir {PLAIN_FOLDER}"
    # Without it `setup` refuses to change an interpreter that the file names already.
    if facts.host.source == "configuration file":
        line += " --replace"
    # A variable would win over the configuration that `setup` writes.
    return (line, *unset_variable(facts, VARIABLE)) if facts.host.source == VARIABLE else (line,)


def nothing_fits(facts: Facts) -> Remedy:
    """Says which Python or driver would make a release fit."""
    machine = host_machine(facts)
    from qnnbridge_tools.versions.view import advice

    said = advice(machine) if machine is not None else ""
    words = f"No release of {QNN} fits this host as it is."
    if fitting_version(facts, USUAL_PYTHON) is not None:
        return set_up_host(facts, f"{words} {said}".strip())
    if not facts.is_windows or not facts.is_arm:
        return Remedy(f"{words} {said}".strip(), ("qnnbridge versions",))
    said = f"{said} So {UPDATE_DRIVER}: here, or from the computer's maker.".strip()
    return Remedy(f"{words} {said}", DRIVER_UPDATES)


def _pythons(facts: Facts) -> set[tuple[int, int]]:
    """Versions of the interpreters that an environment for the host can be made of."""
    usable = ("", "host.packages-missing")
    # A script such as pyenv's only stands for a Python, which may not be there.
    found = {python_of(facts, one.path) for one in facts.interpreters if one.refusal in usable and one.machine}
    answer = facts.host.answer
    # On Windows on Arm only an ARM64 Python can run the host.
    if answer is not None and (answer.platform == "win-arm64" or not (facts.is_windows and facts.is_arm)):
        found.add(answer.minor)
    return {python for python in found if python is not None and python >= (3, 11)}
