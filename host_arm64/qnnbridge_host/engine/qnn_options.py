"""Options of the QNN execution provider: a table, and the checks against it.

QNN silently ignores unknown options and most invalid values, so a session with a misspelt option would compute with
other settings. Therefore names and values are checked against the table before ONNX Runtime gets them. ONNX
Runtime's own configuration keys and chips are checked, too. The functions have no side effects; they read the disk
only to check whether a file exists. Thread-safe.

Every refusal is an `OptionError` with the option, the fault and the correct value. Values are strings, bools or
ints and are converted to strings. An option or a chip that is newer than the tables is accepted if the installed
library contains its name; `newer_than_tables` describes it for a warning.

Sources: the option names inside the libraries of all releases from 1.20 on (`model/option_names.json`), and the
behaviour of 2.7.0 on the simulator.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from qnnbridge_host.model.chips import CHIPS, chip_named, chip_of, known_chips_text, simulated_chip
from qnnbridge_host.model.option_names import first_releases, library_contains, newest_release
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shown import closest
from qnnbridge_protocol.version_numbers import numbers_of

PROVIDER = "QNNExecutionProvider"

Kind = Literal["switch", "number", "choice", "library", "file", "text", "soc", "packages"]

PERFORMANCE_MODES = (
    "default",
    "burst",
    "balanced",
    "high_performance",
    "high_power_saver",
    "low_balanced",
    "low_power_saver",
    "power_saver",
    "extreme_power_saver",
    "sustained_high_performance",
)
# Names of backends, case-sensitive. For any other string QNN logs a warning and uses htp.
BACKEND_TYPES = ("htp", "gpu", "cpu", "saver", "ir", "genie")
PRIORITIES = ("normal", "low", "normal_low", "normal_high", "high", "high_plus", "critical", "critical_plus")
# Levels of graph priority. Before 2.5 QNN had four: low, normal, normal_high and high (as in ONNX Runtime's
# documentation).
_PRIORITIES_SINCE = dict.fromkeys(("normal_low", "high_plus", "critical", "critical_plus"), (2, 5))


class Option(NamedTuple):
    """One option of the table.

    Attributes:
        kind: the type of its value. ``switch``: exactly "0" or "1"; ``library``: path of an existing file, or the
            name of a file in the provider's folder; ``file``: path of an existing file; ``text``: any string.
        choices: allowed values of a ``choice`` (case-sensitive) or a ``number``.
        low, high: range of a ``number``.
        grows: whether numbers above the largest choice are accepted, because new chips add larger numbers.
        choices_since: first release (major, minor) of each choice that was added later.
    """

    name: str
    kind: Kind
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 2**31 - 1
    grows: bool = False
    choices_since: Mapping[str, tuple[int, int]] = MappingProxyType({})


def _switch(name: str) -> Option:
    return Option(name, "switch")


def _number(name: str, low: int = 0, high: int = 2**31 - 1) -> Option:
    return Option(name, "number", low=low, high=high)


_TABLE = (
    Option("backend_path", "library"),
    Option("backend_type", "choice", BACKEND_TYPES),
    _number("device_id"),
    Option("soc_model", "soc"),
    # QNN ignores htp_arch if soc_model is given, even if the two options contradict each other.
    Option("htp_arch", "number", ("0", "68", "69", "73", "75", "79", "81"), grows=True),
    # 0 is QNN's default and means the whole VTCM.
    _number("vtcm_mb"),
    Option("htp_performance_mode", "choice", PERFORMANCE_MODES),
    # Latency in microseconds.
    _number("rpc_control_latency"),
    Option("qnn_context_priority", "choice", PRIORITIES, choices_since=_PRIORITIES_SINCE),
    _number("htp_graph_finalization_optimization_mode", 0, 3),
    _switch("enable_htp_fp16_precision"),
    _switch("enable_htp_fp16_clamp_overflow"),
    _switch("htp_bf16_enable"),
    _switch("offload_graph_io_quantization"),
    _switch("enable_htp_spill_fill_buffer"),
    _switch("enable_vtcm_backup_buffer_sharing"),
    Option("htp_share_resource_optimization", "number", ("1",)),
    _switch("enable_htp_shared_memory_allocator"),
    _switch("enable_dx12_shared_memory_allocator"),
    _switch("extended_udma"),
    _switch("enable_block_quant_weight_optimization"),
    _switch("enable_htp_monolithic_lstm"),
    _switch("enable_htp_matmul_lut"),
    _switch("enable_htp_graph_splitting"),
    _number("htp_graph_splitting_num_prepare_threads"),
    _number("htp_reused_io_limit_mb"),
    _number("num_graph_prepare_threads"),
    _switch("enable_htp_prepare_only"),
    _switch("enable_htp_prepare_and_load"),
    _switch("disable_file_mapped_weights"),
    # A level needs profiling_file_path: without it QNN fails with an EPFail that `ort_errors` explains.
    Option("profiling_level", "choice", ("off", "basic", "detailed", "optrace")),
    Option("profiling_file_path", "text"),
    Option("op_packages", "packages"),
    Option("op_affinity", "file"),
    _switch("skip_qnn_version_check"),
    _switch("skip_backend_op_validation"),
    Option("qnn_saver_path", "library"),
    Option("qnn_ir_backend_path", "library"),
    _switch("dump_qnn_ir_dlc"),
    Option("dump_qnn_ir_dlc_dir", "text"),
    _switch("dump_json_qnn_graph"),
    Option("json_qnn_graph_dir", "text"),
    _switch("enable_framework_op_trace"),
    Option("framework_op_trace_dir", "text"),
    _switch("dump_qnn_ep_input_graph"),
    Option("dump_qnn_ep_input_graph_dir", "text"),
    Option("genie_log_level", "text"),
)

PROVIDER_OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}

RUN_OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("qnn.htp_perf_mode", "choice", PERFORMANCE_MODES),
        Option("qnn.htp_perf_mode_post_run", "choice", PERFORMANCE_MODES),
        # A value that is not a number aborts the process inside the provider (std::stoul).
        _number("qnn.rpc_control_latency"),
        Option("qnn.lora_config", "file"),
    )
}

DYNAMIC_OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("ep.dynamic.workload_type", "choice", ("Default", "Efficient")),
        Option("ep.dynamic.qnn_htp_performance_mode", "choice", PERFORMANCE_MODES),
        # A value that is not a number aborts the process inside the provider.
        _number("kvcache_rewind"),
    )
}

# Session keys with this prefix set provider options.
SESSION_PREFIX = "ep.qnnexecutionprovider."

# Names that appear in documentation but are ignored by QNN, with the name that works.
WRONG_NAMES: Mapping[str, str] = {
    "qnn.perf_mode": "qnn.htp_perf_mode",
    "ep_select_backend_path": "backend_path",
}

# File name of each backend's library by backend type, without the platform's prefix and suffix.
BACKEND_LIBRARIES: Mapping[str, str] = {
    "htp": "QnnHtp",
    "gpu": "QnnGpu",
    "cpu": "QnnCpu",
    "saver": "QnnSaver",
    "ir": "QnnIr",
    "genie": "Genie",
}


# --- ONNX Runtime's configuration keys -------------------------------------------------------------------
#
# ONNX Runtime stores any key and does not report unknown keys. Its releases add keys, so an unknown key is passed
# on, unless it differs from a known key by at most two keystrokes.

# If this environment variable is 1 in the host, option names are not checked (values still are).
ALLOW_UNKNOWN_ENV = "QNNBRIDGE_ALLOW_UNKNOWN_OPTIONS"

DISABLE_CPU_FALLBACK = "session.disable_cpu_ep_fallback"
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"
DISABLE_COMPILE = "session.disable_model_compile"
CONTEXT_ENABLE = "ep.context_enable"

_TYPO_DISTANCE = 2


def names_are_checked() -> bool:
    """Return whether unknown options are refused."""
    return os.environ.get(ALLOW_UNKNOWN_ENV) != "1"


def refuse_misspelt(key: str, known: Iterable[str], what: str) -> None:
    """Raise `OptionError` if `key` is a likely misspelling of a known key. what: description of the key for the
    message."""
    known = list(known)
    if key in known or not names_are_checked():
        return
    for candidate in known:
        if abs(len(candidate) - len(key)) <= _TYPO_DISTANCE and _distance(key, candidate) <= _TYPO_DISTANCE:
            raise OptionError(
                f"{what} {key!r} is not known to ONNX Runtime.",
                cause="ONNX Runtime stores unknown keys, but never reads them.",
                fix=f"Did you mean {candidate!r}? To use the name without a check, set {ALLOW_UNKNOWN_ENV}=1 in "
                "the environment of the host.",
                details={"option": key, "suggestion": candidate},
            )


def _distance(a: str, b: str) -> int:
    """Return the edit distance of two words: insertions, deletions, replacements and swaps of neighbouring
    letters."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, rows[i - 2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


# --- the checks ------------------------------------------------------------------------------------------

# X2 Elite (SC8480XP), the first chip that supports bfloat16. For older chips QNN raises a RuntimeError.
_MIN_BF16_SOC = 88
# QNN accepts only "0" and "1" and silently ignores other words. The error for one of these words suggests the right
# digit.
_WORDS_FOR_SWITCH = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}


def provider_options(
    options: Mapping[str, Any],
    config: Mapping[str, str],
    *,
    library_folder: str | None = None,
    version: tuple[int, ...] = (),
) -> dict[str, str]:
    """Check QNN's options and return them as strings; libraries become paths, and names of chips become numbers.

    Args:
        options: the options that the application has given.
        config: the session's configuration entries, which some options need.
        library_folder: folder of the QNN libraries; a library without a folder is searched for there.
        version: release of onnxruntime-qnn; ``()`` if unknown.

    Raises:
        OptionError: an option or its value cannot be used, or options contradict each other.
    """
    checked = _all_checked(options, PROVIDER_OPTIONS, "QNN provider option", version, library_folder)
    _refuse_contradictions(checked, config, library_folder)
    return checked


def run_options(entries: Mapping[str, Any], version: tuple[int, ...] = ()) -> dict[str, str]:
    """Check the ``qnn.*`` entries of RunOptions and return them as strings. `entries` must not contain other
    entries."""
    return _all_checked(entries, RUN_OPTIONS, "QNN run option", version)


def dynamic_options(options: Mapping[str, Any], version: tuple[int, ...] = ()) -> dict[str, str]:
    """Check the argument of ``set_ep_dynamic_options`` and return it as strings."""
    return _all_checked(options, DYNAMIC_OPTIONS, "dynamic option", version)


def find_library(text: str, folder: str | None, what: str) -> str:
    """Return the path of a library that is given as a path, or as a file name in the provider's folder.

    Args:
        text: the path or name.
        folder: the provider's folder.
        what: description of the option in the message.

    Raises:
        OptionError: the file does not exist.
    """
    beside = folder is not None and not os.path.dirname(text)
    path = os.path.join(folder or "", text) if beside else os.path.abspath(text)
    if os.path.isfile(path):
        return path
    present = libraries_in(folder)
    close = closest(os.path.basename(text), present, 0.5)
    raise OptionError(
        f"{what}: the file {path} does not exist.",
        cause="QNN would report the missing library only in its log, and every node would run on the CPU.",
        fix=(f"Did you mean {close!r}? " if close else "")
        + "Remove the option to use the library that comes with onnxruntime-qnn"
        + (f" ({', '.join(present)} are installed)." if present else "."),
        details={"option": what, "value": text},
    )


def libraries_in(folder: str | None) -> list[str]:
    """Return the QNN backends in a folder, sorted by file name."""
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        return []
    stems = tuple(BACKEND_LIBRARIES.values())
    return sorted(n for n in names if n.removeprefix("lib").rsplit(".", 1)[0] in stems)


def backend_library(kind: str, folder: str | None) -> str | None:
    """Return the path of the installed library of a backend type, or ``None``."""
    stem = BACKEND_LIBRARIES.get(kind, kind)
    for name in libraries_in(folder):
        if name.removeprefix("lib").rsplit(".", 1)[0] == stem and folder is not None:
            return os.path.join(folder, name)
    return None


# Options with which the application already makes QNN write its graphs to files instead of compiling.
_OTHER_OUTPUT = ("dump_qnn_ir_dlc", "qnn_ir_backend_path", "qnn_saver_path")


def placement_only(options: Mapping[str, str], folder: str, library: str | None) -> dict[str, str]:
    """Return the options with which QNN places a model for the NPU, and writes its graphs to `folder` instead of
    compiling.

    The NPU's own library still checks each node, so the placement is the same as when the model is compiled. The
    result is empty without a library, or if `options` contain another backend or another output.

    library: path or file name of QNN's IR library.
    """
    if library is None or backend_of(options) != "htp" or any(name in options for name in _OTHER_OUTPUT):
        return {}
    return {"dump_qnn_ir_dlc": "1", "dump_qnn_ir_dlc_dir": folder, "qnn_ir_backend_path": library}


def backend_of(options: Mapping[str, str]) -> str:
    """Return the backend type in checked options (htp, gpu, cpu, saver, ir or genie), else the library's name."""
    path = options.get("backend_path")
    if not path:
        return options.get("backend_type", "htp")
    stem = os.path.basename(path).removeprefix("lib").rsplit(".", 1)[0]
    kinds = {library.lower(): kind for kind, library in BACKEND_LIBRARIES.items()}
    return kinds.get(stem.lower(), stem)


# --- checks of one option --------------------------------------------------------------------------------


def _all_checked(
    entries: Mapping[str, Any],
    table: Mapping[str, Option],
    what: str,
    version: tuple[int, ...],
    library_folder: str | None = None,
) -> dict[str, str]:
    checked = {}
    for name, value in entries.items():
        option = _known(name, table, what, version, library_folder)
        checked[str(name)] = text = _text(value) if option is None else _checked(option, value, library_folder)
        since = option.choices_since.get(text) if option is not None else None
        if option is not None and since is not None and version and version[:2] < since:
            first = ".".join(map(str, since))
            known = ", ".join(one for one in option.choices if one not in option.choices_since)
            raise OptionError(
                f"{what} {name!r} cannot be {text!r} with onnxruntime-qnn {'.'.join(map(str, version))}.",
                cause=f"This value was added in release {first}.",
                fix=f"Allowed values: {known}. For this value, install onnxruntime-qnn {first} or newer in the "
                "host's Python.",
                details={"option": name, "value": text},
            )
    return checked


def _known(
    name: str, table: Mapping[str, Option], what: str, version: tuple[int, ...], folder: str | None
) -> Option | None:
    """Return the table's row for an option; ``None`` for an accepted option that is not in the table."""
    option = table.get(name)
    if option is not None:
        refusal = _unread(name, what, version) if version else None
        if refusal is not None and not library_contains(folder, name):
            raise refusal
        return option
    if not names_are_checked() or library_contains(folder, name):
        return None
    right = WRONG_NAMES.get(name)
    if right is None or right not in table:
        begun = str(name).lower()
        longer = [known for known in table if known.startswith(begun)]
        right = closest(begun, table) or (longer[0] if len(longer) == 1 else None)
    raise OptionError(
        f"{what} {name!r} does not exist.",
        cause="QNN silently ignores options that it does not support.",
        fix=(f"Did you mean {right!r}? " if right else "")
        + f"To use the name without a check, set {ALLOW_UNKNOWN_ENV}=1 in the environment of the host.",
        details={"option": str(name), "suggestion": right},
    )


def _unread(name: str, what: str, version: tuple[int, ...]) -> OptionError | None:
    """Return the error for an option that the installed release ignores, although the table lists it for other
    releases."""
    systems = first_releases(name)
    here, shown = ("windows" if sys.platform == "win32" else "linux"), ".".join(map(str, version))
    since = systems.get(here)
    if since is not None and version[:2] < since:
        first = ".".join(map(str, since))
        return OptionError(
            f"{what} {name!r} does not exist in the installed onnxruntime-qnn {shown}.",
            cause=f"The option was added in release {first}; earlier releases ignore it.",
            fix=f"Install onnxruntime-qnn {first} or newer in the host's Python, or remove the option.",
            details={"option": name},
        )
    # Treat a newer release like the newest release in the table; the caller also searches the library for the name.
    if since is None and systems and numbers_of(shown) >= numbers_of(newest_release()):
        other, first_there = next(iter(systems.items()))
        return OptionError(
            f"{what} {name!r} does not exist in onnxruntime-qnn {shown} for {here.title()}.",
            cause=f"Only the library for {other.title()} supports the option, from release "
            f"{'.'.join(map(str, first_there))} on; the library for {here.title()} ignores the option.",
            fix="Remove the option on this host.",
            details={"option": name},
        )
    return None


def newer_release(release: str | None) -> list[str]:
    """Return a note about an onnxruntime-qnn that is newer than the tables; an empty list for a known release."""
    from qnnbridge_host.model.releases import AFTER_THE_TABLE, STANDING_WORDS, standing

    newest = newest_release()
    position = "listed" if release is None else standing(release, (newest,))
    if position not in AFTER_THE_TABLE:
        return []
    return [
        f"onnxruntime-qnn {release} is {STANDING_WORDS[position]} ({newest}): its options are checked like those "
        f"of {newest}, and qnnbridge assumes that it computes the same operators incorrectly as {newest}."
    ]


def newer_than_tables(options: Mapping[str, Any]) -> list[str]:
    """Describe the options and chips that the checks accept because they are newer than the tables.

    Args:
        options: the QNN provider's options that the application has given.
    """
    found = [
        f"QNN option {name!r} is newer than qnnbridge's table (onnxruntime-qnn {newest_release()}): "
        "it is passed to QNN without a check."
        for name in options
        if name not in PROVIDER_OPTIONS and name not in WRONG_NAMES
    ]
    arch = _text(options.get("htp_arch", "0"))
    if arch.isascii() and arch.isdigit() and arch not in PROVIDER_OPTIONS["htp_arch"].choices:
        found.append(f"htp_arch={arch} is newer than qnnbridge's table: it is passed to QNN without a check.")
    words = [word.strip() for word in _text(options.get("soc_model", "0")).split(",")]
    unknown = [word for word in words if word != "0" and chip_named(word) is None]
    if unknown:
        found.append(
            f"soc_model={', '.join(unknown)} is not in qnnbridge's table of chips ({known_chips_text()}): "
            "it is passed to QNN without a check."
        )
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return value if isinstance(value, str) else str(value)


def _checked(option: Option, value: Any, folder: str | None) -> str:
    text = _text(value)
    if option.kind == "switch" and text not in ("0", "1"):
        word = _WORDS_FOR_SWITCH.get(text.strip().lower())
        raise _ill(option, text, 'Allowed values: "0" and "1".' + (f' Write "{word}".' if word else ""))
    if option.kind == "choice" and text not in option.choices:
        choices = {choice.lower(): choice for choice in option.choices}
        right = choices.get(closest(text.lower(), choices) or "")
        hint = f"Did you mean {right!r}? " if right else ""
        raise _ill(option, text, f"{hint}Allowed values: {', '.join(option.choices)}.")
    if option.kind == "number":
        _check_number(option, text)
    elif option.kind == "soc":
        return ",".join(_chip_for_qnn(word.strip(), text, folder) for word in text.split(","))
    elif option.kind == "library":
        return find_library(text, folder, f"QNN option {option.name!r}")
    elif option.kind == "file" and not os.path.isfile(text):
        raise _ill(option, text, "The value must be the path of an existing file.")
    elif option.kind == "packages" and any(part.count(":") < 2 for part in text.split(",")):
        raise _ill(option, text, "Use Operator:library:symbol[:target]; separate several entries by commas.")
    return text


def _check_number(option: Option, text: str) -> None:
    digits = text.isascii() and text.isdigit()
    if option.choices:
        newer = option.grows and digits and int(text) > int(option.choices[-1])
        if text not in option.choices and not newer:
            raise _ill(option, text, f"Allowed values: {', '.join(option.choices)}.")
    elif not digits or not option.low <= int(text) <= option.high:
        end = f" to {option.high}" if option.high < 2**31 - 1 else " up"
        raise _ill(option, text, f"The value must be a whole number from {option.low}{end}.")


def _ill(option: Option, text: str, fix: str) -> OptionError:
    return OptionError(
        f"QNN option {option.name!r} cannot be {text!r}.",
        cause="QNN would ignore the value, or fail without reporting the option.",
        fix=fix,
        details={"option": option.name, "value": text},
    )


# --- checks of option combinations -----------------------------------------------------------------------


def _refuse_contradictions(options: Mapping[str, str], config: Mapping[str, str], folder: str | None) -> None:
    compiling = config.get(CONTEXT_ENABLE) == "1"
    if "backend_type" in options and "backend_path" in options:
        raise _contradiction(
            "backend_type", "backend_path", "Both options choose the backend. Use only one of them."
        )
    kind = options.get("backend_type")
    if kind and folder is not None and backend_library(kind, folder) is None:
        raise OptionError(
            f"QNN option backend_type={kind!r}: the installed onnxruntime-qnn has no library for this backend.",
            cause="QNN would report the missing library only in its log, and every node would run on the CPU.",
            fix=f"Use one of the installed backends: {', '.join(libraries_in(folder)) or 'none'}.",
            details={"option": "backend_type", "value": kind},
        )
    if options.get("enable_htp_prepare_only") == "1" and not compiling:
        raise _contradiction(
            "enable_htp_prepare_only",
            CONTEXT_ENABLE,
            f"This option is only useful together with {CONTEXT_ENABLE}=1.",
        )
    chips = parse_chips(options["soc_model"]) if "soc_model" in options else ()
    if len(chips) > 1 and not compiling:
        raise _contradiction(
            "soc_model",
            CONTEXT_ENABLE,
            f"A list of chips is for compiling a model for several chips and needs {CONTEXT_ENABLE}=1; "
            "to run the model, give one chip.",
        )
    if options.get("htp_bf16_enable") == "1" and not any(chip >= _MIN_BF16_SOC for chip in chips):
        raise _contradiction(
            "htp_bf16_enable", "soc_model", f"bfloat16 needs soc_model={_MIN_BF16_SOC} (X2 Elite) or newer."
        )


def _contradiction(first: str, second: str, fix: str) -> OptionError:
    return OptionError(
        f"QNN options {first!r} and {second!r} cannot be combined with these values.",
        fix=fix,
        details={"option": first, "other": second},
    )


# --- the chip for which a session computes ---------------------------------------------------------------
#
# Without an NPU the provider runs on Qualcomm's HTP simulator. On the simulator a session without a chip is
# compiled for the oldest architecture in 32-bit float. Most real models then fail (QNN code 1002) or take minutes,
# and the precision of one session leaks into the next. So on the simulator the chip is always set explicitly.


def parse_chips(text: str) -> tuple[int, ...]:
    """Return the numbers of the chips in a checked value of ``soc_model``. 0 means that no chip is specified.

    A name that is not in the table of chips (`newer_than_tables`) has no number and is omitted.
    """
    words = [part.strip() for part in text.split(",")]
    chips = [(word, chip_named(word)) for word in words]
    return tuple(
        chip.number if chip else int(word) for word, chip in chips if chip or (word.isascii() and word.isdigit())
    )


# Qualcomm's part numbers, such as SM8975, SC8480XP or QCS9075.
_PART = re.compile(r"[A-Z]{2,4}\d{3,5}[A-Z]{0,3}")


def _chip_for_qnn(word: str, text: str, folder: str | None) -> str:
    """Return the number of a chip given by name or number, because releases before 2.7 silently ignore names.

    A chip that is newer than the table keeps its name if the installed library contains that name.

    Args:
        word: one name or number.
        text: the complete value of ``soc_model``, for the message.
        folder: folder of the QNN libraries.
    """
    if word.isascii() and word.isdigit():
        return str(int(word))
    if (chip := chip_named(word)) is not None:
        return str(chip.number)
    if _PART.fullmatch(word.upper()) and library_contains(folder, word.upper()):
        return word.upper()
    raise OptionError(
        f"soc_model={text!r}: {word!r} is neither a number nor the name of a chip.",
        cause="QNN would ignore the value and compile for its default chip.",
        fix=_suggest_chip(word),
    )


def arch_of(number: int) -> int | None:
    """Return the HTP architecture of a chip (73 for V73), or ``None`` if the number is not in the table."""
    chip = chip_of(number)
    return chip.arch if chip else None


def chip_label(text: str) -> str:
    """Return a value of ``soc_model`` with the chips' names for messages, such as ``60 (SC8380XP)``."""
    words = []
    for word in (part.strip() for part in text.split(",")):
        chip = chip_named(word)
        words.append(f"{chip.number} ({chip.name})" if chip else word)
    return ", ".join(words)


def chip_for_simulator(soc_model: str | None, htp_arch: str | None) -> str:
    """Return the ``soc_model`` for the simulator: the given value, else a chip of the given architecture."""
    if soc_model is not None and parse_chips(soc_model) != (0,):
        return soc_model
    return str(simulated_chip(None, htp_arch))


def _suggest_chip(word: str) -> str:
    numbers = {chip.name: chip.number for chip in CHIPS}
    close = closest(word.upper(), numbers)
    hint = f"Did you mean {close} ({numbers[close]})? " if close else ""
    return f"{hint}Give the number of the chip or one of the known names: {known_chips_text()}."
