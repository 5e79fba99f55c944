"""Loads a model that the NPU has no room for at first: once more without mapping its weights from the file.

Some drivers cannot map the weights of a compiled model (RPC 8003, then QNN 1002), and load the same model with the
provider option ``disable_file_mapped_weights``. What helped is remembered for the model and the version of QNN, on
the disk with the cache. Any thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec

if TYPE_CHECKING:
    from qnnbridge_host.cache.memo import NegativeEntries
    from qnnbridge_protocol.model_records import CacheSettings

T = TypeVar("T")

UNMAPPED: Final = "disable_file_mapped_weights"
_WORDS: Final = f"loaded with {UNMAPPED}=1, because the NPU could not map its weights"
_VERSIONS: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "driver", "ep_source", "ep_version")


class Unmapped:
    """The models whose weights are not mapped.

    settings: of the application's cache; without a usable one every load begins anew.
    """

    def __init__(self, settings: CacheSettings | None, fingerprint: str, label: str) -> None:
        self._settings = settings
        self._fingerprint = fingerprint
        self._label = label

    def load(
        self, may_change: bool, versions: Callable[[], Mapping[str, str]], create: Callable[[bool], T]
    ) -> tuple[T, str]:
        """Create it, if need be a second time. Returns also what it took, as text; empty for nothing.

        may_change: whether QNN is wanted, and the application has not decided it. versions: of the host. create:
        gets whether the mapping is left out. Raises the error of the first attempt, with that of the second as
        evidence.
        """
        if not may_change:
            return create(False), ""
        notes = self._notes
        if notes is not None and notes.read(self._key(versions())) is not None:
            return create(True), _WORDS
        try:
            return create(False), ""
        except BridgeError as error:
            if not error.details.get("npu_memory"):
                raise
            first = error.with_traceback(None)  # which holds this frame, so what is made, until a collection
        try:
            made = create(True)
        except (Cancelled, DeadlineExceeded):
            raise
        except BridgeError as error:
            first.evidence = (*first.evidence, f"With {UNMAPPED}=1: {error.message}")
            raise first from None
        if notes is not None:
            notes.write(self._key(versions()), "unmapped", _WORDS, self._label)
        return made, _WORDS

    @property
    def _notes(self) -> NegativeEntries | None:
        if self._settings is None or not self._settings.enabled:
            return None
        from qnnbridge_host.cache.memo import NegativeEntries
        from qnnbridge_host.cache.store import Store

        return NegativeEntries(Store(Path(self._settings.folder)).root)

    def _key(self, versions: Mapping[str, str]) -> str:
        parts = [self._fingerprint, *(f"{name}={versions.get(name)}" for name in _VERSIONS)]
        return f"unmapped-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"


# What is on the NPU beside sessions: label and bytes, by the id of its object.
_others: Final[dict[int, tuple[str, int]]] = {}


def occupies(holder: object, label: str, size_bytes: int) -> None:
    """onnxruntime-genai has this on the NPU for as long as the holder lives."""
    _others[id(holder)] = (label, size_bytes)
    weakref.finalize(holder, _others.pop, id(holder), None)


def others_in_words() -> list[str]:
    """What is on the NPU in this host beside sessions, a line each."""
    there = list(_others.values())
    return [f"on the NPU by onnxruntime-genai: {label}, {size / 1e6:.1f} MB" for label, size in there]


def may_change(spec: SessionSpec) -> bool:
    """Whether QNN is wanted, and the application has not decided it."""
    named = next((provider for provider in spec.providers if provider.name == QNN), None)
    if spec.providers and named is None:
        return False
    by_entry = any(key.endswith(f".{UNMAPPED}") for key in spec.config_entries)
    return not by_entry and (named is None or UNMAPPED not in named.options)


def without_mapping(spec: SessionSpec) -> SessionSpec:
    providers = spec.providers or (ProviderSpec(QNN),)
    changed = tuple(
        dataclasses.replace(one, options={**one.options, UNMAPPED: "1"}) if one.name == QNN else one
        for one in providers
    )
    return dataclasses.replace(spec, providers=changed)
