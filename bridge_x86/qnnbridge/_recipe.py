"""`SessionRecipe`: all that a session is made from. The application keeps it to make the session again. Frozen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from qnnbridge._providers import CPU, QNN
from qnnbridge_host.model.source import ModelSource
from qnnbridge_protocol.specs import SessionSpec


@dataclasses.dataclass(frozen=True)
class SessionRecipe:
    """All that a session is made from.

    cache: whether a compiled model may be loaded in the place of `source`: ``None`` leaves that to the cache.
    seed: of random operators; ``None`` leaves it to ONNX Runtime.
    """

    source: ModelSource
    spec: SessionSpec
    initializers: Sequence[Any] = ()
    cache: bool | None = False
    seed: int | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is all that it asks for."""
        return [provider.name for provider in self.spec.providers] == [CPU]

    @property
    def without_qnn(self) -> bool:
        """Whether it asks for providers, and QNN is none of them."""
        names = [provider.name for provider in self.spec.providers]
        return bool(names) and QNN not in names

    @property
    def options_hash(self) -> str:
        """Of everything but the model, so that a change of options is another case."""
        import hashlib
        import json

        spec = dataclasses.replace(self.spec, model_path=None, model_files=()).to_wire()
        return hashlib.sha256(json.dumps(spec, sort_keys=True, default=str).encode()).hexdigest()[:16]
