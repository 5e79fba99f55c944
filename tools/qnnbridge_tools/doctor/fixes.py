"""Texts and commands of fixes: command lines to copy, the release that fits this host, and commands to install it.

Pure functions of the facts and the version table. A fix never suggests a release that the next examination would
refuse, that is one with a newer QNN than the system's, without a wheel for the interpreter, or without support for
the chip.

Each command is one line. On Windows it works in the Command Prompt and in PowerShell 5.1 and later, which excludes
``&&``, quotes around the program (PowerShell would print it) and empty arguments (PowerShell drops them), and
requires double quotes around characters that one of the shells would interpret. On other systems the commands are
for `sh`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from qnnbridge._launch import VARIABLE
from qnnbridge_protocol.installing import ON_INDEX, PACKAGE, Origin, requirement
from qnnbridge_protocol.version_numbers import numbers_of
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
    """Return an argument for a command line, in double quotes if necessary.

    Inside double quotes, ``<``, ``>`` and ``,`` are plain text in all shells.
    """
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def python_lines(facts: Facts, path: str, *arguments: str) -> Lines:
    """Return commands that run the interpreter once with each of the arguments. The arguments are not quoted."""
    tag = next((one.tag for one in facts.interpreters if one.path == path and one.tag), None)
    # Prefer the py launcher, which finds the path in the registry: unlike a path, a tag never needs quotes.
    if tag:
        return tuple(f"py -V:{tag} {text}" for text in arguments)
    if _PLAIN.fullmatch(path):
        return tuple(f"{path} {text}" for text in arguments)
    if not facts.is_windows:
        import shlex

        return tuple(f"{shlex.quote(path)} {text}" for text in arguments)
    # Change to the program's folder, whose path may contain spaces: a command that begins with a quoted program
    # works in Command Prompt or in PowerShell, but not in both.
    folder, _, name = path.rpartition("\\")
    return (f'pushd "{folder}"', *(rf".\{name} {text}" for text in arguments), "popd")


def set_variable(facts: Facts, name: str, value: str) -> Lines:
    """Return the command that sets an environment variable."""
    return (f"setx {name} {word(value)}",) if facts.is_windows else (f"export {name}={word(value)}",)


def unset_variable(facts: Facts, name: str) -> Lines:
    """Return the command that removes an environment variable.

    ``setx NAME ""`` does not work, because PowerShell drops the empty argument.
    """
    if facts.is_windows:
        return (f"powershell -Command \"[Environment]::SetEnvironmentVariable('{name}', '', 'User')\"",)
    return (f"unset {name}",)


QNN: Final = "onnxruntime-qnn"
# Name in the report of an SDK in Qualcomm's default folder; other SDKs have the name of a variable.
DEFAULT_FOLDER: Final = "default folder"
PLAIN_FOLDER: Final = r"C:\qnnbridge\host"
SETUP_HOST: Final = "qnnbridge setup"
# Every release since 1.21 has wheels for this Python version on each platform.
USUAL_PYTHON: Final = (3, 13)
UPDATE_DRIVER: Final = "update the NPU driver"
DRIVER_UPDATES: Final = ("start ms-settings:windowsupdate-optionalupdates",)


# --- which version ---


def system_sdk(facts: Facts) -> tuple[str, str] | None:
    """Return (QNN version of this computer, its origin): from the driver, or else from an SDK.

    An SDK in the default folder is ignored unless a variable refers to it.
    """
    if facts.driver.runtime:
        return facts.driver.runtime, f"NPU driver, HtpUsrDrv.dll in {facts.driver.folder}"
    for root in facts.sdks:
        if root.version and root.name != DEFAULT_FOLDER:
            return root.version, f"{root.name}, {root.folder}"
    return None


def host_machine(facts: Facts, python: tuple[int, int] | None = None) -> HostMachine | None:
    """Return the host's properties used by the version table; ``None`` for a machine type without any release.

    Args:
        facts: the facts.
        python: version of a different interpreter to assume, with the computer's native machine type.
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
    # Pass the computer's own machine type, which an emulated interpreter does not see.
    computer = facts.computer.machine if facts.is_windows else None
    system = system_sdk(facts)
    sdk = short_sdk(system[0]) if system else None
    return HostMachine(platform, computer, python, system_sdk=sdk, hexagon=facts.computer.arch)


def is_newer(sdk: str, than: str) -> bool:
    """Return whether a QNN version is newer than another; False if one of the strings is not a version."""
    from qnnbridge_host.model.releases import sdk_is_newer

    try:
        return sdk_is_newer(sdk, short_sdk(than))
    except ValueError:
        return False


def fitting_version(facts: Facts, python: tuple[int, int] | None = None) -> str | None:
    """Return the newest onnxruntime-qnn for this host whose QNN is not newer than the system's.

    The result is ``None`` without such a release, or without a readable version table.
    """
    machine = host_machine(facts, python)
    try:
        release = newest_fitting(machine) if machine is not None else None
    except (OSError, ValueError, LookupError, TypeError):
        # The version table is unreadable: suggest the package without a version.
        return None
    return release.version if release else None


def fits(facts: Facts, version: str) -> bool:
    """Return whether this host can use a release.

    A release that is missing in the table fits, unless it is installed and its QNN is newer than the system's.
    """
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
    """Return the release of a version for this host's platform.

    For a version missing in the table, return the previous release; for one older than the table, the oldest; for a
    string that is not a version, the newest.
    """
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
    """Return whether `release_of` returned a different release. A local version ("2.7.0+site") counts as the listed
    release.
    """
    from qnnbridge_host.model.releases import standing

    return standing(version, (release.version,)) != "listed"


def known_reasons(facts: Facts) -> dict[str, Reason]:
    """Return the known faults of the installed onnxruntime and onnxruntime-qnn, by the version table's codes."""
    packages, machine = facts.host.packages, host_machine(facts)
    version = packages.version(QNN) if packages else None
    release = release_of(facts, version) if version else None
    if packages is None or machine is None or version is None or release is None:
        return {}
    try:
        # Known faults apply to version ranges, so look them up even if the table does not contain the version.
        release = dataclasses.replace(release, version=version)
        # A 1.x release is a complete onnxruntime, so the version of plain onnxruntime does not matter.
        ort = packages.version("onnxruntime") if not is_1x(version) else None
        return {reason.code: reason for reason in known_faults(release, dataclasses.replace(machine, ort=ort))}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def ort_requirement(facts: Facts, version: str, *, only_tried: bool = False) -> str:
    """Return pip's requirement for the onnxruntime of a 2.x release.

    Args:
        facts: the facts.
        version: the release of onnxruntime-qnn.
        only_tried: whether to exclude versions that were never tried.
    """
    release = release_of(facts, version)
    try:
        bounds = ort_bounds(dataclasses.replace(release, version=version)) if release else ""
    except ValueError:  # the version cannot be parsed: let pip use the package's metadata
        bounds = ""
    # Add the newest tested version as the upper bound, unless the metadata or a known fault sets a bound.
    if only_tried and not bounds.startswith("==") and "<" not in bounds:
        bounds = f"{bounds},<={NEWEST_ORT_TRIED}".lstrip(",")
    return f"onnxruntime{bounds}"


def is_1x(version: str) -> bool:
    """Return whether an onnxruntime-qnn is a complete onnxruntime (before 2.0) instead of a plugin."""
    return version.startswith(("0.", "1."))


# --- unknown releases ---


def is_unknown_release(facts: Facts) -> bool:
    """Return whether the host's onnxruntime-qnn is not in the version table."""
    version = facts.host.packages.version(QNN) if facts.host.packages else None
    release = release_of(facts, version) if version else None
    return version is not None and release is not None and is_unlisted(release, version)


def unknown_packages(facts: Facts) -> dict[str, str]:
    """Return the host's onnxruntime and onnxruntime-qnn if they are not in the table or were not tried.

    The values describe the position relative to the table ("newer than this table"). An unknown package may or may
    not work.
    """
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
    """Return text such as "onnxruntime 1.40.0 is newer than this table and onnxruntime-qnn 2.6.7 is not in ..."."""
    return " and ".join(f"{name} is {words}" for name, words in unknown.items())


# --- commands ---


def pip(facts: Facts, *arguments: str, path: str | None = None) -> Lines:
    """Return commands that run pip with each of the arguments. path: the interpreter; default: the host's."""
    return python_lines(facts, path or facts.host.path, *(f"-m pip {text}" for text in arguments))


def by_pip(facts: Facts, argument: str, words: str = "") -> Remedy:
    """Return a fix that runs one pip command in the host, or creates an environment if pip refuses to install."""
    return own_environment(facts) if is_managed(facts) else Remedy(words, pip(facts, argument))


def is_managed(facts: Facts, path: str | None = None) -> bool:
    """Return whether pip refuses to install into an interpreter (PEP 668). path: by default the host's."""
    path = path or facts.host.path
    answer = facts.host.answer if path == facts.host.path else None
    if answer is None and path == facts.application.executable:
        answer = facts.application
    return answer is not None and answer.externally_managed


def own_environment(facts: Facts) -> Remedy:
    """Return the fix that creates an environment for the host because pip refuses to install."""
    return set_up_host(
        facts,
        "This Python belongs to the system, and pip must not install into it. Create an environment for the host.",
    )


def install_version(
    facts: Facts, version: str | None, *, remove: str = "", words: str = "", only_tried: bool = False
) -> Remedy:
    """Return the fix that installs one onnxruntime-qnn after removing incompatible packages.

    A 1.x release must not be combined with plain onnxruntime; a 2.x release needs it.

    Args:
        facts: the facts.
        version: the release; ``None`` returns a fix that describes what to change so that a release fits.
        remove: other distributions to remove.
        words: text of the fix.
        only_tried: see `ort_requirement`.
    """
    # pip refuses the system's interpreter (PEP 668), so recommend an environment, as pip itself does.
    if version is None or is_managed(facts):
        return nothing_fits(facts) if version is None else own_environment(facts)
    others = f" {remove}" if remove else ""
    pair = _pair_words(facts, version, only_tried=only_tried)
    # Uninstall 1.x and plain onnxruntime first: they share a folder, and pip removes only recorded files.
    return Remedy(words, pip(facts, f"uninstall -y onnxruntime{others} {QNN}", f"install {pair}"))


def install_known(facts: Facts, words: str) -> Remedy:
    """Return the fix that installs the newest fitting release and a tested version of onnxruntime."""
    return install_version(facts, fitting_version(facts), words=words, only_tried=True)


def install_fitting(facts: Facts, words: str = "") -> Remedy:
    """Return the fix that installs the newest fitting release."""
    return install_version(facts, fitting_version(facts), words=words)


def install_again(facts: Facts, name: str, version: str, flags: str = "--no-deps") -> Remedy:
    """Return the fix that reinstalls a version, or one that installs a fitting release if the version does not
    fit.
    """
    instead = fitting_instead(facts, version) if name == QNN else None
    return instead or by_pip(facts, f"install --force-reinstall {flags} {name}=={version}")


def fitting_instead(facts: Facts, version: str) -> Remedy | None:
    """Return the fix that installs a fitting release if the given one does not fit; else ``None``."""
    if fits(facts, version):
        return None
    return install_fitting(facts, f"{QNN} {version} does not run on this computer; install the release that does.")


def reinstall(facts: Facts) -> Remedy:
    """Return the fix that reinstalls the installed onnxruntime-qnn."""
    packages = facts.host.packages
    version = packages.version(QNN) if packages else None
    return install_again(facts, QNN, version) if version else install_fitting(facts)


def after_removal(facts: Facts, folder: str | None, version: str | None) -> Remedy:
    """Return the fix that deletes a folder whose files pip has not recorded, and then installs a version."""
    if version is None or is_managed(facts):
        return nothing_fits(facts) if version is None else own_environment(facts)
    lines = [f"-m pip uninstall -y onnxruntime {QNN}"]
    if folder:
        # Use Python to delete the folder, because the shells' commands differ. `True` ignores files that are
        # already missing.
        lines.append(f"-c \"import shutil; shutil.rmtree(r'{folder}', True)\"")
    lines.append(f"-m pip install {_pair_words(facts, version)}")
    return Remedy(commands=python_lines(facts, facts.host.path, *lines))


def _pair_words(facts: Facts, version: str, *, only_tried: bool = False) -> str:
    names = [f"{QNN}=={version}"]
    if not is_1x(version):
        names.insert(0, ort_requirement(facts, version, only_tried=only_tried))
    return " ".join(word(name) for name in names)


def install_qnnbridge(facts: Facts, words: str = "") -> Remedy:
    """Return the fix that installs the application's version of qnnbridge into the host, from the application's
    origin.
    """
    found = facts.application_packages.distribution(PACKAGE)
    origin = Origin(found.origin) if found is not None and found.origin else None
    if origin is None and not ON_INDEX:
        # The path of the application's qnnbridge checkout is unknown; `setup` asks for it.
        return set_up_host(facts, words)
    return by_pip(facts, f"install {word(requirement('', facts.qnnbridge, origin))}", words)


def host_packages(facts: Facts, path: str | None = None) -> Remedy:
    """Return the fix that installs a host's packages, with the fitting release. path: by default the host's."""
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
    """Return (major, minor) version of an interpreter that was found."""
    numbers = numbers_of(next((one.version for one in facts.interpreters if one.path == path), None))
    return (numbers[0], numbers[1]) if numbers else None


# --- a separate environment for the host ---


def set_up_host(facts: Facts, words: str = "") -> Remedy:
    """Return the fix that creates an environment with `qnnbridge setup`, which uses the same version table.

    If no suitable Python is installed, the fix begins with installing one.
    """
    pythons = _pythons(facts)
    sentences = [words] if words else []
    if not any(fitting_version(facts, python) for python in pythons):
        # Suggest no other Python: the driver or the chip excludes every release even with the usual Python.
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
        sentences.append(f"Create a host from {base}.")
    if facts.host.source == VARIABLE:
        sentences.append(f"{VARIABLE} must be removed, because it would take precedence over the new host.")
    return Remedy(" ".join(sentences), setup_lines(facts, python=base))


def _found_on_path(facts: Facts) -> str | None:
    """Return the newest Python on the PATH for which a release fits; ``None`` on Windows, which uses the registry.

    Scripts that start a different Python, and paths that need quotes, are skipped.
    """
    found = [
        (python, one.path)
        for one in facts.interpreters
        if not one.refusal and one.machine and (python := python_of(facts, one.path)) and word(one.path) == one.path
    ]
    fitting = [pair for pair in found if pair[0] >= (3, 11) and fitting_version(facts, pair[0])]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting and not facts.is_windows else None


def _install_python(facts: Facts) -> str:
    if not facts.is_windows or not facts.is_arm:
        return "Install Python 3.11 or newer, and create a host with it."
    return (
        'Install Python {}.{} with the "Windows installer (ARM64)" from https://www.python.org/downloads/windows/ '
        "and create a host with it.".format(*USUAL_PYTHON)
    )


def setup_lines(facts: Facts, *, plain_folder: bool = False, python: str | None = None) -> Lines:
    """Return a ``qnnbridge setup`` command, and commands that make sessions use the new host.

    Args:
        facts: the facts.
        plain_folder: whether to use a short folder with an ASCII path.
        python: interpreter for the environment; default: the choice of `setup`.
    """
    line = SETUP_HOST + (f" --python {python}" if python else "")
    system = system_sdk(facts)
    # `setup` queries only the driver. If the QNN version is that of an SDK, pass it with --system-sdk.
    if system is not None and not facts.driver.runtime and facts.is_arm:
        line += f" --system-sdk {short_sdk(system[0])}"
    # `user_site` and the default folder of `setup` are in the user's profile, whose path may have non-ASCII
    # characters.
    if facts.is_windows and (plain_folder or not facts.application.user_site.isascii()):
        line += f" --dir {PLAIN_FOLDER}"
    # Without this option `setup` refuses to replace an interpreter in the configuration file.
    if facts.host.source == "configuration file":
        line += " --replace"
    # Remove the variable, which would override the configuration that `setup` writes.
    return (line, *unset_variable(facts, VARIABLE)) if facts.host.source == VARIABLE else (line,)


def nothing_fits(facts: Facts) -> Remedy:
    """Return a fix that describes which Python or driver would allow a release to fit."""
    machine = host_machine(facts)
    from qnnbridge_tools.versions.view import advice

    said = advice(machine) if machine is not None else ""
    words = f"No release of {QNN} fits this host."
    if fitting_version(facts, USUAL_PYTHON) is not None:
        return set_up_host(facts, f"{words} {said}".strip())
    if not facts.is_windows or not facts.is_arm:
        return Remedy(f"{words} {said}".strip(), ("qnnbridge versions",))
    said = f"{said} To {UPDATE_DRIVER}, use Windows Update or the computer maker's support page.".strip()
    return Remedy(f"{words} {said}", DRIVER_UPDATES)


def _pythons(facts: Facts) -> set[tuple[int, int]]:
    """Return the versions of the interpreters that can create an environment for the host."""
    usable = ("", "host.packages-missing")
    # Exclude scripts such as pyenv's, which may start a Python that does not exist.
    found = {python_of(facts, one.path) for one in facts.interpreters if one.refusal in usable and one.machine}
    answer = facts.host.answer
    # On Windows on Arm, only an ARM64 Python can run the host.
    if answer is not None and (answer.platform == "win-arm64" or not (facts.is_windows and facts.is_arm)):
        found.add(answer.minor)
    return {python for python in found if python is not None and python >= (3, 11)}
