"""Served models: start their host, open sessions, and keep registries of models by name.

`Repository` contains the models of the Open Inference Protocol. `FolderModels` contains models that the command
line specifies by folder, with their figures for /metrics.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from prometheus_client.metrics_core import Metric

from qnnbridge_protocol.errors import BridgeError, Closed, PlacementRefused
from qnnbridge_protocol.shown import with_article
from qnnbridge_protocol.specs import AFTER_OPTIMISATION
from qnnbridge_serve.errors import CODE_HEADER, RETRY_AFTER_S, Refused, error_text
from qnnbridge_serve.infer import PLATFORM, ServedModel, make_contract
from qnnbridge_serve.options import ModelFile, ServeSessionOptions, Where
from qnnbridge_serve.status import RECENT, SessionStatus, quantile_row, quantiles_of
from qnnbridge_tools import arguments
from qnnbridge_tools.host.metrics import Labels, counter, gauge, numbers_families, summary

if TYPE_CHECKING:
    from pathlib import Path

    from qnnbridge import Host, InferenceSession
    from qnnbridge.genai import Model, PoolStats, Tokenizer
    from qnnbridge.speech import Recognizer
    from qnnbridge_protocol.specs import Fallback, Placement
    from qnnbridge_tools.generation.measuring import Pace


FIGURES_TIMEOUT_S: Final = 5.0


def open_host(where: Where, python: str | None) -> Host:
    """Return the host of all sessions: the daemon, started if necessary, or a private host that starts at first
    use."""
    import qnnbridge

    return qnnbridge.connect(python=python) if where == "daemon" else qnnbridge.Host(python)


def daemon_figures(host: Host) -> Callable[[], Mapping[str, Any]]:
    """Return a function that requests the status document from the daemon."""

    def ask() -> Mapping[str, Any]:
        return dict(host.call({"op": "daemon.status"}, timeout=FIGURES_TIMEOUT_S).header["status"])

    return ask


def open_model(file: ModelFile, options: ServeSessionOptions, host: Host) -> ServedModel:
    """Load a model and determine its inputs and outputs. Raise the errors of `qnnbridge.errors`."""
    session = open_session(file.path, file.buckets, options, host)
    try:
        contract = make_contract(
            session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()
        )
    except BaseException:
        session.close()
        raise
    summary = summary_of(session.placement) + (", rewritten" if session.fixed else "")
    if session.placement.variant:
        summary += f", {session.placement.variant.partition(':')[0]}"
    return ServedModel(file.name, file.version, contract, session, summary)


def open_session(path: Path, buckets: Any, options: ServeSessionOptions, host: Host) -> InferenceSession:
    """Open a session with the options of the command. buckets: as for `InferenceSession`; empty for none."""
    from qnnbridge import InferenceSession

    try:
        session = InferenceSession(
            str(path),
            arguments.session_options(options.dimensions),
            providers=list(options.providers),
            provider_options=[options.provider_options],
            host=host,
            fallback=options.fallback,
            buckets=buckets or None,
        )
        if buckets:
            # Compile all variants now, before the model is reported as ready: otherwise, requests would wait for
            # compilations.
            try:
                session.warm()
            except BaseException:
                session.close()
                raise
    except PlacementRefused as refused:
        arguments.in_options(refused)
        raise
    return session


def summary_of(placement: Placement) -> str:
    if not placement.known:
        return "ready"
    parts: list[str] = []
    for count, where in ((placement.qnn_nodes, "QNN"), (placement.cpu_nodes, "the CPU")):
        if count:
            parts.append(f"{count} {'node' if count == 1 else 'nodes'} on {where}")
    return ", ".join([*parts, AFTER_OPTIMISATION]) if parts else "ready"


# States of a model, with the names of the protocol's repository extension.
State = Literal["UNAVAILABLE", "LOADING", "READY", "UNLOADING"]


class Closable(Protocol):
    """Loaded model. summary: where it runs, as text. parts: status of its sessions by name."""

    @property
    def summary(self) -> str: ...

    @property
    def parts(self) -> Mapping[str, SessionStatus]: ...

    def close(self) -> None: ...


Loaded = TypeVar("Loaded", bound=Closable)
NOT_YET: Final = "it was not loaded yet"


@dataclasses.dataclass(slots=True)
class _Leased(Generic[Loaded]):
    """Loaded model and the number of requests that use it. Guarded by the registry's lock."""

    loaded: Loaded
    leases: int = 0
    retired: bool = False


class Entry(Generic[Loaded]):
    """Named model. Loading and unloading hold the lock `change`; the registry's lock guards the other fields."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.change = threading.Lock()
        self.state: State = "UNAVAILABLE"
        self.reason = NOT_YET
        self.code: str | None = None
        self.current: _Leased[Loaded] | None = None


class Registry(Generic[Loaded]):
    """Models by name. Models can be reloaded, and are closed after their last lease. Safe to use from any thread.

    Args:
        names: names of the models, in the order of the command line.
        opener: loads the model of a name. Raises `BridgeError`.
    """

    def __init__(self, names: Iterable[str], opener: Callable[[str], Loaded]) -> None:
        self._open = opener
        self._entries: dict[str, Entry[Loaded]] = {name: Entry(name) for name in names}
        # This lock is held only for assignments. The `change` lock of an entry, which is held while its model is
        # loaded, is never acquired under this lock.
        self._lock = threading.Lock()
        self._closed = False
        # Whether the models of the command line are still being loaded.
        self.starting = True

    def states(self) -> list[dict[str, Any]]:
        """Return name, state, reason and parts of each model, for `/status`."""
        with self._lock:
            found = [(one.name, one.state, one.reason, one.current) for one in self._entries.values()]
        # Build the rows after the lock is released, because the sessions' reports have a separate lock.
        return [
            {
                "name": name,
                "state": state,
                "reason": reason,
                "parts": []
                if current is None
                else [part.document(which) for which, part in current.loaded.parts.items()],
            }
            for name, state, reason, current in found
        ]

    def load_all(self, say: Callable[[str], None]) -> dict[str, BridgeError]:
        """Load the models of the command line one after another. Return the errors by name of the model."""
        failed: dict[str, BridgeError] = {}
        for name, entry in self._entries.items():
            if self._closed:
                break
            try:
                say(f"{name}: {self._load(entry)}")
            except BridgeError as error:
                failed[name] = error
            except Exception as error:  # noqa: BLE001 - the start must not hang on an unexpected error
                failed[name] = BridgeError(f"Unexpected {type(error).__name__}: {error}")
        self.starting = False
        return failed

    def close(self) -> None:
        """Close all models, even those in use. `_load` closes a model whose loading ends later."""
        with self._lock:
            self._closed = True
            current = [entry.current for entry in self._entries.values() if entry.current is not None]
            for entry in self._entries.values():
                entry.current, entry.state, entry.reason = None, "UNAVAILABLE", "the server is ending"
        for leased in current:
            leased.loaded.close()

    def _load(self, entry: Entry[Loaded]) -> str:
        """Load a model and return a summary. Requests use the old model until the new one is loaded."""
        with entry.change:
            with self._lock:
                if entry.current is None:
                    entry.state, entry.reason = "LOADING", "it is being loaded"
                else:  # the state stays READY, because the old model serves clients meanwhile
                    entry.reason = "it is being loaded again"
            begun = time.monotonic()
            try:
                # Requests use the old model during loading, so both models are in the host for a while.
                loaded = self._open(entry.name)
            except BaseException as error:
                with self._lock:
                    self._failed(entry, error)
                raise
            with self._lock:
                # If the server ended during the load, the model must be closed here.
                closed, old = self._closed, entry.current
                if not closed:
                    entry.current, entry.state, entry.reason, entry.code = _Leased(loaded), "READY", "", None
                over = self._retire(old)
            if closed:
                loaded.close()
                raise Closed("The server is ending.")
            if over is not None:
                over.close()
        return f"{loaded.summary}, loaded in {time.monotonic() - begun:.1f} s"

    @staticmethod
    def _retire(leased: _Leased[Loaded] | None) -> Loaded | None:
        """Retire the model. Return the model if the caller must close it; ``None`` if its last lease closes it."""
        if leased is None:
            return None
        leased.retired = True
        return None if leased.leases else leased.loaded

    @staticmethod
    def _failed(entry: Entry[Loaded], error: BaseException) -> None:
        reason, code = f"Unexpected {type(error).__name__}", None
        if isinstance(error, BridgeError):
            reason, code = error_text(error), error.code
        if entry.current is not None:  # the old model keeps serving
            entry.state, entry.reason = "READY", f"loading it again failed: {reason}"
        else:
            entry.state, entry.reason, entry.code = "UNAVAILABLE", reason, code


class Repository(Registry[ServedModel]):
    """Models of the Open Inference Protocol. `lease` keeps a model loaded during a request."""

    def __init__(self, files: Sequence[ModelFile], opener: Callable[[ModelFile], ServedModel]) -> None:
        by_name = {file.name: file for file in files}
        super().__init__(by_name, lambda name: opener(by_name[name]))
        self._versions = {file.name: file.version for file in files}

    @property
    def names(self) -> Sequence[str]:
        """Names of all models, loaded or not."""
        return list(self._entries)

    def families(self) -> Iterator[Metric]:
        """Yield the results of comparing the loaded models with the CPU, for /metrics."""
        with self._lock:
            loaded = [(name, entry.current.loaded) for name, entry in self._entries.items() if entry.current]
        reports = [(name, model.session.verified) for name, model in loaded]
        rows: list[tuple[Labels, str, int]] = [
            ({"model": name, "version": self._versions[name]}, report.state, report.compared)
            for name, report in reports
            if report.state != "off"
        ]
        yield from numbers_families("qnnbridge_served_model", rows)

    # --- requests ---

    @contextlib.contextmanager
    def lease(self, name: str, version: str | None) -> Iterator[ServedModel]:
        """Yield the model, which stays loaded within the ``with`` block. Raise `Refused` if it is not loaded."""
        entry = self._find(name, version)
        with self._lock:
            leased = entry.current
            if leased is None:
                raise self._not_ready(entry)
            # `unload` does not close a model with leases; it is closed at the end of the last lease.
            leased.leases += 1
        try:
            yield leased.loaded
        finally:
            with self._lock:
                leased.leases -= 1
                # The model is closed after the lock is released, because closing sends a request to the host.
                over = leased.retired and not leased.leases
            if over:
                leased.loaded.close()

    def check(self, name: str, version: str | None) -> None:
        """Raise `Refused` if a lease would be refused."""
        entry = self._find(name, version)
        with self._lock:
            if entry.current is None:
                raise self._not_ready(entry)

    def describe(self, name: str, version: str | None) -> dict[str, Any]:
        """Return the model's metadata, as the protocol defines it."""
        with self.lease(name, version) as model:
            return {
                "name": model.name,
                "versions": [model.version],
                "platform": PLATFORM,
                **model.contract.described(),
            }

    def version_of(self, name: str) -> str:
        return self._versions[name]

    def index(self, *, ready_only: bool) -> list[dict[str, str]]:
        with self._lock:
            return [
                {"name": name, "version": self._versions[name], "state": entry.state, "reason": entry.reason}
                for name, entry in self._entries.items()
                if entry.state == "READY" or not ready_only
            ]

    def why_not_ready(self) -> str | None:
        """Return why the server is not ready; ``None`` if the start is over and a model is loaded."""
        with self._lock:
            if self.starting:
                return "models are still being loaded"
            if not any(entry.current for entry in self._entries.values()):
                return "no model is loaded"
        return None

    def load(self, name: str) -> None:
        """Load or reload a model from its file. Raise `Refused` or `BridgeError`."""
        self._load(self._find(name, None))

    def unload(self, name: str) -> None:
        """Unload a model: new requests are refused, and the model is closed after the running requests end."""
        entry = self._find(name, None)
        with entry.change:
            with self._lock:
                over = self._retire(entry.current)
                entry.current, entry.state, entry.reason, entry.code = None, "UNAVAILABLE", "unloaded", None
            if over is not None:
                over.close()

    # --- inside ---

    def _find(self, name: str, version: str | None) -> Entry[ServedModel]:
        entry = self._entries.get(name)
        if entry is None:
            raise Refused(404, f"There is no model {name[:80]!r} here.")
        served = self._versions[name]
        if version is not None and version != served:
            raise Refused(404, f"The model {name!r} has no version {version[:20]!r} here; {served} is served.")
        return entry

    @staticmethod
    def _not_ready(entry: Entry[ServedModel]) -> Refused:
        headers = {CODE_HEADER: entry.code} if entry.code else {}
        if entry.state == "LOADING":
            headers["retry-after"] = str(RETRY_AFTER_S)
        return Refused(503, f"The model {entry.name} is not ready: {entry.reason}", headers)


# --- models by folder ---

_FIRST_S: Final = "time_to_first_token_seconds"
_PER_S: Final = "tokens_per_second"


@dataclasses.dataclass(frozen=True, slots=True)
class FolderKind:
    """Texts and metrics of a kind of models.

    Args:
        text: name of the kind, such as "language model".
        metrics: middle of the metric names: qnnbridge_METRICS_...
        running: help text of the gauge of running requests.
        ended: help text of the counter of finished requests.
        sums: help texts of the other counters, by the name after the prefix.
        paces: unit and help text of each summary of recent answers, by the name after the prefix.
        outcomes: outcomes of requests that are exported with 0 from the start.
    """

    text: str
    metrics: str
    running: str
    ended: str
    sums: Mapping[str, str]
    paces: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    outcomes: Sequence[str] = ()


class FolderFigures:
    """Counters and recent values of a model's requests. Safe to use from any thread."""

    def __init__(self, kind: FolderKind) -> None:
        self._lock = threading.Lock()
        self.running = 0
        self.outcomes: collections.Counter[str] = collections.Counter()
        # Start all counters at 0, because Prometheus does not see an increase if a counter appears with its first
        # value.
        self.outcomes.update(dict.fromkeys(kind.outcomes, 0))
        self.sums: dict[str, float] = collections.defaultdict(float)
        self._recent: dict[str, collections.deque[float]] = collections.defaultdict(
            functools.partial(collections.deque, maxlen=RECENT)
        )

    def begin(self) -> None:
        with self._lock:
            self.running += 1

    def end(self, outcome: str, sums: Mapping[str, float], pace: Pace | None = None) -> None:
        """Count a finished request. outcome: how the request ended. sums: values to add to the counters."""
        with self._lock:
            self.running -= 1
            self.outcomes[outcome] += 1
            for name, value in sums.items():
                self.sums[name] += value
            paces = {} if pace is None else {_FIRST_S: pace.to_first_token_s, _PER_S: pace.tokens_per_second}
            for name, figure in paces.items():
                if figure is not None:
                    self._recent[name].append(figure)

    def quantiles(self, name: str) -> dict[float, float | None]:
        with self._lock:
            found = list(self._recent[name])
        return quantiles_of(found)

    def row(self) -> dict[str, Any]:
        """Return the figures for `/status`."""
        with self._lock:
            running, outcomes = self.running, dict(self.outcomes)
        return {
            "running": running,
            "calls": sum(outcomes.values()),
            "errors": outcomes.get("error", 0),
            "first_token_ms": quantile_row(self.quantiles(_FIRST_S), 1000),
            "tokens_per_s": quantile_row(self.quantiles(_PER_S)),
        }


class FolderModels(Registry[Loaded]):
    """Models of one kind, with their figures.

    Args:
        folders: folders of the models by name, in the order of the command line.
        opener: loads the model with this name and folder. Raises `BridgeError`.
    """

    def __init__(
        self, kind: FolderKind, folders: Mapping[str, Path], opener: Callable[[str, Path], Loaded]
    ) -> None:
        super().__init__(folders, lambda name: opener(name, folders[name]))
        self._kind = kind
        self.kind = kind.text
        self.created = int(time.time())
        self.figures = {name: FolderFigures(kind) for name in folders}

    @property
    def names(self) -> Sequence[str]:
        """Names of the loaded models."""
        with self._lock:
            return [name for name, entry in self._entries.items() if entry.current is not None]

    @property
    def wanted(self) -> bool:
        """True if the command line specifies a model of this kind."""
        return bool(self._entries)

    def get(self, name: str) -> Loaded:
        """Return a loaded model. Raise `Refused` if it does not exist or is not loaded."""
        entry = self._entries.get(name)
        if entry is None:
            # Use this status and code: OpenAI's libraries then raise NotFoundError.
            raise Refused(
                404,
                f"The model {name[:80]!r} does not exist here, or is not {with_article(self.kind)}.",
                field="model",
                reason="model_not_found",
            )
        with self._lock:
            current, state, reason = entry.current, entry.state, entry.reason
        if current is not None:
            return current.loaded
        if state != "LOADING" and reason != NOT_YET:
            raise Refused(503, f"The model {name} is not ready: {reason}", field="model")
        raise Refused(503, f"The model {name} is being loaded.", {"retry-after": str(RETRY_AFTER_S)}, field="model")

    def described(self, name: str) -> dict[str, Any]:
        """Return the model's entry in /v1/models."""
        return {
            "id": name,
            "object": "model",
            "created": self.created,
            "owned_by": "qnnbridge",
            "kind": self.kind,
        }

    def why_not_ready(self) -> str | None:
        if not self.wanted or (self.names and not self.starting):
            return None
        return f"{with_article(self.kind)} is still being loaded" if self.starting else f"no {self.kind} is loaded"

    def families(self) -> Iterator[Metric]:
        """Yield the figures of all models, for /metrics."""
        kind, prefix = self._kind, f"qnnbridge_{self._kind.metrics}"
        rows = [({"model": name}, figures) for name, figures in self.figures.items()]
        yield gauge(f"{prefix}_requests_running", kind.running, [(labels, one.running) for labels, one in rows])
        yield counter(
            f"{prefix}_requests",
            kind.ended,
            # Sort the outcomes, so that equal metrics have equal texts.
            [({**labels, "outcome": how}, n) for labels, one in rows for how, n in sorted(one.outcomes.items())],
        )
        for name, text in kind.sums.items():
            yield counter(f"{prefix}_{name}", text, [(labels, one.sums[name]) for labels, one in rows])
        for name, (unit, text) in kind.paces.items():
            values = [(labels, one.quantiles(name)) for labels, one in rows]
            yield summary(f"{prefix}_{name}", text, values, unit)


# --- language models ---

LANGUAGE: Final = FolderKind(
    "language model",
    "llm",
    running="Requests that are being answered or wait for their turn.",
    ended="Requests that have ended, by how.",
    sums={
        "prompt_tokens": "Tokens of prompts.",
        "cached_tokens": "Tokens of prompts that were already in a KV cache.",
        "generated_tokens": "Tokens generated.",
        "host_restarts": "Answers continued in a new host process after the old process had ended.",
    },
    paces={
        _FIRST_S: (
            "seconds",
            f"Time from a request to its first token, including the wait, of the last {RECENT} answers.",
        ),
        _PER_S: ("", f"Tokens per second of an answer after its first token; of the last {RECENT} answers."),
    },
)


def pool_families(stats: PoolStats) -> Iterator[Metric]:
    """Yield the figures of the pool of generators, for /metrics."""
    states = [({"state": "idle"}, stats.idle), ({"state": "in_use"}, stats.in_use)]
    yield gauge("qnnbridge_llm_generators", "Idle generators, and generators that answer a request.", states)
    text = "Memory of the KV caches of all generators, each with the whole context."
    yield gauge("qnnbridge_llm_generators_kv_bytes", text, [({}, stats.kept_bytes)], "bytes")
    results = [({"result": "hit"}, stats.hits), ({"result": "miss"}, stats.misses)]
    text = "Searches for an idle generator that already contains the beginning of the prompt, by result."
    yield counter("qnnbridge_llm_prefixes", text, results)


@dataclasses.dataclass(frozen=True, slots=True)
class LanguageModel:
    """Loaded model for text generation."""

    name: str
    model: Model
    tokenizer: Tokenizer
    summary: str

    @property
    def parts(self) -> Mapping[str, SessionStatus]:
        # Report only the placement: onnxruntime-genai runs the stages, so their results are not compared with the
        # CPU.
        return {stage.stage: SessionStatus(stage.placement) for stage in self.model.info.stages}

    def close(self) -> None:
        self.model.close()


def language_models(
    folders: Mapping[str, Path], host: Host, fallback: Fallback, allow_native: Collection[str] = ()
) -> FolderModels[LanguageModel]:
    """Return the registry of the models of `qnnbridge serve --llm`."""

    def load(name: str, folder: Path) -> LanguageModel:
        from qnnbridge.genai import Model, Tokenizer

        model = Model(folder, host=host, fallback=fallback, allow_native=allow_native)
        try:
            words = f"{model.info.layout} layout, context of {model.info.context_length} tokens"
            return LanguageModel(name, model, Tokenizer(model), words)
        except BaseException:
            model.close()
            raise

    return FolderModels(LANGUAGE, folders, load)


# --- models for speech ---

SPEECH: Final = FolderKind(
    "speech model",
    "speech",
    running="Transcriptions that run or wait for their turn.",
    ended="Transcriptions that have ended, by how.",
    sums={
        "audio_seconds": "Seconds of audio that were transcribed.",
        "work_seconds": "Seconds that transcriptions took, without the wait for their turn.",
    },
)


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechModel:
    """Loaded model for speech recognition."""

    name: str
    recognizer: Recognizer
    summary: str

    @property
    def parts(self) -> Mapping[str, SessionStatus]:
        numbers = self.recognizer.verified
        return {
            name: SessionStatus(placement, numbers[name]) for name, placement in self.recognizer.placement.items()
        }

    def close(self) -> None:
        self.recognizer.close()


def speech_models(
    folders: Mapping[str, Path], options: ServeSessionOptions, host: Host
) -> FolderModels[SpeechModel]:
    """Return the registry of the models of `qnnbridge serve --speech`."""

    def load(name: str, folder: Path) -> SpeechModel:
        from qnnbridge import speech

        found = speech.load(
            folder,
            host=host,
            provider="qnn" if options.provider == "qnn" else "cpu",
            provider_options=options.provider_options,
            fallback=options.fallback,
        )
        placed = ", ".join(f"{part} {summary_of(one)}" for part, one in found.placement.items())
        return SpeechModel(name, found, f"{found.layout} layout, {placed}")

    return FolderModels(SPEECH, folders, load)
