"""Writes `docs/ort-api.md`: every public name and method of ONNX Runtime's Python and its state in `qnnbridge.ort`.

``python -m tests.dropin.ort_table`` writes the page; a test holds it against the installed ONNX Runtime. A name that
is neither offered nor listed below is an error: an update of ONNX Runtime includes a decision about it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "ort-api.md"

# Refused with an error that says why and what to do instead.
NOT_POSSIBLE = {
    "OrtSyncStream": "a native handle",
    "OrtEpDevice.create_sync_stream": "a native handle",
    "SessionOptions.set_ep_context_data_read_func": "a callback cannot be called from another process",
    "SessionOptions.set_provider_selection_policy_delegate": "a callback cannot be called from another process",
    "SessionOptions.add_external_initializers_from_files_in_memory": "the buffers live in another process; give the "
    "files, or the tensors with add_external_initializers",
    "SessionOptions.set_load_cancellation_flag": "ONNX Runtime polls it in its own process; use timeout=",
    "SparseTensor.to_cuda": "no CUDA",
    "create_and_register_allocator": "allocators belong to the host, whose sessions share them",
    "create_and_register_allocator_v2": "allocators belong to the host, whose sessions share them",
    "set_default_logger_callback": "a callback cannot be called from another process; the logger qnnbridge.host has "
    "the lines. None is taken",
    "set_global_thread_pool_sizes": "only before ONNX Runtime's first use in a process",
    "InferenceSession.set_tuning_results": "no tunable provider; an empty list is taken",
}

# Works, and not in every respect as in one process.
DIFFERS = {
    "InferenceSession": "asks for QNN get QNN, with the CPU behind it; takes timeout=, retry=, host= and more",
    "InferenceSession.run": "takes timeout=, retry= and on_deadline= too",
    "InferenceSession.run_async": "takes timeout= too; runs in threads of this process",
    "InferenceSession.enable_fallback": "decides about the creation only; a run is never repeated on the CPU",
    "InferenceSession.get_input_epdevices": "None for each input: they are in this process's memory",
    "InferenceSession.get_tuning_results": "empty: neither QNN nor the CPU is tunable",
    "InferenceSession.release_captured_graph": "does nothing: no provider of this host captures graphs",
    "InferenceSession.create_ortvalue_from_shape_and_type": "in this process's memory",
    "OrtValue.numpy": "also for bfloat16 and other types for which ONNX Runtime raises",
    "OrtEpDevice.memory_info": "None: tensors are in this process's memory",
    "OrtArenaCfg": "holds the settings; nothing uses them",
    "OrtMemoryInfo": "describes; no memory can be allocated with it",
    "ModelCompiler": "compiles for QNN, in a process of its own; with functions of the application, or initializers "
    "in a file, by ONNX Runtime's own compiler there",
    "ModelCompiler.set_ep_context_data_write_func": "also for QNN, which takes no function itself",
    "ModelCompiler.compile_to_bytes": "needs embed_compiled_data_into_model=True or set_ep_context_binary_information",
    "ModelCompiler.compile_to_stream": "as compile_to_bytes; one piece",
    "ModelCompiler.set_ep_context_binary_information": "a folder that is not there is made",
    "enable_telemetry_events": "does nothing but warn: the host sends none",
    "disable_telemetry_events": "does nothing: the host sends none",
    "get_all_providers": "also those that only older releases knew",
    "get_available_providers": "QNN first, where the host has a device for it",
    "get_ep_devices": "the host's; QNN's after its library has been registered",
    "preload_dlls": "does nothing: native libraries are loaded in the host",
    "print_debug_info": "of the host",
    "register_execution_provider_library": "QNN's only; makes its devices visible",
    "set_default_logger_severity": "for sessions made afterwards; log lines appear in the host",
    "set_default_logger_verbosity": "for sessions made afterwards; log lines appear in the host",
    "set_seed": "for sessions made afterwards",
    "copy_tensors": "between values in this process",
    "OrtDevice": "names devices; values live on the CPU",
}

# Modules that ONNX Runtime's own ``__init__`` imports for itself.
_NOT_PART = {"contextlib", "onnxruntime_validation"}


def public_names(ort: Any) -> Iterator[str]:
    """Names of the module, and ``Class.method`` for its classes, sorted."""
    for name in sorted(vars(ort)):
        value = getattr(ort, name)
        if name.startswith("_") or name in _NOT_PART or (isinstance(value, types.ModuleType) and name != "capi"):
            continue
        yield name
        if isinstance(value, type):
            members = {m for m in dir(value) if not m.startswith("_")} - set(dir(BaseException)) - set(dir(int))
            yield from (f"{name}.{member}" for member in sorted(members - _enum_members(value)))


def _enum_members(cls: type) -> set[str]:
    """Members of an enumeration are values, which `tests/unit` compares; `name` and `value` are what makes it one."""
    members = set(getattr(cls, "__members__", ()))
    return members | {"name", "value"} if members else set()


def state_of(ours: Any, name: str) -> tuple[str, str]:
    """State and remark. Raises `LookupError` for a name without a decision."""
    if name in NOT_POSSIBLE:
        return "not possible", NOT_POSSIBLE[name]
    value = ours
    for part in name.split("."):
        if part in getattr(value, "__annotations__", ()):
            break  # an attribute of instances
        if part not in dir(value):
            owner = name.partition(".")[0]
            if owner in NOT_POSSIBLE:
                return "not possible", NOT_POSSIBLE[owner]
            raise LookupError(name)
        value = getattr(value, part)
    return ("differs", DIFFERS[name]) if name in DIFFERS else ("same", "")


def page(ort: Any, ours: Any) -> str:
    """The page's text. Raises `LookupError` with all names that are missing."""
    rows, missing = [], []
    for name in public_names(ort):
        try:
            state, remark = state_of(ours, name)
        except LookupError:
            missing.append(name)
            continue
        rows.append(f"| `{name}` | {state} | {remark} |")
    if missing:
        raise LookupError(f"ONNX Runtime {ort.__version__} has names without a decision: {', '.join(missing)}")
    counts = {state: sum(f"| {state} |" in row for row in rows) for state in ("same", "differs", "not possible")}
    return "\n".join(
        [
            "# The interface of `onnxruntime` in `qnnbridge.ort`",
            "",
            f"Every public name of the module `onnxruntime` {ort.__version__} and of its classes, as `qnnbridge.ort` "
            "has it. Written by",
            "`python -m tests.dropin.ort_table`; a test fails when ONNX Runtime gains a name that is not here.",
            "",
            f"{counts['same']} are the same, {counts['differs']} differ as described, "
            f"{counts['not possible']} are refused with an error that says why.",
            "",
            "| name | state | remark |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    import onnxruntime

    import qnnbridge.ort

    PAGE.write_text(page(onnxruntime, qnnbridge.ort), encoding="utf-8")
