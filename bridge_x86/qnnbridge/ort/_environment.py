"""What the module ``onnxruntime`` tells of itself, and its process-wide settings.

Facts come from the host of `qnnbridge.default_host`; the version alone is read from the installed packages of the
host's Python, without starting it. Settings are kept here and given to every session that is made afterwards; any
thread.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

from qnnbridge._host import default_host
from qnnbridge._providers import CPU, QNN
from qnnbridge._session_options import KNOWN_PROVIDERS
from qnnbridge.ort._errors import as_ort_raises
from qnnbridge_protocol.errors import OptionError, RemoteRuntimeError, RemoteTypeError

# Fatal, the highest severity of a log line.
MOST_SEVERE = 4

_lock = threading.Lock()
_settings: dict[str, int] = {}
_version: str | None = None


def host_version() -> str:
    """The version of ONNX Runtime in the host."""
    global _version
    if _version is None:
        from qnnbridge.ort._host_packages import host_package_version

        # Where the files do not tell (a host behind a command of its own), the host itself does.
        _version = host_package_version("onnxruntime") or str(default_host().info.versions.get("onnxruntime", ""))
    return _version


def get_version_string() -> str:
    """The version of ONNX Runtime in the host, as the library itself tells it."""
    return str(default_host().info.versions.get("onnxruntime", ""))


def get_available_providers() -> list[str]:
    """QNN first where the host has a device for it, then what its ONNX Runtime was built with."""
    info = default_host().info
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
    """``None`` takes back a callback: none is ever set. Any other is refused."""
    _check("severity", severity, 0, MOST_SEVERE)
    if callback is None:
        return
    if not callable(callback):
        raise RemoteRuntimeError("callback must be a callable")
    raise OptionError(
        "set_default_logger_callback cannot be used through qnnbridge.",
        cause="A Python function cannot be called from the host process, in which the log lines are written.",
        fix='Give logging.getLogger("qnnbridge.host") a handler and the level DEBUG: it has the lines that the '
        "host writes. set_default_logger_severity says from which severity on it writes any.",
    )


@as_ort_raises
def set_seed(seed: int, /) -> None:
    """The seed of random operators, in sessions made from now on."""
    _keep("seed", seed, -(2**63), 2**63 - 1)


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int, /) -> None:
    """Refused: the pool belongs to a process in which other applications may have sessions."""
    raise OptionError(
        "set_global_thread_pool_sizes cannot be used through qnnbridge.",
        cause="ONNX Runtime takes it only before its first use in a process, and the host has used it by then.",
        fix="Set intra_op_num_threads and inter_op_num_threads of SessionOptions.",
    )


def disable_telemetry_events() -> None:
    """Nothing to do: the host never sends any."""


def enable_telemetry_events() -> None:
    warnings.warn("The host of qnnbridge sends no telemetry; enable_telemetry_events() does nothing.", stacklevel=2)


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
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise RemoteTypeError(f"{name} must be an int, not {type(value).__name__}.")
    number = value.__index__()
    if not least <= number <= most:
        if most == MOST_SEVERE:
            raise RemoteRuntimeError(
                "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal", cause=f"Got {number}."
            )
        raise RemoteRuntimeError(f"{name} {number} is not valid.", fix=f"Give {least} to {most}.")
    return int(number)
