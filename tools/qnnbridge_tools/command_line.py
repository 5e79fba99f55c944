"""Build a command from a function that takes records of options: the fields of the records are the parameters.

A record is a frozen dataclass. Its fields have `typer.Option` or `typer.Argument` as their annotation, or are
records themselves. The type of a field determines its form on the command line: a literal is a choice, a tuple is
an option that can be repeated, and `Read` contains the function that converts the given text.

`--config FILE` reads options from a TOML file, under the same names. The command line has priority over the file.
One file can serve several commands: keys outside of tables apply to all commands, a table such as `[compile]` only
to this command. Relative paths are relative to the file. No large module is imported at the top, because every
command line loads this module.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import importlib
import inspect
import math
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.shown import closest
from qnnbridge_tools import reporting

WORDS: Final[Any] = tuple[str, ...]
# Metadata of a field that is not an option and always has its default.
APART: Final[Mapping[str, bool]] = {"apart": True}
# Largest values of numeric options that declare no limit: messages to the host contain integers of 64 bits, and
# operating systems limit timeouts.
MOST: Final[Mapping[Any, float]] = {int: 10**12, float: 1e9}


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """Conversion of a command line string to the value of a field.

    Args:
        value: the function that creates the value.
        given: type to which typer converts the string, or a record whose options replace this option.
        default: default on the command line; needed if the field's default does not have the type `given`.
    """

    value: Callable[[Any], Any]
    given: Any = WORDS
    default: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Command line parameters of a field, and the function that converts their values to the field's value."""

    parameters: tuple[inspect.Parameter, ...]
    value: Callable[[Mapping[str, Any]], Any]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command that calls a function.

    `reporting.work` handles the command's errors. If `as_json` is an option and set, errors are printed as JSON.
    """
    # `eval_str`: the command modules import annotations from __future__, so the annotations are strings.
    own = inspect.signature(function, eval_str=True)
    parts = {name: _part(name, one.annotation, one.default) for name, one in own.parameters.items()}
    parameters = [one for part in parts.values() for one in part.parameters]
    defaults = {one.name: one.default for one in parameters}
    options = {text for one in parameters for text in names_of(one)}

    @functools.wraps(function)
    def made(**values: Any) -> None:
        # If the command is called as a function (`host` without a subcommand calls `status`), use the defaults that
        # typer would set.
        given = {**defaults, **values}
        with reporting.work(as_json=bool(given.get("as_json")), options=options):
            function(**{name: part.value(given) for name, part in parts.items()})

    # typer reads the signature and the annotations, so the two must declare the same types.
    made.__annotations__ = {one.name: one.annotation for one in parameters}
    made.__dict__["__signature__"] = inspect.Signature(parameters)
    return made


def names_of(parameter: inspect.Parameter) -> Iterable[str]:
    """Return the names of a parameter's option on the command line."""
    for note in getattr(parameter.annotation, "__metadata__", ()):
        # In `Annotated`, typer stores the first name as the default.
        names = [text for text in (note.default, *(note.param_decls or ())) if isinstance(text, str)]
        yield from names or (f"--{parameter.name.replace('_', '-')}",)


def _part(name: str, hint: Any, default: Any) -> _Part:
    notes: list[Any] = []
    if typing.get_origin(hint) is Annotated:
        hint, *notes = typing.get_args(hint)
    read = next((note for note in notes if isinstance(note, Read)), None)
    record = hint if read is None else read.given
    if dataclasses.is_dataclass(record):
        return _of_record(record, read)
    if read is not None:
        notes.remove(read)
        hint = read.given
        default = () if read.given is WORDS else read.default if read.default is not None else default
    hint, written, default = _written(hint, default)
    notes = [_limited(hint, note) for note in notes]
    # `Annotated[hint, *notes]` is a syntax error before Python 3.11.
    annotation = operator.getitem(Annotated, (hint, *notes)) if notes else hint
    # Use keyword-only parameters, because a required one may follow a parameter with a default.
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    if read is None:
        return _Part((parameter,), lambda given: written(given[name]))
    return _Part((parameter,), lambda given: read.value(written(given[name])))


def _limited(hint: Any, note: Any) -> Any:
    """Return the declaration of an option. If its type is a number, it refuses NaN and numbers out of range."""
    kind = next((kind for kind in MOST if hint is kind or kind in typing.get_args(hint)), None)
    if kind is None:
        return note
    kept: Any = copy.copy(typer.main.get_click_type(annotation=kind, parameter_info=note))
    least = note.min if note.min is not None else -MOST[kind]
    most = note.max if note.max is not None else MOST[kind]
    form = "a whole number" if kind is int else "a number"

    def convert(value: Any, parameter: Any, context: Any) -> Any:
        try:
            number = kind(value)
        except ValueError:  # also raised for more digits than `int` converts
            number = math.nan
        # The comparison is false for NaN.
        if not least <= number <= most:
            kept.fail(f"{value!r:.40} is not {form} from {least:,.15g} to {most:,.15g}.", parameter, context)
        return number

    # Keep the type of typer, which shows the declared limits in the help.
    kept.convert = convert
    limited = copy.copy(note)
    limited.click_type = kept
    return limited


def _of_record(record: Any, read: Read | None) -> _Part:
    hints = typing.get_type_hints(record, include_extras=True)
    parts = {}
    for field in dataclasses.fields(record):
        if not field.metadata.get("apart"):
            needed = field.default is field.default_factory  # neither default is set: both are MISSING
            default = None if field.default is dataclasses.MISSING else field.default
            parts[field.name] = _part(field.name, hints[field.name], inspect.Parameter.empty if needed else default)

    def value(given: Mapping[str, Any]) -> Any:
        made = record(**{name: part.value(given) for name, part in parts.items()})
        return made if read is None else read.value(made)

    return _Part(tuple(one for part in parts.values() for one in part.parameters), value)


def _written(hint: Any, default: Any) -> tuple[Any, Callable[[Any], Any], Any]:
    """Return (type for typer, function that converts a value of this type to the field's value, default)."""
    inner = hint
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(inner) is tuple:
        element, value, _ = _written(typing.get_args(inner)[0], None)
        absent = default if default is inspect.Parameter.empty else None
        several = types.GenericAlias(list, (element,)) | None
        # click sets an empty list or None for an absent option; the record then gets its default.
        return several, lambda given: tuple(map(value, given)) if given else default, absent
    if typing.get_origin(inner) is Literal:
        words = typing.get_args(inner)
        # typer builds choices from an Enum; the record gets the plain text.
        choice: Any = enum.Enum("Choice", [(word, word) for word in words], type=str)  # type: ignore[misc]
        form = choice if inner is hint else choice | None
        return (
            form,
            lambda one: None if one is None else one.value,
            choice(default) if default in words else default,
        )
    return hint, lambda one: one, default


def command_again(context: typer.Context, *more: str) -> str:
    """Return the running command as it was given, with more options.

    more: additional arguments. If an option is already given, it is repeated, and the last value counts.
    """
    from qnnbridge_protocol.shell import shell_word

    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        # Compare the name of the source, because newer versions of typer contain a copy of click.
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        options: list[str] = [] if parameter.param_type_name == "argument" else parameter.opts[-1:]
        if isinstance(value, bool):
            words += options if value else parameter.secondary_opts[-1:]
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [*options, str(getattr(one, "value", one))]
    words += [word for word in more if word != "--overwrite" or word not in words]
    return " ".join(map(shell_word, ["qnnbridge", str(context.command.name), *words]))


# --- `--config FILE` ------------------------------------------------------------------------------------

# The commands that have the option --config; a key outside of tables may belong to any of them.
COMMANDS = ("prepare", "quantize", "compile")
# Key in the click context for the contents of the config file, where `table_of` reads the tables of other commands.
_META = "qnnbridge.config"
_NOT_IN_FILES = ("config", "help", "json")


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Set the file's values as the defaults of all other options. This is the callback of `--config`."""
    # Shell completion parses incomplete command lines, and must not read files.
    if path is not None and not context.resilient_parsing:
        with reporting.work():
            document = _read(path)
            context.meta[_META] = (path, document)
            # click uses the value of the command line, or else of the environment, of `default_map`, or the
            # option's default.
            context.default_map = {**(context.default_map or {}), **_defaults(context, document, path)}
    return path


def table_of(context: typer.Context, command: str) -> tuple[dict[str, Any], Path]:
    """Return the table of another command (empty without a config file), and the folder of the file."""
    path, document = context.meta.get(_META, (Path("."), {}))
    table = document.get(command, {})
    return (dict(table) if isinstance(table, Mapping) else {}), path.absolute().parent


def _read(path: Path) -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8-sig")))
    except (FileNotFoundError, NotADirectoryError):
        from qnnbridge_os.missing import why_missing

        fix = "Give the path of a TOML file: --config FILE."
        raise OptionError(f"There is no file {path}.", **why_missing(path, fix)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read.", cause=str(error)) from None
    except (ValueError, RecursionError) as error:  # invalid TOML, a number of 5000 digits, or deeply nested lists
        raise OptionError(
            f"{path} is not a TOML file.", cause=str(error), fix='Write lines such as: activation-type = "uint8".'
        ) from None


def _defaults(context: typer.Context, document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the defaults by parameter name. Raises `OptionError` for unknown keys and values of a wrong type."""
    known = _keys(context.command.params)
    name = str(context.command.name)
    found: dict[str, Any] = {}
    own = document.get(name)
    for key, value in document.items():
        if key in COMMANDS and isinstance(value, Mapping):
            continue
        if key in known:
            found |= _value(known[key], key, value, path)
        elif key not in _keys_of_others(context):
            raise _unknown(key, [*known, *_keys_of_others(context)], path)
    # Read the command's own table after the general keys, so that the table has priority.
    for key, value in own.items() if isinstance(own, Mapping) else ():
        if key not in known:
            raise _unknown(key, known, path)
        found |= _value(known[key], key, value, path)
    return found


def _keys(parameters: Iterable[Any]) -> dict[str, tuple[Any, bool]]:
    """Return the parameter for each key, and whether the key is the negative form of a switch."""
    keys: dict[str, tuple[Any, bool]] = {}
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            # The argument `MODEL...` of a command that takes several models has the key `model`.
            keys[str(parameter.metavar or parameter.name).lower().rstrip(".")] = (parameter, False)
            continue
        for negative, texts in ((False, parameter.opts), (True, parameter.secondary_opts)):
            keys |= {text[2:]: (parameter, negative) for text in texts if text.startswith("--")}
    return {key: one for key, one in keys.items() if key not in _NOT_IN_FILES}


def _keys_of_others(context: typer.Context) -> list[str]:
    commands = getattr(context.parent.command, "commands", {}) if context.parent is not None else {}
    return [key for name in COMMANDS if name in commands for key in _keys(commands[name].params)]


def _value(known: tuple[Any, bool], key: str, value: Any, path: Path) -> dict[str, Any]:
    parameter, negative = known
    # A switch takes true or false, other options a value: "yes" for a switch is an error.
    if isinstance(value, bool) != bool(getattr(parameter, "is_flag", False)):
        raise _wrong(key, value, path, "true or false" if not isinstance(value, bool) else "a value, not a switch")
    if isinstance(value, bool):
        return {parameter.name: value != negative}
    several = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
    texts = _texts(key, value, path)
    if not several and len(texts) != 1:
        raise _wrong(key, value, path, "one value")
    if _is_path(parameter):
        # Join strings, because `Path` would drop a slash at the end, which marks the output as a folder.
        texts = [os.path.join(path.absolute().parent, text) for text in texts]
    return {parameter.name: texts if several else texts[0]}


def _texts(key: str, value: Any, path: Path) -> list[str]:
    """Return the value as it is written on the command line: `{seq = [16, 32]}` is `seq=16,32`."""
    if isinstance(value, Mapping):
        return [f"{name}={','.join(_texts(key, one, path))}" for name, one in value.items()]
    if isinstance(value, list):
        return [text for one in value for text in _texts(key, one, path)]
    # Refuse a bool within a list or a table: a bool is an int in Python, and would become the text "True".
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(key, value, path, "text, a number, a list or a table of these")
    return [str(value)]


def _is_path(parameter: Any) -> bool:
    return getattr(parameter.type, "name", "") in ("path", "file", "directory") or parameter.name == "output"


def _unknown(key: str, known: Iterable[str], path: Path) -> Exception:
    names = sorted(set(known))
    near = closest(key, names)
    return OptionError(
        f'{path}: there is no option "{key}".',
        cause=f"The keys are the options without the two dashes: {', '.join(names)}.",
        fix=f'Did you mean "{near}"?' if near else "Remove the key.",
    )


def _wrong(key: str, value: object, path: Path, wanted: str) -> Exception:
    return OptionError(
        f'{path}: "{key}" is {value!r:.60}; it must be {wanted}.', fix="Read the --help of the command."
    )
