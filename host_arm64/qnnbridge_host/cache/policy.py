"""Which sessions the cache has to do with: what can be said before a host is asked. Pure functions.

A reason is half a sentence that goes on after "off: ". Whoever debugs a compilation (dumps, profiles, op traces,
own compiled models) wants it to happen, so the cache stays out of it.
"""

from __future__ import annotations

import os
from typing import Final

from qnnbridge._providers import QNN
from qnnbridge_host.cache.key import qnn_options
from qnnbridge_host.cache.settings import SWITCH_VARIABLE, CacheSettings
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.specs import SessionSpec

_WRITES: Final = frozenset(
    (
        *("dump_qnn_ir_dlc", "dump_json_qnn_graph", "enable_framework_op_trace", "dump_qnn_ep_input_graph"),
        *("enable_htp_prepare_only", "enable_htp_prepare_and_load"),
    )
)
"""QNN options that are about what happens, or is written, while a model is compiled."""

_LIBRARIES: Final = ("op_packages", "qnn_saver_path", "qnn_ir_backend_path")

_OWN_CONTEXT: Final = ("ep.context_", "ep.share_ep_contexts", "ep.stop_share_ep_contexts", "ep.enable_weightless")
_OTHER_ENTRIES: Final = ("session.compile_only", "session.disable_model_compile", "session.save_model_format")


def reason_against(
    source: ModelSource, spec: SessionSpec, settings: CacheSettings, wanted: bool | None
) -> str | None:
    """Why this session is made without the cache; ``None`` if it should be used.

    wanted: ``True`` and ``False`` are the application's word, ``None`` is the default.
    """
    if wanted is False:
        return "cache=False"
    if not settings.enabled:
        return f"{SWITCH_VARIABLE} switches it off"
    if spec.providers and spec.providers[0].name != QNN:
        return f"the session does not ask for {QNN} first"
    if source.scan is None or source.scan.format != "onnx":
        return "the model is not an ONNX model"
    if source.scan.is_compiled:
        return "the model is compiled already"
    return _against_options(spec) or _against_size(source, settings, wanted)


def is_small(source: ModelSource, settings: CacheSettings, wanted: bool | None) -> bool:
    """Whether the model is compiled so quickly that it is not worth a process and an entry, as a rule."""
    return wanted is not True and size_of(source) < settings.min_model_bytes


def size_of(source: ModelSource) -> int:
    """Of the model with all its files, as they were when it was opened."""
    sizes = [file.stamp.size for file in source.known if file.stamp is not None]
    return sum(sizes) + len(source.data or b"")


def _against_size(source: ModelSource, settings: CacheSettings, wanted: bool | None) -> str | None:
    if is_small(source, settings, wanted):
        return f"the model has {size_of(source)} bytes, compiling it is quick"
    return None


def _against_options(spec: SessionSpec) -> str | None:
    options = qnn_options(spec)
    backend = options.get("backend_type") or _stem(options.get("backend_path", ""))
    if backend not in ("", "htp"):
        return f"QNN's backend is {backend}, not htp"
    for name in _WRITES & options.keys():
        if options[name] != "0":
            return f"the QNN option {name} is about compiling itself"
    if options.get("profiling_level", "off") != "off":
        return "QNN's profiling would not see the compilation"
    for name in _LIBRARIES:
        if options.get(name):
            return f"the QNN option {name} names libraries whose contents are not known"
    if spec.custom_op_libraries:
        return "the session has custom operators, in libraries whose contents are not known"
    if spec.options.get("optimized_model_filepath"):
        return "optimized_model_filepath asks for a file that only the original model gives"
    for key, text in spec.config_entries.items():
        if key.startswith(_OWN_CONTEXT) and text not in ("", "0"):
            return f"the session itself is about compiled models ({key})"
        if key in _OTHER_ENTRIES and text not in ("", "0"):
            return f"the session entry {key} does not go together with it"
    return None


def _stem(path: str) -> str:
    """The backend that a library's name means: ``libQnnHtp.so`` and ``QnnHtp.dll`` are htp."""
    name = os.path.basename(path.replace("\\", "/")).removeprefix("lib").split(".", 1)[0].lower()
    return name.removeprefix("qnn")
