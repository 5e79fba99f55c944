"""`ModelCompiler`: compile a model for the providers in the session options.

For QNN, `qnnbridge.compile` compiles in a separate process and writes the compiled model either completely or not
at all. For other providers (the CPU provider compiles nothing) ONNX Runtime's own compiler runs in the host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qnnbridge import _ep_context
from qnnbridge._bindings import refused
from qnnbridge._host import Host
from qnnbridge._host_objects import ObjectReply, create_object
from qnnbridge._options.fields import GraphOptimizationLevel, OrtCompileApiFlags
from qnnbridge._options.providers import QNN
from qnnbridge._session import SessionRecipe
from qnnbridge._session.runs import coerce_session_options
from qnnbridge._session_options import SessionOptions
from qnnbridge._threads import CalledFunction
from qnnbridge._transport.channel import CallContext
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge.ort._placement import policy
from qnnbridge.ort._signatures import Int64, bound, named
from qnnbridge_protocol.errors import (
    CompileFailed,
    Fail,
    InvalidArgument,
    OptionError,
    RemoteRuntimeError,
    RemoteTypeError,
    RemoteValueError,
)
from qnnbridge_protocol.specs import CPU, ProviderSpec, SessionSpec

# File systems allow 255 bytes for a file name. The remaining bytes are for suffixes.
MAX_STEM_BYTES = 215


class ModelCompiler:
    """Compile a model in a host, with the interface of ``onnxruntime.ModelCompiler``."""

    @as_ort_raises
    def __init__(
        self,
        sess_options: SessionOptions,
        input_model_path_or_bytes: str | os.PathLike[str] | bytes,
        embed_compiled_data_into_model: bool = False,
        external_initializers_file_path: str | os.PathLike[str] | None = None,
        external_initializers_size_threshold: int = 1024,
        flags: int = OrtCompileApiFlags.NONE,
        graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_initializer_location_func: Callable[..., Any] | None = None,
    ) -> None:
        sess_options = coerce_session_options(sess_options, providers_given=False)
        model = input_model_path_or_bytes
        if not isinstance(model, (str, os.PathLike, bytes)):
            raise RemoteTypeError(f"Unable to load from type '{type(model)}'")
        if not model:
            kind = "bytes array" if isinstance(model, bytes) else "path"
            raise RemoteValueError(f"Input model {kind} is empty")
        external = external_initializers_file_path
        if external and not isinstance(external, (str, os.PathLike)):
            raise RemoteTypeError(f"Output external initializer filepath is of unexpected type '{type(external)}'")
        self._functions: dict[str, CalledFunction] = {}
        if get_initializer_location_func is not None:
            if external:
                raise RemoteValueError(
                    "Cannot initialize ModelCompiler with both `external_initializers_file_path` and "
                    "`get_initializer_location_func`"
                )
            self._functions["initializer_location"] = _ep_context.initializer_location(
                get_initializer_location_func
            )
        self._settings: dict[str, Any] = {
            "embed": bool(embed_compiled_data_into_model),
            "flags": int(flags),
            "optimization": int(graph_optimization_level),
            "external_path": os.fspath(external) if external else None,
            "external_threshold": int(external_initializers_size_threshold),
        }
        self._options = sess_options
        self._model = model
        self._flags = OrtCompileApiFlags(int(flags))
        # Folder and stem of the context binary, if the application has set them.
        self._binary: tuple[str, str] | None = None

    @as_ort_raises
    def compile_to_file(self, output_model_path: str | os.PathLike[str] | None = None) -> None:
        """Compile the model to a file; default: ``<model>_ctx.onnx`` next to the model."""
        if output_model_path is not None and not isinstance(output_model_path, (str, os.PathLike)):
            raise RemoteTypeError(f"Output model's filepath is of unexpected type '{type(output_model_path)}'")
        output = os.fspath(output_model_path) if output_model_path else self._default_output()
        self._require_model()
        if self._flags & OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS and os.path.exists(output):
            raise Fail(
                "[ONNXRuntimeError] : 1 : FAIL : Failed to generate EP context model since the file "
                f"'\"{output}\"' exists already. Please remove the EP context model if you want to re-generate it."
            )
        if self._is_native:
            self._natively("compile_to_file", {"output": os.path.abspath(output)})
        else:
            self._compile(output, embed=self._settings["embed"])

    @as_ort_raises
    def compile_to_bytes(self) -> bytes:
        """Compile the model and return the compiled model as bytes.

        The context binary is embedded in the model, or written to the folder set by
        `set_ep_context_binary_information`.
        """
        self._require_model()
        if self._is_native:
            return bytes(self._natively("compile_to_bytes").values[0])
        if not self._settings["embed"]:
            if self._binary is None:
                raise InvalidArgument(
                    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : compile_to_bytes needs "
                    "embed_compiled_data_into_model, or a path for the context binary.",
                    fix="Give ModelCompiler embed_compiled_data_into_model=True, call "
                    "set_ep_context_binary_information, or use compile_to_file.",
                )
            return self._compile_unembedded(*self._binary)
        # Use a temporary file, because `qnnbridge.compile` returns no bytes: its host writes the result to a path.
        with tempfile.TemporaryDirectory(prefix="qnnbridge-") as folder:
            output = os.path.join(folder, "model_ctx.onnx")
            self._compile(output, embed=True)
            with open(output, "rb") as file:
                return file.read()

    @as_ort_raises
    def compile_to_stream(self, write_function: Callable[[bytes], Any]) -> None:
        """Compile the model and pass the compiled model to `write_function`.

        Raises:
            Fail: `write_function` raised an exception, which becomes the cause, as in ONNX Runtime.
        """
        self._require_model()
        raised: list[Exception] = []

        def write(data: bytes) -> None:
            try:
                write_function(data)
            except Exception as error:
                raised.append(error)
                raise

        try:
            if self._is_native:
                self._natively("compile_to_stream", {}, {"write": _ep_context.write(write)})
            else:
                write(self.compile_to_bytes())
        except Exception as error:
            # Only errors of `write_function` become a `Fail`; errors of the compilation are raised unchanged.
            if error not in raised:
                raise
            raise Fail(f"[ONNXRuntimeError] : 1 : FAIL : {type(error).__name__}: {error}") from error

    @as_ort_raises
    def set_ep_context_data_write_func(self, write_func: Callable[[str, Any], Any]) -> None:
        """Call `write_func` with the name and the data of each context binary that is not embedded, instead of
        writing a file."""
        if write_func is None:
            raise RemoteRuntimeError("EPContext data write callback must not be None.")
        if not callable(write_func):
            raise refused("ModelCompiler.set_ep_context_data_write_func", self, write_func)
        self._functions["ep_context_write"] = _ep_context.context_write(write_func)

    def clear_ep_context_data_write_func(self) -> None:
        self._functions.pop("ep_context_write", None)

    @property
    def _is_native(self) -> bool:
        """Return whether the settings of this compilation require ONNX Runtime's own compiler."""
        # The compiler process of `qnnbridge.compile` cannot call functions of the application or write external
        # weights.
        if self._functions or self._settings["external_path"] is not None:
            return True
        if policy() == "qnn":  # the user's policy takes precedence over the program's providers
            return False
        providers = self._options.to_spec_parts().get("providers", ())
        return QNN not in [provider.name for provider in providers]

    def _natively(
        self,
        operation: str,
        arguments: dict[str, Any] | None = None,
        functions: Mapping[str, CalledFunction] | None = None,
    ) -> ObjectReply:
        """Run ONNX Runtime's own compiler in a separate host, which supports callbacks and external initializers.

        The compiled model is not validated, and its file is not written atomically.

        Args:
            functions: further functions of the application that the host may call, in addition to the compiler's
                functions.
        """

        settings = dict(self._settings)
        if self._binary is not None:
            folder, stem = self._binary
            # The empty component appends a slash, which ONNX Runtime requires to accept the path as a folder.
            settings["binary_information"] = [os.path.join(os.path.abspath(folder), ""), f"{stem}.onnx"]
        data = self._model if isinstance(self._model, bytes) else None
        path = os.path.abspath(os.fsdecode(self._model)) if data is None else None
        parts = self._options.to_spec_parts()
        providers = parts.pop("providers", None) or (ProviderSpec(CPU),)
        spec = SessionSpec(model_path=path, providers=providers, fallback="cpu", **parts)
        recipe = SessionRecipe(spec, data)
        context = CallContext("model.compile", recipe.label, "", recipe.options_hash, recipe.without_qnn)
        values = [*self._options.initializer_values().values()]
        if data is not None:
            values.append(np.frombuffer(data, np.uint8))
        called = {**self._functions, **(functions or {})}
        arguments = arguments or {}
        output = arguments.get("output")
        existing = _output_files(output)
        # Do not use the shared host, because a crash of the compiler must not affect any sessions.
        with Host() as host:
            try:
                given = {"spec": spec.to_wire(), **settings}
                made, _ = create_object(host, "ModelCompiler", given, values, context=context)
                return made.call(operation, arguments, functions=called, context=context)
            except BaseException:
                # Do not delete files that existed before the call: they belong to the application.
                for name in _output_files(output) - existing:
                    with contextlib.suppress(OSError):
                        os.unlink(name)
                raise

    @as_ort_raises
    def set_ep_context_binary_information(self, output_directory: str | os.PathLike[str], model_name: str) -> None:
        """Set the path to which `compile_to_bytes` and `compile_to_stream` write a context binary that is not
        embedded.

        The path is ``<output_directory>/<model_name without extension>_qnn.bin``, and the compiled model refers to
        that file name. As in ONNX Runtime, `compile_to_file` ignores this setting and writes the context binary
        next to the .onnx file.
        """
        folder, name = os.fsdecode(output_directory), model_name
        if not isinstance(name, str):
            raise RemoteTypeError(f"model_name must be a str, not {type(name).__name__}.")
        if not folder or not name:
            raise InvalidArgument("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : output_dir or model_name is empty.")
        last = os.path.basename(folder)
        if last and not os.path.splitext(last)[1]:
            raise InvalidArgument(
                "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : output_dir is not a valid directory.",
                cause="ONNX Runtime accepts a path without a file extension only if it ends in a slash.",
                fix="Append a slash to the path.",
            )
        path = os.path.join(folder, name)
        stem = os.path.splitext(os.path.basename(path))[0]
        if not stem or ".." in stem or len(os.fsencode(stem)) > MAX_STEM_BYTES:
            raise OptionError(
                f"A context binary cannot be named after {name!r}.",
                cause="QNN does not load a file whose name has two dots in a row, is empty or too long.",
                fix="Give a file name such as model.onnx.",
            )
        self._binary = os.path.dirname(path), stem

    def _compile_unembedded(self, folder: str, stem: str) -> bytes:
        """Compile the model, write only the context binary to `folder` (replacing an existing file), and return
        the compiled model."""
        folder, blob = os.path.abspath(folder), f"{stem}_qnn.bin"
        with tempfile.TemporaryDirectory(prefix="qnnbridge-") as work:
            output = os.path.join(work, f"{stem}.onnx")
            self._compile(output, embed=False)
            with open(output, "rb") as file:
                model = file.read()
            # Write the draft to the target folder, because `os.replace` works only within one file system.
            draft = os.path.join(folder, f".{blob}.{os.getpid()}")
            try:
                os.makedirs(folder, exist_ok=True)
                try:
                    shutil.copyfile(os.path.join(work, blob), draft)
                    os.replace(draft, os.path.join(folder, blob))
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(draft)
                    raise
            except OSError as error:
                raise CompileFailed(
                    f"The compiled model cannot be written to {folder}.",
                    cause=f"{error.strerror or error}.",
                    fix="Free disk space, or choose another writable folder.",
                    details={"folder": folder},
                ) from None
        return model

    def _default_output(self) -> str:
        if isinstance(self._model, bytes):
            raise InvalidArgument(
                "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : A model given as bytes needs an output file path."
            )
        stem, _ = os.path.splitext(os.fspath(self._model))
        # ONNX Runtime's default name.
        return f"{stem}_ctx.onnx"

    def _require_model(self) -> None:
        if not isinstance(self._model, bytes) and not os.path.exists(self._model):
            raise InvalidArgument(
                "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : "
                f'Input model path does not exist: "{os.fspath(self._model)}"'
            )

    def _compile(self, output: str, *, embed: bool) -> None:
        from qnnbridge._compile import compile as compile_model

        options = self._options
        if self._settings["optimization"] != int(GraphOptimizationLevel.ORT_DISABLE_ALL):  # not default
            options = options.twin()
            options.graph_optimization_level = GraphOptimizationLevel(self._settings["optimization"])
        try:
            # Overwrite an existing output, like ONNX Runtime. The caller has checked ERROR_IF_OUTPUT_FILE_EXISTS.
            compile_model(self._model, output, embed=embed, validate=False, sess_options=options, overwrite=True)
        except CompileFailed as error:
            if (
                # ERROR_IF_NO_NODES_COMPILED applies only to models without a compiled node. Other failures keep
                # their own messages.
                error.details.get("qnn_nodes") != 0
                or not self._flags & OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
            ):
                raise
            raise Fail(
                "[ONNXRuntimeError] : 1 : FAIL : Unable to compile any nodes. Check that the session EPs support "
                "compilation and can execute at least one subgraph in the model.",
                cause=error.message,
                fix=error.fix,
            ) from None


@named("ModelCompiler")
class NativeCompiler(ModelCompiler):
    """The compiler class of the bindings, whose second positional argument is `is_path`."""

    @bound("ModelCompiler.__init__")
    def __init__(
        self,
        sess_options: SessionOptions,
        model: Any,
        is_path: bool,
        embed: bool = False,
        external_path: str = "",
        threshold: Int64 = 1024,
        flags: Int64 = 0,
        level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_DISABLE_ALL,
        get_location: Callable[..., Any] | None = None,
        /,
    ) -> None:
        super().__init__(sess_options, model, embed, external_path or None, threshold, flags, level, get_location)


def _output_files(output: Any) -> set[str]:
    """Return the existing files among the compiled model `output` and its context binary."""
    if not isinstance(output, str):
        return set()
    return {name for name in (output, os.path.splitext(output)[0] + "_qnn.bin") if os.path.exists(name)}
