"""Where sessions come from: the host, shared or private, and a session for one model with the command's options."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from qnnbridge_protocol.errors import BridgeError, Closed, PlacementRefused
from qnnbridge_serve.errors import CODE_HEADER, RETRY_AFTER_S, Refused, in_words
from qnnbridge_serve.infer import ServedModel
from qnnbridge_serve.options import ModelFile, ServeSessionOptions, Where
from qnnbridge_serve.tensors import PLATFORM, make_contract
from qnnbridge_tools import arguments

if TYPE_CHECKING:
    from qnnbridge import Host, InferenceSession
    from qnnbridge_protocol.specs import Placement

FIGURES_TIMEOUT_S: Final = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedModel:
    """A session that is served. summary: where it runs, as text."""

    model: ServedModel
    session: InferenceSession
    summary: str

    def close(self) -> None:
        self.session.close()


def open_host(where: Where, python: str | None) -> Host:
    """The host of all sessions: the daemon, which is started if there is none, or one that starts at first use."""
    import qnnbridge

    return qnnbridge.connect(python=python) if where == "daemon" else qnnbridge.Host(python)


def daemon_figures(host: Host) -> Callable[[], Mapping[str, Any]]:
    """Asks a host that is the daemon for its status document."""

    def ask() -> Mapping[str, Any]:
        document: Mapping[str, Any] = host.call({"op": "daemon.status"}, timeout=FIGURES_TIMEOUT_S).header["status"]
        return document

    return ask


def open_model(file: ModelFile, options: ServeSessionOptions, host: Host) -> LoadedModel:
    """Load one model and find out what it takes and gives. Raises the errors of `qnnbridge.errors`."""
    from qnnbridge import InferenceSession

    try:
        session = InferenceSession(
            str(file.path),
            arguments.session_options(options.dimensions),
            providers=list(options.providers),
            provider_options=[options.provider_options],
            host=host,
            fallback=options.fallback,
            buckets=file.buckets or None,
        )
        # Warmed before it counts as ready: no request waits for a compilation.
        if file.buckets:
            warm(session)
    except PlacementRefused as refused:
        arguments.in_options(refused)
        raise
    try:
        contract = make_contract(
            session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()
        )
    except BridgeError:
        session.close()
        raise
    served = ServedModel(file.name, file.version, contract, session)
    return LoadedModel(served, session, summary_of(session.placement) + (", rewritten" if session.fixed else ""))


def warm(session: InferenceSession) -> None:
    """Make all variants of a session with buckets, so that no request waits for one. Closes it if one fails."""
    try:
        session.warm()
    except BaseException:
        session.close()
        raise


def summary_of(placement: Placement) -> str:
    if not placement.known:
        return "ready"
    parts: list[str] = []
    for count, where in ((placement.qnn_nodes, "QNN"), (placement.cpu_nodes, "the CPU")):
        if count:
            parts.append(f"{count} {'node' if count == 1 else 'nodes'} on {where}")
    return ", ".join(parts) or "ready"


# As the repository extension of the protocol calls them.
State = Literal["UNAVAILABLE", "LOADING", "READY", "UNLOADING"]


class Loaded(Protocol):
    """A session with what the protocol says of it."""

    @property
    def model(self) -> ServedModel: ...

    @property
    def summary(self) -> str: ...

    def close(self) -> None: ...


Opener = Callable[[ModelFile], Loaded]


@dataclasses.dataclass(slots=True)
class _Leased:
    """A loaded model and how many requests are in it. Guarded by the repository's lock."""

    loaded: Loaded
    leases: int = 0
    retired: bool = False


class _Entry:
    """One name. `change` is held while it is loaded or unloaded; the rest is guarded by the repository's lock."""

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.change = threading.Lock()
        self.state: State = "UNAVAILABLE"
        self.reason = "it was not loaded yet"
        self.code: str | None = None
        self.current: _Leased | None = None


class Repository:
    """The served models by name; `lease` keeps one loaded."""

    def __init__(self, files: Sequence[ModelFile], opener: Opener) -> None:
        self._open = opener
        self._entries = {file.name: _Entry(file) for file in files}
        # Held for assignments only; `change` of one entry is held while it is loaded, and never asked for
        # under this lock.
        self._lock = threading.Lock()
        self._closed = False
        # Whether the models of the command line are still being loaded.
        self.starting = True

    @property
    def names(self) -> Sequence[str]:
        """Of all models, loaded or not."""
        return list(self._entries)

    # --- requests ---

    @contextlib.contextmanager
    def lease(self, name: str, version: str | None) -> Iterator[ServedModel]:
        """The model, which stays loaded within the ``with``. Raises `Refused`."""
        entry = self._find(name, version)
        with self._lock:
            leased = entry.current
            if leased is None:
                raise self._not_ready(entry)
            # From here on `unload` leaves the closing to the last lease.
            leased.leases += 1
        try:
            yield leased.loaded.model
        finally:
            with self._lock:
                leased.leases -= 1
                # Closed outside of the lock: closing talks to the host.
                over = leased.retired and not leased.leases
            if over:
                leased.loaded.close()

    def check(self, name: str, version: str | None) -> None:
        """Raises `Refused` if a lease would be refused."""
        entry = self._find(name, version)
        with self._lock:
            if entry.current is None:
                raise self._not_ready(entry)

    def describe(self, name: str, version: str | None) -> dict[str, Any]:
        """The model's metadata."""
        with self.lease(name, version) as model:
            return {
                "name": model.name,
                "versions": [model.version],
                "platform": PLATFORM,
                **model.contract.described(),
            }

    def index(self, *, ready_only: bool) -> list[dict[str, str]]:
        with self._lock:
            return [
                {
                    "name": entry.file.name,
                    "version": entry.file.version,
                    "state": entry.state,
                    "reason": entry.reason,
                }
                for entry in self._entries.values()
                if entry.state == "READY" or not ready_only
            ]

    def why_not_ready(self) -> str | None:
        """``None`` if every model is loaded that is to be: a failed one counts, one that was unloaded does not."""
        with self._lock:
            if self.starting:
                return "models are still being loaded"
            if not any(entry.current for entry in self._entries.values()):
                return "no model is loaded"
        return None

    # --- loading ---

    def load_all(self, say: Callable[[str], None]) -> dict[str, BridgeError]:
        """Load what the command line names, one after another. Returns what could not be, by name."""
        failed: dict[str, BridgeError] = {}
        for name in self._entries:
            if self._closed:
                break
            try:
                say(f"{name}: {self.load(name)}")
            except BridgeError as error:
                failed[name] = error
            except Exception as error:  # noqa: BLE001 - the start must not hang on an unexpected error
                failed[name] = BridgeError(f"Unexpected {type(error).__name__}: {error}")
        self.starting = False
        return failed

    def load(self, name: str) -> str:
        """Load a model, or load it again from its file; requests use the old one until then. Returns a summary."""
        entry = self._find(name, None)
        with entry.change:
            with self._lock:
                entry.state, entry.reason = "LOADING", "it is being loaded"
            begun = time.monotonic()
            try:
                # The old model serves meanwhile, so for a moment the host has both.
                loaded = self._open(entry.file)
            except BaseException as error:
                with self._lock:
                    self._failed(entry, error)
                raise
            with self._lock:
                # The server may have ended while the model was loaded: then nobody else would close it.
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

    def unload(self, name: str) -> None:
        """No new request gets the model; it is closed when those under way have ended."""
        entry = self._find(name, None)
        with entry.change:
            with self._lock:
                over = self._retire(entry.current)
                entry.current, entry.state, entry.reason, entry.code = None, "UNAVAILABLE", "unloaded", None
            if over is not None:
                over.close()

    def close(self) -> None:
        """Close all sessions, also those that requests still use. A load under way closes what it made."""
        with self._lock:
            self._closed = True
            current = [entry.current for entry in self._entries.values() if entry.current is not None]
            for entry in self._entries.values():
                entry.current, entry.state, entry.reason = None, "UNAVAILABLE", "the server is ending"
        for leased in current:
            leased.loaded.close()

    # --- inside ---

    @staticmethod
    def _retire(leased: _Leased | None) -> Loaded | None:
        """The model to close now, outside the lock; ``None`` if the last lease closes it."""
        if leased is None:
            return None
        leased.retired = True
        return None if leased.leases else leased.loaded

    @staticmethod
    def _failed(entry: _Entry, error: BaseException) -> None:
        if entry.current is not None:  # the one that was there goes on
            entry.state, entry.reason = "READY", f"loading it again failed: {_reason(error)}"
        else:
            entry.state, entry.reason = "UNAVAILABLE", _reason(error)
            entry.code = error.code if isinstance(error, BridgeError) else None

    def _find(self, name: str, version: str | None) -> _Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise Refused(404, f"There is no model {name[:80]!r} here.")
        if version is not None and version != entry.file.version:
            raise Refused(
                404, f"The model {name!r} has no version {version[:20]!r} here; {entry.file.version} is served."
            )
        return entry

    @staticmethod
    def _not_ready(entry: _Entry) -> Refused:
        headers = {CODE_HEADER: entry.code} if entry.code else {}
        if entry.state == "LOADING":
            headers["retry-after"] = str(RETRY_AFTER_S)
        return Refused(503, f"The model {entry.file.name} is not ready: {entry.reason}", headers)


def _reason(error: BaseException) -> str:
    return in_words(error) if isinstance(error, BridgeError) else f"Unexpected {type(error).__name__}"
