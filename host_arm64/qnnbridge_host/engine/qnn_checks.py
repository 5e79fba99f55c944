"""Checks options for QNN against the table in `qnn_options`, before ONNX Runtime sees them.

Every refusal is an `OptionError` that names the option, its fault and the correct form. Values
may come as text, bool or int; they leave as text. Pure functions but for looking whether a file exists; any thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from qnnbridge_host.engine import soc
from qnnbridge_host.engine.config_keys import ALLOW_UNKNOWN_ENV, CONTEXT_ENABLE, names_are_checked
from qnnbridge_host.engine.qnn_options import (
    BACKEND_LIBRARIES,
    DYNAMIC_OPTIONS,
    PROVIDER_OPTIONS,
    RUN_OPTIONS,
    WRONG_NAMES,
    Option,
)
from qnnbridge_protocol.errors import OptionError

_MIN_BF16_SOC = 88
_WORDS_FOR_SWITCH = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


def provider_options(
    options: Mapping[str, Any],
    config: Mapping[str, str],
    *,
    library_folder: str | None = None,
    version: tuple[int, ...] = (),
) -> dict[str, str]:
    """The options as text, with names of libraries made into paths and names of chips into numbers.

    config: the session's configuration entries, which some options need.
    library_folder: where the QNN libraries are; a library without a folder is looked for there.
    version: of onnxruntime-qnn; ``()`` if unknown.
    """
    checked = {}
    for name, value in options.items():
        option = _known(name, PROVIDER_OPTIONS, "QNN provider option", version)
        checked[str(name)] = _text(value) if option is None else _checked(option, value, library_folder)
    _refuse_contradictions(checked, config, library_folder)
    return checked


def run_options(entries: Mapping[str, Any], version: tuple[int, ...] = ()) -> dict[str, str]:
    """The ``qnn.*`` entries of RunOptions, as text. All entries given must be of that kind."""
    return _simple(entries, RUN_OPTIONS, "QNN run option", version)


def dynamic_options(options: Mapping[str, Any], version: tuple[int, ...] = ()) -> dict[str, str]:
    """The argument of ``set_ep_dynamic_options``, as text."""
    return _simple(options, DYNAMIC_OPTIONS, "dynamic option", version)


def find_library(text: str, folder: str | None, what: str) -> str:
    """The path of a library that is given as a path, or by its name beside the provider."""
    beside = folder is not None and not os.path.dirname(text)
    path = os.path.join(folder or "", text) if beside else os.path.abspath(text)
    if os.path.isfile(path):
        return path
    present = libraries_in(folder)
    close = _close(os.path.basename(text), present, 0.5)
    raise OptionError(
        f"{what}: there is no file {path}.",
        cause="QNN would report it only in its log, and every node would run on the CPU.",
        fix=(f"Did you mean {close[0]!r}? " if close else "")
        + "Leave the option out to use the library that comes with onnxruntime-qnn"
        + (f" ({', '.join(present)} are installed)." if present else "."),
        details={"option": what, "value": text},
    )


def libraries_in(folder: str | None) -> list[str]:
    """File names of the QNN backends in a folder."""
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        return []
    stems = tuple(BACKEND_LIBRARIES.values())
    return sorted(n for n in names if n.removeprefix("lib").rsplit(".", 1)[0] in stems)


def backend_library(kind: str, folder: str | None) -> str | None:
    """The path of the installed library of a backend type, or ``None``."""
    stem = BACKEND_LIBRARIES.get(kind, kind)
    for name in libraries_in(folder):
        if name.removeprefix("lib").rsplit(".", 1)[0] == stem and folder is not None:
            return os.path.join(folder, name)
    return None


def backend_of(options: Mapping[str, str]) -> str:
    """Which backend the (checked) options choose: htp, gpu, cpu, saver, ir or genie; else the file's name."""
    path = options.get("backend_path")
    if not path:
        return options.get("backend_type", "htp")
    stem = os.path.basename(path).removeprefix("lib").rsplit(".", 1)[0]
    kinds = {library.lower(): kind for kind, library in BACKEND_LIBRARIES.items()}
    return kinds.get(stem.lower(), stem)


# --- one option ------------------------------------------------------------------------------------------


def _simple(
    entries: Mapping[str, Any], table: Mapping[str, Option], what: str, version: tuple[int, ...]
) -> dict[str, str]:
    checked = {}
    for name, value in entries.items():
        option = _known(name, table, what, version)
        checked[str(name)] = _text(value) if option is None else _checked(option, value, None)
    return checked


def _known(name: str, table: Mapping[str, Option], what: str, version: tuple[int, ...]) -> Option | None:
    option = table.get(name)
    if option is not None:
        if version and version[:2] < option.since:
            since = ".".join(map(str, option.since))
            raise OptionError(
                f"{what} {name!r} is not known to the installed onnxruntime-qnn {'.'.join(map(str, version))}.",
                cause=f"It came with release {since}; earlier ones ignore it.",
                fix=f"Install onnxruntime-qnn {since} or newer in the host's Python, or leave the option out.",
                details={"option": name},
            )
        return option
    if not names_are_checked():
        return None
    right = WRONG_NAMES.get(name)
    if right is None or right not in table:
        right = _nearest(str(name).lower(), table)
    raise OptionError(
        f"{what} {name!r} does not exist.",
        cause="QNN ignores an option that it does not know, without an error.",
        fix=(f"Did you mean {right!r}? " if right else "")
        + f"To pass the name through unchecked, set {ALLOW_UNKNOWN_ENV}=1 in the environment of the host.",
        details={"option": str(name), "suggestion": right},
    )


def _close(name: str, among: Iterable[str], cutoff: float) -> list[str]:
    import difflib  # needed for mistakes only

    return difflib.get_close_matches(name, list(among), n=1, cutoff=cutoff)


def _nearest(name: str, table: Mapping[str, Option]) -> str | None:
    close = _close(name, table, 0.6)
    if close:
        return close[0]
    longer = [known for known in table if known.startswith(name)]
    return longer[0] if len(longer) == 1 else None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else str(value)


def _checked(option: Option, value: Any, folder: str | None) -> str:
    text = _text(value)
    if option.kind == "switch" and text not in ("0", "1"):
        word = _WORDS_FOR_SWITCH.get(text.strip().lower())
        raise _ill(option, text, 'Allowed are "0" and "1".' + (f' Write "{word}".' if word else ""))
    if option.kind == "choice" and text not in option.choices:
        close = _close(text.lower(), [c.lower() for c in option.choices], 0.6)
        right = next((c for c in option.choices if close and c.lower() == close[0]), None)
        hint = f"Did you mean {right!r}? " if right else ""
        raise _ill(option, text, f"{hint}Allowed are {', '.join(option.choices)}.")
    if option.kind == "number":
        _check_number(option, text)
    elif option.kind == "soc":
        return ",".join(map(str, soc.parse(text)))
    elif option.kind == "library":
        return find_library(text, folder, f"QNN option {option.name!r}")
    elif option.kind == "file" and not os.path.isfile(text):
        raise _ill(option, text, "It must name a file that exists.")
    elif option.kind == "packages" and any(part.count(":") < 2 for part in text.split(",")):
        raise _ill(option, text, "Write Operator:library:symbol[:target], several of them separated by commas.")
    return text


def _check_number(option: Option, text: str) -> None:
    digits = text.isascii() and text.isdigit()
    if option.choices:
        if text not in option.choices:
            raise _ill(option, text, f"Allowed are {', '.join(option.choices)}.")
    elif not digits or not option.low <= int(text) <= option.high:
        end = f" to {option.high}" if option.high < 2**31 - 1 else " up"
        raise _ill(option, text, f"It must be a whole number from {option.low}{end}.")


def _ill(option: Option, text: str, fix: str) -> OptionError:
    return OptionError(
        f"QNN option {option.name!r} cannot be {text!r}.",
        cause="QNN would ignore the value or fail without naming it.",
        fix=fix,
        details={"option": option.name, "value": text},
    )


# --- several options together ----------------------------------------------------------------------------


def _refuse_contradictions(options: Mapping[str, str], config: Mapping[str, str], folder: str | None) -> None:
    compiling = config.get(CONTEXT_ENABLE) == "1"
    if "backend_type" in options and "backend_path" in options:
        raise _contradiction("backend_type", "backend_path", "Both choose the backend. Give one of them.")
    kind = options.get("backend_type")
    if kind and folder is not None and backend_library(kind, folder) is None:
        raise OptionError(
            f"QNN option backend_type={kind!r}: the installed onnxruntime-qnn has no library for this backend.",
            cause="QNN would report it only in its log, and every node would run on the CPU.",
            fix=f"Use one of those installed: {', '.join(libraries_in(folder)) or 'none'}.",
            details={"option": "backend_type", "value": kind},
        )
    if options.get("enable_htp_prepare_only") == "1" and not compiling:
        raise _contradiction(
            "enable_htp_prepare_only", CONTEXT_ENABLE, f"It only makes sense together with {CONTEXT_ENABLE}=1."
        )
    chips = soc.parse(options["soc_model"]) if "soc_model" in options else ()
    if len(chips) > 1 and not compiling:
        raise _contradiction(
            "soc_model",
            CONTEXT_ENABLE,
            f"A list of chips makes a compiled model for several chips and needs {CONTEXT_ENABLE}=1; "
            "to run the model, give one chip.",
        )
    if options.get("htp_bf16_enable") == "1" and not any(chip >= _MIN_BF16_SOC for chip in chips):
        raise _contradiction(
            "htp_bf16_enable", "soc_model", f"bfloat16 needs soc_model={_MIN_BF16_SOC} (X2 Elite) or newer."
        )


def _contradiction(first: str, second: str, fix: str) -> OptionError:
    return OptionError(
        f"QNN options {first!r} and {second!r} do not go together as given.",
        fix=fix,
        details={"option": first, "other": second},
    )
