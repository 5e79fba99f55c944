"""Objects of the host's `onnxruntime` besides sessions, for the application's `ort` module; and ONNX Runtime's log.

These are adapters, shared allocators, streams of devices, packages of models, the compiler, and native functions
that describe ONNX Runtime's build or that its quantization tools call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as bindings

from qnnbridge_host.cache.files import work_folder
from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_host.engine.initializers import with_given_values
from qnnbridge_host.engine.ort_errors import translate
from qnnbridge_host.engine.ort_values import result_of_ort_value, to_ort_value
from qnnbridge_host.model.prepared import PackageVariant
from qnnbridge_protocol import errors
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    InvalidArgument,
    RemoteRuntimeError,
    RemoteValueError,
    desync,
)
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.request.client import CallsBack


# --- `onnxruntime.AdapterFormat`: files with the parameters of a LoRA adapter ----------------------------


def _create_adapter(call: ObjectCall) -> Any:
    """Create an empty adapter, or load the adapter in the file `path`."""
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
        raise RemoteRuntimeError(f"{len(names)} names were given for {len(call.values)} parameters")
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


# --- allocators that sessions share, and streams of devices ----------------------------------------------


def _register(call: ObjectCall) -> str:
    """Register a shared allocator and return its provider's name.

    The allocator belongs to ONNX Runtime's environment and stays registered when the client releases the object.
    """
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
    # Prefer a device with the same ids but do not require it: the CPU device has the ids 0 in the application, but
    # not in ONNX Runtime.
    for device in sorted(alike, key=lambda device: _device_facts(device) != wanted):
        return device.create_sync_stream()
    raise InvalidArgument(f"The host has no {named['type']} device of {named['ep_name']}, the chosen device.")


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


# --- `onnxruntime.ModelPackage` and its contexts ---------------------------------------------------------
#
# The application runs the selected variant in an ordinary session, created from the variant's file with the
# package's options.

# Methods whose arguments and results are only strings, numbers and booleans.
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
    """ONNX Runtime's `ModelPackageOptions`, and the objects that must exist as long as the options."""

    options: Any
    session_options: Any
    tensors: Any


def _class(name: str) -> Any:
    found = getattr(bindings, name, None)
    if found is None:
        raise errors.NotImplemented(
            f"The host's onnxruntime {ort.__version__} does not have {name}.",
            fix="Install a newer onnxruntime in the host's Python.",
        )
    return found


def _forward(method: str, of: Callable[[Any], Any]) -> Callable[[Any, ObjectCall], ObjectResult]:
    """Return an operation that calls a method of ONNX Runtime's object.

    method: the name of the object's method. of: a function that returns ONNX Runtime's object for a
        stored value.
    """

    def operation(value: Any, call: ObjectCall) -> ObjectResult:
        positional = call.arguments.get("positional") or []
        named = call.arguments.get("named") or {}
        return ObjectResult(getattr(of(value), method)(*positional, **named))

    return operation


def _create_package(call: ObjectCall) -> Any:
    """Create an empty package, or open the package in the folder that the argument `open` contains."""
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
    """Select a variant of a component. The result contains the variant's folder and options, for a session."""
    component = argument(call, "component_name", str)
    (options,) = call.objects
    chosen = context.context.select_component(component, options.options)
    name, folder = chosen.get_selected_variant_name(), chosen.get_selected_variant_folder_path()
    ep = context.context.get_variant_ep_name(component, name)
    described = {"name": name, "folder": folder, "ep": ep, "ort": _settings(context.root, component, name, folder)}
    return ObjectResult(described, made=(COMPONENT_CONTEXT, chosen))


def _settings(root: str, component: str, variant: str, folder: str) -> Mapping[str, Any]:
    """Return a variant's settings as ONNX Runtime needs them: ``model_file``, ``session_options``,
    ``provider_options``."""
    components = {one["name"]: one for one in _package_info(root)["components"]}
    variants = {one["name"]: one for one in components[component]["variants"]}
    return _ort_settings(variants[variant], folder)


def _package_info(root: str) -> Mapping[str, Any]:
    package = _class("ModelPackage").open(root)
    try:
        return dict(package.get_info())
    finally:
        package.close()


def _ort_settings(variant: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    settings = json.loads(variant["executor_info"].get("ort", "{}"))
    if isinstance(settings, str):  # the settings are in a JSON file with this name in the model's folder
        with open(os.path.join(folder, settings), encoding="utf-8") as file:
            settings = json.load(file)
    return settings if isinstance(settings, dict) else {}


def package_variants(root: str) -> list[PackageVariant]:
    """Read a model package with ONNX Runtime's reader.

    Raises:
        ContextUnusable: ONNX Runtime refuses the package.
        NotImplemented: this ONNX Runtime does not support model packages.
    """
    try:
        return [
            PackageVariant(
                str(component["name"]),
                str(one["name"]),
                str(one["ep"] or ""),
                str(one["variant_directory"] or ""),
                str(one["compatibility_string"] or ""),
                _ort_settings(one, str(one["variant_directory"] or root)),
            )
            for component in _package_info(root)["components"]
            for one in component["variants"]
        ]
    except errors.NotImplemented:
        raise
    except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        raise errors.ContextUnusable(
            f"The model package {os.path.basename(root)} cannot be used: {error}",
            cause="ONNX Runtime's own reader refuses it.",
            fix="Copy the folder again with all its files, or make the package again.",
            details={"path": root},
        ) from None


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


# --- functions that describe ONNX Runtime's build, and functions of its quantization tools ---------------
#
# These functions take and return arrays, or list operators and kernels. They do not store state. An application can
# call only the functions in `QUANTIZERS` and `LISTS`.

# Functions that write into their arguments.
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
# Functions that list operators or kernels.
LISTS = frozenset({"get_all_operator_schema", "get_all_opkernel_def", "get_registered_ep_kernel_defs"})
_PLAIN = (str, int, float, bool, type(None))


def _function(call: ObjectCall, table: frozenset[str]) -> Any:
    name = argument(call, "name", str)
    if name not in table:
        raise RemoteValueError(f"{name!r:.80} is not a function that an application may call in the host.")
    found = getattr(bindings, name, None)
    if found is None:
        raise errors.NotImplemented(f"The host's onnxruntime {ort.__version__} does not have {name}.")
    return found


def _quantize(_: Any, call: ObjectCall) -> ObjectResult:
    """Call a function with copies of the arrays. Return the changed copies, followed by the function's result."""
    function = _function(call, QUANTIZERS)
    # Arrays from the wire may be read-only, and these functions write into them. `np.array` copies.
    arrays = [np.array(value) for value in call.values]
    left = iter(arrays)
    given = [next(left) if one is None else one for one in argument(call, "arguments", list)]
    result = function(*given)
    if isinstance(result, np.ndarray):
        return ObjectResult("array", [*arrays, result])
    return ObjectResult(result if isinstance(result, _PLAIN) else None, arrays)


def _list(_: Any, call: ObjectCall) -> ObjectResult:
    """Return the attributes of each operator or kernel as JSON in an array, because a message header is too small
    for them."""
    found = _function(call, LISTS)(*map(str, argument(call, "arguments", list)))
    text = json.dumps([_facts(one) for one in found]).encode()
    return ObjectResult(len(found), [np.frombuffer(text, np.uint8)])


def _facts(value: Any) -> Any:
    """Convert an object of the bindings to a map of its public attributes; sort sets and convert enum members to
    names."""
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

# Types of objects that an application can create by name.
KINDS: Final = (
    ADAPTER_FORMAT,
    SHARED_ALLOCATOR,
    SYNC_STREAM,
    MODEL_PACKAGE,
    MODEL_PACKAGE_CONTEXT,
    MODEL_PACKAGE_OPTIONS,
    BUILD_TOOLS,
)


# --- sending log lines to the application while one of its requests is served ----------------------------
#
# The lines are also written to stderr in ONNX Runtime's own format, because the application searches stderr for
# causes of failures. Lines of threads that do not serve such a request are written to stderr only.

# Name, in requests, of the application's function that receives log lines.
LOG: Final = "log"
_LETTERS: Final = "VIWEF"

# Thread-local state: its attribute `calls_back` is set while the thread serves a request with a function for log
# lines.
_serving = threading.local()
_installed: list[int] = []
_lock = threading.Lock()


@contextlib.contextmanager
def log_lines_to(calls_back: CallsBack, severity: int) -> Iterator[None]:
    """Send this thread's log lines to the application's function while the block runs.

    severity: the lowest severity that ONNX Runtime logs (0 verbose to 4 fatal).
    """
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
                f"The host's onnxruntime {ort.__version__} does not support set_default_logger_callback.",
                fix="Install onnxruntime 1.32 or newer in the host's Python.",
            )
        ort.set_default_logger_callback(_take, severity)
        _installed[:] = [severity]


def _take(severity: int, category: str, logid: str, code_location: str, message: str) -> None:
    _write(severity, category, logid, code_location, message)
    calls_back: CallsBack | None = getattr(_serving, "calls_back", None)
    # Do not call the function again after it failed: the request will end with its error.
    if calls_back is None or calls_back.failure is not None:
        return
    line = {"category": category, "logid": logid, "code_location": code_location, "message": message}
    with contextlib.suppress(BridgeError):  # the response to the request contains the error
        calls_back.call(LOG, {"severity": int(severity), **line})


def _write(severity: int, category: str, logid: str, code_location: str, message: str) -> None:
    letter = _LETTERS[severity] if 0 <= severity < len(_LETTERS) else "?"
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    text = f"{stamp} [{letter}:{category}:{logid}, {code_location}] {message}\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))


# --- ONNX Runtime's own `onnxruntime.ModelCompiler`, with functions of the application -------------------

# Names of the application's functions in requests.
INITIALIZER_LOCATION: Final = "initializer_location"
WRITE: Final = "write"
CONTEXT_WRITE: Final = "ep_context_write"

_NO_WRITE_FUNCTION: Final = "does not support the registered EPContext data write callback"


@dataclasses.dataclass(frozen=True)
class _Compiler:
    """Description of a compilation. model: a path or bytes. keywords: further arguments of
    ``ort.ModelCompiler``."""

    engine: Any
    spec: SessionSpec
    model: str | bytes
    initializers: Mapping[str, Any]
    keywords: Mapping[str, Any]
    binary_information: tuple[str, str] | None


def _create(call: ObjectCall) -> _Compiler:
    """Create the description of a compilation from a request.

    The request's values are the initializers in the specification, followed by the model if it was given as bytes.
    """
    try:
        spec = SessionSpec.from_wire(argument(call, "spec", dict))
        names = spec.value_names
        model: str | bytes = spec.model_path if spec.model_path is not None else bytes(call.values[-1])
        # `strict=False`: the bytes of a model without a path follow the initializers, so the lengths may differ.
        initializers = dict(zip(names, call.values, strict=False))
        place = call.arguments.get("binary_information")
        information = None if place is None else (str(place[0]), str(place[1]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise desync(f"a ModelCompiler without a proper description ({error})") from None
    keywords = {
        "embed_compiled_data_into_model": argument(call, "embed", bool),
        "flags": argument(call, "flags", int),
        "graph_optimization_level": ort.GraphOptimizationLevel(argument(call, "optimization", int)),
    }
    if call.arguments.get("external_path") is not None:
        keywords["external_initializers_file_path"] = argument(call, "external_path", str)
        keywords["external_initializers_size_threshold"] = argument(call, "external_threshold", int)
    return _Compiler(call.sessions.engine, spec, model, initializers, keywords, information)


def _compile_to_file(compiler: _Compiler, call: ObjectCall) -> None:
    output = call.arguments.get("output")
    if output is not None:
        output = argument(call, "output", str)
    elif compiler.spec.initializers and isinstance(compiler.model, str):
        # Derive the output's path from the model's path here: ONNX Runtime gets the model with the initializers'
        # values as bytes, which have no path.
        output = f"{os.path.splitext(compiler.model)[0]}_ctx.onnx"
    _compile(compiler, call, lambda native: native.compile_to_file(output), output)


def _compile_to_bytes(compiler: _Compiler, call: ObjectCall) -> ObjectResult:
    made: bytes = _compile(compiler, call, lambda native: native.compile_to_bytes(), None)
    return ObjectResult(values=[np.frombuffer(made, np.uint8)])


def _compile_to_stream(compiler: _Compiler, call: ObjectCall) -> None:
    calls_back = call.request.calls_back
    if calls_back is None:
        raise InvalidArgument("The request lacks the application's function that writes the compiled model.")

    def write(data: bytes) -> None:
        calls_back.call(WRITE, values=[np.frombuffer(data, np.uint8)])

    made = _compile(compiler, call, lambda native: native.compile_to_stream(write), None)
    if made is not None:  # ONNX Runtime has written the result to files and has not called the function
        write(made)


def _compile(compiler: _Compiler, call: ObjectCall, run: Callable[[Any], Any], output: str | None) -> Any:
    calls_back = call.request.calls_back
    call.request.blame = {"label": _label(compiler)}
    call.enter("compiling")
    try:
        native = _native(compiler, calls_back)
        if calls_back is None or CONTEXT_WRITE not in calls_back:
            return run(native)
        try:
            # Releases before 1.31 lack this method.
            native.set_ep_context_data_write_func(lambda name, data: _write_context(calls_back, name, data.read()))
            return run(native)
        except Exception as error:
            if not isinstance(error, AttributeError) and _NO_WRITE_FUNCTION not in str(error):
                raise
        return _by_files(compiler, calls_back, output)
    except Exception as error:
        # If the application's function failed first, ONNX Runtime's error is only a consequence.
        if calls_back is not None and calls_back.failure is not None:
            raise calls_back.failure from error
        if call.request.withdrawn:
            raise Cancelled("The compilation was cancelled.") from error
        raise translate(error) from error


def _native(compiler: _Compiler, calls_back: CallsBack | None) -> Any:
    """Create ONNX Runtime's compiler."""
    spec, model = with_given_values(compiler.spec, compiler.model, compiler.initializers)
    options, tensors = compiler.engine.session_options(spec, compiler.initializers)
    keywords = dict(compiler.keywords)
    if calls_back is not None and INITIALIZER_LOCATION in calls_back:
        keywords["get_initializer_location_func"] = _location_function(calls_back)
    native = ort.ModelCompiler(options, model, **keywords)
    if compiler.binary_information is not None:
        native.set_ep_context_binary_information(*compiler.binary_information)
    native._tensors = tensors  # the tensors must outlive the compiler, which borrows their memory
    return native


def _location_function(calls_back: CallsBack) -> Callable[[str, Any, Any], Any]:
    def location(name: str, value: Any, external: Any) -> Any:
        described = None
        if external is not None:
            described = {
                "filepath": str(external.filepath),
                "file_offset": int(external.file_offset),
                "byte_size": int(external.byte_size),
            }
        found = calls_back.call(
            INITIALIZER_LOCATION, {"name": name, "external": described}, [result_of_ort_value(value)]
        ).result
        if found is None:
            return None
        try:
            place = str(found["filepath"]), int(found["file_offset"]), int(found["byte_size"])
        except (LookupError, TypeError, ValueError):
            raise calls_back.nonsense(INITIALIZER_LOCATION, "a location of an initializer is invalid") from None
        return ort.OrtExternalInitializerInfo(*place)

    return location


def _by_files(compiler: _Compiler, calls_back: CallsBack, output: str | None) -> bytes | None:
    """Compile into a temporary folder and pass the context binaries to the application's function.

    This replaces ONNX Runtime's own support for the function, which old releases and QNN lack. Return the model's
    bytes; ``None`` if the model is written to `output`.
    """
    # QNN derives the binary's name from the model's file name (<stem>_qnn.bin), and the compiled model contains
    # that name.
    stem = os.path.splitext(os.path.basename(output))[0] if output is not None else "model_ctx"
    with work_folder("compiler") as folder:
        path = os.path.join(folder, f"{stem}.onnx")
        _native(compiler, calls_back).compile_to_file(path)
        for name in sorted(os.listdir(folder)):
            if name != os.path.basename(path):
                with open(os.path.join(folder, name), "rb") as file:
                    _write_context(calls_back, name, file.read())
        if output is None:
            with open(path, "rb") as file:
                return file.read()
        # `os.replace` is atomic within one file system only, and the temporary folder may be on another. So copy
        # the file next to the target first, and then rename the copy.
        draft = f"{output}.{os.getpid()}"
        try:
            shutil.copyfile(path, draft)
            os.replace(draft, output)
        finally:
            if os.path.exists(draft):
                os.unlink(draft)
        return None


def _write_context(calls_back: CallsBack, name: str, data: bytes) -> None:
    calls_back.call(CONTEXT_WRITE, {"name": name}, [np.frombuffer(data, np.uint8)])


def _label(compiler: _Compiler) -> str:
    return os.path.basename(compiler.model) if isinstance(compiler.model, str) else "<bytes>"


MODEL_COMPILER = ObjectKind(
    "ModelCompiler",
    _create,
    {
        "compile_to_file": _compile_to_file,
        "compile_to_bytes": _compile_to_bytes,
        "compile_to_stream": _compile_to_stream,
    },
)
