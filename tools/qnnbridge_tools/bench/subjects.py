"""What is measured: the models of this package in several sizes, or the user's own model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from qnnbridge_tools.bench.hosts import Subject

if TYPE_CHECKING:
    from qnnbridge import Host
    from qnnbridge_tools.arguments import Dimensions

ASSETS = Path(__file__).with_name("assets")
KIB, MIB = 1024, 1024 * 1024

SIZES = {"4 KB": 4 * KIB, "64 KB": 64 * KIB, "600 KB": 600 * KIB, "4 MB": 4 * MIB, "32 MB": 32 * MIB}
QUICK_SIZES = ("4 KB", "600 KB", "4 MB")
"""Bytes in, and as many out."""


def adding(size: int) -> Subject:
    """Hardly any work: x + 1."""
    import numpy as np

    values = np.random.default_rng(1).normal(size=size // 4).astype(np.float32)
    return Subject(ASSETS / "add.onnx", {"x": values})


def convolving() -> Subject:
    """Some 100 to 250 us of work on 600 KB."""
    import numpy as np

    image = np.random.default_rng(2).random((1, 3, 224, 224), np.float32)
    return Subject(ASSETS / "convnet.onnx", {"x": image})


def users_own(
    host: Host, model: Path, providers: tuple[str, ...], fallback: str, dimensions: Dimensions, seed: int
) -> Subject:
    """The model with made up inputs."""
    from qnnbridge_tools import feeds
    from qnnbridge_tools.bench.hosts import open_session

    empty = Subject(model, {}, providers, fallback, threads=0, sizes=dimensions.by_name)
    with open_session(host, empty) as session:
        given = feeds.complete(session.get_inputs(), (), dimensions, seed=seed)
    return dataclasses.replace(empty, feed={feed.name: feed.value for feed in given})
