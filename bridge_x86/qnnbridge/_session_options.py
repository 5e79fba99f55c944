"""`SessionOptions`: the contents of ``onnxruntime.SessionOptions``, without ONNX Runtime.

An object contains the options for sessions, and converts them to fields of `SessionSpec` (`to_spec_parts`).
Sessions get copies of the values, so that later assignments do not affect an existing session. Relative paths start
at the application's working folder and not at the host's, so they are made absolute here. The class is not
thread-safe: as in ONNX Runtime, only the thread that prepares options may use them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._options.fields import (
    ExecutionMode,
    ExecutionOrder,
    Field,
    GraphOptimizationLevel,
    HasFields,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    as_bool,
    as_buffer,
    as_enum,
    as_int32,
    as_int64,
    as_text,
    as_text_mapping,
    suggest,
    wrong_type,
)
from qnnbridge._options.providers import absolute_option
from qnnbridge._threads import TerminateFlag
from qnnbridge_protocol import errors
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec, in_memory

if TYPE_CHECKING:
    from qnnbridge._threads import CalledFunction
    from qnnbridge._values.ort_value import OrtValue

# Function that chooses devices. Arguments: devices, metadata of the model, an empty map, and the maximum number of
# devices.
SelectionDelegate = Callable[[Sequence[Any], Mapping[str, str], Mapping[str, str], int], Sequence[Any]]

# Limits of ONNX Runtime, checked here so that the error is raised before the host receives a request.
MAX_CONFIG_KEY_BYTES = 1024
MAX_CONFIG_VALUE_BYTES = 8192

QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"

# All results of ``onnxruntime.get_all_providers()`` in any release. Release 1.32 removed ACL and NvTensorRTRTX,
# which applications may still use. The host checks whether its release has the provider.
KNOWN_PROVIDERS = (
    "ACLExecutionProvider",
    "AzureExecutionProvider",
    "CANNExecutionProvider",
    CPU,
    "CUDAExecutionProvider",
    "CoreMLExecutionProvider",
    "DmlExecutionProvider",
    "DnnlExecutionProvider",
    "JsExecutionProvider",
    "MIGraphXExecutionProvider",
    "NnapiExecutionProvider",
    "NvTensorRTRTXExecutionProvider",
    "OpenVINOExecutionProvider",
    QNN,
    "RknpuExecutionProvider",
    "TensorrtExecutionProvider",
    "VSINPUExecutionProvider",
    "VitisAIExecutionProvider",
    "WebGpuExecutionProvider",
    "WebNNExecutionProvider",
    "XnnpackExecutionProvider",
)

# Config entries whose value is a file or folder relative to the working folder. All other entries with file names
# (ending in ``_file_name``) are relative to the model and are not changed.
_PATH_ENTRIES = (
    "ep.context_file_path",
    "ep.context_source_model_path",
    "session.collect_node_memory_stats_to_file",
    "session.model_external_initializers_file_folder_path",
    "session.moe_expert_counter_state_file",
    "session.node_partition_config_file",
)

# Prefix of the configuration entries that set options of QNN.
_QNN_ENTRIES = "ep.qnnexecutionprovider."

_POLICY_PROVIDERS: Mapping[OrtExecutionProviderDevicePolicy, tuple[str, ...]] = {
    OrtExecutionProviderDevicePolicy.DEFAULT: (),
    OrtExecutionProviderDevicePolicy.PREFER_CPU: (CPU,),
    OrtExecutionProviderDevicePolicy.PREFER_NPU: (QNN, CPU),
    OrtExecutionProviderDevicePolicy.MAX_EFFICIENCY: (QNN, CPU),
    OrtExecutionProviderDevicePolicy.MIN_OVERALL_POWER: (QNN, CPU),
}


class SessionOptions(HasFields):
    """Options of a session, with the attributes, defaults and error classes of ``onnxruntime.SessionOptions``."""

    __slots__ = (
        "_config_entries",
        "_context_read",
        "_custom_op_libraries",
        "_delegate",
        "_external_initializers",
        "_files_in_memory",
        "_free_dimensions_by_denotation",
        "_free_dimensions_by_name",
        "_initializers",
        "_policy",
        "_providers",
        "load_cancellation",
    )

    enable_cpu_mem_arena = Field(True, as_bool, "Use an arena for memory of the CPU provider.")
    enable_mem_pattern = Field(True, as_bool, "Plan memory once per set of input shapes.")
    enable_mem_reuse = Field(True, as_bool, "Reuse memory for tensors that are not needed at the same time.")
    enable_profiling = Field(False, as_bool, "Write a profile of this session.")
    execution_mode = Field(ExecutionMode.ORT_SEQUENTIAL, as_enum(ExecutionMode), "Sequential or parallel.")
    execution_order = Field(ExecutionOrder.DEFAULT, as_enum(ExecutionOrder), "Order of the nodes.")
    graph_optimization_level = Field(
        GraphOptimizationLevel.ORT_ENABLE_ALL, as_enum(GraphOptimizationLevel), "How far the graph is optimized."
    )
    inter_op_num_threads = Field(0, as_int32, "Threads across nodes; 0 lets ONNX Runtime choose.")
    intra_op_num_threads = Field(0, as_int32, "Threads within a node; 0 lets ONNX Runtime choose.")
    log_severity_level = Field(-1, as_int32, "0: verbose, 1: info, 2: warning, 3: error, 4: fatal, -1: default.")
    log_verbosity_level = Field(0, as_int32, "Verbosity of verbose logs in debug builds.")
    logid = Field("", as_text, "Name of this session in log lines.")
    optimized_model_filepath = Field("", as_text, "Path for the optimized model; empty: do not write it.")
    profile_file_prefix = Field("onnxruntime_profile_", as_text, "Start of the profile's file name.")
    use_deterministic_compute = Field(False, as_bool, "Prefer deterministic kernels.")
    use_per_session_threads = Field(True, as_bool, "Use separate threads instead of the global thread pool.")

    def __init__(self) -> None:
        super().__init__()
        self._config_entries: dict[str, str] = {}
        self._free_dimensions_by_name: dict[str, int] = {}
        self._free_dimensions_by_denotation: dict[str, int] = {}
        self._initializers: dict[str, OrtValue] = {}
        self._external_initializers: dict[str, OrtValue] = {}
        self._files_in_memory: dict[str, memoryview] = {}
        self._custom_op_libraries: list[str] = []
        self._providers: list[ProviderSpec] = []
        self._policy = OrtExecutionProviderDevicePolicy.DEFAULT
        # Function that provides context binaries, and the maximum size of a context binary.
        self._context_read: tuple[Callable[[str, Any], Any], int] | None = None
        # Function that chooses devices, in a tuple: ``(None,)`` if the application set None, ``None`` if it set
        # nothing.
        self._delegate: tuple[SelectionDelegate | None] | None = None
        # Flag that `set_load_cancellation_flag` sets. Copies of these options share the flag.
        self.load_cancellation = TerminateFlag()

    # --- entries and overrides ---------------------------------------------------------------------------

    def add_session_config_entry(self, key: str, value: str, /) -> None:
        """Set a configuration entry, or replace the entry with the same key."""
        add_entry(self._config_entries, key, value)

    def get_session_config_entry(self, key: str, /) -> str:
        """Return the value of an entry. If no entry has the key, raise an error that is also a `RuntimeError`."""
        return get_entry(self._config_entries, key, "SessionOptions")

    def add_free_dimension_override_by_name(self, name: str, size: int, /) -> None:
        """Set the size of a symbolic dimension, given by its name in the model."""
        self._free_dimensions_by_name[as_text("the dimension's name", name)] = as_int64("the size", size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int, /) -> None:
        """Set the size of all dimensions with a denotation (such as ``DATA_BATCH``)."""
        text = as_text("the dimension's denotation", denotation)
        self._free_dimensions_by_denotation[text] = as_int64("the size", size)

    # --- tensors that replace tensors of the model ----------------------------------------------------------------

    def add_initializer(self, name: str, ort_value: OrtValue, /) -> None:
        """Replace an initializer of the model. The tensor is sent when a session is created."""
        self._new_initializer(self._initializers, as_text("the initializer's name", name), ort_value)

    def add_external_initializers(self, names: list[str], ort_values: list[OrtValue], /) -> None:
        """Replace initializers whose data is in external files of the model."""
        if not isinstance(names, list) or not isinstance(ort_values, list):
            raise wrong_type("names and ort_values", (names, ort_values), "lists")
        if len(names) != len(ort_values):
            raise errors.RemoteRuntimeError("Expecting names and ort_values lists to have equal length")
        for name, value in zip(names, ort_values, strict=True):
            self._new_initializer(self._external_initializers, as_text("an initializer's name", name), value)

    def add_external_initializers_from_files_in_memory(
        self, names: Sequence[str], buffers: Sequence[Any], lengths: Sequence[int], /
    ) -> None:
        """Provide the contents of the model's external data files, which are sent when a session is created.

        Args:
            names: names of the files, as they occur in the model.
            buffers: bytes, or objects with the buffer protocol.
            lengths: length of each buffer in bytes.
        """
        if isinstance(names, (str, bytes)) or isinstance(buffers, (str, bytes)):
            raise wrong_type("names and buffers", (names, buffers), "sequences")
        if not len(names) == len(buffers) == len(lengths):
            raise errors.RemoteRuntimeError(
                "add_external_initializers_from_files_in_memory: expecting 'names', 'buffers' and 'lengths' to "
                "have equal length"
            )
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            text, content = as_text("a file's name", name), as_buffer("a file's content", buffer)
            size = as_int64("a file's length", length)
            if text in self._files_in_memory:
                raise errors.RemoteRuntimeError(
                    "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : An entry for this name has already been added: "
                    f"{text}"
                )
            if not 0 <= size <= content.nbytes:
                raise errors.RemoteRuntimeError(
                    f"The length of {text} is {size}, but its buffer has {content.nbytes} bytes."
                )
            # Keep a view of the application's buffer and not a copy, because the file may have several gigabytes.
            self._files_in_memory[text] = content[:size]

    def _new_initializer(self, target: dict[str, OrtValue], name: str, value: OrtValue) -> None:
        from qnnbridge._values.ort_value import OrtValue  # imports numpy, which is not needed to create a session

        if not isinstance(value, OrtValue):
            raise errors.RemoteRuntimeError(
                "The provided Python object must be an OrtValue",
                cause=f"Initializer {name!r} is of type {type(value).__name__}.",
                fix="Wrap a numpy array with qnnbridge.OrtValue.ortvalue_from_numpy.",
            )
        # ONNX Runtime stores the names of both kinds of initializers in one table, so a name must not be in both.
        if name in self._initializers or name in self._external_initializers:
            raise errors.RemoteRuntimeError(f"An OrtValue for this name has already been added: {name}")
        target[name] = value

    def initializer_values(self) -> dict[str, Any]:
        """Return copies of the initializers and external data files by name, in the order of
        `SessionSpec.value_names`.

        The session needs the values again after a restart of its host. The application may have changed its arrays
        by then.
        """
        import copy

        # Keep the order of `SessionSpec.value_names`, by which the host assigns the buffers.
        given = (*self._initializers.items(), *self._external_initializers.items())
        tensors = {name: copy.deepcopy(value.content) for name, value in given}
        if not self._files_in_memory:
            return tensors
        import numpy as np

        for name, content in self._files_in_memory.items():
            # Do not copy `bytes` objects, which are immutable: the files may have several gigabytes.
            kept = content if isinstance(content.obj, bytes) else bytes(content)
            tensors[in_memory(name)] = np.frombuffer(kept, np.uint8)
        return tensors

    # --- custom ops and providers ------------------------------------------------------------------------

    def register_custom_ops_library(self, path: str, /) -> None:
        """Load a library of custom operators in the host. The library must be built for the host's architecture."""
        text = as_text("the library's path", path)
        # The host has a different working folder, so make a path absolute if it exists relative to the
        # application's working folder.
        if os.path.dirname(text) or os.path.exists(text):
            text = os.path.abspath(text)
            if not os.path.exists(text):
                raise errors.Fail(
                    f"[ONNXRuntimeError] : 1 : FAIL : Failed to load library {text} with error: {text}: cannot "
                    "open shared object file: No such file or directory",
                    fix="Relative paths start at the application's working folder.",
                )
        # If a file name without a folder is not in the working folder, the host's loader searches for it.
        self._custom_op_libraries.append(text)

    def add_provider(self, provider_name: str, provider_options: Mapping[str, str], /) -> None:
        """Append an execution provider by name, with its options as strings."""
        name = as_text("the provider's name", provider_name)
        options = as_text_mapping("provider_options", provider_options)
        if name not in KNOWN_PROVIDERS:
            raise errors.RemoteRuntimeError(
                f"Unknown Provider Type: {name}", fix=suggest(name, KNOWN_PROVIDERS).strip() or None
            )
        self._providers.append(ProviderSpec(name, options))

    def add_provider_for_devices(self, ep_devices: Sequence[Any], provider_options: Mapping[str, str], /) -> None:
        """Append the provider of these devices (``get_ep_devices()``), which must all belong to one provider."""
        options = as_text_mapping("provider_options", provider_options)
        names = [_provider_of(device) for device in ep_devices]
        if not names:
            raise errors.InvalidArgument(
                "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Must provide one or more OrtEpDevice instances."
            )
        if len(set(names)) > 1:
            raise errors.InvalidArgument(
                "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : All OrtEpDevice values in ep_devices must have the "
                "same execution provider.",
                cause=f"They are of {', '.join(sorted(set(names)))}.",
                fix="Call add_provider_for_devices once for each provider.",
            )
        self._providers.append(provider_of_devices(ep_devices, options))

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy, /) -> None:
        """Let a policy choose the providers. Policies that prefer the NPU select QNN, followed by the CPU."""
        chosen = as_enum(OrtExecutionProviderDevicePolicy)("policy", policy)
        if chosen not in _POLICY_PROVIDERS:
            raise errors.OptionError(
                f"The policy {chosen.name} cannot be used through qnnbridge.",
                cause="The policy selects a GPU, or chooses among devices that only the host can list.",
                fix="Add the provider: add_provider('QNNExecutionProvider', {'backend_type': 'gpu'}), or pass "
                "providers= to InferenceSession.",
            )
        self._policy = chosen

    def providers_alone(self) -> SessionOptions:
        """Return new options that contain only the providers of these options."""
        options = SessionOptions()
        # Copy the lists, because options change their lists in place.
        options._providers, options._policy = list(self._providers), self._policy
        options._delegate = self._delegate
        return options

    def has_providers(self) -> bool:
        """Return whether these options contain providers, a policy, or a function that chooses devices."""
        chosen = self._policy != OrtExecutionProviderDevicePolicy.DEFAULT or self._delegate is not None
        return bool(self._providers) or chosen

    @property
    def selection(self) -> tuple[SelectionDelegate | None] | None:
        """Function that chooses the devices of a session; ``None`` if providers were added."""
        return None if self._providers else self._delegate

    # --- functions, which are not sent to the host -------------------------------------------------------

    def set_provider_selection_policy_delegate(self, delegate: SelectionDelegate, /) -> None:
        """Let a function choose the devices when a session of `qnnbridge.ort` is created. Its arguments are the
        devices, the model's metadata, an empty map, and the maximum number of devices."""
        if delegate is not None and not callable(delegate):
            from qnnbridge._bindings import refused  # a large table, needed only for errors

            raise refused("SessionOptions.set_provider_selection_policy_delegate", self, delegate)
        # Store a tuple, to distinguish a call of this method with None from no call.
        self._delegate = (delegate,)

    def set_ep_context_data_read_func(self, read_func: Callable[[str, Any], Any], max_data_size: int) -> None:
        """Let a function provide the context binaries of a compiled model. Its arguments are a name and an
        `OrtEpContextDataBuffer`."""
        try:
            size = None if isinstance(max_data_size, (float, str, bytes)) else int(max_data_size)
        except (TypeError, ValueError):
            size = None
        if size is None or not 0 <= size < 2**64 or (read_func is not None and not callable(read_func)):
            from qnnbridge._bindings import refused  # a large table, needed only for errors

            raise refused("SessionOptions.set_ep_context_data_read_func", self, read_func, max_data_size)
        if read_func is None:
            raise errors.RemoteRuntimeError("EPContext data read callback must not be None.")
        # ONNX Runtime refuses 0 and 2**64 - 1, which is SIZE_MAX in C.
        if size in (0, 2**64 - 1):
            raise errors.RemoteRuntimeError("EPContext data max_data_size must be finite and greater than zero.")
        self._context_read = read_func, size

    def clear_ep_context_data_read_func(self) -> None:
        self._context_read = None

    def functions(self) -> dict[str, CalledFunction]:
        """Return the functions that the host may call while it creates the session."""
        if self._context_read is None:
            return {}
        from qnnbridge._ep_context import context_read

        return {"ep_context_read": context_read(*self._context_read)}

    def set_load_cancellation_flag(self, value: bool, /) -> None:
        """With ``True``, cancel the loading of sessions with these options; loading then raises
        `ModelLoadCanceled`. Any thread may call this method."""
        self.load_cancellation.assign(as_bool("the flag", value))

    # --- conversion and copies ---------------------------------------------------------------------------

    def to_spec_parts(self) -> dict[str, Any]:
        """Return the fields of `SessionSpec` that these options determine, for ``SessionSpec(model_path=...,
        **parts)``.

        ``providers`` is only included if `has_providers` is true. The tensors of `initializers` and
        `external_initializers` are sent separately from the spec: see `initializer_values`.
        """
        # Send only changed fields, so that the defaults of the host's ONNX Runtime apply to all others.
        options: dict[str, Any] = {
            name: int(value) if name in _ENUM_FIELDS else value for name, value in self.changed_fields().items()
        }
        if self.optimized_model_filepath:
            options["optimized_model_filepath"] = os.path.abspath(self.optimized_model_filepath)
        if self.enable_profiling:
            options["profile_file_prefix"] = _absolute(self.profile_file_prefix)
        entries = dict(self._config_entries)
        for key in _PATH_ENTRIES:
            if entries.get(key):
                entries[key] = _absolute(entries[key])
        for key, text in entries.items():
            if key.startswith(_QNN_ENTRIES):
                entries[key] = absolute_option(key.removeprefix(_QNN_ENTRIES), text)
        parts: dict[str, Any] = {
            "options": options,
            "config_entries": entries,
            "free_dimensions_by_name": dict(self._free_dimensions_by_name),
            "free_dimensions_by_denotation": dict(self._free_dimensions_by_denotation),
            "initializers": tuple(self._initializers),
            "external_initializers": tuple(self._external_initializers),
            "files_in_memory": tuple(self._files_in_memory),
            "custom_op_libraries": tuple(self._custom_op_libraries),
        }
        if self._providers:
            parts["providers"] = tuple(
                ProviderSpec(one.name, {name: absolute_option(name, text) for name, text in one.options.items()})
                if one.name == QNN
                else one
                for one in self._providers
            )
        elif self.has_providers():
            parts["providers"] = tuple(ProviderSpec(name) for name in _POLICY_PROVIDERS[self._policy])
        return parts

    def twin(self) -> SessionOptions:
        """Return new options with the same contents."""
        twin = SessionOptions()
        twin.take_fields(self)
        for name in self.__slots__:
            value = getattr(self, name)
            setattr(twin, name, value.copy() if isinstance(value, (dict, list)) else value)
        return twin

    @classmethod
    def from_spec(cls, spec: SessionSpec) -> SessionOptions:
        """Return the options from which `spec` was created, without tensors and providers."""
        options = cls()
        for name, value in spec.options.items():
            setattr(options, name, type(getattr(cls, name).default)(value) if name in _ENUM_FIELDS else value)
        options._config_entries.update(spec.config_entries)
        options._free_dimensions_by_name.update(spec.free_dimensions_by_name)
        options._free_dimensions_by_denotation.update(spec.free_dimensions_by_denotation)
        options._custom_op_libraries.extend(spec.custom_op_libraries)
        return options


_ENUM_FIELDS = ("execution_mode", "execution_order", "graph_optimization_level")


def add_entry(entries: dict[str, str], key: Any, value: Any) -> None:
    """Add an entry to `entries`. Raise ONNX Runtime's errors for keys and values that are too long. `RunOptions`
    also uses this function."""
    name, text = as_text("the key", key), as_text("the value", value)
    if not 0 < len(name.encode()) <= MAX_CONFIG_KEY_BYTES:
        raise errors.RemoteRuntimeError(f"Config key is empty or longer than maximum length {MAX_CONFIG_KEY_BYTES}")
    if len(text.encode()) > MAX_CONFIG_VALUE_BYTES:
        raise errors.RemoteRuntimeError(f"Config value is longer than maximum length: {MAX_CONFIG_VALUE_BYTES}")
    entries[name] = text


def get_entry(entries: Mapping[str, str], key: Any, owner: str) -> str:
    name = as_text("the key", key)
    if name not in entries:
        raise errors.RemoteRuntimeError(
            f"{owner} does not have configuration with key: {name}", fix=suggest(name, entries).strip() or None
        )
    return entries[name]


def provider_of_devices(ep_devices: Sequence[Any], options: Mapping[str, str]) -> ProviderSpec:
    """Return the provider of these devices. For QNN, add the backend for their type, unless the options set a
    backend."""
    name = _provider_of(ep_devices[0])
    kinds = {getattr(getattr(device, "device", None), "type", None) for device in ep_devices}
    if name == QNN and kinds == {OrtHardwareDeviceType.GPU} and not {"backend_type", "backend_path"} & set(options):
        return ProviderSpec(name, {"backend_type": "gpu", **options})
    return ProviderSpec(name, options)


def _provider_of(device: object) -> str:
    name = getattr(device, "ep_name", None)
    if not isinstance(name, str):
        raise wrong_type("ep_devices", device, "a sequence of OrtEpDevice")
    return name


def _absolute(path: str) -> str:
    """Return the absolute path. Keep a slash at the end, which `abspath` would drop, because "traces/" means a
    folder."""
    absolute = os.path.abspath(path)
    return absolute if os.path.basename(path) else os.path.join(absolute, "")
