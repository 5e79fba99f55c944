"""Tiny models, created once in a run, and a host."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import qnnbridge
from tests.genai.tiny_decoders import write_model

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

Folders = Callable[[str], Path]

_KINDS = {
    "dynamic": ("dynamic", False),
    "window": ("window", False),
    "window-qnn": ("window", True),
    "sliding": ("sliding", False),
    "sliding-qnn": ("sliding", True),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Return the folder of a model by its kind: dynamic, window, sliding; with -qnn for QNN."""
    root = tmp_path_factory.mktemp("genai")

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            layout, qnn = _KINDS[kind]
            write_model(path, layout, qnn=qnn)
        return path

    return folder


@pytest.fixture(scope="module")
def host(host: qnnbridge.Host) -> qnnbridge.Host:
    pytest.importorskip("onnxruntime_genai")
    return host


def prompt(count: int, first: int = 7) -> list[int]:
    """Return token ids that look random."""
    return [4 + (first * 31 + 17 * n * n + 5 * n) % 280 for n in range(count)]
