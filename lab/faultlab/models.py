"""Models for the load tests: scripted models for the fake engine, or real models for the QNN simulator."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tests.fakes.hosts import fake_host, script

import qnnbridge

MODELS = Path(__file__).parents[2] / "tests" / "models"
QNN = "QNNExecutionProvider"

Feeds = dict[str, Any]
Open = Callable[[qnnbridge.Host], qnnbridge.InferenceSession]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A model with inputs and the right result for each input."""

    name: str
    open: Open
    inputs: tuple[tuple[Feeds, Any], ...]

    def draw(self, dice: random.Random) -> tuple[Feeds, Any]:
        return dice.choice(self.inputs)


def is_right(result: Any, expected: Any) -> bool:
    """Return whether type, shape and every bit are equal."""
    return bool(
        result.dtype == expected.dtype and result.shape == expected.shape and result.tobytes() == expected.tobytes()
    )


def scripted(
    scales: tuple[float, ...] = (3.0, 5.0, 7.0), sizes: tuple[int, ...] = (5, 1_000, 300_000)
) -> list[Case]:
    """Return models that multiply. The largest input exceeds a pipe's buffer, so that some kills hit a host reading
    it."""
    cases = []
    for index, scale in enumerate(scales):
        x = [np.random.default_rng(index).normal(size=size).astype(np.float32) for size in sizes]
        model = script(scale=scale)
        cases.append(
            Case(
                f"times {scale:g}",
                lambda host, model=model: qnnbridge.InferenceSession(model, host=host),
                tuple(({"x": a}, a * np.float32(scale)) for a in x),
            )
        )
    return cases


def real() -> list[Case]:
    """Return three small models for the QNN simulator. The first result for an input is the reference for later runs."""
    (image,) = np.load(MODELS / "x.npz").values()
    crops = np.random.default_rng(1).normal(size=(1, 24, 24, 3)).astype(np.float32)
    options = qnnbridge.SessionOptions()
    options.add_free_dimension_override_by_name("N", 1)

    def opener(file: str, **more: Any) -> Open:
        provider = [(QNN, {"soc_model": "60"})]
        return lambda host: qnnbridge.InferenceSession(MODELS / file, providers=provider, host=host, **more)

    sources: list[tuple[str, Open, list[Any]]] = [
        ("q.onnx", opener("q.onnx"), [image, image[:, :, ::-1].copy()]),
        ("f.onnx", opener("f.onnx"), [image, image * np.float32(0.5)]),
        ("rnet.onnx", opener("rnet.onnx", sess_options=options), [crops]),
    ]
    cases = []
    with qnnbridge.Host() as host:
        for name, open_session, arrays in sources:
            with open_session(host) as session:
                (first, *_) = session.get_inputs()
                feeds = [{first.name: array} for array in arrays]
                inputs = tuple((feed, session.run(None, feed)[0]) for feed in feeds)
            cases.append(Case(name, open_session, inputs))
    return cases


def new_host(real_engine: bool, **options: Any) -> qnnbridge.Host:
    return qnnbridge.Host(**options) if real_engine else fake_host(**options)
