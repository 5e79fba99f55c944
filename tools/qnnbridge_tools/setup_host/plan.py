"""Plan a set-up: choose interpreter, release, folder, commands and configuration.

The plan uses the newest release that works, with the newest Python that this release supports. This module writes
no files and does not use the network. It raises the errors that can be foreseen.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge._launch import VARIABLE, Surroundings, configuration_file, configured_host
from qnnbridge_host.engine.sources import QnnSource
from qnnbridge_host.engine.sources import choose as choose_source
from qnnbridge_host.machine import CATALOGUE_DISTRIBUTION, Installed
from qnnbridge_host.model.releases import (
    STANDING_WORDS,
    Release,
    for_version,
    generated_on,
    is_final,
    load_releases,
    standing_of,
    version_key,
)
from qnnbridge_protocol.errors import HostNotFound, OptionError
from qnnbridge_protocol.settings import ENGINE_VARIABLE, EP_PATH_VARIABLE, checked_engine, engine_variables
from qnnbridge_tools.doctor.machine import parsed_toml
from qnnbridge_tools.options import SetupOptions
from qnnbridge_tools.setup_host.bring_python import BROUGHT_BYTES, BroughtPython, python_to_bring
from qnnbridge_tools.setup_host.environment import (
    NEEDED_BYTES,
    AlreadyThere,
    NothingFits,
    SetupFailed,
    check_file,
    check_folder,
    check_free,
    failed,
    is_taken,
    python_in,
)
from qnnbridge_tools.setup_host.this_machine import (
    BaseCandidate,
    NpuTraits,
    PythonTraits,
    ask,
    candidates,
    install_text,
    program_on_path,
)
from qnnbridge_tools.versions.fitness import HostMachine, Judgement, best_of, judge, read_platform, short_sdk
from qnnbridge_tools.versions.packages import Source, find_source, requirements, requirements_without_qnn
from qnnbridge_tools.versions.view import advice

if TYPE_CHECKING:
    from qnnbridge_protocol.settings import EngineName

SHOWN_REASONS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class HostChoice:
    candidate: BaseCandidate
    judgement: Judgement
    machine: HostMachine

    @property
    def release(self) -> Release:
        return self.judgement.release


def machine_with(candidate: BaseCandidate, facts: NpuTraits, surroundings: Surroundings) -> HostMachine:
    return HostMachine(
        platform=read_platform(candidate.answer.platform),
        computer=surroundings.computer,
        python=candidate.answer.minor,
        system_sdk=facts.system_sdk,
        hexagon=facts.hexagon,
        glibc=candidate.answer.glibc,
    )


def choose(
    found: Sequence[BaseCandidate],
    version: str | None,
    facts: NpuTraits,
    surroundings: Surroundings,
    looked_at: Sequence[str],
    *,
    force: bool,
) -> HostChoice:
    """Choose an interpreter and a release for it.

    Raises:
        HostNotFound: there is no interpreter.
        NothingFits: no release works with any of the interpreters.
    """
    if version is not None:
        _check_known(version)
    if not found:
        raise _no_interpreter(surroundings, looked_at)
    choices = [
        HostChoice(candidate, judgement, machine)
        for candidate in found
        for machine in [machine_with(candidate, facts, surroundings)]
        for judgement in _judged(machine, version)
    ]
    # A release with warnings is usable; only the verdict "refused" excludes it.
    usable = [one for one in choices if one.judgement.verdict != "refused"]
    if not usable and force and version is not None:
        # pip cannot install a release without a wheel.
        usable = [one for one in choices if _has_wheel(one)]
    if usable:
        # For equal releases keep the order of the candidates, which starts with the newest Python.
        return max(usable, key=lambda one: (is_final(one.release.version), version_key(one.release.version)))
    raise _nothing(choices, version, machine_with(found[0], facts, surroundings))


def _judged(machine: HostMachine, version: str | None) -> list[Judgement]:
    judged = judge(machine)
    if version is not None:
        return [one for one in judged if version_key(one.release.version) == version_key(version)]
    # Without a usable release return the refused releases, whose reasons are shown in the error.
    best = best_of(judged)
    return [best] if best else judged


def _has_wheel(choice: HostChoice) -> bool:
    return choice.release.wheel_for(choice.candidate.answer.minor) is not None


def _check_known(version: str) -> None:
    try:
        known = for_version(version)
    except ValueError:
        known = ()
    if not known:
        known_text = ", ".join(dict.fromkeys(release.version for release in load_releases()))
        later = (
            "If your version is newer, update qnnbridge. Or set up a host with a listed version, install your "
            "version into the host's environment with pip, and run qnnbridge doctor."
        )
        words = STANDING_WORDS[standing_of(version)]
        raise OptionError(
            f"The version table of {generated_on()} does not contain onnxruntime-qnn {version}: it is {words}.",
            fix=f"Give one of {known_text}. {later}",
        )


def _nothing(choices: Sequence[HostChoice], version: str | None, machine: HostMachine) -> NothingFits:
    reasons = [
        f"{one.candidate.text}: {one.release.name} {one.judgement.reasons[0].text}"
        for one in choices
        if one.judgement.reasons
    ]
    if version is not None:
        leave_out = "Omit --version to get the release that fits."
        if not choices:
            return NothingFits(f"There is no onnxruntime-qnn {version} for {machine.platform}.", fix=leave_out)
        fixes = [one.judgement.reasons[0].fix for one in choices if one.judgement.reasons]
        how = next((fix for fix in fixes if fix), leave_out)
        can_be_forced = any(_has_wheel(one) for one in choices)
        return NothingFits(
            f"onnxruntime-qnn {version} does not work on this computer.",
            fix=how + (" To install it anyway: --force." if can_be_forced else ""),
            evidence=reasons[:SHOWN_REASONS],
        )
    return NothingFits(
        "No release of onnxruntime-qnn works on this computer.",
        fix=advice(machine) or "`qnnbridge versions` shows why for each release.",
        evidence=reasons[:SHOWN_REASONS],
    )


# The header of a table, optionally followed by a comment.
_TABLE = re.compile(r"^\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")


def with_host(text: str, settings: Mapping[str, str | None]) -> str | None:
    """Return the configuration file's text with these settings under ``[host]``; ``None`` if other settings would
    change.

    A value ``None`` removes the setting.
    """
    result = text
    # Edit the file line by line, because a TOML writer would drop comments. `_only_that_changed` parses both texts
    # to ensure that nothing else changed.
    for name, value in reversed([*settings.items()]):  # a new setting becomes the first of the table
        result = _with_setting(result, name, value)
    return result if _only_that_changed(text, result, settings) else None


def _with_setting(text: str, name: str, value: str | None) -> str:
    new = [] if value is None else [f"{name} = {toml_string(value)}"]
    is_it = re.compile(rf"^\s*(?:{name}|\"{name}\"|'{name}')\s*=").match
    line_end = "\r\n" if "\r\n" in text else "\n"
    # Remove the last line end, because `join` adds it again.
    lines = text.removesuffix(line_end).split(line_end) if text else []
    start = next((index for index, line in enumerate(lines) if _table_name(line) == "host"), None)
    if start is None:
        if not new:
            return text
        made = [*lines, *([""] if lines else []), "[host]", *new]
    else:
        end = next((index for index in range(start + 1, len(lines)) if _table_name(lines[index]) is not None), None)
        table = lines[start + 1 : end]
        old = next((index for index, line in enumerate(table) if is_it(line)), None)
        table[slice(0, 0) if old is None else slice(old, old + 1)] = new
        made = [*lines[: start + 1], *table, *(lines[end:] if end is not None else [])]
    return line_end.join(made) + line_end


def toml_string(text: str) -> str:
    """Return a TOML string, in single quotes if possible, because backslashes need no escape there."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    # TOML has an escape with eight digits for any character, but only in double quotes.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _table_name(line: str) -> str | None:
    """Return the name of the table that begins in a line; "" for a table in double brackets, which is never
    [host].
    """
    found = _TABLE.match(line)
    return found[1].strip("\"'") if found else ("" if line.lstrip().startswith("[[") else None)


def _only_that_changed(old: str, new: str, settings: Mapping[str, str | None]) -> bool:
    try:
        before, after = parsed_toml(old), parsed_toml(new)
    except ValueError:
        return False
    host = before.setdefault("host", {})
    if not isinstance(host, dict):
        return False
    for name, value in settings.items():
        host.pop(name, None)
        if value is not None:
            host[name] = value
    return before == after


# --prefer-binary prefers an older wheel to a newer source archive, which would need a compiler.
PIP_FLAGS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--prefer-binary")


@dataclasses.dataclass(frozen=True, slots=True)
class SetupPlan:
    """Decisions made for a set-up.

    Args:
        choice: chosen release, for the engine "wheel".
        provider: provider in a folder, for the engine "folder".
        brought: Python that this or an earlier set-up downloads; ``None`` to use an installed one.
        passed_over: why the installed interpreters cannot be the host.
        commands: commands in order, after the download of Python.
        config: file whose table [host] gets `host_settings`; ``None`` to change no file.
        config_text: new text of the file, unless another program changes it first.
    """

    engine: EngineName
    candidate: BaseCandidate
    machine: HostMachine
    choice: HostChoice | None
    provider: QnnSource | None
    source: Source
    folder: Path
    brought: BroughtPython | None
    passed_over: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    config: Path | None
    config_text: str
    host_settings: Mapping[str, str | None]
    replaces_environment: bool
    replaced_setting: str | None
    warnings: tuple[str, ...]

    @property
    def python(self) -> Path:
        """Path of the host's interpreter, which exists after the set-up."""
        return python_in(self.folder)

    @property
    def package(self) -> str:
        """Source of QNN, as shown in messages."""
        if self.choice is not None:
            sdk = self.choice.release.qnn_sdk
            return self.choice.release.name + (f" with QNN {short_sdk(sdk)}" if sdk else "")
        if self.provider is not None:
            return self.provider.words
        return f"the catalogue of Windows ({CATALOGUE_DISTRIBUTION})"

    @property
    def all_commands(self) -> tuple[tuple[str, ...], ...]:
        """All commands of the plan, which a user can also run by hand."""
        return (*(self.brought.commands if self.brought is not None else ()), *self.commands)

    @property
    def download(self) -> tuple[str, ...] | None:
        """The command that has Windows download its provider; ``None`` with another engine."""
        if self.engine != "windowsml":
            return None
        return (str(self.python), "-m", "qnnbridge_host.windows_ml", "download")

    @property
    def variables(self) -> dict[str, str]:
        """Variables that select the engine, for a host that is started before the configuration contains it."""
        if self.engine == "wheel":
            return engine_variables("auto", None)  # "wheel" is for plugins only, and releases 1.x are not plugins
        return engine_variables(self.engine, self.provider.library if self.provider else None)


def default_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("qnnbridge", appauthor=False)) / "host"


def make_plan(
    options: SetupOptions,
    facts: NpuTraits,
    surroundings: Surroundings,
    asker: Callable[[str], PythonTraits | str] = ask,
    find_program: Callable[[str], str | None] = program_on_path,
) -> SetupPlan:
    """Plan a set-up. Raise the errors of `environment`, `HostNotFound` and `OptionError`."""
    provider = _checked_source(options, surroundings)
    engine: EngineName = "folder" if provider is not None else options.engine
    folder = (options.folder or default_folder()).expanduser().absolute()
    _check_path(folder, surroundings)
    check_free(folder, replace=options.replace)
    check_folder(folder)
    source = find_source(options.source)
    config, text, settings, old = _configuration(options, engine, surroundings, python_in(folder))
    # Search for interpreters after all quick checks: each one is started, which may take up to `ASK_TIMEOUT_S`.
    looked_at: list[str] = []
    found = candidates(surroundings, options.python, looked_at, asker)
    brought = None
    if not found:
        brought = python_to_bring(surroundings, folder, source, asker, find_program)
        found = [brought.candidate] if brought is not None else []
        check_folder(folder, NEEDED_BYTES + (BROUGHT_BYTES if brought is not None and brought.commands else 0))
    if engine == "wheel":
        choice = choose(found, options.version, facts, surroundings, looked_at, force=options.force)
        candidate, words = choice.candidate, requirements(choice.release, source)
    else:
        if not found:
            raise _no_interpreter(surroundings, looked_at)
        choice, candidate = None, found[0]
        release = provider.release if provider is not None else None
        words = requirements_without_qnn(source, release, catalogue=engine == "windowsml")
    python = str(python_in(folder))
    install = (python, "-m", "pip", "install", *PIP_FLAGS, *source.index_words, *words)
    plan = SetupPlan(
        engine=engine,
        candidate=candidate,
        machine=machine_with(candidate, facts, surroundings),
        choice=choice,
        provider=provider,
        source=source,
        folder=folder,
        brought=brought,
        passed_over=tuple(looked_at),
        commands=((candidate.path, "-m", "venv", str(folder)), install),
        config=config,
        config_text=text,
        host_settings=settings,
        replaces_environment=is_taken(folder),
        replaced_setting=old,
        warnings=tuple(_warnings(options, surroundings)),
    )
    if options.download and plan.download is not None:
        return dataclasses.replace(plan, commands=(*plan.commands, plan.download))
    return plan


def _checked_source(options: SetupOptions, surroundings: Surroundings) -> QnnSource | None:
    """Return the provider of --ep-path; ``None`` without it. Raise `OptionError`, `ProviderUnavailable`."""
    # A path selects the engine "folder". The default "wheel" does not contradict it.
    named = "" if options.engine == "wheel" and options.ep_path is not None else options.engine
    # `checked_engine` refuses an unknown engine, and a path that does not fit the engine.
    engine, path = checked_engine(named, None if options.ep_path is None else str(options.ep_path))
    if engine != "wheel" and (options.version is not None or options.force):
        raise OptionError(
            f"--version and --force are for onnxruntime-qnn, which the engine {engine!r} does not use.",
            fix="Omit them, or use --engine wheel.",
        )
    if options.download and engine != "windowsml":
        raise OptionError(
            f"--download has no meaning with the engine {engine!r}.", fix="Use it with --engine windowsml."
        )
    if engine == "windowsml" and not surroundings.is_windows:
        raise OptionError(
            "Only Windows has a catalogue of execution providers.",
            fix="Use --engine wheel (onnxruntime-qnn), or --ep-path with the folder of a provider.",
        )
    if path is None:
        return None
    # Pass no installed packages, because the new environment does not exist yet.
    return choose_source(Installed({}), {EP_PATH_VARIABLE: os.path.abspath(os.path.expanduser(path))})


def _no_interpreter(surroundings: Surroundings, looked_at: Sequence[str]) -> HostNotFound:
    return HostNotFound(
        "No Python interpreter was found that could be the host.",
        fix=install_text(surroundings),
        evidence=list(looked_at),
    )


def _check_path(folder: Path, surroundings: Surroundings) -> None:
    """Raise `OptionError` for a path that is not ASCII: QNN opens files by names in the system's code page."""
    if surroundings.is_windows and not str(folder).isascii():
        raise OptionError(
            f"The path of the folder {folder} has characters outside of ASCII, so QNN cannot open files there.",
            fix=r"Choose another folder, such as --dir C:\qnnbridge\host",
        )


def _configuration(
    options: SetupOptions, engine: EngineName, surroundings: Surroundings, python: Path
) -> tuple[Path | None, str, Mapping[str, str | None], str | None]:
    """Return (configuration file to write, its new text, its new [host] settings, the configured interpreter)."""
    if not options.write_config:
        return None, "", {}, None
    file = configuration_file(surroundings.environ)
    old = configured_host(file)
    # On Windows compare paths case-insensitively.
    is_other = old is not None and os.path.normcase(old) != os.path.normcase(str(python))
    if is_other and not options.replace:
        raise AlreadyThere(
            f"The configuration file {file} already contains another host: {old}.",
            fix="Replace the setting with --replace, or leave the configuration alone with --no-config.",
        )
    before = read_config(file)
    others = _engine_settings(options, engine, before)
    settings = {"python": str(python), **{name: value for name, (_, value) in others.items()}}
    text = with_host(before, settings)
    for name, (there, _) in others.items():
        if there is not None and not options.replace:
            raise AlreadyThere(
                f"The configuration file {file} selects another source of QNN: {name} = {there!r} under [host].",
                fix="Replace the setting with --replace, or leave the configuration alone with --no-config.",
            )
    if text is None:
        raise cannot_extend(file, str(python))
    check_file(file)
    return file, text, settings, old if is_other else None


def cannot_extend(file: Path, python: str) -> SetupFailed:
    return failed(
        "configuration",
        f"The configuration file {file} is written in a way that this command cannot extend.",
        fix=f"Put the host into the file by hand, under [host]: python = {toml_string(python)}; and give "
        "--no-config.",
    )


def read_config(file: Path) -> str:
    """Return the text of the configuration file with its line ends, or "" if it does not exist."""
    return file.read_bytes().decode("utf-8") if file.exists() else ""


def _engine_settings(
    options: SetupOptions, engine: EngineName, before: str
) -> dict[str, tuple[str | None, str | None]]:
    """Return the settings under ``[host]`` that select the engine and change: (old, new) value by name."""
    try:
        host = parsed_toml(before).get("host")
    except ValueError:  # `with_host` raises the error of an invalid file
        return {}
    old = (
        {name: str(host[name]) for name in ("engine", "ep_path") if name in host} if isinstance(host, dict) else {}
    )
    new: dict[str, str | None] = {"engine": engine, "ep_path": None}
    if engine == "folder":
        new["ep_path"] = os.path.abspath(os.path.expanduser(str(options.ep_path)))
    elif engine == "wheel" and old.get("engine") in (None, "auto", "wheel"):
        new["engine"] = old.get("engine")  # keep the old setting: None, "auto" and "wheel" all select the wheel
    return {name: (old.get(name), new[name]) for name in new if old.get(name) != new[name]}


def _warnings(options: SetupOptions, surroundings: Surroundings) -> list[str]:
    if not options.write_config:
        return []
    named = ((name, surroundings.environ.get(name)) for name in (VARIABLE, ENGINE_VARIABLE, EP_PATH_VARIABLE))
    return [
        f"The environment variable {name} is set to {value}, which overrides the configuration file."
        for name, value in named
        if value
    ]
