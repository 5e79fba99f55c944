"""Chooses the execution providers of a session, and the options of each; loads QNN's.

The rules: the default is QNN; with QNN the session is strict unless the application allows the CPU; QNN's
options are checked and completed (backend library, and on the simulator the chip); a provider that this host does
not have is an error, never a silent CPU. The seam to the two generations of onnxruntime-qnn is `QnnAdapter`.
Immutable results, pure functions; any thread.
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
from qnnbridge_host.machine import QNN_DISTRIBUTION, Installed, parse_version
from qnnbridge_protocol.errors import BridgeError, OptionError, ProviderUnavailable
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import ProviderSpec, SessionSpec

Providers = Sequence[tuple[str, dict[str, str]]]

_SUFFIX = "ExecutionProvider"
# In every ONNX Runtime, and useless here: it sends the inputs to a web service, and needs a model made for it.
_NOT_OFFERED = frozenset(("AzureExecutionProvider",))


class QnnAdapter(Protocol):
    """How QNN is reached in this process."""

    @property
    def simulator(self) -> bool:
        """There is no NPU: QNN computes on the HTP simulator."""

    @property
    def library_folder(self) -> str | None:
        """Where the backend libraries are."""

    @property
    def version(self) -> tuple[int, ...]:
        """Of onnxruntime-qnn; ``()`` if nothing says it."""

    @property
    def source(self) -> QnnSource | None:
        """The origin of QNN; ``None`` without QNN."""

    def require(self) -> None:
        """Raise `ProviderUnavailable` if QNN cannot be used."""

    def devices(self) -> list[dict[str, Any]]:
        """The QNN devices, for people and programs."""

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        """Put QNN first into the session. Returns what must be named in the ``providers`` argument, if anything."""


class NoQnn:
    """QNN cannot be used in this process; `reason` says why."""

    simulator = False
    library_folder: str | None = None
    version: tuple[int, ...] = ()
    source: QnnSource | None = None

    def __init__(self, reason: ProviderUnavailable) -> None:
        self.reason = reason

    def require(self) -> None:
        # A fresh one for each session: a raised error gathers tracebacks, and is completed on its way.
        raise self.reason.copy()

    def devices(self) -> list[dict[str, Any]]:
        return []

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        self.require()
        return ()


class ProviderChoice(NamedTuple):
    """The providers and options of a session.

    qnn: QNN's options, checked and complete, or ``None`` for a session without QNN.
    others: the providers after QNN, by name, with their options; the CPU is never named beside QNN (ONNX Runtime
        adds it by itself, and refuses a strict session that names it).
    entries: the session's configuration entries, without those that are QNN options by another name.
    strict: a node on the CPU is an error.
    missing: why a requested QNN is absent, in a session that may run without it.
    """

    qnn: dict[str, str] | None
    others: tuple[tuple[str, dict[str, str]], ...]
    entries: dict[str, str]
    target: PlacementTarget | None
    strict: bool
    missing: str | None = None


def choose(spec: SessionSpec, available: Sequence[str], qnn: QnnAdapter, *, records: bool) -> ProviderChoice:
    """Decide on providers and configuration entries.

    available: the providers that ONNX Runtime was built with or has registered. records: it can record the graph
    assignment.
    """
    asked = _unique(spec.providers) or [ProviderSpec(PROVIDER)]
    entries = {str(key): str(value) for key, value in spec.config_entries.items()}
    if records:
        # Without this entry ONNX Runtime records nothing, and asking for the assignment is an error.
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
            cause="The first provider takes every node it can, and the CPU takes all of them.",
            fix="Name QNNExecutionProvider first, or only CPUExecutionProvider.",
        )
    # ONNX Runtime itself keeps a provider's options as entries with this prefix, so an application may use either.
    by_entry = {
        key[len(SESSION_PREFIX) :]: entries.pop(key) for key in list(entries) if key.startswith(SESSION_PREFIX)
    }
    given = _merged(by_entry, next(p for p in asked if p.name == PROVIDER).options)
    options = qnn_options.provider_options(given, entries, library_folder=qnn.library_folder, version=qnn.version)
    options = _complete(options, qnn)
    strict = spec.fallback == "error"
    if strict:
        entries.setdefault(DISABLE_CPU_FALLBACK, "1")
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
    """The first of each name; ONNX Runtime ignores the others too."""
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
    # With the whole path QNN cannot load a library of the same name from elsewhere, such as that of an SDK on PATH.
    if "backend_path" not in options and "backend_type" not in options:
        path = qnn_options.backend_library("htp", qnn.library_folder)
        if path is not None:
            options = {"backend_path": path, **options}
    if qnn.simulator and qnn_options.backend_of(options) in ("htp", "saver", "ir"):
        chip = qnn_options.chip_for_simulator(options.get("soc_model"), options.get("htp_arch"))
        options = {**options, "soc_model": chip}
    return options


def _did_you_mean(name: str, usable: Sequence[str]) -> str | None:
    """Compared without the suffix, which is most of a name: QNN, qnn, QNNProvider, QNNExecutionProvide."""
    short = {other.removesuffix(_SUFFIX).lower(): other for other in usable}
    asked = re.split(r"[ _-]*(?:exec|prov|ep$)", name.strip().lower(), maxsplit=1)[0]
    return short.get(qnn_options.closest(asked, short) or "")


def _unknown(name: str, available: Sequence[str], qnn: QnnAdapter) -> ProviderUnavailable:
    hidden = {*_NOT_OFFERED, PROVIDER} if isinstance(qnn, NoQnn) else _NOT_OFFERED
    usable = [other for other in available if other not in hidden]
    meant = _did_you_mean(name, usable)
    return ProviderUnavailable(
        f"The host has no execution provider {name!r}.",
        fix=(f"Did you mean {meant!r}? " if meant else "") + f"The host has {', '.join(usable)}.",
        details={"provider": name, "available": list(usable)},
    )


# --- how QNN is reached: built into ONNX Runtime (onnxruntime-qnn 1.x), or as a plugin beside it (2.x) ------
#
# Built in, QNN is named in the classic ``providers`` argument. The wheel says nothing of devices; whether it can
# reach an NPU is seen from its files: a build for a machine with an NPU brings the library that talks to it (the
# stub), the pure x64 build (1.22.2) has none and computes on the simulator.
#
# A plugin's library is registered once in the life of the process and never unregistered: a session that outlives
# its library is a segmentation fault. QNN is given to a session by its devices; with this generation the classic
# ``providers=["QNNExecutionProvider"]`` would silently give a CPU session.


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
        """It exists if ONNX Runtime was built with it, which `load_builtin` has checked."""

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
    """The adapter for an installed 1.x."""
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
        "wheel", "", QNN_DISTRIBUTION, release, QNN_DISTRIBUTION, None, release, "it is ONNX Runtime itself here"
    )
    return BuiltinQnn(found.qnn_folder, parse_version(release), source)


# What every library of QNN exports, and a provider that uses them has as a text.
_QNN_ENTRY = b"QnnInterface_getProviders"


class PluginQnn:
    """The registered plugin and the devices that it lists."""

    def __init__(self, devices: list[Any], source: QnnSource) -> None:
        self._devices = devices
        self.source: QnnSource | None = source
        # The provider itself, for other libraries that have an ONNX Runtime environment of their own.
        self.library: str | None = source.library
        self.library_folder: str | None = os.path.dirname(source.library)
        self.version = parse_version(source.release)

    @property
    def simulator(self) -> bool:
        """Without an NPU the provider lists the machine's CPU, which the simulator runs on."""
        return bool(self._devices) and all(_kind(device) == "CPU" for device in self._devices)

    def require(self) -> None:
        if self._devices:
            return
        raise ProviderUnavailable(
            "QNN lists no device on this machine.",
            cause="The provider is loaded, but there is no Qualcomm NPU, or its driver is missing or not working.",
            fix="Install the NPU driver (Windows Update, or the maker of the PC) and restart, "
            "or ask for CPUExecutionProvider.",
            details={"library_folder": self.library_folder},
        )

    def devices(self) -> list[dict[str, Any]]:
        return [_describe(device) for device in self._devices]

    def attach(self, session_options: Any, options: dict[str, str], backend: str) -> Providers:
        self.require()
        # The provider uses one device and warns about others; an NPU may be listed beside a GPU.
        wanted = "GPU" if backend == "gpu" else "NPU"
        # On the simulator there is neither of the two: QNN lists a CPU.
        chosen = [device for device in self._devices if _kind(device) == wanted] or self._devices
        session_options.add_provider_for_devices(chosen, options)
        return ()


def load_plugin(
    ort: Any, found: Installed, choose: Callable[[], QnnSource], on_phase: Callable[..., None]
) -> QnnAdapter:
    """Register the provider of the chosen source. A failure is kept, and raised when a session asks for QNN.

    choose: gives the source. Raises `BridgeError`, or anything at all where the package refuses the machine.
    """
    source: QnnSource | None = None
    try:
        source = choose()
        folder = os.path.dirname(source.library)
        # The wheel's own library needs no look. A folder may hold another vendor's provider, and registering a
        # library runs its code.
        if source.engine != "wheel":
            _refuse_others(source)
        # Before the first call into QNN: where the skel is not found then, QNN stays with the driver's runtime.
        _let_the_dsp_find(folder)
        on_phase("registering", source.versions())
        devices = _registered(ort)
        if not devices:  # else an earlier engine of this process has registered it; twice is an error
            # ONNX Runtime takes any name here and makes it the provider's. Compiled models have this one as the
            # `source` of their nodes.
            ort.register_execution_provider_library(PROVIDER, source.library)
            devices = _registered(ort)
    except BridgeError as error:
        return NoQnn(unavailable(error))
    except Exception as error:  # noqa: BLE001 - the package refuses unknown machines with any exception
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


def _refuse_others(source: QnnSource) -> None:
    """The library of another provider is refused before its code runs."""
    import mmap  # which a session from the wheel does not need

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
            f"{source.library} is no library of the QNN provider.",
            cause=f"{_QNN_ENTRY.decode()} does not occur in it, and a provider for QNN needs that.",
            fix=_NAME_IT,
            details={"engine": source.engine, "library": source.library},
        )


def _registered(ort: Any) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]


def _let_the_dsp_find(folder: str) -> None:
    """Put the package's folder first in ADSP_LIBRARY_PATH.

    The NPU's own loader looks there for its part (the skel); where it does not find it QNN switches silently to the
    driver's older runtime (onnxruntime-qnn issue 593).
    """
    before = os.environ.get("ADSP_LIBRARY_PATH", "")
    # FastRPC separates by a semicolon on Linux as well, where `os.pathsep` is a colon.
    if folder not in before.split(";"):
        os.environ["ADSP_LIBRARY_PATH"] = f"{folder};{before}" if before else folder


_NAME_IT = (
    "Name the folder that holds onnxruntime_providers_qnn and the Qnn libraries (ep_path=), or use engine='wheel'."
)


def _fix_elsewhere(found: Installed) -> str:
    text = "The provider is made for a range of onnxruntime's releases and for one architecture. "
    if "onnxruntime-windowsml" in found.distributions:
        return (
            text + "Install another onnxruntime-windowsml, or plain onnxruntime in its place, in the host's Python."
        )
    return text + "Upgrade onnxruntime in the host's Python, or use engine='wheel' (onnxruntime-qnn)."


def _fix(text: str) -> str:
    # 1.23.2 with onnxruntime-qnn 2.7: ``QNN EP requires ORT >= 1.24 (API 24). Host ORT is 1.23.2 (API 23).``
    if "requires ORT" in text or "ort_version_supported" in text or "API" in text:
        return (
            "Install versions that fit together in the host's Python: onnxruntime 1.24.2 or newer with "
            "onnxruntime-qnn 2.7, for example `pip install -U onnxruntime onnxruntime-qnn`."
        )
    return "Reinstall onnxruntime-qnn in the host's Python, for the architecture of that Python."


def _kind(device: Any) -> str:
    # As text a member of pybind11's enumeration is ``OrtHardwareDeviceType.NPU``.
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
