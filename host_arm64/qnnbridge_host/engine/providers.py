"""Choose the execution providers of a session and their options; load QNN's provider.

The rules: the default is QNN. A session with QNN is strict unless the application allows the CPU. QNN's options are
checked, and the backend library is added to them, and on the simulator also the chip. A provider that this host
does not have is an error, never a silent fallback to the CPU. `QnnAdapter` is the interface to
onnxruntime-qnn 1.x and 2.x. Pure functions with immutable results.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from qnnbridge_host.engine import qnn_options
from qnnbridge_host.engine.ort_errors import translate
from qnnbridge_host.engine.placement import CPU_PROVIDER, PlacementTarget
from qnnbridge_host.engine.qnn_options import DISABLE_CPU_FALLBACK, PROVIDER, RECORD_ASSIGNMENT, SESSION_PREFIX
from qnnbridge_host.engine.sources import QnnSource
from qnnbridge_host.machine import QNN_DISTRIBUTION, Installed
from qnnbridge_host.model.optimizers import EXACT_ENTRIES
from qnnbridge_protocol.errors import BridgeError, OptionError, ProviderUnavailable
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.shown import closest
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec
from qnnbridge_protocol.version_numbers import numbers_of

Providers = Sequence[tuple[str, dict[str, str]]]

_SUFFIX = "ExecutionProvider"
# This provider is part of every ONNX Runtime but useless here: it sends the inputs to a web service and needs a
# special model.
_NOT_OFFERED = frozenset(("AzureExecutionProvider",))


class QnnAdapter(Protocol):
    """Access to QNN in this process."""

    @property
    def simulator(self) -> bool:
        """Whether QNN computes on the HTP simulator because the machine lacks an NPU."""

    @property
    def library_folder(self) -> str | None:
        """Folder of the backend libraries."""

    @property
    def version(self) -> tuple[int, ...]:
        """Release of onnxruntime-qnn; ``()`` if it is unknown."""

    @property
    def source(self) -> QnnSource | None:
        """Origin of QNN; ``None`` without QNN."""

    def require(self) -> None:
        """Raise `ProviderUnavailable` if QNN cannot be used."""

    def devices(self) -> list[dict[str, Any]]:
        """Return descriptions of the QNN devices."""

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        """Add QNN to the session options as the first provider, if this release of onnxruntime-qnn supports that.

        Args:
            session_options: ONNX Runtime's SessionOptions, which are changed.
            options: QNN's options, checked and complete.
            backend: the backend's type (htp, gpu, ...).

        Returns:
            Providers for the session's argument ``providers``; empty if QNN was added to the options.
        """


class NoQnn:
    """Adapter for a process that cannot use QNN. reason: the error for sessions that request QNN."""

    simulator = False
    library_folder: str | None = None
    version: tuple[int, ...] = ()
    source: QnnSource | None = None

    def __init__(self, reason: ProviderUnavailable) -> None:
        self.reason = reason

    def require(self) -> None:
        # Raise a new copy for each session, because a raised error collects tracebacks and handlers add to it.
        raise self.reason.copy()

    def devices(self) -> list[dict[str, Any]]:
        return []

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        self.require()
        return ()


class ProviderChoice(NamedTuple):
    """Providers and options of a session.

    Attributes:
        qnn: QNN's options, checked and complete, or ``None`` for a session without QNN.
        others: name and options of each provider after QNN. The CPU is never listed together with QNN, because
            ONNX Runtime adds the CPU implicitly, and refuses a strict session that lists it.
        entries: the session's configuration entries, without the entries that set QNN options.
        target: backend and chip of the QNN part; ``None`` without QNN.
        strict: whether a node on the CPU is an error.
        missing: why QNN is missing, in a session that requested QNN but may run without it.
    """

    qnn: dict[str, str] | None
    others: tuple[tuple[str, dict[str, str]], ...]
    entries: dict[str, str]
    target: PlacementTarget | None
    strict: bool
    missing: str | None = None


def choose(spec: SessionSpec, available: Sequence[str], qnn: QnnAdapter, *, records: bool) -> ProviderChoice:
    """Choose the providers and configuration entries of a session.

    Args:
        spec: the session's description.
        available: the providers that ONNX Runtime was built with or has registered.
        qnn: access to QNN.
        records: whether ONNX Runtime can record the provider of each node.

    Raises:
        ProviderUnavailable: the host does not have a requested provider.
        OptionError: the order of providers or a QNN option cannot be used.
    """
    asked = _unique(spec.providers) or [ProviderSpec(PROVIDER)]
    entries = {str(key): str(value) for key, value in spec.config_entries.items()}
    if records:
        # Without this entry ONNX Runtime does not record the assignment, and reading the assignment is an error.
        entries.setdefault(RECORD_ASSIGNMENT, "1")
    names = [provider.name for provider in asked]
    for name in names:
        if name != PROVIDER and name not in available:
            raise _unknown(name, available, qnn)
    if PROVIDER not in names:
        others = tuple((p.name, {str(k): str(v) for k, v in p.options.items()}) for p in asked)
        return ProviderChoice(None, others, entries, None, strict=False)
    try:
        qnn.require()
    except ProviderUnavailable as error:
        if spec.fallback != "cpu":
            raise
        without = tuple((p.name, dict(p.options)) for p in asked if p.name not in (PROVIDER, CPU_PROVIDER))
        missing = f"{error.message} {error.cause or ''}".strip()
        return ProviderChoice(None, (*without, (CPU_PROVIDER, {})), entries, None, strict=False, missing=missing)
    if CPU_PROVIDER in names[: names.index(PROVIDER)]:
        raise OptionError(
            "CPUExecutionProvider comes before QNNExecutionProvider.",
            cause="Each provider takes every node that it supports and no earlier provider took; the CPU supports "
            "all nodes.",
            fix="List QNNExecutionProvider first, or only CPUExecutionProvider.",
        )
    # Applications may also set QNN's options as session entries that begin with `ep.qnnexecutionprovider.`.
    by_entry = {
        key[len(SESSION_PREFIX) :]: entries.pop(key) for key in list(entries) if key.startswith(SESSION_PREFIX)
    }
    given = _merged(by_entry, next(p for p in asked if p.name == PROVIDER).options)
    options = qnn_options.provider_options(given, entries, library_folder=qnn.library_folder, version=qnn.version)
    options = _complete(options, qnn)
    strict = spec.fallback == "error"
    if strict:
        entries.setdefault(DISABLE_CPU_FALLBACK, "1")
    # With these entries, nodes on the CPU give the same results as the CPU session that verifies outputs.
    entries = {**EXACT_ENTRIES, **entries}
    target = PlacementTarget(
        qnn_options.backend_of(options),
        qnn.simulator,
        options.get("soc_model"),
        edges_on_cpu=not strict and options.get("offload_graph_io_quantization") != "0",
    )
    others = tuple(
        (p.name, {str(k): str(v) for k, v in p.options.items()})
        for p in asked
        if p.name not in (PROVIDER, CPU_PROVIDER)
    )
    return ProviderChoice(options, others, entries, target, strict)


def _unique(providers: Sequence[ProviderSpec]) -> list[ProviderSpec]:
    """Return the first provider of each name, because ONNX Runtime ignores repetitions."""
    return list({provider.name: provider for provider in reversed(providers)}.values())[::-1]


def _merged(by_entry: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    for name in by_entry.keys() & options.keys():
        if str(options[name]) != by_entry[name]:
            raise OptionError(
                f"QNN option {name!r} is given twice: {options[name]!r} as provider option and {by_entry[name]!r} "
                f"as session entry {SESSION_PREFIX + name!r}.",
                fix="Give it once.",
                details={"option": name},
            )
    return {**by_entry, **options}


def _complete(options: dict[str, str], qnn: QnnAdapter) -> dict[str, str]:
    # Set the full path, so that QNN does not load a library with the same name from elsewhere (such as an SDK on
    # PATH).
    if "backend_path" not in options and "backend_type" not in options:
        path = qnn_options.backend_library("htp", qnn.library_folder)
        if path is not None:
            options = {"backend_path": path, **options}
    if qnn.simulator and qnn_options.backend_of(options) in ("htp", "saver", "ir"):
        chip = qnn_options.chip_for_simulator(options.get("soc_model"), options.get("htp_arch"))
        options = {**options, "soc_model": chip}
    return options


def _did_you_mean(name: str, usable: Sequence[str]) -> str | None:
    """Return the usable provider most similar to a name such as QNN, qnn, QNNProvider or QNNExecutionProvide.

    The names are compared without their common suffix, which would make all names similar.
    """
    short = {other.removesuffix(_SUFFIX).lower(): other for other in usable}
    asked = re.split(r"[ _-]*(?:exec|prov|ep$)", name.strip().lower(), maxsplit=1)[0]
    return short.get(closest(asked, short) or "")


def _unknown(name: str, available: Sequence[str], qnn: QnnAdapter) -> ProviderUnavailable:
    hidden = {*_NOT_OFFERED, PROVIDER} if isinstance(qnn, NoQnn) else _NOT_OFFERED
    usable = [other for other in available if other not in hidden]
    meant = _did_you_mean(name, usable)
    return ProviderUnavailable(
        f"The host does not have the execution provider {name!r}.",
        fix=(f"Did you mean {meant!r}? " if meant else "") + f"The host has {', '.join(usable)}.",
        details={"provider": name, "available": list(usable)},
    )


# --- access to QNN: built into ONNX Runtime (onnxruntime-qnn 1.x), or a separate plugin (2.x) ------------
#
# A session requests a built-in QNN with the classic argument ``providers``. The wheel does not list devices; its
# files show whether it supports an NPU: a build for a machine with an NPU contains the library that communicates
# with the NPU (the stub); the x64 build (1.22.2) lacks the stub and computes on the simulator.
#
# A plugin's library is registered once per process and never unregistered, because a session that outlives its
# library causes a segmentation fault. QNN is added to a session by its devices; with a plugin the classic
# ``providers=["QNNExecutionProvider"]`` would silently create a CPU session.


class BuiltinQnn:
    """The QNN provider inside ONNX Runtime."""

    def __init__(self, library_folder: str, version: tuple[int, ...], source: QnnSource) -> None:
        self.library_folder: str | None = library_folder
        self.version = version
        self.source: QnnSource | None = source

    @property
    def simulator(self) -> bool:
        return not self._stubs()

    def require(self) -> None:
        """Do nothing, because `load_builtin` has checked that ONNX Runtime contains QNN."""

    def devices(self) -> list[dict[str, Any]]:
        kind = "CPU" if self.simulator else "NPU"
        return [{"ep_name": PROVIDER, "device_type": kind, "stubs": self._stubs()}]

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        return ((PROVIDER, options),)

    def _stubs(self) -> list[str]:
        try:
            names = os.listdir(self.library_folder)
        except OSError:
            return []
        return sorted(n for n in names if n.startswith("QnnHtpV") and n.endswith("Stub.dll"))


def load_builtin(available: Sequence[str], found: Installed) -> QnnAdapter:
    """Return the adapter for an installed onnxruntime-qnn 1.x.

    available: the providers that ONNX Runtime was built with.
    """
    if found.qnn_folder is None or PROVIDER not in available:
        return NoQnn(
            ProviderUnavailable(
                "The installed onnxruntime has no QNNExecutionProvider.",
                cause=found.problem or f"It offers {', '.join(available)}.",
                fix="Uninstall onnxruntime and onnxruntime-qnn in the host's Python, then install onnxruntime-qnn.",
            )
        )
    release = found.onnxruntime_qnn
    source = QnnSource(
        "wheel", "", QNN_DISTRIBUTION, release, QNN_DISTRIBUTION, None, release, "QNN is built into ONNX Runtime"
    )
    return BuiltinQnn(found.qnn_folder, numbers_of(release), source)


# A symbol that every QNN library exports. A provider that loads such libraries contains its name as a string.
_QNN_ENTRY = b"QnnInterface_getProviders"


class PluginQnn:
    """The registered plugin and the devices that it lists."""

    def __init__(self, devices: list[Any], source: QnnSource) -> None:
        self._devices = devices
        self.source: QnnSource | None = source
        # Path of the provider's file. onnxruntime-genai, which has a separate ONNX Runtime environment, registers
        # it again.
        self.library: str | None = source.library
        self.library_folder: str | None = os.path.dirname(source.library)
        self.version = numbers_of(source.release)

    @property
    def simulator(self) -> bool:
        """Whether the machine lacks an NPU. In that case the provider lists the machine's CPU, which runs the
        simulator."""
        return bool(self._devices) and all(_kind(device) == "CPU" for device in self._devices)

    def require(self) -> None:
        if self._devices:
            return
        raise ProviderUnavailable(
            "QNN lists no device on this machine.",
            cause="The provider is loaded, but the machine has no Qualcomm NPU, or its driver is missing or does "
            "not work.",
            fix="Install the NPU driver (Windows Update, or the maker of the PC) and restart, "
            "or request CPUExecutionProvider.",
            details={"library_folder": self.library_folder},
        )

    def devices(self) -> list[dict[str, Any]]:
        return [_describe(device) for device in self._devices]

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        self.require()
        # Choose one kind of device: the provider may list both an NPU and a GPU, but it uses one device and logs a
        # warning if there are more.
        wanted = "GPU" if backend == "gpu" else "NPU"
        # On the simulator QNN lists only a CPU.
        chosen = [device for device in self._devices if _kind(device) == wanted] or self._devices
        session_options.add_provider_for_devices(chosen, options)
        return ()


def load_plugin(
    ort: Any, found: Installed, choose: Callable[[], QnnSource], on_phase: Callable[..., None]
) -> QnnAdapter:
    """Register the provider of the chosen source. If that fails, return an adapter that raises the error in
    each session that requests QNN.

    Args:
        ort: the module onnxruntime.
        found: the installed packages.
        choose: a function that returns the source. It raises `BridgeError` or, on an unknown machine,
            any exception of the package onnxruntime-qnn.
        on_phase: called before the library is loaded, with QNN's versions.
    """
    source: QnnSource | None = None
    try:
        source = choose()
        folder = os.path.dirname(source.library)
        # Check libraries from folders only: a folder may contain another vendor's provider, and registering a
        # library runs its code.
        if source.engine != "wheel":
            _refuse_foreign_library(source)
        # Set the search path before the first call into QNN: if that call does not find the NPU's part of QNN (the
        # skel), QNN keeps using the driver's runtime.
        _let_the_dsp_find(folder)
        on_phase("registering", source.versions())
        devices = _registered(ort)
        if not devices:  # register the library only once: a second registration would fail
            # ONNX Runtime accepts any name here as the provider's name. Compiled models contain this name as the
            # `source` of their nodes.
            ort.register_execution_provider_library(PROVIDER, source.library)
            devices = _registered(ort)
    except BridgeError as error:
        return NoQnn(unavailable(error))
    except Exception as error:  # noqa: BLE001 - for an unknown machine the package may raise any exception
        error_of_ort = translate(error)
        elsewhere = source is not None and source.engine != "wheel"
        name = source.words if source is not None and elsewhere else f"onnxruntime-qnn {found.onnxruntime_qnn}"
        return NoQnn(
            ProviderUnavailable(
                f"{name} cannot be used with onnxruntime {found.onnxruntime}.",
                cause=error_of_ort.message,
                fix=_fix_elsewhere(found) if elsewhere else _fix(error_of_ort.message),
                details={"onnxruntime": found.onnxruntime, "onnxruntime_qnn": found.onnxruntime_qnn},
            )
        )
    return PluginQnn(devices, source)


def unavailable(error: BridgeError) -> ProviderUnavailable:
    if isinstance(error, ProviderUnavailable):
        return error
    return ProviderUnavailable(error.message, cause=error.cause, fix=error.fix, details=error.details)


def _refuse_foreign_library(source: QnnSource) -> None:
    """Raise `ProviderUnavailable` if a library is not QNN's provider, without running its code."""
    import mmap  # import it here because a session with the wheel's provider does not need it

    try:
        with open(source.library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            known = content.find(_QNN_ENTRY) >= 0
    # `mmap` raises ValueError for an empty file.
    except (OSError, ValueError) as error:
        raise ProviderUnavailable(
            f"The provider's library cannot be read: {source.library}.", cause=str(error), fix=_NAME_IT
        ) from error
    if not known:
        raise ProviderUnavailable(
            f"{source.library} is not a library of the QNN provider.",
            cause=f"The file does not contain {_QNN_ENTRY.decode()}, which every provider for QNN contains.",
            fix=_NAME_IT,
            details={"engine": source.engine, "library": source.library},
        )


def _registered(ort: Any) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def _let_the_dsp_find(folder: str) -> None:
    """Put the package's folder first in ADSP_LIBRARY_PATH.

    The NPU's own loader searches this path for the NPU's part of QNN (the skel). If it is not found, QNN silently
    switches to the driver's older runtime (onnxruntime-qnn issue 593).
    """
    before = os.environ.get("ADSP_LIBRARY_PATH", "")
    # FastRPC uses a semicolon as separator on Linux, too, where `os.pathsep` is a colon.
    if folder not in before.split(";"):
        os.environ["ADSP_LIBRARY_PATH"] = f"{folder};{before}" if before else folder


_NAME_IT = "Set ep_path= to the folder with onnxruntime_providers_qnn and the Qnn libraries, or use engine='wheel'."


def _fix_elsewhere(found: Installed) -> str:
    text = "The provider works only with the onnxruntime releases and the architecture for which it was built. "
    if "onnxruntime-windowsml" in found.distributions:
        return (
            text + "Install another release of onnxruntime-windowsml, or plain onnxruntime, in the host's Python."
        )
    return text + "Upgrade onnxruntime in the host's Python, or use engine='wheel' (onnxruntime-qnn)."


def _fix(text: str) -> str:
    # onnxruntime-qnn 2.7 reports, for example: "QNN EP requires ORT >= 1.24 (API 24). Host ORT is 1.23.2 (API 23)."
    if "requires ORT" in text or "ort_version_supported" in text or "API" in text:
        return (
            "Install compatible versions in the host's Python: onnxruntime 1.24.2 or newer with onnxruntime-qnn "
            "2.7, for example `pip install -U onnxruntime onnxruntime-qnn`."
        )
    return "Reinstall onnxruntime-qnn in the host's Python, for the architecture of that Python."


def _kind(device: Any) -> str:
    # Remove the class name: the string of a pybind11 enum member is ``OrtHardwareDeviceType.NPU``.
    return str(device.device.type).rpartition(".")[2]


def _describe(device: Any) -> dict[str, Any]:
    hardware = device.device
    return {
        "ep_name": device.ep_name,
        "ep_vendor": device.ep_vendor,
        "ep_metadata": {str(k): str(v) for k, v in device.ep_metadata.items()},
        "device_type": _kind(device),
        "device_vendor": hardware.vendor,
        "device_vendor_id": int(hardware.vendor_id),
        "device_id": int(hardware.device_id),
        "device_metadata": {str(k): str(v) for k, v in hardware.metadata.items()},
    }
