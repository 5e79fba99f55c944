"""The models that are served: their host, a session for one of them, and the registry that keeps them by name."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar

from qnnbridge_protocol.errors import BridgeError, Closed, PlacementRefused
from qnnbridge_serve.errors import CODE_HEADER, RETRY_AFTER_S, Refused, in_words
from qnnbridge_serve.infer import ServedModel
from qnnbridge_serve.options import ModelFile, ServeSessionOptions, Where
from qnnbridge_serve.tensors import PLATFORM, make_contract
from qnnbridge_tools import arguments

if TYPE_CHECKING:
    from pathlib import Path

    from qnnbridge import Host, InferenceSession
    from qnnbridge_protocol.specs import Placement

FIGURES_TIMEOUT_S: Final = 5.0


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


def open_model(file: ModelFile, options: ServeSessionOptions, host: Host) -> ServedModel:
    """Load one model and find out what it takes and gives. Raises the errors of `qnnbridge.errors`."""
    session = open_session(file.path, file.buckets, options, host)
    try:
        contract = make_contract(
            session.get_inputs(), session.get_overridable_initializers(), session.get_outputs()
        )
    except BaseException:
        session.close()
        raise
    summary = summary_of(session.placement) + (", rewritten" if session.fixed else "")
    return ServedModel(file.name, file.version, contract, session, summary)


def open_session(path: Path, buckets: Any, options: ServeSessionOptions, host: Host) -> InferenceSession:
    """A session with the options of the command. buckets: as `InferenceSession` takes them; empty for none."""
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
            # Before the model counts as ready: no request waits for the compilation of a variant.
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
    return ", ".join(parts) or "ready"


# As the repository extension of the protocol calls them.
State = Literal["UNAVAILABLE", "LOADING", "READY", "UNLOADING"]


class Closable(Protocol):
    """A model with its sessions. summary: where it runs, as text."""

    @property
    def summary(self) -> str: ...

    def close(self) -> None: ...


Loaded = TypeVar("Loaded", bound=Closable)
NOT_YET: Final = "it was not loaded yet"


@dataclasses.dataclass(slots=True)
class _Leased(Generic[Loaded]):
    """A loaded model and how many requests are in it. Guarded by the registry's lock."""

    loaded: Loaded
    leases: int = 0
    retired: bool = False


class Entry(Generic[Loaded]):
    """One name. `change` is held while it is loaded or unloaded; the rest is guarded by the registry's lock."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.change = threading.Lock()
        self.state: State = "UNAVAILABLE"
        self.reason = NOT_YET
        self.code: str | None = None
        self.current: _Leased[Loaded] | None = None


class Registry(Generic[Loaded]):
    """Models by name: loaded, loaded again, closed after their last lease. Any thread.

    Args:
        names: In the order of the command line.
        opener: Of the name. Raises `BridgeError`.
    """

    def __init__(self, names: Iterable[str], opener: Callable[[str], Loaded]) -> None:
        self._open = opener
        self._entries: dict[str, Entry[Loaded]] = {name: Entry(name) for name in names}
        # Held for assignments only; `change` of one entry is held while it is loaded, and never asked for
        # under this lock.
        self._lock = threading.Lock()
        self._closed = False
        # Whether the models of the command line are still being loaded.
        self.starting = True

    def load_all(self, say: Callable[[str], None]) -> dict[str, BridgeError]:
        """Load what the command line names, one after another. Returns what could not be, by name."""
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
        """Close all models, also those that requests still use. A load under way closes what it made."""
        with self._lock:
            self._closed = True
            current = [entry.current for entry in self._entries.values() if entry.current is not None]
            for entry in self._entries.values():
                entry.current, entry.state, entry.reason = None, "UNAVAILABLE", "the server is ending"
        for leased in current:
            leased.loaded.close()

    def _load(self, entry: Entry[Loaded]) -> str:
        """Returns a summary. Requests use the old model until the new one is there."""
        with entry.change:
            with self._lock:
                if entry.current is None:
                    entry.state, entry.reason = "LOADING", "it is being loaded"
                else:  # still listed as ready, and not as one that clients have to wait for
                    entry.reason = "it is being loaded again"
            begun = time.monotonic()
            try:
                # The old model serves meanwhile, so for a moment the host has both.
                loaded = self._open(entry.name)
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

    @staticmethod
    def _retire(leased: _Leased[Loaded] | None) -> Loaded | None:
        """The model to close now, outside the lock; ``None`` if the last lease closes it."""
        if leased is None:
            return None
        leased.retired = True
        return None if leased.leases else leased.loaded

    @staticmethod
    def _failed(entry: Entry[Loaded], error: BaseException) -> None:
        reason, code = f"Unexpected {type(error).__name__}", None
        if isinstance(error, BridgeError):
            reason, code = in_words(error), error.code
        if entry.current is not None:  # the one that was there goes on
            entry.state, entry.reason = "READY", f"loading it again failed: {reason}"
        else:
            entry.state, entry.reason, entry.code = "UNAVAILABLE", reason, code


class Repository(Registry[ServedModel]):
    """The models of the Open Inference Protocol; `lease` keeps one loaded."""

    def __init__(self, files: Sequence[ModelFile], opener: Callable[[ModelFile], ServedModel]) -> None:
        by_name = {file.name: file for file in files}
        super().__init__(by_name, lambda name: opener(by_name[name]))
        self._versions = {file.name: file.version for file in files}

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
            yield leased.loaded
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
                {"name": name, "version": self._versions[name], "state": entry.state, "reason": entry.reason}
                for name, entry in self._entries.items()
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

    def load(self, name: str) -> None:
        """Load a model, or load it again from its file. Raises `Refused` and `BridgeError`."""
        self._load(self._find(name, None))

    def unload(self, name: str) -> None:
        """No new request gets the model; it is closed when those under way have ended."""
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
