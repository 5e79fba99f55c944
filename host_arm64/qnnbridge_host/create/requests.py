"""Reads the requests on models: the model, its tensors, the cache's settings, the time.

Errors in a description are `LookupError`, `TypeError` or `ValueError`; the caller names the operation. Any thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from qnnbridge_host.request.cancellation import StopSignal
from qnnbridge_protocol.errors import ModelQuarantined
from qnnbridge_protocol.records import NamedTuple

if TYPE_CHECKING:
    from qnnbridge_host.create.context_read import ContextFolder
    from qnnbridge_host.create.fixed_source import FixedSource
    from qnnbridge_host.create.worker import WorkOrder
    from qnnbridge_host.model.source import ModelSource
    from qnnbridge_host.request.in_flight import Request
    from qnnbridge_protocol.hello import Hello
    from qnnbridge_protocol.model_records import CacheSettings
    from qnnbridge_protocol.specs import HostInfo, SessionSpec

# The name of `compile` in messages.
COMPILE_COMMAND: Final = "qnnbridge compile"
# Configuration entry that says where the external data of a model given as bytes lies.
EXTERNAL_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"
# Eleven days. Timers cannot wait much longer.
LONGEST_S: Final = 1_000_000.0


class ApplicationModel(NamedTuple):
    """The application's model. settings: of the cache. folder: of the files of a model given as bytes."""

    source: ModelSource
    settings: CacheSettings | None
    folder: str


class WorkerOrders(Protocol):
    """What `ModelService` knows of the host and of its workers."""

    @property
    def hello(self) -> Hello: ...

    @property
    def host_info(self) -> HostInfo: ...

    def known_faults(self, source: ModelSource, spec: SessionSpec) -> str:
        """What is known against a model on QNN, in sentences."""

    def fixed(
        self, request: Request, given: ApplicationModel, spec: SessionSpec, order: WorkOrder
    ) -> FixedSource: ...

    def order(
        self,
        request: Request,
        stop: StopSignal,
        source: ModelSource,
        deadline: float | None,
        budget_s: float | None,
    ) -> WorkOrder: ...


def model_and_tensors(
    request: Request, spec: SessionSpec, described: Sequence[Any]
) -> tuple[Any | None, tuple[Any, ...]]:
    """The model, unless it is a file, and the values of the initializers in the order of their names."""
    # A model that travels as bytes is the last buffer, behind the tensors.
    count = len(request.buffers) - (spec.model_path is None)
    model = request.buffers[count] if spec.model_path is None else None
    values: tuple[Any, ...] = ()
    if described or count:
        from qnnbridge_protocol.values import Decoder

        decoder = Decoder(request.buffers[:count])
        values = tuple(decoder.value(item) for item in described)
        decoder.finish()
    if len(values) != len(spec.value_names):
        raise ValueError(f"{len(values)} values of initializers")
    return model, values


def stop_signal(request: Request) -> StopSignal:
    """The signal of a request that is being served."""
    request.stopper = stop = StopSignal()
    if request.withdrawn:  # before there was anything to be stopped
        stop.stop()
    return stop


def deadline_of(budget_s: Any) -> float | None:
    """On `time.monotonic`, of a request that has just come. Raises `ValueError` for what is no length of time."""
    if budget_s is None:
        return None
    if type(budget_s) not in (int, float) or not budget_s >= 0:
        raise ValueError(f"budget_s={str(budget_s)[:40]!r} is no length of time")
    return time.monotonic() + min(budget_s, LONGEST_S) if budget_s else None


def compile_jobs(
    request: Request, described: Sequence[Mapping[str, Any]], folder: str, stop: StopSignal
) -> list[Any]:
    """The jobs of a `model.compile`. Tensors come first, then the models without a path, in the order of the
    jobs."""
    from qnnbridge_host.create.jobs import CompilerInput
    from qnnbridge_host.model.refusals import refuse_compiled
    from qnnbridge_protocol.specs import SessionSpec
    from qnnbridge_protocol.values import Decoder

    specs = [SessionSpec.from_wire(one["spec"]) for one in described]
    count = len(request.buffers) - sum(spec.model_path is None for spec in specs)
    if count < 0:
        raise LookupError("a model is missing")
    models = iter(request.buffers[count:])
    decoder = Decoder(request.buffers[:count])
    jobs = []
    for spec, one in zip(specs, described, strict=True):
        data = bytes(next(models)) if spec.model_path is None else None
        # First: to hash a model of gigabytes takes seconds.
        refuse_compiled(spec.model_path if spec.model_path is not None else data or b"", COMPILE_COMMAND)
        source = open_model(spec.model_path, data, data_folder(spec.config_entries, folder), None, stop)
        values = tuple(decoder.value(item) for item in one.get("initializers") or ())
        inputs = {str(name): decoder.value(item) for name, item in one.get("inputs") or ()}
        jobs.append(CompilerInput(source, spec, embed=bool(one.get("embed")), initializers=values, inputs=inputs))
    decoder.finish()
    return jobs


def open_model(
    path: str | None,
    data: bytes | None,
    folder: str,
    settings: CacheSettings | None,
    stop: StopSignal,
    fingerprint: str | None = None,
    files: Sequence[Sequence[Any]] = (),
) -> ModelSource:
    """Look at the model, with the hashes that the cache remembers.

    Raises:
        Cancelled: the request was withdrawn.
        ModelChanged: it is not the one with the fingerprint.
        OrtError: it cannot be read.
    """
    from qnnbridge_host.model.source import ModelSource, interruptible, open_again

    memo = None
    if settings is not None and settings.in_use:
        from qnnbridge_host.cache.memo import memo_of

        memo = memo_of(settings)
    given: str | bytes = path if path is not None else data or b""
    with interruptible(stop.check):
        if fingerprint is not None:
            return open_again(given, folder, memo, fingerprint, files)
        return ModelSource.open(given, folder, memo)


def contexts_of_function(
    request: Request,
    spec: SessionSpec,
    data: bytes | None,
    folder: str,
    settings: CacheSettings | None,
    stop: StopSignal,
) -> ContextFolder | None:
    """The context binaries that a function of the application has, beside a copy of the model."""
    calls_back = request.calls_back
    if calls_back is None or "ep_context_read" not in calls_back:
        return None
    from qnnbridge_host.create.context_read import fetch_contexts

    source = open_model(spec.model_path, data, data_folder(spec.config_entries, folder), settings, stop)
    return fetch_contexts(source, calls_back)


def cache_settings(wire: Mapping[str, Any] | None) -> CacheSettings | None:
    from qnnbridge_protocol.model_records import CacheSettings

    return None if wire is None else CacheSettings.from_wire(wire)


def seed_of(seed: Any) -> int | None:
    if not isinstance(seed, (int, type(None))):
        raise TypeError(f"a seed is {type(seed).__name__}")
    return seed


def data_folder(config_entries: Mapping[str, str], folder: str) -> str:
    """The base of relative paths inside of a model given as bytes."""
    return os.path.join(folder, config_entries.get(EXTERNAL_DATA_FOLDER, ""))


def refuse_quarantined(source: ModelSource, quarantined: frozenset[str]) -> None:
    if source.fingerprint in quarantined:
        identity = source.identity
        raise ModelQuarantined(
            f"The model {source.label} is in quarantine.",
            details={
                "fingerprint": source.fingerprint,
                "label": source.label,
                "compiled": identity.compiled,
                "files": [list(file) for file in identity.files],
            },
        )


def progress_of(request: Request, label: str) -> Callable[[str, float], None]:
    def report(stage: str, seconds: float) -> None:
        request.emit({"event": "progress", "stage": stage, "seconds": seconds, "label": label})

    return report
