"""Chooses the execution providers of a session, and the options of each.

The rules: the default is QNN; with QNN the session is strict unless the application allows the CPU; QNN's
options are checked and completed (backend library, and on the simulator the chip); a provider that this host does
not have is an error, never a silent CPU. The seam to the two generations of onnxruntime-qnn is `QnnAdapter`.
Immutable results, pure functions; any thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from qnnbridge_host.engine import qnn_options
from qnnbridge_host.engine.placement import CPU_PROVIDER, PlacementTarget
from qnnbridge_host.engine.qnn_options import DISABLE_CPU_FALLBACK, PROVIDER, RECORD_ASSIGNMENT, SESSION_PREFIX
from qnnbridge_host.engine.sources import QnnSource
from qnnbridge_protocol.errors import OptionError, ProviderUnavailable
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
        raise ProviderUnavailable(
            self.reason.message, cause=self.reason.cause, fix=self.reason.fix, details=self.reason.details
        )

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
    import difflib

    short = {other.removesuffix(_SUFFIX).lower(): other for other in usable}
    asked = re.split(r"[ _-]*(?:exec|prov|ep$)", name.strip().lower(), maxsplit=1)[0]
    found = difflib.get_close_matches(asked, short, n=1)
    return short[found[0]] if found else None


def _unknown(name: str, available: Sequence[str], qnn: QnnAdapter) -> ProviderUnavailable:
    hidden = {*_NOT_OFFERED, PROVIDER} if isinstance(qnn, NoQnn) else _NOT_OFFERED
    usable = [other for other in available if other not in hidden]
    meant = _did_you_mean(name, usable)
    return ProviderUnavailable(
        f"The host has no execution provider {name!r}.",
        fix=(f"Did you mean {meant!r}? " if meant else "") + f"The host has {', '.join(usable)}.",
        details={"provider": name, "available": list(usable)},
    )
