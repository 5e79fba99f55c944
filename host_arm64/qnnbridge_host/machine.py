"""Find the packages in this interpreter and the driver of the NPU, without loading native code.

HELLO contains the versions of ONNX Runtime and QNN, and is sent before anything heavy is imported. So the names of
the ``*.dist-info`` folders and two small text files are read; that takes a millisecond (without `re`, whose import
takes five). These files also show which of two types of onnxruntime-qnn is installed:

- 1.x *is* ONNX Runtime with the QNN provider built in: it fills ``onnxruntime/`` and must not be installed together
  with plain onnxruntime, because both write the same folder and the later one wins;
- 2.x is a plugin in addition to plain onnxruntime, in ``onnxruntime_qnn/``.

Pure functions of the file system (and, for the NPU driver, of the Windows registry).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.settings import engine_of
from qnnbridge_protocol.version_numbers import numbers_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol

    Generation = Literal["builtin", "plugin"]
else:
    Protocol = object

QNN_DISTRIBUTION = "onnxruntime-qnn"
# Package that reads the catalogue of Windows ML.
CATALOGUE_DISTRIBUTION = "windowsml"
# Distributions that contain the module ``onnxruntime``.
RUNTIMES = frozenset(
    {QNN_DISTRIBUTION, "onnxruntime"}
    | {
        f"onnxruntime-{kind}"
        for kind in [
            "azure",
            "directml",
            "gpu",
            "migraphx",
            "openvino",
            "rocm",
            "silicon",
            "training",
            "vitisai",
            "windowsml",
            "winml",
        ]
    }
    | {f"ort-nightly{kind}" for kind in ("", "-directml", "-gpu", "-qnn")}
)

# Other distributions whose versions are reported.
_OTHERS = frozenset(("numpy", CATALOGUE_DISTRIBUTION))

_DIST_INFO = ".dist-info"
_SMALL_FILE_BYTES = 64 * 1024


class Installed(NamedTuple):
    """Distributions that the host uses.

    distributions: version by normalised name; if a name occurs several times on the path, the first version.
    generation: how QNN is provided; ``None`` if it is missing or not usable (see `problem`). onnxruntime: version
    of the module ``onnxruntime``, from any distribution. qnn_sdk: version of the bundled QNN SDK, if the package
    contains it (2.x does). qnn_folder: folder of the QNN libraries of a built-in provider (2.x finds its own).
    problem: a sentence about a fault of the installation; ``None`` without a fault.
    """

    distributions: dict[str, str]
    generation: Generation | None = None
    onnxruntime: str | None = None
    onnxruntime_qnn: str | None = None
    qnn_sdk: str | None = None
    qnn_folder: str | None = None
    problem: str | None = None


_here: Installed | None = None


def installed_here() -> Installed:
    """Return `installed` for this interpreter. Cached, because nothing changes while the process runs."""
    global _here
    if _here is None:
        _here = installed()
    return _here


def installed(paths: Sequence[str] | None = None) -> Installed:
    """Inspect the folders of ``sys.path``, or the folders in `paths`."""
    # Skip an empty entry: it means the current folder.
    folders = [folder for folder in (sys.path if paths is None else paths) if folder]
    distributions: dict[str, str] = {}
    for name, version in _distributions(folders):
        distributions.setdefault(name, version)
    qnn = distributions.get(QNN_DISTRIBUTION)
    module, plugin = _folder_of(folders, "onnxruntime"), _folder_of(folders, "onnxruntime_qnn")
    capi = os.path.join(module, "capi") if module else None
    # Prefer the module's own version, because another distribution may have overwritten the module's folder.
    built = build_info(capi) if capi else {}
    runtime = built.get("__version__") or _runtime_version(distributions)
    if qnn is None:
        return Installed(distributions, onnxruntime=runtime)
    if numbers_of(qnn) >= (2,):
        info = build_info(plugin) if plugin else {}
        return Installed(
            distributions,
            "plugin" if plugin and module else None,
            runtime,
            qnn,
            info.get("qnn_version"),
            problem=_plugin_problem(qnn, plugin, module),
        )
    overwritten = _overwriter(distributions, built, capi)
    return Installed(
        distributions,
        "builtin" if capi and not overwritten else None,
        runtime if overwritten else built.get("__version__") or qnn,
        qnn,
        qnn_folder=None if overwritten else capi,
        problem=_builtin_problem(qnn, capi, overwritten),
    )


def installed_versions(paths: Sequence[str] | None = None) -> dict[str, str]:
    """Return the versions for HELLO: onnxruntime, onnxruntime_qnn, qnn_sdk, numpy, driver.

    Missing packages are omitted, and so is onnxruntime-qnn if the environment sets another source of QNN.
    """
    found = installed_here() if paths is None else installed(paths)
    if found.generation == "plugin" and _is_elsewhere():
        found = found._replace(onnxruntime_qnn=None, qnn_sdk=None)
    versions = {
        "onnxruntime": found.onnxruntime,
        "onnxruntime_qnn": found.onnxruntime_qnn,
        "qnn_sdk": found.qnn_sdk,
        "numpy": found.distributions.get("numpy"),
        "driver": driver_version(),
    }
    return {name: version for name, version in versions.items() if version}


def _is_elsewhere() -> bool:
    try:
        return engine_of(os.environ)[0] in ("windowsml", "folder")
    except OptionError:  # ignore an invalid setting, which the first session reports
        return False


def _distributions(folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:  # the entry of `sys.path` is missing, or is a zip file
            continue
        for entry in names:
            if entry[-len(_DIST_INFO) :].lower() != _DIST_INFO:
                continue
            written, _, version = entry[: -len(_DIST_INFO)].rpartition("-")
            # Names are compared in the form of PEP 503.
            name = written.replace("_", "-").replace(".", "-").lower()
            if (name in RUNTIMES or name in _OTHERS) and version[:1].isdigit():
                yield name, version


def _folder_of(folders: Sequence[str], package: str) -> str | None:
    for folder in folders:
        path = os.path.join(folder, package)
        if os.path.isfile(os.path.join(path, "__init__.py")):
            return path
    return None


def build_info(folder: str) -> dict[str, str]:
    """Read the string constants of ``build_and_package_info.py`` without importing it."""
    try:
        with open(os.path.join(folder, "build_and_package_info.py"), encoding="utf-8", errors="replace") as file:
            lines = file.read(_SMALL_FILE_BYTES).splitlines()
    except OSError:  # 1.20 lacks the file
        return {}
    constants = {}
    for line in lines:
        name, equals, value = line.partition("=")
        value = value.strip()
        end = value.find(value[:1], 1)
        if equals and value[:1] in ("'", '"') and end > 0:
            constants[name.rstrip()] = value[1:end]
    return constants


def _runtime_version(distributions: dict[str, str]) -> str | None:
    for name, version in distributions.items():
        if name != QNN_DISTRIBUTION and name not in _OTHERS:
            return version
    return None


def _overwriter(distributions: dict[str, str], built: dict[str, str], capi: str | None) -> str | None:
    """Return the distribution that has overwritten the module of onnxruntime-qnn 1.x."""
    others = [name for name in distributions if name != QNN_DISTRIBUTION and name not in _OTHERS]
    name = built.get("package_name")
    if name is not None:
        return None if name == QNN_DISTRIBUTION else name
    # Release 1.20 lacks `build_and_package_info.py`. There, a missing QnnHtp.dll shows an overwritten module.
    if others and capi and not os.path.exists(os.path.join(capi, "QnnHtp.dll")):
        return others[0]
    return None


def _plugin_problem(version: str, plugin: str | None, module: str | None) -> str | None:
    if plugin is None:
        return f"onnxruntime-qnn {version} is listed as installed, but its module onnxruntime_qnn is missing."
    if module is None:
        return f"onnxruntime-qnn {version} is a plugin for onnxruntime, and onnxruntime is not installed."
    return None


def _builtin_problem(version: str, capi: str | None, overwritten: str | None) -> str | None:
    if capi is None:
        return f"onnxruntime-qnn {version} is listed as installed, but its module onnxruntime is missing."
    if overwritten:
        return (
            f"onnxruntime-qnn {version} and {overwritten} are both installed and share the folder onnxruntime; "
            f"{overwritten} was installed last and has replaced the QNN build."
        )
    return None


# --- the driver of the NPU -------------------------------------------------------------------------------
#
# HELLO contains the driver's version, because a model that crashes a host may work with another driver. The
# registry keys are followed in the same order as QNN does: service, device, class. The driver store is not
# searched, because old packages stay there next to the current one. Reading does not need special rights and takes
# well under a millisecond; WMI would take seconds.

# Services of the driver in QNN's order, the newest name first.
SERVICES = ("qcnspmcdm", "qcadsprpc")

_CONTROL_SET = r"SYSTEM\CurrentControlSet"
# Library that is installed with the driver, in its folder and with its version.
_RPC_LIBRARY = "libcdsprpc.dll"

_MAX_TEXT = 64


class Windows(Protocol):
    """Functions of Windows that identify the driver."""

    def value(self, key: str, name: str) -> str | None:
        """Return a text value under HKEY_LOCAL_MACHINE, or ``None``."""

    def system_root(self) -> str:
        """Return the folder of Windows."""

    def file_version(self, path: str) -> str | None:
        """Return the version in the resources of a library, or ``None``."""


if sys.platform == "win32":
    from qnnbridge_os import windows_facts

    class RealWindows:
        """Implementation of `Windows` with the registry and the files of this computer."""

        def value(self, key: str, name: str) -> str | None:
            found = windows_facts.value("HKLM", key, name)
            return found if isinstance(found, str) else None

        def system_root(self) -> str:
            return os.environ.get("SYSTEMROOT", r"C:\Windows")

        def file_version(self, path: str) -> str | None:
            return windows_facts.file_version(path)

    def windows() -> Windows | None:
        return RealWindows()

else:

    def windows() -> Windows | None:
        return None


def driver_version(system: Windows | None = None) -> str | None:
    """Return the driver's version, such as ``30.0.220.3000``; ``None`` without a driver or after any error."""
    try:
        system = system or windows()
        if system is None:
            return None
        for service in SERVICES:
            # Prefer the version in the device's registry key; otherwise use that of the driver's library.
            version = _of_device(system, service) or _of_library(system, service)
            if version:
                return version[:_MAX_TEXT]
    except Exception:  # noqa: BLE001 - an optional fact must never prevent a host from starting
        return None
    return None


def _of_device(system: Windows, service: str) -> str | None:
    # The value "0" is the path of the first device of the service.
    device = system.value(rf"{_CONTROL_SET}\Services\{service}\Enum", "0")
    driver = system.value(rf"{_CONTROL_SET}\Enum\{device}", "Driver") if device else None
    version = system.value(rf"{_CONTROL_SET}\Control\Class\{driver}", "DriverVersion") if driver else None
    return (version or "").strip() or None


def _of_library(system: Windows, service: str) -> str | None:
    image = system.value(rf"{_CONTROL_SET}\Services\{service}", "ImagePath")
    if not image:
        return None
    import ntpath

    folder = ntpath.dirname(_absolute(image, system.system_root()))
    return system.file_version(ntpath.join(folder, _RPC_LIBRARY))


def _absolute(image: str, system_root: str) -> str:
    r"""Resolve a driver's path in any form that Windows uses:
    ``\SystemRoot\..``, ``%SystemRoot%\..``, ``\??\..``, ``System32\..``.
    """
    import ntpath

    lowered = image.lower()
    for prefix in ("\\systemroot\\", "%systemroot%\\"):
        if lowered.startswith(prefix):
            return ntpath.join(system_root, image[len(prefix) :])
    if image.startswith("\\??\\"):
        return image[4:]
    return ntpath.join(system_root, image)
