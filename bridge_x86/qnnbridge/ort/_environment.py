"""Version, providers, process-wide settings, devices, plugin libraries, memory and allocators of ``onnxruntime``.

The values come from the host of `qnnbridge.default_host`. The exception is the version, which is read from metadata
files in the host's Python installation without starting the host. Settings are stored in this process and apply to
sessions that are created afterwards. Applications written for onnxruntime-qnn 2.x register the library of the
package ``onnxruntime_qnn`` and select its devices. The host registers the library itself, so registering QNN here
only makes its devices visible. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._bindings import refused
from qnnbridge._callers import warn_application
from qnnbridge._host import default_host
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge._launch import find_host
from qnnbridge._options.fields import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from qnnbridge._options.providers import CPU, QNN
from qnnbridge._session_options import KNOWN_PROVIDERS
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge.ort._signatures import Int64, bound, no_constructor, remote
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import BridgeError, Fail, OptionError, RemoteRuntimeError
from qnnbridge_protocol.specs import GLOBAL_THREADS_VARIABLE

if TYPE_CHECKING:
    # Import `ort_value` for types only: it imports numpy, which `qnnbridge exec` does not need to start a program.
    from qnnbridge._values.ort_value import OrtValue

# Up to version 1.x this package contains ONNX Runtime; from 2.0 on it is a plugin for a separate onnxruntime
# package.
QNN_1X = "onnxruntime-qnn"


def host_distribution(name: str) -> Distribution | None:
    """Return a package that is installed in the host's Python.

    Return ``None`` if the package or the interpreter does not exist, or the packages are in an unusual folder.
    """
    try:
        python = find_host(None).path
    except BridgeError:
        return None
    # Search only files: a search with all import finders would include the drop-in, which calls this function.
    where = DistributionFinder.Context(path=list(package_folders(python)))
    installed = MetadataPathFinder.find_distributions(where)
    found: dict[str, Distribution] = {}
    for one in installed:  # keep the first of several versions, as Python's import does
        # A damaged installation can leave a dist-info folder without a name.
        found.setdefault(_normal(one.metadata["Name"] or ""), one)
    distribution = found.get(_normal(name))
    if distribution is None and name == "onnxruntime":
        # The wheels of onnxruntime-qnn 1.x contain onnxruntime itself, under their own name.
        builtin = found.get(QNN_1X)
        distribution = builtin if builtin is not None and builtin.version.startswith("1.") else None
    return distribution


def host_package_version(name: str) -> str | None:
    """Return the version of a package in the host's Python; ``None`` if the package is not found (see
    `host_distribution`)."""
    found = host_distribution(name)
    return None if found is None else found.version


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def package_folders(python: str) -> Iterator[str]:
    """Yield the package folders of an interpreter, which may belong to a virtual environment."""
    own_folder, folder = (os.path.dirname(os.path.abspath(path)) for path in (sys.executable, python))
    if os.path.realpath(python) == os.path.realpath(sys.executable) and folder == own_folder:
        # Skip the folder of the drop-in, because an earlier process has written its METADATA file for onnxruntime.
        stand_in = os.environ.get("QNNBRIDGE_DROPIN")
        yield from (entry for entry in sys.path if entry and entry != stand_in)
        return
    # The interpreter is in a subfolder of the prefix: bin, or on Windows the folder Scripts of a virtual
    # environment. Without a virtual environment, it is in the prefix itself on Windows.
    for prefix in (os.path.dirname(os.path.dirname(python)), os.path.dirname(python)):
        yield os.path.join(prefix, "Lib", "site-packages")
        library = os.path.join(prefix, "lib")
        if os.path.isdir(library):
            yield from (
                os.path.join(library, entry, "site-packages")
                for entry in sorted(os.listdir(library))
                if entry.startswith("python3")
            )


_lock = renew_in_forks(Lock())
_settings: dict[str, int] = {}
_version: str | None = None


def host_version() -> str:
    """Return the version of the host's ONNX Runtime. Start the host only if the metadata files do not contain
    the version."""
    global _version
    if _version is None:
        # If the host is started by a custom command, there may be no files to read.
        _version = host_package_version("onnxruntime") or str(default_host().info.versions.get("onnxruntime", ""))
    return _version


def get_version_string() -> str:
    """Return the version that the host's ONNX Runtime library reports."""
    return str(default_host().info.versions.get("onnxruntime", ""))


def get_available_providers() -> list[str]:
    """Return QNN, if the host has a QNN device, followed by the providers built into the host's ONNX Runtime."""
    info = default_host().info
    # ONNX Runtime lists QNN only if it is built in. The plugin (onnxruntime-qnn 2.x) adds devices, not a provider.
    others = [name for name in info.providers if name != QNN]
    return [QNN, *others] if info.devices else others


def get_all_providers() -> list[str]:
    """Return the names of all providers of ONNX Runtime, including those that the host lacks."""
    return [name for name in KNOWN_PROVIDERS if name != CPU] + [CPU]


def get_build_info() -> str:
    return default_host().info.build or f"ORT Build Info: {get_version_string()}, through qnnbridge"


def get_device() -> str:
    """Return the device that ONNX Runtime was built for: "CPU", even with an NPU, as in onnxruntime-qnn."""
    return "CPU"


def has_collective_ops() -> bool:
    """Return False: builds for QNN contain no operators that exchange tensors between machines."""
    return False


@bound("set_default_logger_severity")
def set_default_logger_severity(severity: int, /) -> None:
    """Set the log severity of later sessions whose options do not set one.

    Args:
        severity: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.
    """
    _check_severity(severity)
    _keep("log_severity_level", severity)


@bound("set_default_logger_verbosity")
def set_default_logger_verbosity(verbosity: int, /) -> None:
    _keep("log_verbosity_level", verbosity)


@bound("set_default_logger_callback")
def set_default_logger_callback(callback: object, severity: int = 2) -> None:
    """Pass the host's log lines about this process's calls to a function; ``None`` removes the function.

    The function is called before the call that caused the log line returns. Lines of the host's background threads
    are only passed to the logger qnnbridge.host, which gets all lines.
    """
    _check_severity(severity)
    host = default_host()
    if callback is None:
        host.set_log_function(None)
        return
    if not callable(callback):
        raise RemoteRuntimeError("callback must be a callable")
    from qnnbridge._threads import LogFunction

    _keep("log_severity_level", severity)
    host.set_log_function(LogFunction(callback, severity))


def _check_severity(severity: int) -> None:
    if not 0 <= severity <= 4:
        raise RemoteRuntimeError(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal", cause=f"Got {severity}."
        )


@bound("set_seed")
def set_seed(seed: Int64, /) -> None:
    """Set the seed of random operators for sessions created later."""
    _keep("seed", seed)


@bound("set_global_thread_pool_sizes")
def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Make all sessions share two thread pools of these sizes. Call this function before the first session.

    Every session then needs ``use_per_session_threads = False`` in its options.

    Args:
        intra_op_num_threads: threads that share the work of one node; 0 lets ONNX Runtime choose.
        inter_op_num_threads: threads that run different nodes; 0 lets ONNX Runtime choose.
    """
    host = default_host()
    if host.is_daemon:
        raise OptionError(
            "set_global_thread_pool_sizes cannot be used with the daemon.",
            cause="All applications of the daemon would share the pools.",
            fix="Use a private host: QNNBRIDGE_HOST=private.",
        )
    if host.supervisor.running is not None and host.call({"op": "host.stats"}).header.get("sessions"):
        raise OptionError(
            "set_global_thread_pool_sizes was called after a session had been created.",
            cause="ONNX Runtime creates its thread pools before its first session.",
            fix="Call the function before the first session.",
        )
    # ONNX Runtime creates the thread pools when a host starts, so other pools need a new host process.
    if not host.restart_with(GLOBAL_THREADS_VARIABLE, f"{intra_op_num_threads},{inter_op_num_threads}"):
        raise Fail(
            "[ONNXRuntimeError] : 1 : FAIL : Global thread pools have already been created, cannot replace them"
        )


def disable_telemetry_events() -> None:
    """Do nothing, because the host sends no telemetry."""


def enable_telemetry_events() -> None:
    warn_application(
        "The host of qnnbridge sends no telemetry; enable_telemetry_events() does nothing.", UserWarning
    )


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Do nothing, because the host loads native libraries from its own package."""


def print_debug_info() -> None:
    """Print the host's versions for a bug report."""
    info = default_host().info
    print(f"onnxruntime package: onnxruntime version {get_version_string()}, in {info.executable}")
    print(f"Python version: {info.python}, platform: {info.platform} ({info.machine})")
    for name, version in sorted(info.versions.items()):
        print(f"{name}: {version}")


def setting(name: str) -> int | None:
    """Return a process-wide setting; ``None`` if the application has not set it."""
    return _settings.get(name)


def _keep(name: str, number: int) -> None:
    with _lock:
        _settings[name] = number


_registered: set[str] = set()


@dataclasses.dataclass(frozen=True, slots=True)
class OrtHardwareDevice:
    """A processor, NPU or GPU of the host's machine."""

    type: OrtHardwareDeviceType
    vendor: str
    vendor_id: int
    device_id: int
    metadata: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class OrtEpDevice:
    """An execution provider together with a device it can use."""

    ep_name: str
    ep_vendor: str
    ep_metadata: Mapping[str, str]
    ep_options: Mapping[str, str]
    device: OrtHardwareDevice

    def memory_info(self, memory_type: Any) -> OrtMemoryInfo | None:
        """Return ``None``, because tensors are in this process's memory, not in the device's."""
        return None

    @as_ort_raises
    def create_sync_stream(self) -> OrtSyncStream:
        """Create a stream of this device in the host. ONNX Runtime raises an error for the CPU and for QNN."""
        hardware = self.device
        device = {"type": hardware.type.name, "vendor_id": hardware.vendor_id, "device_id": hardware.device_id}
        return OrtSyncStream.of({"ep_name": self.ep_name, **device})


def get_ep_devices() -> list[OrtEpDevice]:
    """Return the host's CPU, and its QNN devices if QNN is registered or built into the host's ONNX Runtime."""
    info = default_host().info
    devices = [cpu_device(info.versions.get("onnxruntime", ""))]
    builtin = QNN in info.providers
    if builtin or _registered:
        devices += [qnn_device(device) for device in info.devices]
    return devices


@bound("register_execution_provider_library")
def register_execution_provider_library(registration_name: str, library_path: str, /) -> None:
    """Make QNN's devices visible in `get_ep_devices`.

    Raises:
        OptionError: for any other plugin library.
    """
    name = os.path.basename(library_path).lower()
    # Compare only the file name: the path may be in the application's own Python, from which the host loads
    # nothing.
    if "providers_qnn" not in name:
        raise OptionError(
            f"The execution provider library {library_path} cannot be registered through qnnbridge.",
            cause="Only the host loads native libraries, and it offers QNN and the CPU.",
            fix="Register onnxruntime_qnn.get_library_path(), or use onnxruntime itself for other providers.",
        )
    _registered.add(registration_name)
    default_host().info  # noqa: B018 - raise the error now if the host cannot start


@bound("unregister_execution_provider_library")
def unregister_execution_provider_library(registration_name: str, /) -> None:
    if registration_name not in _registered:
        raise Fail(
            f"[ONNXRuntimeError] : 1 : FAIL : Execution provider library: {registration_name} was not registered."
        )
    _registered.discard(registration_name)


def cpu_device(version: str) -> OrtEpDevice:
    hardware = OrtHardwareDevice(OrtHardwareDeviceType.CPU, "", 0, 0, {})
    return OrtEpDevice(CPU, "Microsoft", {"version": version}, {}, hardware)


def qnn_device(device: Mapping[str, Any]) -> OrtEpDevice:
    kind = str(device.get("device_type", "NPU"))
    known = kind in OrtHardwareDeviceType.__members__
    hardware = OrtHardwareDevice(
        OrtHardwareDeviceType.__members__[kind] if known else OrtHardwareDeviceType.NPU,
        str(device.get("device_vendor", "Qualcomm")),
        int(device.get("device_vendor_id", 0)),
        int(device.get("device_id", 0)),
        dict(device.get("device_metadata", {})),
    )
    return OrtEpDevice(
        QNN, str(device.get("ep_vendor", "Qualcomm")), dict(device.get("ep_metadata", {})), {}, hardware
    )


# --- descriptions of memory, allocators that the host's sessions share, and streams of its devices ---
#
# The application's values are in this process's memory; an allocator only affects the memory of the host's
# sessions.

# Allocator name -> the name that ONNX Runtime reports, the type of memory, and the vendor. Vendors are numbers of
# `OrtDeviceVendorId`; 0 means no vendor.
_MEMORY: Final[Mapping[str, tuple[str, OrtDeviceMemoryType, int]]] = {
    "Cpu": ("Cpu", OrtDeviceMemoryType.DEFAULT, 0),
    "Cuda": ("Cuda", OrtDeviceMemoryType.DEFAULT, 0x10DE),
    "CudaPinned": ("CudaPinned", OrtDeviceMemoryType.HOST_ACCESSIBLE, 0x10DE),
    "DML": ("DML", OrtDeviceMemoryType.DEFAULT, 0x1414),
    "Hip": ("Hip", OrtDeviceMemoryType.DEFAULT, 0x1002),
    "HipPinned": ("HipPinned", OrtDeviceMemoryType.HOST_ACCESSIBLE, 0x1002),
    "OpenVINO_GPU": ("OpenVINO_GPU", OrtDeviceMemoryType.DEFAULT, 0x8086),
    "OpenVINO_RT_NPU": ("OpenVINO_RT_NPU", OrtDeviceMemoryType.DEFAULT, 0x8086),
    "QnnHtpShared": ("QnnHtpShared", OrtDeviceMemoryType.HOST_ACCESSIBLE, 0x5143),
    "WebGPU_Buf": ("WebGPU_Buf", OrtDeviceMemoryType.DEFAULT, 0),
    "WebGPU_Buffer": ("WebGPU_Buf", OrtDeviceMemoryType.DEFAULT, 0),
    "WebNN_Ten": ("WebNN_Ten", OrtDeviceMemoryType.DEFAULT, 0),
    "WebNN_Tensor": ("WebNN_Ten", OrtDeviceMemoryType.DEFAULT, 0),
}


class OrtMemoryInfo:
    """Description of the memory that an allocator returns."""

    __slots__ = ("allocator_type", "device_id", "device_mem_type", "device_vendor_id", "mem_type", "name")

    @bound("OrtMemoryInfo.__init__")
    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType, /
    ) -> None:
        known = _MEMORY.get(name)
        if known is None:
            raise RemoteRuntimeError("Specified device is not supported. Try CreateMemoryInfo_V2.")
        self.name, self.device_mem_type, self.device_vendor_id = known
        self.allocator_type = allocator_type
        # ONNX Runtime reports 0 for the CPU, even if another number is given.
        self.device_id = 0 if name == "Cpu" else device_id
        self.mem_type = mem_type

    @staticmethod
    @bound("OrtMemoryInfo.create_v2")
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: Int64,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: Int64,
        allocator_type: OrtAllocatorType,
        /,
    ) -> OrtMemoryInfo:
        info = OrtMemoryInfo.__new__(OrtMemoryInfo)
        info.name, info.allocator_type, info.device_id = name, allocator_type, device_id
        info.device_mem_type, info.device_vendor_id = device_mem_type, vendor_id
        shared = device_mem_type == OrtDeviceMemoryType.HOST_ACCESSIBLE
        info.mem_type = OrtMemType.CPU_OUTPUT if shared else OrtMemType.DEFAULT
        return info


def cpu_memory() -> OrtMemoryInfo:
    """Return the description of the memory of all inputs and outputs: CPU memory of this process."""
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)


class OrtArenaCfg:
    """Settings of a memory arena, given as four numbers or as a mapping."""

    _FIELDS = __slots__ = (
        "max_mem",
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "initial_growth_chunk_size_bytes",
        "max_power_of_two_extend_bytes",
    )

    def __init__(self, *settings: Any) -> None:
        given: Mapping[str, Any]
        if len(settings) == 1 and isinstance(settings[0], Mapping):
            given = settings[0]
            unknown = sorted(set(given) - set(self._FIELDS))
            if unknown:
                raise RemoteRuntimeError(f"Invalid OrtArenaCfg option: {unknown[0]}")
        # The older form with four numbers lacks the two growth fields.
        elif len(settings) == 4:
            given = dict(zip(self._FIELDS, settings, strict=False))
        else:
            raise refused("OrtArenaCfg.__init__", self, *settings)
        for field in self._FIELDS:
            setattr(self, field, int(given.get(field, 0 if field == "max_mem" else -1)))


@bound("create_and_register_allocator")
def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None, /) -> None:
    """Register an allocator in the host for all sessions with the config entry ``session.use_env_allocators``."""
    _register("create_and_register_allocator", mem_info, arena_cfg)


@bound("create_and_register_allocator_v2")
def create_and_register_allocator_v2(
    provider_type: str, mem_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None, /
) -> None:
    """Register an allocator of one execution provider, with its options; see `create_and_register_allocator`."""
    _register(
        "create_and_register_allocator_v2", mem_info, arena_cfg, provider=provider_type, options=dict(options)
    )


def _register(name: str, info: OrtMemoryInfo, arena: OrtArenaCfg | None, **more: Any) -> None:
    host = default_host()
    if host.is_daemon:
        raise OptionError(
            f"{name} cannot be used with a daemon.",
            cause="Other applications share the sessions of the daemon, and would share the allocator.",
            fix="Use a private host (QNNBRIDGE_HOST=private), or omit the allocator.",
        )
    # Omit settings of -1, for which ONNX Runtime uses its default. Keep max_mem, whose default is 0.
    settings = arena and {
        name: value for name in OrtArenaCfg.__slots__ if (value := getattr(arena, name)) != -1 or name == "max_mem"
    }
    memory = {
        "name": info.name,
        "allocator_type": int(info.allocator_type),
        "device_id": info.device_id,
        "mem_type": int(info.mem_type),
    }
    arguments = {"memory_info": memory, "arena": settings, **more}
    made, _ = create_object(host, "SharedAllocator", arguments)
    # Register the allocator again in each later host, because the sessions need it there.
    host.remember("SharedAllocator", arguments, made.generation)
    # ONNX Runtime's environment keeps the allocator; only the object that registered it is released.
    made.release()


@remote("OrtSyncStream")
@no_constructor
class OrtSyncStream:
    """A stream of a device of the host, created by ``OrtEpDevice.create_sync_stream``.

    The handle of the stream is an address in the host, used in session options.
    """

    __slots__ = ("_object",)

    _object: HostObject

    @classmethod
    def of(cls, device: Mapping[str, Any]) -> OrtSyncStream:
        stream = cls.__new__(cls)
        stream._object, _ = create_object(default_host(), "OrtSyncStream", {"device": dict(device)})
        return stream


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy the values of `src` to the values of `dst`, which have the same sizes, in this process."""
    if len(src) != len(dst):
        raise RemoteRuntimeError("src and dst must have the same size.")
    for one, other in zip(src, dst, strict=True):
        # The copy is complete when this call returns, so nothing remains for `stream` to wait for.
        other.update_inplace(one.numpy())
