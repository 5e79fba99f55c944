"""Which model a client means: the NPU host reads it, and its answer is remembered while its files are unchanged.

What always holds: a model whose files have changed since is another model, with another fingerprint. Any thread.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
import threading
from typing import Any

from qnnbridge._create import identify
from qnnbridge._host import Host
from qnnbridge._recipe import SessionRecipe
from qnnbridge_protocol.errors import ModelChanged
from qnnbridge_protocol.model_records import CacheSettings, ModelIdentity

MAX_KNOWN = 256


class KnownModels:
    """Remembers models by their path, for as long as nothing of them has changed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, ModelIdentity] = collections.OrderedDict()

    def identify(self, recipe: SessionRecipe, fingerprint: str | None, deadline: float | None) -> SessionRecipe:
        """The recipe, with the identity of its model.

        fingerprint: as the client knows it. Raises what a model that cannot be read raises, and `ModelChanged` if
        it is another one than the client knows.
        """
        path = recipe.spec.model_path
        with self._lock:
            known = self._known.get(path) if path is not None else None
        if known is None or not _unchanged(known):
            known = identify(self._host, recipe, deadline).model
            if path is not None:
                with self._lock:
                    self._known[path] = known
                    self._known.move_to_end(path)
                    while len(self._known) > MAX_KNOWN:
                        self._known.popitem(last=False)
        if fingerprint is not None and fingerprint != known.fingerprint:
            raise ModelChanged(
                f"The model {known.label} has other contents now than when its session was created.",
                fix="Put the original file back, or create a new session.",
                details={"path": path},
            )
        return dataclasses.replace(recipe, identity=known)


def _unchanged(model: ModelIdentity) -> bool:
    """Whether size and date of all files are what they were."""
    try:
        for path, size, modified_ns in model.files:
            now = os.stat(path)
            if (now.st_size, now.st_mtime_ns) != (size, modified_ns):
                return False
    except OSError:
        return False
    return True


def key_of(recipe: SessionRecipe, described: Any, buffers: tuple[Any, ...]) -> str:
    """Equal for sessions that may be one: same model, same options, same initializers.

    A client that wants no cache may want to see what compiling does; else the cache makes no difference.
    described, buffers: the initializers as they travelled.
    """
    without = isinstance(recipe.cache, CacheSettings) and recipe.cache.wanted is False
    digest = hashlib.sha256(f"{recipe.fingerprint} {recipe.options_hash} {without}".encode())
    digest.update(repr(described).encode())
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()[:32]
