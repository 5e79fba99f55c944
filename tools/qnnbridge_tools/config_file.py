"""`--config FILE`: options of a command out of a TOML file, under the same names.

The command line goes before the file. One file serves several commands: keys outside of tables are for all of them,
a table `[compile]` is for that command only. Relative paths are relative to the file. Only typer is imported at the
top, because every command line that has the option loads this module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from qnnbridge_tools import reporting

# The commands that have the option; a key outside of tables may belong to any of them.
COMMANDS = ("prepare", "quantize", "compile")
# In the context of the command: what its file says, for tables of other commands.
_META = "qnnbridge.config"
_NOT_IN_FILES = ("config", "help", "json")


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of the option: the file's values become the defaults of all other options."""
    # Completion in a shell parses half a command line, and must not read files.
    if path is not None and not context.resilient_parsing:
        with reporting.work():
            document = _read(path)
            context.meta[_META] = (path, document)
            context.default_map = {**(context.default_map or {}), **_defaults(context, document, path)}
    return path


def table_of(context: typer.Context, command: str) -> tuple[dict[str, Any], Path]:
    """The table of another command, and the folder of the file; empty without a file."""
    path, document = context.meta.get(_META, (Path("."), {}))
    table = document.get(command, {})
    return (dict(table) if isinstance(table, Mapping) else {}), path.absolute().parent


def _read(path: Path) -> dict[str, Any]:
    from qnnbridge_protocol.errors import OptionError

    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return dict(toml.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise OptionError(f"There is no file {path}.", fix="Give the path of a TOML file: --config FILE.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} cannot be read.", cause=str(error)) from None
    except (ValueError, RecursionError) as error:  # no TOML; a number of 5000 digits; lists in lists in lists
        raise OptionError(
            f"{path} is no TOML file.", cause=str(error), fix='Write lines like: activation-type = "uint8".'
        ) from None


def _defaults(context: typer.Context, document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """By name of parameter. Raises `OptionError` for keys that no command knows, and values of another kind."""
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
    # After the general keys, so that the command's own table wins.
    for key, value in own.items() if isinstance(own, Mapping) else ():
        if key not in known:
            raise _unknown(key, known, path)
        found |= _value(known[key], key, value, path)
    return found


def _keys(parameters: Iterable[Any]) -> dict[str, tuple[Any, bool]]:
    """Key -> parameter, and whether it is the negative form of a switch."""
    keys: dict[str, tuple[Any, bool]] = {}
    for parameter in parameters:
        if parameter.param_type_name == "argument":
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
    # A switch takes true or false, everything else a value: "yes" for a switch is a typing error.
    if isinstance(value, bool) != bool(getattr(parameter, "is_flag", False)):
        raise _wrong(key, value, path, "true or false" if not isinstance(value, bool) else "a value, not a switch")
    if isinstance(value, bool):
        return {parameter.name: value != negative}
    several = bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
    texts = _texts(key, value, path)
    if not several and len(texts) != 1:
        raise _wrong(key, value, path, "one value")
    if _is_path(parameter):
        # Not as a Path: a slash at the end says that the output is a folder.
        texts = [os.path.join(path.absolute().parent, text) for text in texts]
    return {parameter.name: texts if several else texts[0]}


def _texts(key: str, value: Any, path: Path) -> list[str]:
    """As they stand on the command line: `{seq = [16, 32]}` is `seq=16,32`."""
    if isinstance(value, Mapping):
        return [f"{name}={','.join(_texts(key, one, path))}" for name, one in value.items()]
    if isinstance(value, list):
        return [text for one in value for text in _texts(key, one, path)]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(key, value, path, "text, a number, a list or a table of these")
    return [str(value)]


def _is_path(parameter: Any) -> bool:
    return getattr(parameter.type, "name", "") in ("path", "file", "directory") or parameter.name == "output"


def _unknown(key: str, known: Iterable[str], path: Path) -> Exception:
    import difflib

    from qnnbridge_protocol.errors import OptionError

    names = sorted(set(known))
    near = difflib.get_close_matches(key, names, 1)
    return OptionError(
        f'{path}: there is no option "{key}".',
        cause=f"Its keys are the options without the two dashes: {', '.join(names)}.",
        fix=f'Did you mean "{near[0]}"?' if near else "Remove the key.",
    )


def _wrong(key: str, value: object, path: Path, wanted: str) -> Exception:
    from qnnbridge_protocol.errors import OptionError

    return OptionError(f'{path}: "{key}" is {value!r:.60}; it wants {wanted}.', fix="See --help of the command.")
