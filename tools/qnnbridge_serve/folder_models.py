"""Models that the command line names by folder: loaded one after another, found by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from qnnbridge_protocol.errors import BridgeError
from qnnbridge_serve.errors import RETRY_AFTER_S, Refused, in_words


class Closable(Protocol):
    def close(self) -> None: ...


FolderModel = TypeVar("FolderModel", bound=Closable)
# Name and folder; the model, and words about it. Raises `BridgeError`.
FolderOpener = Callable[[str, Path], "tuple[FolderModel, str]"]


class FolderModels(Generic[FolderModel]):
    """By name. Any thread.

    Args:
        kind: What they are, as text.
        folders: By name, in the order of the command line.
    """

    def __init__(self, kind: str, folders: Mapping[str, Path], opener: FolderOpener[FolderModel]) -> None:
        self.kind = kind
        self._folders = dict(folders)
        self._open = opener
        self._lock = threading.Lock()
        self._loaded: dict[str, FolderModel] = {}
        self._failed: dict[str, BridgeError] = {}
        self._starting = bool(folders)
        self._closed = False
        self.created = int(time.time())

    @property
    def names(self) -> Sequence[str]:
        """Of those that are loaded."""
        with self._lock:
            return [name for name in self._folders if name in self._loaded]

    @property
    def wanted(self) -> bool:
        """Whether the command line names any."""
        return bool(self._folders)

    def get(self, name: str) -> FolderModel:
        """Raises `Refused`."""
        if name not in self._folders:
            raise Refused(
                404,
                f"The model {name[:80]!r} does not exist here, or is no {self.kind}.",
                field="model",
                reason="model_not_found",
            )
        with self._lock:
            found, failed = self._loaded.get(name), self._failed.get(name)
        if found is not None:
            return found
        if failed is not None:
            raise Refused(503, f"The model {name} is not ready: {in_words(failed)}", field="model")
        raise Refused(503, f"The model {name} is being loaded.", {"retry-after": str(RETRY_AFTER_S)}, field="model")

    def why_not_ready(self) -> str | None:
        with self._lock:
            if self._starting:
                return f"a {self.kind} is still being loaded"
            return f"no {self.kind} is loaded" if self._folders and not self._loaded else None

    def load_all(self, say: Callable[[str], None]) -> dict[str, BridgeError]:
        """One after another. Returns what could not be, by name."""
        for name, folder in self._folders.items():
            if self._closed:
                break
            begun = time.monotonic()
            try:
                found, words = self._open(name, folder)
            except BridgeError as error:
                with self._lock:
                    self._failed[name] = error
            except Exception as error:  # noqa: BLE001 - the start must not hang on an unexpected error
                with self._lock:
                    self._failed[name] = BridgeError(f"Unexpected {type(error).__name__}: {error}")
            else:
                with self._lock:
                    closed = self._closed
                    if not closed:
                        self._loaded[name] = found
                if closed:
                    found.close()
                    break
                say(f"{name}: {words}, loaded in {time.monotonic() - begun:.1f} s")
        with self._lock:
            self._starting = False
            return dict(self._failed)

    def close(self) -> None:
        """Free all models."""
        with self._lock:
            self._closed = True
            loaded, self._loaded = list(self._loaded.values()), {}
        for one in loaded:
            one.close()
