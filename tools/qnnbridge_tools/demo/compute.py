"""The demo's model and text lines, and what PaddleOCR does around the model. Needs numpy only."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qnnbridge_protocol.errors import ProviderUnavailable

if TYPE_CHECKING:
    from qnnbridge import Host, HostInfo
    from qnnbridge_protocol.specs import Placement

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
class LineAnswer:
    """The model's answer for one line; ``sure`` is its probability."""

    upside_down: bool
    sure: float


def load_lines() -> list[TextLine]:
    lines = json.loads(_ASSETS.joinpath("lines.json").read_text(encoding="utf-8"))
    with _ASSETS.joinpath("lines.npz").open("rb") as file, np.load(file, allow_pickle=False) as images:
        return [
            TextLine(str(line["text"]), bool(line["upside_down"]), images[f"line_{number}"])
            for number, line in enumerate(lines)
        ]


@contextlib.contextmanager
def model_file() -> Iterator[Path]:
    """The model as a file, also when the package is imported from a zip archive."""
    with importlib.resources.as_file(_ASSETS.joinpath("text_direction.onnx")) as path:
        yield path


def model_input(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Channels first, scaled to -1..1, the rest of the width filled with 0, as in the model's training."""
    _, _, height, width = INPUT_SHAPE
    if image.shape[0] != height or image.shape[1] > width:
        raise ValueError(f"a line is {height} pixels high and at most {width} wide, this one is {image.shape}")
    tensor = np.zeros(INPUT_SHAPE, dtype=np.float32)
    scaled = image.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    tensor[0, :, :, : image.shape[1]] = (scaled - np.float32(0.5)) / np.float32(0.5)
    return tensor


def answer_of(probabilities: npt.NDArray[Any]) -> LineAnswer:
    """Reads the model's output, the probabilities of 0 and of 180 degrees."""
    upright, turned = (float(p) for p in probabilities.reshape(-1))
    return LineAnswer(upside_down=turned > upright, sure=max(upright, turned))


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """One provider's answers, in the order of the lines. Durations in seconds."""

    answers: list[LineAnswer]
    placement: Placement
    load_s: float
    run_s: float  # median of one line

    def right(self, asked: list[TextLine]) -> int:
        return sum(a.upside_down == line.upside_down for a, line in zip(self.answers, asked, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class DemoResult:
    """The whole demo. ``qnn`` is None where the host has no QNN; ``qnn_error`` then says why.

    ready_s: from nothing to a host that has ONNX Runtime loaded, in seconds.
    """

    asked: list[TextLine]
    qnn: Computed | None
    qnn_error: ProviderUnavailable | None
    cpu: Computed
    host: HostInfo
    ready_s: float

    @property
    def ok(self) -> bool:
        return self.qnn is not None and self.qnn.right(self.asked) == len(self.asked)

    @property
    def largest_difference(self) -> float | None:
        """Between the probabilities of the two providers for "upside down"."""
        if self.qnn is None:
            return None
        return max(abs(_turned(q) - _turned(c)) for q, c in zip(self.qnn.answers, self.cpu.answers, strict=True))


def compute(*, host_python: str | None = None, timeout_s: float | None = None) -> DemoResult:
    """Starts a host of its own, asks both providers, ends the host."""
    from qnnbridge import Host

    asked = load_lines()
    qnn: Computed | None = None
    qnn_error: ProviderUnavailable | None = None
    begun = time.perf_counter()
    with model_file() as model, Host(python=host_python) as host:
        info = host.info  # waits until ONNX Runtime is loaded, which else would count as loading the model
        ready_s = time.perf_counter() - begun
        try:
            qnn = _ask("QNNExecutionProvider", model, asked, host, timeout_s)
        except ProviderUnavailable as error:
            qnn_error = error
        cpu = _ask("CPUExecutionProvider", model, asked, host, timeout_s)
        return DemoResult(asked=asked, qnn=qnn, qnn_error=qnn_error, cpu=cpu, host=info, ready_s=ready_s)


def _ask(provider: str, model: Path, asked: list[TextLine], host: Host, timeout_s: float | None) -> Computed:
    from qnnbridge import InferenceSession

    begun = time.perf_counter()
    with InferenceSession(str(model), providers=[provider], host=host, timeout=timeout_s) as session:
        load_s = time.perf_counter() - begun
        answers: list[LineAnswer] = []
        durations: list[float] = []
        for line in asked:
            feeds = {INPUT_NAME: model_input(line.image)}
            begun = time.perf_counter()
            (probabilities,) = session.run(None, feeds)
            durations.append(time.perf_counter() - begun)
            answers.append(answer_of(probabilities))
        return Computed(answers, session.placement, load_s, statistics.median(durations))


def _turned(answer: LineAnswer) -> float:
    return answer.sure if answer.upside_down else 1 - answer.sure
