"""Options of a genai_config.json that load native code, write files, or read models of other folders.

The author of the model writes genai_config.json. ONNX Runtime loads the libraries and writes the files that the
config lists, with the rights of the user. Such options are refused unless the caller has allowed them by name.
Changes that the caller makes to the config (`qnnbridge.genai.Config`) are not checked.

The config is parsed as onnxruntime-genai parses it: if a key occurs twice in an object, onnxruntime-genai uses both
values, while Python's JSON parser keeps the last one only. The module loads no native code. The functions have no
side effects and are thread-safe.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator
from typing import Any, Final

from qnnbridge_host.model.genai_folder import CONFIG
from qnnbridge_host.model.paths import path_problem
from qnnbridge_protocol.errors import NativeCodeRefused
from qnnbridge_protocol.records import NamedTuple

# Sections whose string values are options of ONNX Runtime or of an execution provider.
_SECTIONS: Final = frozenset(("session_options", "run_options", "provider_options"))
# Options that are refused with every value, at any position in the config.
_LOADS: Final = frozenset(
    ("custom_ops_library", "library_path", "op_packages", "qnn_saver_path", "qnn_ir_backend_path")
)
_WRITES: Final = frozenset(
    (
        *("enable_profiling", "profile_file_prefix", "profiling_file_path", "optimized_model_filepath"),
        *("dump_qnn_ir_dlc_dir", "json_qnn_graph_dir", "framework_op_trace_dir", "dump_qnn_ep_input_graph_dir"),
        *("ep.context_file_path", "ep.context_model_external_initializers_file_name"),
        *("session.collect_node_memory_stats_to_file", "session.optimized_model_external_initializers_file_name"),
    )
)
# Options that make a session write files into the model's folder or the working folder. The value "0" disables
# them.
_WRITES_IF_ON: Final = frozenset(
    (
        *("ep.context_enable", "dump_qnn_ir_dlc", "dump_json_qnn_graph", "dump_qnn_ep_input_graph"),
        *("enable_framework_op_trace",),
    )
)
_BACKEND: Final = "backend_path"
# Names of QNN's libraries without a path: for these ONNX Runtime loads the copies that belong to the execution
# provider.
_OWN_BACKEND: Final = re.compile(r"(lib)?(QnnHtp|QnnGpu|QnnCpu|QnnSaver|QnnIr|Genie)(\.dll|\.so)?", re.IGNORECASE)
# Session options with this prefix set the provider option whose name follows.
_PREFIX: Final = "ep.qnnexecutionprovider."
_LIBRARY: Final = re.compile(r"\.(dll|so|dylib|pyd|exe)[\d.]*\s*$", re.IGNORECASE)


class NativeOption(NamedTuple):
    """An option that needs the caller's permission.

    key: the option's name in the config. place: the keys that lead to the option, including its own.
    does: the effect in ONNX Runtime, a verb phrase such as "loads native code".
    """

    key: str
    value: str
    place: str
    does: str


def refuse_native(folder: str, allowed: Collection[str], own_libraries: str | None) -> None:
    """Raise `NativeCodeRefused` for the first option of the folder's config that the caller has not allowed.

    Args:
        folder: the model's folder. A config that cannot be read is ignored here; `read_folder` reports it.
        allowed: options, by name as in `NativeOption.key`.
        own_libraries: the folder of the host's QNN libraries; a `backend_path` in it does not need permission.
    """
    for option in native_options(folder, own_libraries):
        if option.key in allowed:
            continue
        raise NativeCodeRefused(
            f"{CONFIG} of {folder} sets {option.key} to {option.value!r}, which {option.does}.",
            cause="The config comes with the model, and ONNX Runtime would apply it with the rights of this user.",
            evidence=[f"{CONFIG}: {option.place}"],
            fix=f"Remove {option.key} from {CONFIG}. If the origin of the folder is trusted, allow it: "
            f"qnnbridge.genai.Model(..., allow_native=[{option.key!r}]), or "
            f"--allow-native {shlex.quote(option.key)} of qnnbridge chat and qnnbridge serve.",
            details={"path": folder, "option": option.key, "value": option.value},
        )


def native_options(folder: str, own_libraries: str | None = None) -> Iterator[NativeOption]:
    """Find the options of the config that need permission, in the order of the file."""
    try:
        with open(os.path.join(folder, CONFIG), encoding="utf-8-sig") as file:
            config = json.load(file, object_pairs_hook=_Pairs)
    except (OSError, ValueError, RecursionError):
        return
    yield from _search(config, (), False, own_libraries)


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of pairs that keeps every occurrence of a key."""


def _search(node: Any, place: tuple[str, ...], is_option: bool, own: str | None) -> Iterator[NativeOption]:
    if isinstance(node, _Pairs):
        for key, value in node:
            inside = is_option or key.lower() in _SECTIONS
            if isinstance(value, list):
                yield from _search(value, (*place, key), inside, own)
            # Check each value of a list; the recursion above has already checked the objects in it.
            values = value if isinstance(value, list) else [value]
            for one in () if isinstance(value, _Pairs) else values:
                does = None if isinstance(one, list) else _effect(key, one, is_option, own)
                if does is not None:
                    yield NativeOption(key, str(one), " > ".join((*place, key)), does)
    elif isinstance(node, list):
        for number, one in enumerate(node):
            yield from _search(one, (*place, str(number)), is_option, own)


def _effect(key: str, value: Any, is_option: bool, own: str | None) -> str | None:
    """Return what an option would make ONNX Runtime do, or ``None`` if the option does not need permission."""
    name = key.lower().removeprefix(_PREFIX)
    if value is None or value is False:
        return None
    if name in _LOADS:
        return "loads native code"
    if name in _WRITES:
        return "writes a file"
    if name in _WRITES_IF_ON and str(value).strip().lower() not in ("0", "", "false"):
        return "writes a file"
    if name == "profiling_level" and str(value).strip().lower() == "optrace":
        return "writes a file"
    if name == _BACKEND:
        return None if _is_own_backend(str(value), own) else "loads native code"
    if not isinstance(value, str):
        return None
    # Check `data_file`, because onnxruntime-genai 0.18 reads initializers shared by several stages from this file.
    if name in ("filename", "data_file") or name.endswith("_filename"):
        problem = path_problem(value)
        return None if problem is None else f"refers to a file outside of the folder: {problem}"
    if is_option and _LIBRARY.search(value):
        return "may load native code"
    if is_option and ("/" in value or "\\" in value):
        return "refers to a file or a folder"
    return None


def _is_own_backend(value: str, own: str | None) -> bool:
    if not value or _OWN_BACKEND.fullmatch(value):
        return True
    if own is None or not os.path.isabs(value):
        return False
    try:
        return os.path.dirname(os.path.realpath(value)) == os.path.realpath(own)
    except (OSError, ValueError):
        return False
