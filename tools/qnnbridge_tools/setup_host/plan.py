"""What a set-up is going to do: the interpreter, the release, the folder, the commands, the configuration.

Everything here only decides; nothing is written and no network is asked. What would fail later for a reason that
can be seen now fails here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from qnnbridge._launch.installed import Surroundings
from qnnbridge._launch.interpreter import VARIABLE, configuration_file, configured_host
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.setup_host.asking import Answer, ask
from qnnbridge_tools.setup_host.choice import Choice, Facts, choose
from qnnbridge_tools.setup_host.config_text import with_host
from qnnbridge_tools.setup_host.environment import check_free, is_taken, python_in
from qnnbridge_tools.setup_host.failures import AlreadyThere, failed
from qnnbridge_tools.setup_host.interpreters import candidates
from qnnbridge_tools.setup_host.places import check_file, check_folder
from qnnbridge_tools.setup_host.requirements import Source, find_source, requirements

PIP_FLAGS = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--prefer-binary")


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What was asked for; ``None`` where nothing was."""

    python: str | None = None
    version: str | None = None
    folder: Path | None = None
    source: Path | None = None
    facts: Facts = dataclasses.field(default_factory=Facts)
    replace: bool = False
    force: bool = False
    write_config: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """commands: what is run, in order. config: the file that gets `config_text`; ``None``: it is not touched."""

    choice: Choice
    source: Source
    folder: Path
    commands: tuple[tuple[str, ...], ...]
    config: Path | None
    config_text: str
    replaces_environment: bool
    replaced_setting: str | None
    warnings: tuple[str, ...]

    @property
    def python(self) -> Path:
        """The host's interpreter, once it is there."""
        return python_in(self.folder)


def default_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("qnnbridge", appauthor=False)) / "host"


def make_plan(options: Options, surroundings: Surroundings, asker: Callable[[str], Answer | str] = ask) -> Plan:
    """Raises the errors of `failures`, `HostNotFound` and `OptionError`."""
    folder = (options.folder or default_folder()).expanduser().absolute()
    _check_path(folder, surroundings)
    check_free(folder, replace=options.replace)
    check_folder(folder)
    source = find_source(options.source)
    config, text, old = _configuration(options, surroundings, python_in(folder))
    looked_at: list[str] = []
    found = candidates(surroundings, options.python, looked_at, asker)
    choice = choose(found, options.version, options.facts, surroundings, looked_at, force=options.force)
    python = str(python_in(folder))
    install = (python, "-m", "pip", "install", *PIP_FLAGS, *requirements(choice.release, source))
    return Plan(
        choice=choice,
        source=source,
        folder=folder,
        commands=((choice.candidate.path, "-m", "venv", str(folder)), install),
        config=config,
        config_text=text,
        replaces_environment=is_taken(folder),
        replaced_setting=old,
        warnings=tuple(_warnings(options, surroundings)),
    )


def _check_path(folder: Path, surroundings: Surroundings) -> None:
    """QNN opens its files by names in the system's code page."""
    if surroundings.is_windows and not str(folder).isascii():
        raise OptionError(
            f"The folder {folder} has letters outside of ASCII in its path, where QNN does not find its files.",
            fix=r"Choose another one, such as --dir C:\qnnbridge\host",
        )


def _configuration(
    options: Options, surroundings: Surroundings, python: Path
) -> tuple[Path | None, str, str | None]:
    """The file to write, its text, and the interpreter that it named before."""
    if not options.write_config:
        return None, "", None
    file = configuration_file(surroundings.environ)
    old = configured_host(file)
    is_other = old is not None and os.path.normcase(old) != os.path.normcase(str(python))
    if is_other and not options.replace:
        raise AlreadyThere(
            f"The configuration file {file} names another host already: {old}.",
            fix="Replace it with --replace, or leave the configuration alone with --no-config.",
        )
    before = file.read_bytes().decode("utf-8") if file.exists() else ""  # with the line ends that it has
    text = with_host(before, str(python))
    if text is None:
        raise failed(
            "configuration",
            f"The configuration file {file} is written in a way that this command cannot extend.",
            cause=None,
            fix=f"Put the host into it by hand, under [host]: python = '{python}'; and give --no-config.",
            evidence=(),
        )
    check_file(file)
    return file, text, old if is_other else None


def _warnings(options: Options, surroundings: Surroundings) -> list[str]:
    named = surroundings.environ.get(VARIABLE)
    if named and options.write_config:
        return [f"The environment variable {VARIABLE} names {named}, and wins over the configuration file."]
    return []
