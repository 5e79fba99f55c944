"""`InferenceSession` with the defaults of ``onnxruntime.InferenceSession``, based on `qnnbridge.InferenceSession`.

The differences from its base class: without providers the session runs on the CPU or on the providers of the
session options; nodes that QNN does not support run on the CPU; unknown providers cause a warning and a fallback as
in ONNX Runtime; and errors contain only ONNX Runtime's text (`qnnbridge.ort._errors`). Thread-safe like the base
class.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge import _inference_session as bridge
from qnnbridge._bindings import BINDINGS, refused
from qnnbridge._io_binding import IOBinding
from qnnbridge._options.providers import CPU, QNN
from qnnbridge._session import SessionRecipe
from qnnbridge._session.create import choose_model
from qnnbridge._session.runs import RunOptions, coerce_session_options
from qnnbridge._session_options import SessionOptions
from qnnbridge._threads import unraisable
from qnnbridge._values.ort_value import OrtValue
from qnnbridge.ort import _environment as environment
from qnnbridge.ort import _placement as provider_choice
from qnnbridge.ort._environment import OrtMemoryInfo, cpu_memory
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge.ort._native import NativeSession
from qnnbridge.ort._placement import Named, OrtEpAssignedNode, OrtEpAssignedSubgraph, journal
from qnnbridge_protocol.errors import (
    BridgeError,
    Fail,
    HostStartFailed,
    InvalidProtobuf,
    ModelChanged,
    NoSuchFile,
    OptionError,
    OrtError,
    RemoteError,
    RemoteTypeError,
    RemoteValueError,
)
from qnnbridge_protocol.specs import Fallback
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._runner import Runner
    from qnnbridge._supervision.retries import CallLimits
    from qnnbridge.ort._sizes import Seen, SizesOfFirstCall

__all__ = ["InferenceSession", "Session"]

_log = log_of("qnnbridge.ort")

# ONNX Runtime removes this prefix from the error text that it passes to the callback of `run_async`.
_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")

_EP_ERROR = "*************** EP Error ***************"

# Variable that, set to 1, lets a model's metadata set session options.
LOAD_CONFIG = "ORT_LOAD_CONFIG_FROM_MODEL"

RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"

# Errors that would also occur on the CPU. If a program did not request QNN and another error occurs, create the
# session on the CPU.
_NOT_FOR_QNN = (HostStartFailed, InvalidProtobuf, ModelChanged, NoSuchFile, OptionError, RemoteError)


class Session(bridge.InferenceSession):
    """Base class of `InferenceSession`, as in ONNX Runtime. Programs do not create instances."""

    _path: str | bytes | os.PathLike[str]
    _kwargs: dict[str, Any]
    _ort_options: SessionOptions | None
    _of_first_call: SizesOfFirstCall | None = None
    # Recipe of the last attempt with QNN.
    _qnn_recipe: SessionRecipe

    def __init__(self, enable_fallback: bool = True) -> None:
        self._fallback_on = enable_fallback

    @staticmethod
    def _warn(text: str, category: type[Warning], log: logging.Logger) -> None:
        """Only log the text, because a program may turn warnings into errors, and ONNX Runtime does not issue
        this warning."""
        log.warning("%s", text)

    def _begin(self, providers: Any, provider_options: Any) -> None:
        if providers is not None and not hasattr(providers, "__iter__"):
            raise RemoteTypeError(f"'{type(providers).__name__}' object is not iterable")
        # Precedence: the user's policy, arguments, a function that selects devices, session options.
        available = environment.get_available_providers()
        named = provider_choice.normalize(providers, provider_options, available)
        options = self._ort_options
        # Providers in the arguments take precedence over a function that selects devices, as in ONNX Runtime.
        if not named and options is not None and options.selection is not None:
            from qnnbridge.ort._model_metadata import selected

            # `selection` is a 1-tuple if a function was set. If the function is None, the call fails as in ONNX
            # Runtime.
            (delegate,) = options.selection
            named = selected(delegate, self._path, self._kwargs.get("host"), self._kwargs.get("timeout"))
        in_options = options is not None and options.has_providers()
        policy = provider_choice.policy()
        choice = provider_choice.choose(named, in_options=in_options, chosen=policy, available=available)
        try:
            self._make(choice.providers, options)
        except BridgeError as error:
            if choice.asked or isinstance(error, _NOT_FOR_QNN):
                raise
            # The program did not request QNN explicitly, so a model that QNN rejects must not fail.
            _log.warning("%s runs on the CPU: %s", _label(self._path), error.message)
            self._make([(CPU, {})], options)
            journal().opened(self, because=error.message)
        else:
            journal().opened(self)
        # A session with buckets has only fixed sizes, so no node is kept from QNN by free dimensions.
        if choice.providers and choice.providers[0][0] == QNN and self.buckets is None:
            self._look_at_sizes(decides=policy == "qnn")

    def _look_at_sizes(self, *, decides: bool) -> None:
        """Report nodes that cannot run on QNN because of free dimensions.

        Args:
            decides: whether to create a second session for the sizes of the first call.
        """
        from qnnbridge.ort import _sizes

        if not self._may_have_sizes(self._remote.recipe) or not _sizes.warn_of_share(
            self, first_call_decides=decides
        ):
            return
        if decides:
            self._of_first_call = _sizes.SizesOfFirstCall(self._remote.info.inputs, self._make_for_sizes)

    def _make_for_sizes(self, sizes: Seen) -> bridge.InferenceSession | None:
        from qnnbridge.ort._sizes import make_for_sizes

        # This session may run on the CPU because QNN rejected the free sizes. With known sizes, try QNN again.
        recipe = dataclasses.replace(self._qnn_recipe, identity=self._remote.recipe.identity)
        made = make_for_sizes(self, recipe, self._timeout, sizes)
        if made is not None:
            journal().opened(made, because="created for the sizes of the first call")
        return made

    @staticmethod
    def _may_have_sizes(recipe: SessionRecipe) -> bool:
        """Return whether additional sessions for other sizes are possible. They are not if each session writes an
        output file, because all would write the same file."""
        options, entries = recipe.spec.options, recipe.spec.config_entries
        writes = options.get("optimized_model_filepath") or options.get("enable_profiling")
        return not writes and entries.get("ep.context_enable", "0") in ("", "0")

    def _make(self, providers: list[Named] | None, options: SessionOptions | None) -> None:
        # ONNX Runtime distributes a model among the listed providers. If only QNN is listed, fail if QNN cannot run
        # the model.
        fallback: Fallback | None = "cpu" if providers is None or len(providers) > 1 else None
        # A `fallback` argument of the program takes precedence.
        keywords = {"fallback": fallback, **self._kwargs}
        if _records_assignment(options):
            keywords.setdefault("cache", False)  # report the nodes of the original model, not of a compiled model
        try:
            bridge.InferenceSession.__init__(self, self._path, options, providers=providers, **keywords)
        except OrtError as error:
            path = None if isinstance(self._path, bytes) else os.fspath(self._path)
            if path is not None and isinstance(error, NoSuchFile) and not os.path.exists(path):
                error.message = (
                    "[ONNXRuntimeError] : 3 : NO_SUCHFILE : "
                    f"Load model from {path} failed:Load model {path} failed. File doesn't exist"
                )
            elif path is not None:
                # The host's message contains the absolute path, so show the path that the program passed.
                whole, named = (f"Load model from {name} failed" for name in (os.path.abspath(path), path))
                error.message = error.message.replace(whole, named)
            error.args = (error.message,)
            raise

    def _make_runner(self, recipe: SessionRecipe, host: Host, creation: CallLimits) -> Runner:
        # In ONNX Runtime `set_seed` applies to the whole process. Here the seed is sent with each session. The seed
        # is part of the recipe, so that a session that is created again in the next host keeps its seed.
        recipe = dataclasses.replace(recipe, seed=environment.setting("seed"))
        recipe = choose_model(host, recipe, self._timeout)  # before the lines below, which use the chosen model
        asks_for_qnn = any(provider.name == QNN for provider in recipe.spec.providers)
        if asks_for_qnn:
            self._qnn_recipe = recipe
        if os.environ.get(provider_choice.SIZES_VARIABLE) and asks_for_qnn and self._bucket_arguments is None:
            from qnnbridge.ort._sizes import arguments_for

            if self._may_have_sizes(recipe):
                self._bucket_arguments = arguments_for(provider_choice.given_sizes(), recipe, host, self._timeout)
            if self._bucket_arguments is not None:
                try:
                    return super()._make_runner(recipe, host, creation)
                except OptionError as error:
                    _log.warning("%s runs without the sizes given: %s", recipe.label, error)
                    self._bucket_arguments = None
        return super()._make_runner(recipe, host, creation)

    # --- runs: methods of the base class, with ONNX Runtime's error texts ---

    def _run_there(self, method: str, feed: Any, *args: Any, **kwargs: Any) -> list[Any]:
        """If the feed has the sizes of the first call, run in the session for these sizes; otherwise in this
        session."""
        # The first call may compile here, before the journal starts to measure, because compilation is not part of
        # a run.
        second = self._of_first_call and self._of_first_call.session_for(feed, kwargs.get("timeout"))
        # Count the run here, because repeated calls do not use `run_values`.
        with journal().running(second or self):
            return getattr(second or super(), method)(*args, **kwargs)  # type: ignore[no-any-return]

    @as_ort_raises
    def run_values(self, output_names: Any, input_feed: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return self._run_there("run_values", input_feed, output_names, input_feed, *args, **kwargs)

    @as_ort_raises
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | Any = None,
        **kwargs: Any,
    ) -> list[Any]:
        return self._run_there("run", input_feed, output_names, input_feed, run_options, **kwargs)

    @as_ort_raises
    def run_bound(self, output_names: Any, inputs: Any, *args: Any, **kwargs: Any) -> list[Any]:
        return self._run_there("run_bound", inputs, output_names, inputs, *args, **kwargs)

    @as_ort_raises
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], Any],
        user_data: Any,
        run_options: RunOptions | Any = None,
        **kwargs: Any,
    ) -> None:
        """Run the model in the background. The callback gets results, `user_data`, and an error text as in ONNX
        Runtime."""
        if not callable(callback):
            raise refused("InferenceSession.run_async", self, output_names, input_feed, callback, user_data)

        def on_results(results: list[Any], given: Any, error: str) -> None:
            try:
                callback(results, given, _PREFIX.sub("", error).replace("output name:", "output name: "))
            except Exception as failure:  # noqa: BLE001 - no caller waits for it
                unraisable(failure, "onnxruntime.InferenceSession.run_async callback")

        super().run_async(output_names, input_feed, on_results, user_data, run_options, **kwargs)

    @as_ort_raises
    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | Any = None, **kwargs: Any) -> None:
        super().run_with_iobinding(iobinding, run_options, **kwargs)

    @as_ort_raises
    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run the model and append the results to `fetches`."""
        values = dict(zip(feed_names, feeds, strict=True))
        # `fetches` is a list, or an OrtValueVector in programs written for the bindings.
        add = fetches.append if isinstance(fetches, list) else fetches.push_back
        for value in self.run_with_ort_values(list(fetch_names), values, run_options):
            add(value)

    @as_ort_raises
    def end_profiling(self) -> str:
        path, prefix = super().end_profiling(), self.get_session_options().profile_file_prefix
        # Return a relative path if the program set a relative prefix, because the program may join the result to a
        # folder. Return the absolute path if the working folder has changed.
        named = os.path.join(os.path.dirname(prefix), os.path.basename(path))
        return named if path and os.path.abspath(named) == path else path

    # --- properties ---

    def get_session_options(self) -> SessionOptions:
        return self._ort_options if self._ort_options is not None else super().get_session_options()

    def get_input_memory_infos(self) -> list[OrtMemoryInfo]:
        """Return one entry per input: CPU memory of this process."""
        return [cpu_memory() for _ in self.get_inputs()]

    def get_output_memory_infos(self) -> list[OrtMemoryInfo]:
        return [cpu_memory() for _ in self.get_outputs()]

    def get_input_epdevices(self) -> list[Any]:
        """Return ``None`` for each input, as ONNX Runtime does for inputs in ordinary memory."""
        return [None for _ in self.get_inputs()]

    @as_ort_raises
    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Return the nodes of each provider, as recorded by the host's ONNX Runtime."""
        if not _records_assignment(self._ort_options):
            # Raise ONNX Runtime's error for the missing entry, although the host always records the assignment.
            raise Fail(
                f"[ONNXRuntimeError] : 1 : FAIL : 1Session configuration entry '{RECORD_ASSIGNMENT}' must be "
                'set to "1" to retrieve EP graph assignment information.'
            )
        return [
            OrtEpAssignedSubgraph(str(name), tuple(OrtEpAssignedNode(*map(str, node)) for node in nodes))
            for name, nodes in self._remote.assignment()
        ]

    # --- settings ---

    @as_ort_raises
    def set_providers(
        self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        # Close the old session only after the new one has been created.
        old, second = self._runner, self._of_first_call
        # Reset the attribute before `_begin`, which may set it again.
        self._of_first_call = None
        try:
            self._begin(providers, provider_options)
        except BaseException:
            self._of_first_call = second  # no new session was created: keep the old one
            raise
        old.close()
        if second is not None:
            second.close()

    def close(self) -> None:
        """Release the session in the host. Idempotent."""
        super().close()
        if self._of_first_call is not None:
            self._of_first_call.close()

    def disable_fallback(self) -> None:
        """Disable the fallback: raise the error of a failed creation without another attempt on the CPU."""
        self._fallback_on = False

    def enable_fallback(self) -> None:
        self._fallback_on = True

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id, vendor_id)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Do nothing, because the host's providers do not capture graphs."""

    def get_tuning_results(self) -> list[dict[str, Any]]:
        """Return an empty list, because the host's providers are not tunable."""
        return []

    def set_tuning_results(self, results: Sequence[Mapping[str, Any]], *, error_on_invalid: bool = False) -> None:
        if results:
            raise OptionError(
                "set_tuning_results cannot be used through qnnbridge.",
                cause="Neither QNN nor the CPU provider is tunable.",
                fix="Remove the call.",
            )

    # Allow subclasses to implement pickling, as ONNX Runtime's documentation shows.
    __reduce__ = object.__reduce__  # type: ignore[assignment]

    def __copy__(self) -> Any:
        """Return another object for the same session, as in ONNX Runtime. Closing one object closes both."""
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __getstate__(self) -> Any:
        raise RemoteTypeError(
            f"cannot pickle '{BINDINGS}.InferenceSession' object",
            fix="Pass the model's path to the other process, and create the session there.",
        )

    # --- private members of ONNX Runtime that programs use ---

    _sess = property(NativeSession.of)
    _sess_options = property(lambda self: self.get_session_options())
    _sess_options_initial = property(lambda self: self._ort_options)
    _model_path = property(lambda self: None if isinstance(self._path, bytes) else os.fspath(self._path))
    _model_bytes = property(lambda self: self._path if isinstance(self._path, bytes) else None)
    _enable_fallback = property(lambda self: self._fallback_on)
    _fallback_providers = property(lambda _: [CPU])
    _inputs_meta = property(lambda self: self.get_inputs())
    _outputs_meta = property(lambda self: self.get_outputs())
    _overridable_initializers = property(lambda self: self.get_overridable_initializers())
    _input_meminfos = property(lambda self: self.get_input_memory_infos())
    _output_meminfos = property(lambda self: self.get_output_memory_infos())
    _input_epdevices = property(lambda self: self.get_input_epdevices())
    _model_meta = property(lambda self: self.get_modelmeta())
    _providers = property(lambda self: self.get_providers())
    _provider_options = property(lambda self: self.get_provider_options())
    _profiling_start_time_ns = property(lambda self: self.get_profiling_start_time_ns())

    def _reset_session(self, providers: Any, provider_options: Any) -> None:
        self.set_providers(providers, provider_options)

    def _validate_input(self, feed_input_names: Sequence[str]) -> None:
        """Raise an error that is also a `ValueError` if inputs are missing."""
        missing = [
            node.name
            for node in self.get_inputs()
            if node.name not in feed_input_names and not node.type.startswith("optional")
        ]
        if missing:
            raise RemoteValueError(
                f"Required inputs ({missing}) are missing from input feed ({list(feed_input_names)})."
            )


class InferenceSession(Session):
    """See ``onnxruntime.InferenceSession``; also accepts keyword arguments of `qnnbridge.InferenceSession`."""

    @as_ort_raises
    def __init__(
        self,
        path_or_bytes: str | bytes | os.PathLike[str],
        sess_options: SessionOptions | Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        read = kwargs.pop("read_config_from_model", None)
        self._path = path_or_bytes
        # As in ONNX Runtime, 1 means on and every other number means off.
        super().__init__(int(kwargs.pop("enable_fallback", 1)) == 1)
        for name in kwargs.keys() - (bridge.InferenceSession.__init__.__kwdefaults__ or {}).keys():
            # ONNX Runtime ignores misspelt arguments, so existing programs may contain some.
            _log.warning("InferenceSession: the argument %s= is not known and ignored, as by ONNX Runtime.", name)
            del kwargs[name]
        self._kwargs = kwargs
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise RemoteTypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._ort_options = _with_settings(sess_options)
        asked = os.environ.get(LOAD_CONFIG) == "1"
        self._read_config_from_model = asked if read is None else int(read) == 1
        if asked:
            from qnnbridge.ort._model_metadata import with_model_config

            given = path_or_bytes, self._ort_options, self._read_config_from_model
            self._ort_options = with_model_config(*given, kwargs.get("host"), kwargs.get("timeout"))
        try:
            self._begin(providers, provider_options)
        except (ValueError, RuntimeError) as error:
            if not self._fallback_on:
                raise
            # Print to standard output, as in ONNX Runtime, so that a program has the same output as with ONNX
            # Runtime.
            print(f"{_EP_ERROR}\nEP Error {error} when using {providers}")
            print(f"Falling back to {[CPU]} and retrying.\n{'*' * len(_EP_ERROR)}")
            # ONNX Runtime falls back only once per session.
            self._fallback_on = False
            try:
                self._begin([CPU], None)
            except Exception as again:
                # Raise the error of the CPU, with the first error as its cause.
                raise again from error


NativeSession.make = InferenceSession


def _with_settings(given: Any) -> SessionOptions | None:
    """Return the options, with process-wide settings replacing default values."""
    if given is not None and not isinstance(given, SessionOptions):
        given = coerce_session_options(given)
    severity = environment.setting("log_severity_level")
    verbosity = environment.setting("log_verbosity_level")
    if severity is None and verbosity is None:
        return given  # type: ignore[no-any-return]
    options = given.twin() if given is not None else SessionOptions()
    # -1 is ONNX Runtime's default, so the application has not set a severity.
    if severity is not None and options.log_severity_level == -1:
        options.log_severity_level = severity
    if verbosity is not None and not options.log_verbosity_level:
        options.log_verbosity_level = verbosity
    return options


def _records_assignment(options: SessionOptions | None) -> bool:
    if options is None:
        return False
    try:
        return options.get_session_config_entry(RECORD_ASSIGNMENT) == "1"
    except RuntimeError:  # raised if the entry is not set
        return False


def _label(path: Any) -> str:
    return "<bytes>" if isinstance(path, bytes) else os.path.basename(os.fsdecode(path))
