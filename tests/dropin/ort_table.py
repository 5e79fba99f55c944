"""Write `docs/ort-api.md`: every name of ONNX Runtime's Python API and its state in `qnnbridge.ort`.

``python -m tests.dropin.ort_table`` writes the page from the recorded walks (`ort_walk`) and a walk of the drop-in;
tests compare the page and the installed ONNX Runtime with it. A missing name is an error: each name of a new
release of ONNX Runtime needs a decision.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.dropin.ort_walk import recorded, walk_modules

PAGE = Path(__file__).parents[2] / "docs" / "ort-api.md"
# Releases that have a column.
SHOWN = ("1.24.2", "1.27.0", "1.30.0", "1.32.0")

MAIN = "onnxruntime"
BINDINGS = "onnxruntime.capi.onnxruntime_pybind11_state"
# A module with the same names as the bindings.
AGAIN = "onnxruntime.capi._pybind_state"

# Names that raise an error with reason and fix.
REFUSED = {
    "SessionObjectInitializer": "a pointer into ONNX Runtime's memory",
    "get_session_initializer": "a pointer into ONNX Runtime's memory",
}

# Names that work, but not in every respect as in one process.
DIFFERS = {
    "set_global_thread_pool_sizes": "applies to the default host; refused with the daemon, and after the first "
    "session",
    "SessionOptions.set_provider_selection_policy_delegate": "called once for each session; an exception of the "
    "delegate is the cause of the error",
    "InferenceSession": "a request for QNN gets QNN, with the CPU as fallback; also accepts timeout=, retry=, "
    "host= and more",
    "InferenceSession.run": "also accepts timeout=, retry= and on_deadline=",
    "InferenceSession.run_async": "also accepts timeout=; runs in threads of this process",
    "InferenceSession.enable_fallback": "affects only the creation; a run is never repeated on the CPU",
    "InferenceSession.get_input_epdevices": "returns None for each input: inputs are in this process's memory",
    "InferenceSession.get_tuning_results": "returns an empty list: neither QNN nor the CPU is tunable",
    "InferenceSession.set_tuning_results": "accepts only an empty list: neither QNN nor the CPU is tunable",
    "InferenceSession.release_captured_graph": "does nothing: no provider of this host captures graphs",
    "InferenceSession.create_ortvalue_from_shape_and_type": "the values are in this process's memory",
    "SessionOptions.add_initializer": "QNN and ONNX Runtime's fusions also use the value; refused for a compiled "
    "model that QNN runs",
    "OrtValue.numpy": "also works for bfloat16 and other types for which ONNX Runtime raises an exception",
    "OrtEpDevice.memory_info": "None: tensors are in this process's memory",
    "OrtArenaCfg": "stores the settings, but nothing uses them",
    "OrtMemoryInfo": "only a description: cannot be used to allocate memory",
    "ModelCompiler": "compiles for QNN in a separate process; with other providers, functions of the application, "
    "or initializers in a file, ONNX Runtime's own compiler runs in the host",
    "OpSchema": "its enumerations are represented by their names",
    "OrtValueVector": "the values are in this process's memory",
    "ModelCompiler.set_ep_context_data_write_func": "also works for QNN, which itself does not support a function",
    "ModelCompiler.compile_to_bytes": "needs embed_compiled_data_into_model=True or set_ep_context_binary_information",
    "ModelCompiler.compile_to_stream": "requires the same settings as compile_to_bytes; writes one piece",
    "ModelCompiler.set_ep_context_binary_information": "a missing folder is created",
    "SparseTensor.as_blocksparse_view": "returns the indices; ONNX Runtime 1.32 raises an exception",
    "enable_telemetry_events": "only warns: the host sends no telemetry events",
    "disable_telemetry_events": "does nothing: the host sends no telemetry events",
    "get_all_providers": "includes providers that only older releases have",
    "get_available_providers": "QNN is first if the host has a device for it",
    "get_ep_devices": "returns the host's devices; QNN's devices only after QNN's library is registered",
    "get_hardware_devices": "returns the host's devices; the vendor of its processor is unknown",
    "preload_dlls": "does nothing: native libraries are loaded in the host",
    "print_debug_info": "prints information about the host",
    "register_execution_provider_library": "accepts only QNN's library; makes QNN's devices visible",
    "set_default_logger_callback": "receives the log lines of this process's calls; only the logger qnnbridge.host "
    "also receives those of the host's other threads",
    "set_default_logger_severity": "applies to sessions that are created later; log lines appear in the host",
    "set_default_logger_verbosity": "applies to sessions that are created later; log lines appear in the host",
    "set_seed": "applies to sessions that are created later",
    "copy_tensors": "copies between values in this process",
    "OrtDevice": "only describes devices; values are in the CPU's memory",
}

State = tuple[str, str]


@functools.cache
def ours() -> dict[str, dict[str, Any]]:
    """Walk the drop-in in a separate process, in which its names are those of onnxruntime."""
    names = sorted({name for walk in recorded().values() for name in walk["modules"]})
    done = subprocess.run(
        [sys.executable, "-m", "tests.dropin.ort_table", "--walk", *names],
        env={**os.environ, "QNNBRIDGE_HOST_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def names_of(walk: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield module and name, or ``Class.member`` for members, without duplicates in a second module."""
    for module, entries in walk.items():
        if module == AGAIN:
            continue
        for name, entry in entries.items():
            if module != MAIN and entry == walk.get(MAIN, {}).get(name):
                continue
            yield module, name
            for member in entry.get("members", ()):
                if not member.startswith("__"):
                    yield module, f"{name}.{member}"


def state_of(name: str) -> State:
    """Return state and remark of an existing name."""
    owner = name.partition(".")[0]
    for state, table in (("refused", REFUSED), ("differs", DIFFERS)):
        if name in table:
            return state, table[name]
    return ("refused", REFUSED[owner]) if owner in REFUSED else ("same", "")


def missing(theirs: Mapping[str, Mapping[str, Any]], here: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return names, members, numbers, modules and arguments that differ between onnxruntime and the drop-in."""
    found = []
    for module, entries in theirs.items():
        for name, entry in entries.items():
            mine = here.get(module, {}).get(name)
            where = f"{module}.{name}"
            if mine is None:
                found.append(where)
                continue
            found += [f"{where}: {what}" for what in _differences(entry, mine)]
    return found


def _differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> Iterator[str]:
    if theirs["kind"] != mine["kind"]:
        yield f"a {theirs['kind']}, not a {mine['kind']}"
    if theirs.get("module") != mine.get("module"):
        yield f"__module__ {theirs.get('module')}, not {mine.get('module')}"
    if "enum" in theirs and any(mine.get("enum", {}).get(name) != n for name, n in theirs["enum"].items()):
        yield f"members {theirs['enum']}, not {mine.get('enum')}"
    if not _takes(mine.get("arguments"), theirs.get("arguments")):
        yield f"arguments {theirs['arguments']}, not {mine.get('arguments')}"
    for member, wanted in theirs.get("members", {}).items():
        if member not in mine.get("members", {}):
            yield f"lacks {member}"
        elif (member, wanted) != ("__init__", []) and not _takes(mine["members"][member], wanted):
            yield f"{member} takes {wanted}, not {mine['members'][member]}"


def _takes(mine: list[str] | None, wanted: list[str] | None) -> bool:
    """Return whether each call that fits the signature `wanted` also fits `mine`. `_` is an argument without a name."""
    if not mine or not wanted:  # not a function, or a class without a constructor
        return mine is None or wanted is None or all(name.endswith("=") or name in ("*", "**") for name in mine)
    if "*" in mine and "**" in mine:
        return True
    known = [name.rstrip("=") for name in mine]
    named = [name for name in wanted if name not in ("*", "**")]
    for name, given in zip(named, mine, strict=False):
        if given == "*":
            break
        if name.rstrip("=") not in ("_", *known) or (name.endswith("=") and not given.endswith("=")):
            return False
    enough = len(mine) >= len(named) or "*" in mine or "**" in mine
    return enough and all(name.endswith("=") or name in ("*", "**") for name in mine[len(named) :])


def page() -> str:
    """Return the text of the page. Raises `LookupError` with all missing names."""
    walks, here = recorded(), ours()
    lacking = [f"{version}: {what}" for version, walk in walks.items() for what in missing(walk["modules"], here)]
    if lacking:
        raise LookupError("\n".join(lacking))
    versions = {version: set(names_of(walk["modules"])) for version, walk in walks.items()}
    rows: dict[str, list[str]] = {}
    for module, name in sorted(set().union(*versions.values())):
        state, remark = state_of(name)
        cells = [state if (module, name) in versions[version] else "–" for version in SHOWN]
        rows.setdefault(module, []).append(f"| `{name}` | {' | '.join(cells)} | {remark} |")
    return "\n".join([*_head(versions), *_tables(rows)])


def _head(versions: Mapping[str, set[tuple[str, str]]]) -> Iterator[str]:
    yield "# The interface of `onnxruntime` in `qnnbridge.ort`"
    yield ""
    yield f"This page lists every name of onnxruntime {SHOWN[-1]} and of {len(versions) - 1} releases before it, back to {SHOWN[0]}:"
    yield "modules, classes and their members, with their state in the drop-in. Enumerations have the same members and numbers,"
    yield "functions accept the same arguments, and classes have the same `__module__`. `python -m tests.dropin.ort_table` writes"
    yield "this page; tests fail if ONNX Runtime has a name that is missing here."
    yield ""
    yield "| onnxruntime | names | same | differ as described | refused with an error that contains the reason |"
    yield "|---|---|---|---|---|"
    for version in SHOWN:
        states = [state_of(name)[0] for _, name in versions[version]]
        counts = " | ".join(str(states.count(state)) for state in ("same", "differs", "refused"))
        yield f"| {version} | {len(states)} | {counts} |"
    yield ""
    yield "`onnxruntime.quantization`, `onnxruntime.tools`, `onnxruntime.transformers`, `onnxruntime.capi.convert_npz_to_onnx_adapter`"
    yield "and `onnxruntime.capi.onnxruntime_collect_build_info` are read from the host's own installation ([drop-in](drop-in.md))."
    yield "A dash means that the release lacks the name."
    yield ""


def _tables(rows: Mapping[str, list[str]]) -> Iterator[str]:
    for module, lines in rows.items():
        yield f"## `{module}`"
        yield ""
        if module == BINDINGS:
            yield "Names that only this module has, and its own classes with the same names as classes above."
            yield "`onnxruntime.capi._pybind_state` has the same names."
            yield ""
        yield f"| name | {' | '.join(SHOWN)} | remark |"
        yield "|---|" + "---|" * (len(SHOWN) + 1)
        yield from lines
        yield ""


def main() -> None:
    if sys.argv[1:2] == ["--walk"]:
        import qnnbridge.dropin  # noqa: F401 - puts it in the place of onnxruntime

        print(json.dumps(walk_modules(sys.argv[2:])))
    else:
        PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
