"""The host's part of `onnxruntime.ModelCompiler`: ONNX Runtime's own, with functions of the application.

QNN takes no function for context binaries (onnxruntime-qnn 2.7: "does not support the registered EPContext data
write callback"). Then the model is compiled into a folder of its own, and the function gets the files of QNN.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnxruntime as ort

from qnnbridge_host.engine.calls import ObjectCall, ObjectKind, ObjectResult, argument
from qnnbridge_host.engine.ort_errors import translate
from qnnbridge_host.engine.ort_values import result_of_ort_value
from qnnbridge_protocol.errors import Cancelled, InvalidArgument, desync
from qnnbridge_protocol.specs import SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.request.client import CallsBack

# Names of functions on the wire.
INITIALIZER_LOCATION: Final = "initializer_location"
WRITE: Final = "write"
CONTEXT_WRITE: Final = "ep_context_write"

_NO_WRITE_FUNCTION: Final = "does not support the registered EPContext data write callback"


@dataclasses.dataclass(frozen=True)
class _Compiler:
    """What is to be compiled, and how. model: a path or bytes. keywords: further arguments of the constructor."""

    engine: Any
    spec: SessionSpec
    model: str | bytes
    initializers: Mapping[str, Any]
    keywords: Mapping[str, Any]
    binary_information: tuple[str, str] | None


def _create(call: ObjectCall) -> _Compiler:
    """A compiler. values: the initializers of the specification, then the model if it has no path."""
    try:
        spec = SessionSpec.from_wire(argument(call, "spec", dict))
        names = spec.value_names
        model: str | bytes = spec.model_path if spec.model_path is not None else bytes(call.values[-1])
        # Not strict: a model without a path follows the initializers.
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
    _compile(compiler, call, lambda native: native.compile_to_file(output), output)


def _compile_to_bytes(compiler: _Compiler, call: ObjectCall) -> ObjectResult:
    made: bytes = _compile(compiler, call, lambda native: native.compile_to_bytes(), None)
    return ObjectResult(values=[np.frombuffer(made, np.uint8)])


def _compile_to_stream(compiler: _Compiler, call: ObjectCall) -> None:
    calls_back = call.request.calls_back
    if calls_back is None:
        raise InvalidArgument("The request names no function of the application.")

    def write(data: bytes) -> None:
        calls_back.call(WRITE, values=[np.frombuffer(data, np.uint8)])

    made = _compile(compiler, call, lambda native: native.compile_to_stream(write), None)
    if made is not None:  # it came by files
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
            # Before 1.31 there is no such function.
            native.set_ep_context_data_write_func(lambda name, data: _write_context(calls_back, name, data.read()))
            return run(native)
        except Exception as error:
            if not isinstance(error, AttributeError) and _NO_WRITE_FUNCTION not in str(error):
                raise
        return _by_files(compiler, calls_back, output)
    except Exception as error:
        # A function of the application failed first: what ONNX Runtime raised only follows from that.
        if calls_back is not None and calls_back.failure is not None:
            raise calls_back.failure from error
        if call.request.withdrawn:
            raise Cancelled("The compilation was cancelled.") from error
        raise translate(error) from error


def _native(compiler: _Compiler, calls_back: CallsBack | None) -> Any:
    """ONNX Runtime's compiler."""
    options, tensors = compiler.engine.session_options(compiler.spec, compiler.initializers)
    keywords = dict(compiler.keywords)
    if calls_back is not None and INITIALIZER_LOCATION in calls_back:
        keywords["get_initializer_location_func"] = _location_function(calls_back)
    native = ort.ModelCompiler(options, compiler.model, **keywords)
    if compiler.binary_information is not None:
        native.set_ep_context_binary_information(*compiler.binary_information)
    native._tensors = tensors  # they must outlive it
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
            raise calls_back.nonsense(INITIALIZER_LOCATION, "no place of an initializer") from None
        return ort.OrtExternalInitializerInfo(*place)

    return location


def _by_files(compiler: _Compiler, calls_back: CallsBack, output: str | None) -> bytes | None:
    """Compile into a folder; the function gets the context binaries, and `output` or the caller gets the model."""
    # QNN derives the binary's name from the model's (<stem>_qnn.bin), and the model refers to it by that name.
    stem = os.path.splitext(os.path.basename(output))[0] if output is not None else "model_ctx"
    folder = tempfile.mkdtemp(prefix="qnnbridge-")
    try:
        path = os.path.join(folder, f"{stem}.onnx")
        _native(compiler, calls_back).compile_to_file(path)
        for name in sorted(os.listdir(folder)):
            if name != os.path.basename(path):
                with open(os.path.join(folder, name), "rb") as file:
                    _write_context(calls_back, name, file.read())
        if output is None:
            with open(path, "rb") as file:
                return file.read()
        # `os.replace` is atomic inside of one file system only, and the temporary folder may be on another one:
        # so first a copy beside the target, then the rename.
        draft = f"{output}.{os.getpid()}"
        try:
            shutil.copyfile(path, draft)
            os.replace(draft, output)
        finally:
            if os.path.exists(draft):
                os.unlink(draft)
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
