"""The models of this server: loaded, being loaded, failed, unloaded.

Owns their sessions. Any thread. A request takes a lease of a model; a model that is replaced or unloaded is closed
when its last lease ends, so no request loses its session under way. One load or unload of a model at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from qnnbridge_protocol.errors import BridgeError, Closed
from qnnbridge_tools.serve.datatypes import PLATFORM
from qnnbridge_tools.serve.infer_reply import ServedModel
from qnnbridge_tools.serve.model_files import ModelFile
from qnnbridge_tools.serve.refusals import CODE_HEADER, RETRY_AFTER_S, Refused, in_words

State = Literal["UNAVAILABLE", "LOADING", "READY", "UNLOADING"]
"""As the repository extension of the protocol calls them."""


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
    """See the module."""

    def __init__(self, files: Sequence[ModelFile], opener: Opener) -> None:
        self._open = opener
        self._entries = {file.name: _Entry(file) for file in files}
        self._lock = threading.Lock()
        self._closed = False
        self.starting = True
        """Whether the models of the command line are still being loaded."""

    # --- requests ---

    @contextlib.contextmanager
    def lease(self, name: str, version: str | None) -> Iterator[ServedModel]:
        """The model, which stays loaded within the ``with``. Raises `Refused`."""
        entry = self._find(name, version)
        with self._lock:
            leased = entry.current
            if leased is None:
                raise self._not_ready(entry)
            leased.leases += 1
        try:
            yield leased.loaded.model
        finally:
            with self._lock:
                leased.leases -= 1
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

    def load_all(self, told: Callable[[str], None]) -> dict[str, BridgeError]:
        """Load what the command line names, one after another. Returns what could not be, by name."""
        failed: dict[str, BridgeError] = {}
        for name in self._entries:
            if self._closed:
                break
            try:
                told(f"{name}: {self.load(name)}")
            except BridgeError as error:
                failed[name] = error
            except Exception as error:  # noqa: BLE001 - the start must not hang on what nobody expected
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
                loaded = self._open(entry.file)
            except BaseException as error:
                with self._lock:
                    self._failed(entry, error)
                raise
            with self._lock:
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
        """What is to be closed now, outside the lock; ``None`` if the last lease will do it."""
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
