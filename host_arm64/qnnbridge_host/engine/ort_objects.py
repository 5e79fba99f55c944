"""What the application's `onnxruntime` reaches in the host's besides sessions: its objects, and its log.

Adapters, allocators, streams of devices, packages of models, the functions of the bindings that ONNX Runtime's
build and its quantization use. `model_compiler` has the compiler.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as bindings

from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_host.engine.ort_values import result_of_ort_value, to_ort_value
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import BridgeError, InvalidArgument, RemoteRuntimeError, RemoteValueError
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.request.client import CallsBack


# --- `onnxruntime.AdapterFormat`: files with the parameters of a LoRA adapter -----------------------------


def _create_adapter(call: ObjectCall) -> Any:
    """An empty adapter, or that of the file `path`."""
    if call.arguments.get("path") is None:
        return ort.AdapterFormat()
    return ort.AdapterFormat.read_adapter(argument(call, "path", str))


def _describe_adapter(adapter: Any) -> dict[str, int]:
    return {
        "format_version": adapter.get_format_version(),
        "adapter_version": adapter.get_adapter_version(),
        "model_version": adapter.get_model_version(),
    }


def _set_versions(adapter: Any, call: ObjectCall) -> None:
    adapter.set_adapter_version(argument(call, "adapter_version", int))
    adapter.set_model_version(argument(call, "model_version", int))


def _parameters(adapter: Any, _call: ObjectCall) -> ObjectResult:
    found = adapter.get_parameters()
    return ObjectResult(list(found), [result_of_ort_value(value) for value in found.values()])


def _set_parameters(adapter: Any, call: ObjectCall) -> None:
    names = argument(call, "names", list)
    if len(names) != len(call.values):
        raise RemoteRuntimeError(f"{len(names)} names for {len(call.values)} parameters")
    values = zip(map(str, names), call.values, strict=True)
    adapter.set_parameters({name: to_ort_value(ort, value, name) for name, value in values})


ADAPTER_FORMAT = ObjectKind(
    "AdapterFormat",
    _create_adapter,
    {
        "export": lambda adapter, call: adapter.export_adapter(argument(call, "path", str)),
        "set_versions": _set_versions,
        "parameters": _parameters,
        "set_parameters": _set_parameters,
    },
    _describe_adapter,
)


# --- allocators that sessions share, and streams of devices -----------------------------------------------


def _register(call: ObjectCall) -> str:
    """The allocator belongs to ONNX Runtime's environment: it stays when the object goes, which is a name only."""
    memory = argument(call, "memory_info", dict)
    info = ort.OrtMemoryInfo(
        str(memory["name"]),
        ort.OrtAllocatorType(int(memory["allocator_type"])),
        int(memory["device_id"]),
        ort.OrtMemType(int(memory["mem_type"])),
    )
    settings = call.arguments.get("arena")
    arena = None if settings is None else ort.OrtArenaCfg({str(k): int(v) for k, v in settings.items()})
    provider = call.arguments.get("provider")
    if provider is None:
        ort.create_and_register_allocator(info, arena)
    else:
        options = {str(k): str(v) for k, v in (call.arguments.get("options") or {}).items()}
        ort.create_and_register_allocator_v2(argument(call, "provider", str), info, options, arena)
    return str(provider)


def _create_stream(call: ObjectCall) -> Any:
    wanted = argument(call, "device", dict)
    named = {name: wanted.get(name) for name in ("ep_name", "type")}
    alike = [device for device in ort.get_ep_devices() if _device_facts(device).items() >= named.items()]
    # The application knows a CPU by other numbers than its ONNX Runtime does.
    for device in sorted(alike, key=lambda device: _device_facts(device) != wanted):
        return device.create_sync_stream()
    raise InvalidArgument(f"The host has no device of {wanted.get('ep_name')} like this one.")


def _device_facts(device: Any) -> Mapping[str, Any]:
    hardware = device.device
    return {
        "ep_name": str(device.ep_name),
        "type": str(hardware.type).rpartition(".")[2],
        "vendor_id": int(hardware.vendor_id),
        "device_id": int(hardware.device_id),
    }


SHARED_ALLOCATOR = ObjectKind("SharedAllocator", _register, {})
SYNC_STREAM = ObjectKind(
    "OrtSyncStream",
    _create_stream,
    {"get_handle": lambda stream, _call: ObjectResult(int(stream.get_handle()))},
)


# --- `onnxruntime.ModelPackage` and its contexts ----------------------------------------------------------
#
# A session of the variant that was chosen is an ordinary one of the application: it is made from the variant's
# file, with the options that the package names.

# Methods that take and give texts, numbers and truth values.
_PACKAGE_METHODS: Final = (
    "add_shared_asset",
    "close",
    "get_component_json",
    "get_info",
    "get_variant_json",
    "prune",
    "remove_component",
    "remove_shared_asset",
    "remove_variant",
    "remove_variant_executor_info",
    "resolve_asset_uri",
    "resolve_string_ref",
    "set_additional_metadata_json",
    "set_component_external",
    "set_component_inline",
    "set_layout",
    "set_metadata",
    "set_variant",
    "set_variant_executor_info_external",
    "set_variant_executor_info_inline",
)
_CONTEXT_METHODS: Final = (
    "get_component_count",
    "get_component_names",
    "get_schema_version",
    "get_variant_count",
    "get_variant_ep_name",
    "get_variant_names",
    "resolve_string_ref",
)


class _Context(NamedTuple):
    context: Any
    root: str


class _Options(NamedTuple):
    """What a variant is chosen by, with the options that must outlive it."""

    options: Any
    session_options: Any
    tensors: Any


def _class(name: str) -> Any:
    found = getattr(bindings, name, None)
    if found is None:
        raise errors.NotImplemented(
            f"The host's onnxruntime {ort.__version__} has no {name}.",
            fix="Install a newer onnxruntime in the host's Python.",
        )
    return found


def _forward(method: str, of: Callable[[Any], Any]) -> Callable[[Any, ObjectCall], ObjectResult]:
    """An operation that is a method of ONNX Runtime's object. method: from the tables above."""

    def operation(value: Any, call: ObjectCall) -> ObjectResult:
        positional = call.arguments.get("positional") or []
        named = call.arguments.get("named") or {}
        return ObjectResult(getattr(of(value), method)(*positional, **named))

    return operation


def _create_package(call: ObjectCall) -> Any:
    """An empty package, or that of the folder in `open`."""
    cls = _class("ModelPackage")
    given = call.arguments.get("open")
    return cls() if given is None else cls.open(*given["positional"], **given["named"])


def _commit(package: Any, call: ObjectCall) -> None:
    mode = _class("ModelPackageWriteMode")(argument(call, "mode", int))
    package.commit(call.arguments.get("dest_root"), mode)


MODEL_PACKAGE = ObjectKind(
    "ModelPackage",
    _create_package,
    {
        **{name: _forward(name, lambda package: package) for name in _PACKAGE_METHODS},
        "commit": _commit,
        "compute_directory_hash": lambda package, call: ObjectResult(
            package.compute_directory_hash(call.arguments.get("source_dir"))
        ),
    },
)


def _create_context(call: ObjectCall) -> _Context:
    root = argument(call, "package_root", str)
    return _Context(_class("ModelPackageContext")(root), root)


def _create_options(call: ObjectCall) -> _Options:
    spec = SessionSpec.from_wire(argument(call, "spec", dict))
    names = spec.value_names
    engine: Any = call.sessions.engine
    options, tensors = engine.session_options(spec, dict(zip(names, call.values, strict=True)))
    return _Options(_class("ModelPackageOptions")(options), options, tensors)


def _select(context: _Context, call: ObjectCall) -> ObjectResult:
    """Choose a variant; the result has what a session of it is made from."""
    component = argument(call, "component_name", str)
    (options,) = call.objects
    chosen = context.context.select_component(component, options.options)
    name, folder = chosen.get_selected_variant_name(), chosen.get_selected_variant_folder_path()
    ep = context.context.get_variant_ep_name(component, name)
    described = {"name": name, "folder": folder, "ep": ep, "ort": _settings(context.root, component, name, folder)}
    return ObjectResult(described, made=(COMPONENT_CONTEXT, chosen))


def _settings(root: str, component: str, variant: str, folder: str) -> Mapping[str, Any]:
    """The part of the package about ONNX Runtime: ``model_file``, ``session_options``, ``provider_options``."""
    package = _class("ModelPackage").open(root)
    try:
        components = {one["name"]: one for one in package.get_info()["components"]}
    finally:
        package.close()
    variants = {one["name"]: one for one in components[component]["variants"]}
    text = variants[variant]["executor_info"].get("ort", "{}")
    settings = json.loads(text)
    if isinstance(settings, str):  # it is in a file beside the model
        with open(os.path.join(folder, settings), encoding="utf-8") as file:
            settings = json.load(file)
    return settings if isinstance(settings, dict) else {}


MODEL_PACKAGE_CONTEXT = ObjectKind(
    "ModelPackageContext",
    _create_context,
    {
        **{name: _forward(name, lambda context: context.context) for name in _CONTEXT_METHODS},
        "select_component": _select,
    },
)
MODEL_PACKAGE_OPTIONS = ObjectKind("ModelPackageOptions", _create_options, {})
COMPONENT_CONTEXT = ObjectKind("ModelPackageComponentContext", None, {})


# --- functions of ONNX Runtime's build and its quantization -----------------------------------------------
#
# They take arrays and give arrays, or list operators and kernels; none keeps anything. The functions are those of
# a closed table.

# Functions that write into the arrays they get.
QUANTIZERS = frozenset(
    (
        *("pack_fp4_weights_for_cuda_moe_gemm", "quantize_matmul_2bits", "quantize_matmul_4bits"),
        *(
            "quantize_matmul_8bits",
            "quantize_matmul_bnb4",
            "quantize_qdq_matmul_2bits",
            "quantize_qdq_matmul_4bits",
        ),
    )
)
# Functions that list what there is.
LISTS = frozenset({"get_all_operator_schema", "get_all_opkernel_def", "get_registered_ep_kernel_defs"})
_PLAIN = (str, int, float, bool, type(None))


def _function(call: ObjectCall, table: frozenset[str]) -> Any:
    name = argument(call, "name", str)
    if name not in table:
        raise RemoteValueError(f"{name!r:.80} is no function of this kind.")
    found = getattr(bindings, name, None)
    if found is None:
        raise errors.NotImplemented(f"The onnxruntime of the host has no {name}.")
    return found


def _quantize(_: Any, call: ObjectCall) -> ObjectResult:
    """Call with copies of the arrays, and return them as they are afterwards, with what the function gave."""
    function = _function(call, QUANTIZERS)
    # `np.array` copies. Arrays from the wire may be read-only, and these functions write into them.
    arrays = [np.array(value) for value in call.values]
    left = iter(arrays)
    given = [next(left) if one is None else one for one in argument(call, "arguments", list)]
    result = function(*given)
    if isinstance(result, np.ndarray):
        return ObjectResult("array", [*arrays, result])
    return ObjectResult(result if isinstance(result, _PLAIN) else None, arrays)


def _list(_: Any, call: ObjectCall) -> ObjectResult:
    """The facts of each operator or kernel, as JSON: there are too many for a header."""
    found = _function(call, LISTS)(*map(str, argument(call, "arguments", list)))
    text = json.dumps([_facts(one) for one in found]).encode()
    return ObjectResult(len(found), [np.frombuffer(text, np.uint8)])


def _facts(value: Any) -> Any:
    """Of an object of the bindings its public attributes; sets are sorted, enumerations go by name."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {str(key): _facts(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_facts(one) for one in value]
    if isinstance(value, set):
        return sorted(_facts(one) for one in value)
    if hasattr(type(value), "__members__"):
        return value.name
    attributes = {name: getattr(value, name) for name in dir(value) if not name.startswith("_")}
    return {name: _facts(one) for name, one in attributes.items() if not callable(one)}


BUILD_TOOLS = ObjectKind("BuildTools", lambda _call: bindings, {"quantize": _quantize, "list": _list})

# Those that an application makes by name.
KINDS: Final = (
    ADAPTER_FORMAT,
    SHARED_ALLOCATOR,
    SYNC_STREAM,
    MODEL_PACKAGE,
    MODEL_PACKAGE_CONTEXT,
    MODEL_PACKAGE_OPTIONS,
    BUILD_TOOLS,
)


# --- log lines for a function of the application, while one of its requests is served ---------------------
#
# The lines also go to stderr, in ONNX Runtime's own form: the application looks there for causes of failures. Lines
# of threads that serve no such request go to stderr alone.

# Name of the function on the wire.
LOG: Final = "log"
_LETTERS: Final = "VIWEF"

# In a thread that serves a request with a function for log lines: `calls_back`.
_serving = threading.local()
_installed: list[int] = []
_lock = threading.Lock()


@contextlib.contextmanager
def log_lines_to(calls_back: CallsBack, severity: int) -> Iterator[None]:
    """While the block runs, log lines of this thread go to the function."""
    _install(severity)
    _serving.calls_back = calls_back
    try:
        yield
    finally:
        _serving.calls_back = None


def _install(severity: int) -> None:
    with _lock:
        if _installed == [severity]:
            return
        if not hasattr(ort, "set_default_logger_callback"):
            raise errors.NotImplemented(
                f"The host's onnxruntime {ort.__version__} has no set_default_logger_callback.",
                fix="Install onnxruntime 1.32 or newer in the host's Python.",
            )
        ort.set_default_logger_callback(_take, severity)
        _installed[:] = [severity]


def _take(severity: int, category: str, logid: str, code_location: str, message: str) -> None:
    _write(severity, category, logid, code_location, message)
    calls_back: CallsBack | None = getattr(_serving, "calls_back", None)
    # A function that has failed is not called again: the request will end with its error.
    if calls_back is None or calls_back.failure is not None:
        return
    line = {"category": category, "logid": logid, "code_location": code_location, "message": message}
    with contextlib.suppress(BridgeError):  # the request's own answer says what is wrong
        calls_back.call(LOG, {"severity": int(severity), **line})


def _write(severity: int, category: str, logid: str, code_location: str, message: str) -> None:
    letter = _LETTERS[severity] if 0 <= severity < len(_LETTERS) else "?"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"{stamp} [{letter}:{category}:{logid}, {code_location}] {message}\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
