"""What the module ``onnxruntime`` says of itself, its settings, devices, plugin libraries, memory and allocators.

Facts come from the host of `qnnbridge.default_host`; the version alone is read from the metadata files of the
packages of the host's Python, without starting it. Settings are kept here and given to every session that is made
afterwards. Applications written for onnxruntime-qnn 2.x register the library of the package ``onnxruntime_qnn`` and
pick its devices: the host has registered its own by then, so registering QNN here only makes its devices visible.
Any thread.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, DistributionFinder, MetadataPathFinder
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._callers import warn_application
from qnnbridge._host import default_host
from qnnbridge._host_objects import HostObject, create_object
from qnnbridge._launch import find_host
from qnnbridge._option_fields import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    incompatible,
)
from qnnbridge._providers import CPU, QNN
from qnnbridge._session_options import KNOWN_PROVIDERS
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_protocol.errors import BridgeError, Fail, OptionError, RemoteRuntimeError, RemoteTypeError
from qnnbridge_protocol.specs import GLOBAL_THREADS_VARIABLE

if TYPE_CHECKING:
    # It imports numpy, which `qnnbridge exec` does not need to start a program.
    from qnnbridge._ort_value import OrtValue

# Which is ONNX Runtime itself up to 1.x, and a plugin beside it from 2.0 on.
QNN_1X = "onnxruntime-qnn"


def host_distribution(name: str) -> Distribution | None:
    """Return the installed package of the host.

    ``None`` where the files do not say: no interpreter, or one that keeps its packages in an unusual place.
    """
    try:
        python = find_host(None).path
    except BridgeError:
        return None
    # Files only: another finder may be the drop-in, which asks here.
    where = DistributionFinder.Context(path=list(package_folders(python)))
    installed = MetadataPathFinder.find_distributions(where)
    found: dict[str, Distribution] = {}
    for one in installed:  # the first on the path is the one that is imported
        # A damaged installation can leave a dist-info folder without a name.
        found.setdefault(_normal(one.metadata["Name"] or ""), one)
    distribution = found.get(_normal(name))
    if distribution is None and name == "onnxruntime":
        # The wheels of onnxruntime-qnn 1.x contain onnxruntime itself, under their own name.
        builtin = found.get(QNN_1X)
        distribution = builtin if builtin is not None and builtin.version.startswith("1.") else None
    return distribution


def host_package_version(name: str) -> str | None:
    """Return the version of the host's package; ``None`` where the files do not say (`host_distribution`)."""
    found = host_distribution(name)
    return None if found is None else found.version


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def package_folders(python: str) -> Iterator[str]:
    """Where that interpreter has its packages: of the virtual environment it stands in, or its own."""
    own_folder, folder = (os.path.dirname(os.path.abspath(path)) for path in (sys.executable, python))
    if os.path.realpath(python) == os.path.realpath(sys.executable) and folder == own_folder:
        # The stand-in has a METADATA file for onnxruntime, with the answer of an earlier process.
        stand_in = os.environ.get("QNNBRIDGE_DROPIN")
        yield from (entry for entry in sys.path if entry and entry != stand_in)
        return
    # The interpreter lies in a folder of the prefix (bin, or Scripts of a virtual environment). On Windows
    # outside of virtual environments it lies in the prefix itself.
    for prefix in (os.path.dirname(os.path.dirname(python)), os.path.dirname(python)):
        yield os.path.join(prefix, "Lib", "site-packages")
        library = os.path.join(prefix, "lib")
        if os.path.isdir(library):
            yield from (
                os.path.join(library, entry, "site-packages")
                for entry in sorted(os.listdir(library))
                if entry.startswith("python3")
            )


# Fatal, the highest severity of a log line.
MOST_SEVERE = 4

_lock = renew_in_forks(Lock())
_settings: dict[str, int] = {}
_version: str | None = None


def host_version() -> str:
    """The version of ONNX Runtime in the host."""
    global _version
    if _version is None:
        # Where the files do not say (a host behind a command of its own), the host itself does.
        _version = host_package_version("onnxruntime") or str(default_host().info.versions.get("onnxruntime", ""))
    return _version


def get_version_string() -> str:
    """The version of ONNX Runtime in the host, as the library itself reports it."""
    return str(default_host().info.versions.get("onnxruntime", ""))


def get_available_providers() -> list[str]:
    """QNN first where the host has a device for it, then what its ONNX Runtime was built with."""
    info = default_host().info
    # ONNX Runtime lists QNN only where it was built in. A plugin (onnxruntime-qnn 2.x) brings devices instead.
    others = [name for name in info.providers if name != QNN]
    return [QNN, *others] if info.devices else others


def get_all_providers() -> list[str]:
    """Every provider that ONNX Runtime knows by name, whether the host has it or not."""
    return [name for name in KNOWN_PROVIDERS if name != CPU] + [CPU]


def get_build_info() -> str:
    return default_host().info.build or f"ORT Build Info: {get_version_string()}, through qnnbridge"


def get_device() -> str:
    """What ONNX Runtime was built for; "CPU" also beside an NPU, as with onnxruntime-qnn itself."""
    return "CPU"


def has_collective_ops() -> bool:
    """Operators across several machines; no build for QNN has them."""
    return False


@as_ort_raises
def set_default_logger_severity(severity: int, /) -> None:
    """0 verbose, 1 info, 2 warning, 3 error, 4 fatal: for sessions made from now on that set none of their own."""
    _keep("log_severity_level", severity, 0, MOST_SEVERE)


@as_ort_raises
def set_default_logger_verbosity(verbosity: int, /) -> None:
    _keep("log_verbosity_level", verbosity, 0, 2**31 - 1)


@as_ort_raises
def set_default_logger_callback(callback: object, severity: int = 2) -> None:
    """Give the log lines of this process's calls to a function; ``None`` takes it back.

    The function is called while the call that logs waits. Lines of other threads of the host go to the logger
    qnnbridge.host alone, which has all lines.
    """
    _check("severity", severity, 0, MOST_SEVERE)
    host = default_host()
    if callback is None:
        host.set_log_function(None)
        return
    if not callable(callback):
        raise RemoteRuntimeError("callback must be a callable")
    from qnnbridge._threads import LogFunction

    _keep("log_severity_level", severity, 0, MOST_SEVERE)
    host.set_log_function(LogFunction(callback, int(severity)))


@as_ort_raises
def set_seed(seed: int, /) -> None:
    """The seed of random operators, in sessions made from now on."""
    _keep("seed", seed, -(2**63), 2**63 - 1)


@as_ort_raises
def set_global_thread_pool_sizes(intra_op_num_threads: int = 0, inter_op_num_threads: int = 0) -> None:
    """Let sessions share two pools of threads of these sizes, before the first one; 0 leaves one to ONNX Runtime.

    Every session then needs ``use_per_session_threads = False`` in its options.
    """
    sizes = intra_op_num_threads, inter_op_num_threads
    no_numbers = any(isinstance(size, (float, str, bytes)) or not hasattr(size, "__int__") for size in sizes)
    if no_numbers or not all(-(2**31) <= int(size) < 2**31 for size in sizes):
        number = "typing.SupportsInt | typing.SupportsIndex = 0"
        signature = f"(intra_op_num_threads: {number}, inter_op_num_threads: {number}) -> None"
        raise incompatible("set_global_thread_pool_sizes", signature, *sizes)
    host = default_host()
    if host.is_daemon:
        raise OptionError(
            "set_global_thread_pool_sizes cannot be used with the daemon.",
            cause="The pools would be those of all applications.",
            fix="Use a host of the application's own: QNNBRIDGE_HOST=private.",
        )
    if host.supervisor.running is not None and host.call({"op": "host.stats"}).header.get("sessions"):
        raise OptionError(
            "set_global_thread_pool_sizes was called after a session had been made.",
            cause="ONNX Runtime makes its thread pools before its first session.",
            fix="Call it first.",
        )
    # ONNX Runtime's environment gets the pools when it is made, at the start of a host: hence a fresh process.
    if not host.restart_with(GLOBAL_THREADS_VARIABLE, ",".join(map(str, map(int, sizes)))):
        raise Fail(
            "[ONNXRuntimeError] : 1 : FAIL : Global thread pools have already been created, cannot replace them"
        )


def disable_telemetry_events() -> None:
    """Nothing to do: the host never sends any."""


def enable_telemetry_events() -> None:
    warn_application(
        "The host of qnnbridge sends no telemetry; enable_telemetry_events() does nothing.", UserWarning
    )


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Nothing to do: native libraries are loaded in the host, from its own package."""


def print_debug_info() -> None:
    """What ONNX Runtime prints for a bug report, for the host."""
    info = default_host().info
    print(f"onnxruntime package: onnxruntime version {get_version_string()}, in {info.executable}")
    print(f"Python version: {info.python}, platform: {info.platform} ({info.machine})")
    for name, version in sorted(info.versions.items()):
        print(f"{name}: {version}")


def setting(name: str) -> int | None:
    """A process-wide setting; ``None`` if the application did not make it."""
    return _settings.get(name)


def _keep(name: str, value: Any, least: int, most: int) -> None:
    number = _check(name, value, least, most)
    with _lock:
        _settings[name] = number


def _check(name: str, value: Any, least: int, most: int) -> int:
    # numpy's integers are no int, and have `__index__`; floats and texts have none.
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RemoteTypeError(f"{name} must be an int, not {type(value).__name__}.")
    number = value.__index__()
    # Only severities end at 4, so this bound also chooses between the two texts below.
    if not least <= number <= most:
        if most == MOST_SEVERE:
            raise RemoteRuntimeError(
                "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal", cause=f"Got {number}."
            )
        raise RemoteRuntimeError(f"{name} {number} is not valid.", fix=f"Give {least} to {most}.")
    return int(number)


_registered: set[str] = set()


@dataclasses.dataclass(frozen=True, slots=True)
class OrtHardwareDevice:
    """A processor, an NPU or a GPU of the host's machine."""

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
        """Memory of the device that tensors could live in: none, they travel to the host."""
        return None

    @as_ort_raises
    def create_sync_stream(self) -> OrtSyncStream:
        """A stream of this device, in the host. Raises an error for the CPU, and for QNN's devices."""
        hardware = self.device
        device = {"type": hardware.type.name, "vendor_id": hardware.vendor_id, "device_id": hardware.device_id}
        return OrtSyncStream.of({"ep_name": self.ep_name, **device})


def get_ep_devices() -> list[OrtEpDevice]:
    """The host's CPU, and its QNN devices once QNN is registered (or part of the host's ONNX Runtime itself)."""
    info = default_host().info
    devices = [cpu_device(info.versions.get("onnxruntime", ""))]
    builtin = QNN in info.providers
    if builtin or _registered:
        devices += [qnn_device(device) for device in info.devices]
    return devices


@as_ort_raises
def register_execution_provider_library(registration_name: str, library_path: str, /) -> None:
    """Make QNN's devices visible in `get_ep_devices`. Other plugin libraries are refused."""
    name = os.path.basename(os.fsdecode(library_path)).lower()
    # By the name of the file: the path may be one of the application's own Python, which the host does not load.
    if "providers_qnn" not in name:
        raise OptionError(
            f"The execution provider library {os.fsdecode(library_path)} cannot be registered through qnnbridge.",
            cause="Only the host loads native libraries, and it offers QNN and the CPU.",
            fix="Register onnxruntime_qnn.get_library_path(), or use onnxruntime itself for other providers.",
        )
    _registered.add(str(registration_name))
    default_host().info  # noqa: B018 - raises now, as registering does, if the host cannot come up


@as_ort_raises
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
# Values of the application are in this process's memory; an allocator changes where the host's sessions have
# theirs.

# What ONNX Runtime makes of a name: the name that it reports, the kind of memory, the vendor.
# Vendors are those of `OrtDeviceVendorId`; 0 is none.
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
    """Which memory an allocator hands out."""

    __slots__ = ("allocator_type", "device_id", "device_mem_type", "device_vendor_id", "mem_type", "name")

    def __init__(
        self, name: str, allocator_type: OrtAllocatorType, device_id: int, mem_type: OrtMemType, /
    ) -> None:
        known = _MEMORY.get(name) if isinstance(name, str) else None
        if known is None:
            raise RemoteRuntimeError("Specified device is not supported. Try CreateMemoryInfo_V2.")
        self.name, self.device_mem_type, self.device_vendor_id = known
        self.allocator_type = allocator_type
        # ONNX Runtime has one processor, whatever number is asked for.
        self.device_id = 0 if name == "Cpu" else int(device_id)
        self.mem_type = mem_type

    @classmethod
    def create_v2(
        cls,
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
        /,
    ) -> OrtMemoryInfo:
        info = cls.__new__(cls)
        info.name, info.allocator_type, info.device_id = name, allocator_type, int(device_id)
        info.device_mem_type, info.device_vendor_id = device_mem_type, int(vendor_id)
        shared = device_mem_type == OrtDeviceMemoryType.HOST_ACCESSIBLE
        info.mem_type = OrtMemType.CPU_OUTPUT if shared else OrtMemType.DEFAULT
        return info


def cpu_memory() -> OrtMemoryInfo:
    """Where inputs and outputs of every session live: in this process."""
    return OrtMemoryInfo("Cpu", OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, OrtMemType.DEFAULT)


class OrtArenaCfg:
    """Settings of an arena: four numbers, or a map."""

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
        # The form with four numbers is the older one; it has no place for the two growth fields.
        elif len(settings) == 4:
            given = dict(zip(self._FIELDS, settings, strict=False))
        else:
            raise RemoteTypeError("OrtArenaCfg takes four numbers, or one dict.")
        for field in self._FIELDS:
            setattr(self, field, int(given.get(field, 0 if field == "max_mem" else -1)))


@as_ort_raises
def create_and_register_allocator(mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None, /) -> None:
    """Give the host an allocator for all sessions that have the entry ``session.use_env_allocators``."""
    if not isinstance(mem_info, OrtMemoryInfo) or not isinstance(arena_cfg, (OrtArenaCfg, type(None))):
        signature = "(arg0: OrtMemoryInfo, arg1: OrtArenaCfg) -> None"
        raise incompatible("create_and_register_allocator", signature, mem_info, arena_cfg)
    _register("create_and_register_allocator", mem_info, arena_cfg)


@as_ort_raises
def create_and_register_allocator_v2(
    provider_type: str, mem_info: OrtMemoryInfo, options: Mapping[str, str], arena_cfg: OrtArenaCfg | None, /
) -> None:
    """`create_and_register_allocator` of one execution provider, with its options."""
    given = isinstance(provider_type, str) and isinstance(mem_info, OrtMemoryInfo) and isinstance(options, Mapping)
    if not given or not isinstance(arena_cfg, (OrtArenaCfg, type(None))):
        signature = (
            "(arg0: str, arg1: OrtMemoryInfo, arg2: collections.abc.Mapping[str, str], arg3: OrtArenaCfg) -> None"
        )
        raise incompatible(
            "create_and_register_allocator_v2", signature, provider_type, mem_info, options, arena_cfg
        )
    texts = {str(key): str(text) for key, text in options.items()}
    _register("create_and_register_allocator_v2", mem_info, arena_cfg, provider=provider_type, options=texts)


def _register(name: str, info: OrtMemoryInfo, arena: OrtArenaCfg | None, **more: Any) -> None:
    host = default_host()
    if host.is_daemon:
        raise OptionError(
            f"{name} cannot be used with a daemon.",
            cause="Its sessions are shared with other applications, and so would be the allocator.",
            fix="Use a host of the application's own (QNNBRIDGE_HOST=private), or leave it out.",
        )
    settings = None if arena is None else {name: getattr(arena, name) for name in OrtArenaCfg.__slots__}
    if settings is not None:
        # -1 leaves a setting to ONNX Runtime; of max_mem 0 does.
        settings = {name: value for name, value in settings.items() if name == "max_mem" or value != -1}
    memory = {
        "name": info.name,
        "allocator_type": int(info.allocator_type),
        "device_id": info.device_id,
        "mem_type": int(info.mem_type),
    }
    arguments = {"memory_info": memory, "arena": settings, **more}
    made, _ = create_object(host, "SharedAllocator", arguments)
    # Kept for the next host: its sessions need the allocator, too.
    host.remember("SharedAllocator", arguments, made.generation)
    # The allocator stays: ONNX Runtime keeps it for its environment, the object was only the way to it.
    made.release()


class OrtSyncStream:
    """A stream of a device of the host. Made by ``OrtEpDevice.create_sync_stream``."""

    __slots__ = ("_object",)

    _object: HostObject

    def __init__(self, *_: Any) -> None:
        raise RemoteTypeError("onnxruntime.capi.onnxruntime_pybind11_state.OrtSyncStream: No constructor defined!")

    @classmethod
    def of(cls, device: Mapping[str, Any]) -> OrtSyncStream:
        stream = cls.__new__(cls)
        stream._object, _ = create_object(default_host(), "OrtSyncStream", {"device": dict(device)})
        return stream

    @as_ort_raises
    def get_handle(self) -> int:
        """A number of the host's, for options of its sessions."""
        return int(self._object.call("get_handle").result)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy values into other values of the same size, all in this process."""
    if len(src) != len(dst):
        raise RemoteRuntimeError("src and dst must have the same size.")
    for one, other in zip(src, dst, strict=True):
        # Done when it returns, so a stream has nothing to wait for.
        other.update_inplace(one.numpy())
