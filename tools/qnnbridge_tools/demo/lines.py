"""The demo's model and text lines, and what PaddleOCR does around the model. Needs numpy only."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

INPUT_NAME = "x"
INPUT_SHAPE = (1, 3, 48, 192)
_ASSETS = importlib.resources.files(__package__).joinpath("assets")


@dataclasses.dataclass(frozen=True, slots=True)
class TextLine:
    """One line of text as an RGB image, 48 pixels high, and which way up it really is."""

    text: str
    upside_down: bool
    image: npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What the model says of one line; ``sure`` is the probability of what it found."""

    upside_down: bool
    sure: float


def load_lines() -> list[TextLine]:
    told = json.loads(_ASSETS.joinpath("lines.json").read_text(encoding="utf-8"))
    with _ASSETS.joinpath("lines.npz").open("rb") as file, np.load(file, allow_pickle=False) as images:
        return [
            TextLine(str(line["text"]), bool(line["upside_down"]), images[f"line_{number}"])
            for number, line in enumerate(told)
        ]


@contextlib.contextmanager
def model_file() -> Iterator[Path]:
    """The model as a file, also when the package is imported from a zip archive."""
    with importlib.resources.as_file(_ASSETS.joinpath("text_direction.onnx")) as path:
        yield path


def model_input(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Channels first, scaled to -1..1, the rest of the width filled with 0: what the model was trained on."""
    _, _, height, width = INPUT_SHAPE
    if image.shape[0] != height or image.shape[1] > width:
        raise ValueError(f"a line is {height} pixels high and at most {width} wide, this one is {image.shape}")
    tensor = np.zeros(INPUT_SHAPE, dtype=np.float32)
    scaled = image.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    tensor[0, :, :, : image.shape[1]] = (scaled - np.float32(0.5)) / np.float32(0.5)
    return tensor


def answer_of(probabilities: npt.NDArray[Any]) -> Answer:
    """From the model's output, the probabilities of 0 and of 180 degrees."""
    upright, turned = (float(p) for p in probabilities.reshape(-1))
    return Answer(upside_down=turned > upright, sure=max(upright, turned))
