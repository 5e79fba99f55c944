"""Which model a client means: looked at by the daemon itself, quickly if it has seen the same files before.

What always holds: a model whose files have changed since is another model, with another fingerprint. Any thread.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
import threading
from typing import Any

from qnnbridge_host.cache.memo import memo_for
from qnnbridge_host.model.file_stamps import take_stamp
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.errors import ModelChanged
from qnnbridge_protocol.specs import SessionSpec

MAX_KNOWN = 256

EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""Configuration entry that says where the external data of a model given as bytes lies."""


class KnownModels:
    """Remembers models by their path, for as long as nothing of them has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, ModelSource] = collections.OrderedDict()

    def open(
        self, spec: SessionSpec, data: Any | None, fingerprint: str | None, cache: bool | None
    ) -> tuple[ModelSource, SessionSpec]:
        """The model of this specification, and the specification as another process can use it.

        data: of a model that has no path. fingerprint: as the client has seen it, if it says so. Raises what
        `ModelSource.open` raises, and `ModelChanged` if it is another one than the client has seen.
        """
        if spec.model_path is not None:
            source = self._open_file(spec.model_path, cache)
        else:
            source, spec = _open_data(spec, b"" if data is None else bytes(data), cache)
        if fingerprint is not None and fingerprint != source.fingerprint:
            raise ModelChanged(
                f"The model {source.label} was changed while its session was being created.",
                fix="Create the session again when the model is written completely.",
                details={"path": source.path},
            )
        return source, dataclasses.replace(spec, model_files=source.files)

    def _open_file(self, path: str, cache: bool | None) -> ModelSource:
        with self._lock:
            known = self._known.get(path)
        if known is not None and _unchanged(known):
            return known
        source = ModelSource.open(path, memo=memo_for(cache))
        with self._lock:
            self._known[path] = source
            self._known.move_to_end(path)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return source


def _unchanged(source: ModelSource) -> bool:
    """Whether the stamps of all files prove it; one that was not there must still not be."""
    try:
        for file in source.known:
            now = take_stamp(file.path)
            if file.stamp is None or now is None:
                if file.stamp is not None or now is not None:
                    return False
            elif not file.stamp.proves(now):
                return False
    except OSError:
        return False
    return True


def _open_data(spec: SessionSpec, data: bytes, cache: bool | None) -> tuple[ModelSource, SessionSpec]:
    """Paths inside of the model count from the client's folder, which is not that of the NPU host."""
    folder = spec.config_entries.get(EXTERNAL_DATA_FOLDER)
    if folder is None and spec.model_files:
        plain = ModelSource.open(data, folder=os.sep)
        names = plain.scan.files if plain.scan is not None else ()
        if names and spec.model_files[0].endswith(os.path.normpath(names[0])):
            folder = spec.model_files[0][: -len(os.path.normpath(names[0]))] or os.sep
            entries = {**spec.config_entries, EXTERNAL_DATA_FOLDER: folder}
            spec = dataclasses.replace(spec, config_entries=entries)
    return ModelSource.open(data, folder=folder, memo=memo_for(cache)), spec


def key_of(
    source: ModelSource, spec: SessionSpec, described: Any, buffers: tuple[Any, ...], cache: bool | None
) -> str:
    """Equal for sessions that may be one: same model, same options, same initializers.

    cache: who wants none may want to see what compiling does; else it makes no difference.
    described, buffers: the initializers as they travelled.
    """
    from qnnbridge._recipe import SessionRecipe

    digest = hashlib.sha256(
        f"{source.fingerprint} {SessionRecipe(source, spec).options_hash} {cache is False}".encode()
    )
    digest.update(repr(described).encode())
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()[:32]
