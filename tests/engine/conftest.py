"""The real engine with the real simulator, in this process."""

from __future__ import annotations

import os
from typing import Any

import pytest

# Disable telemetry before any import of onnxruntime, which sends telemetry from its import on.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@pytest.fixture(scope="session")
def engine() -> Any:
    """One engine for all tests: the plugin is registered once per process and never unregistered."""
    pytest.importorskip("onnxruntime_qnn")
    from qnnbridge_host.engine import load_engine

    return load_engine()


@pytest.fixture(scope="session")
def create(engine: Any) -> Any:
    """Create a session from a path, bytes or a ModelProto. `values`: values of initializers by name."""
    from engine_models import make_spec

    def make(model: Any, *, values: Any = None, on_phase: Any = None, **spec: Any) -> Any:
        source, data = make_spec(model, **spec)
        return engine.create_session(source, data, values or {}, on_phase or (lambda phase: None))

    return make
