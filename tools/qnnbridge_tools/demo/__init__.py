"""`qnnbridge demo`: run a small trained model on real images with QNN in the host process."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
import json
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qnnbridge_protocol.errors import ProviderUnavailable
from qnnbridge_tools import output, reporting

if TYPE_CHECKING:
    from qnnbridge import Host, HostInfo
    from qnnbridge_protocol.specs import Placement


# --- the model, the text lines, and PaddleOCR's pre- and postprocessing ---------------------------------

INPUT_NAME = "x"
INPUT_SHAPE = (1, 3, 48, 192)
_ASSETS = importlib.resources.files(__package__).joinpath("assets")


@dataclasses.dataclass(frozen=True, slots=True)
class TextLine:
    """One line of text as an RGB image, 48 pixels high, with its true orientation."""

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
    """Yield the path of the model, even if the package is imported from a zip archive."""
    with importlib.resources.as_file(_ASSETS.joinpath("text_direction.onnx")) as path:
        yield path


def model_input(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return the model's input as in training: channels first, scaled to -1..1, padded with 0 to full width."""
    _, _, height, width = INPUT_SHAPE
    if image.shape[0] != height or image.shape[1] > width:
        raise ValueError(f"a line is {height} pixels high and at most {width} wide, this one is {image.shape}")
    tensor = np.zeros(INPUT_SHAPE, dtype=np.float32)
    scaled = image.transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    tensor[0, :, :, : image.shape[1]] = (scaled - np.float32(0.5)) / np.float32(0.5)
    return tensor


def answer_of(probabilities: npt.NDArray[Any]) -> LineAnswer:
    """Interpret the model's output: the probabilities that the text is upright and that it is upside down."""
    upright, turned = (float(p) for p in probabilities.reshape(-1))
    return LineAnswer(upside_down=turned > upright, sure=max(upright, turned))


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """One provider's answers, in the order of the lines. Durations in seconds."""

    answers: list[LineAnswer]
    placement: Placement
    load_s: float
    run_s: float  # Median for one line.

    def right(self, asked: list[TextLine]) -> int:
        return sum(a.upside_down == line.upside_down for a, line in zip(self.answers, asked, strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class DemoResult:
    """Result of the whole demo.

    Args:
        asked: the lines of text.
        qnn: QNN's answers; ``None`` if the host has no QNN.
        qnn_error: why QNN is not available.
        cpu: the CPU's answers.
        host: information about the host.
        ready_s: seconds until the host was started and had loaded ONNX Runtime.
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
        """Largest difference between QNN and the CPU in the probability that a line is upside down."""
        if self.qnn is None:
            return None
        return max(abs(_turned(q) - _turned(c)) for q, c in zip(self.qnn.answers, self.cpu.answers, strict=True))


def compute(*, host_python: str | None = None, timeout_s: float | None = None) -> DemoResult:
    """Start a host, run the lines on both providers, and end the host."""
    from qnnbridge import Host

    asked = load_lines()
    qnn: Computed | None = None
    qnn_error: ProviderUnavailable | None = None
    begun = time.perf_counter()
    with model_file() as model, Host(python=host_python) as host:
        info = host.info  # Wait until ONNX Runtime is loaded, which would otherwise count as loading the model.
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


# --- report ---------------------------------------------------------------------------------------------
# A text line is drawn with half-block characters, two pixels per character cell.

GLYPHS = " ▀▄█"
SCALE = 3  # Width and height in image pixels of one pixel of the preview.
_INK_SHARE = 0.4  # Minimum contrast of ink to the paper, as a share of the highest contrast.


def preview(image: npt.NDArray[np.uint8]) -> list[str]:
    """Return rows of text that show the ink of the image, without empty rows above and below."""
    grey = image.mean(axis=2)
    rows, columns = (size // SCALE for size in grey.shape)
    grey = grey[: rows * SCALE, : columns * SCALE].reshape(rows, SCALE, columns, SCALE).mean(axis=(1, 3))
    # The edge of the image is paper, whether the text is dark or light.
    paper = np.median(np.concatenate([grey[0], grey[-1]]))
    contrast = np.abs(grey - paper)
    ink = contrast > contrast.max() * _INK_SHARE
    # A character cell shows two rows, so add an empty row to an odd number.
    if rows % 2:
        ink = np.vstack([ink, np.zeros((1, columns), dtype=bool)])
    cells = ink[0::2].astype(int) + 2 * ink[1::2].astype(int)
    drawn = ["".join(GLYPHS[cell] for cell in row).rstrip() for row in cells]
    while drawn and not drawn[0]:
        drawn.pop(0)
    while drawn and not drawn[-1]:
        drawn.pop()
    return drawn


PREVIEW_COLUMNS = 68


def print_question() -> None:
    """Print the question that the demo answers. Call this before `compute`, which takes seconds."""
    print("Which way up is each line of text? (text-direction classifier of PaddleOCR)\n", flush=True)


def print_outcome(outcome: DemoResult) -> None:
    wide_enough = shutil.get_terminal_size().columns >= PREVIEW_COLUMNS
    if output.is_terminal() and wide_enough and output.can_print(GLYPHS):
        _print_drawn(outcome)
    else:
        _print_table(outcome)
    print()
    print(_verdict(outcome))
    print()
    if outcome.qnn is None:
        assert outcome.qnn_error is not None
        print(f"QNN could not be used: {outcome.qnn_error.shown()}")
        print()
    ran = outcome.qnn or outcome.cpu
    output.print_pairs(
        "Where it ran", [*reporting.placement_pairs(ran.placement), *reporting.sides_pairs(outcome.host)]
    )
    output.print_pairs("How long it took", _time_pairs(outcome))


def document(outcome: DemoResult) -> dict[str, Any]:
    return {
        "ok": outcome.ok,
        "lines": [
            {
                "text": line.text,
                "upside_down": line.upside_down,
                "qnn": _answer_document(outcome.qnn, number),
                "cpu": _answer_document(outcome.cpu, number),
                "agree": _agree(outcome, number),
                "right": _right(outcome, number),
            }
            for number, line in enumerate(outcome.asked)
        ],
        "right": _judged(outcome).right(outcome.asked),
        "total": len(outcome.asked),
        "largest_difference": outcome.largest_difference,
        "qnn_error": None if outcome.qnn_error is None else outcome.qnn_error.to_wire(),
        "placement": None if outcome.qnn is None else outcome.qnn.placement.to_wire(),
        "host": reporting.host_document(outcome.host),
        "application": reporting.application_document(),
        "times": {
            "host_startup_seconds": outcome.host.startup_seconds,
            "host_ready_seconds": outcome.ready_s,
            "qnn": _times_document(outcome.qnn),
            "cpu": _times_document(outcome.cpu),
        },
    }


def _judged(outcome: DemoResult) -> Computed:
    """Return QNN's answers, or the CPU's if there is no QNN."""
    return outcome.qnn or outcome.cpu


def _right(outcome: DemoResult, number: int) -> bool:
    return _judged(outcome).answers[number].upside_down == outcome.asked[number].upside_down


def _agree(outcome: DemoResult, number: int) -> bool | None:
    if outcome.qnn is None:
        return None
    return outcome.qnn.answers[number].upside_down == outcome.cpu.answers[number].upside_down


def _print_drawn(outcome: DemoResult) -> None:
    for number, line in enumerate(outcome.asked):
        if number:
            print()
        print("\n".join(preview(line.image)))
        text = f'  "{line.text}": '
        if outcome.qnn is not None:
            text += f"{_found(outcome.qnn.answers[number])}. "
        text += f"CPU: {_found(outcome.cpu.answers[number])}."
        if outcome.qnn is not None:
            text += " They agree." if _agree(outcome, number) else " They DISAGREE."
        print(text if _right(outcome, number) else text + " WRONG.")


def _print_table(outcome: DemoResult) -> None:
    headers = ["text", "which way up", "CPU provider", "agree", "right"]
    rows: list[list[str]] = []
    for number, line in enumerate(outcome.asked):
        agree = _agree(outcome, number)
        rows.append(
            [
                line.text,
                "-" if outcome.qnn is None else _found(outcome.qnn.answers[number]),
                _found(outcome.cpu.answers[number]),
                "-" if agree is None else _yes(agree),
                _yes(_right(outcome, number)),
            ]
        )
    output.print_table(headers, rows)


def _verdict(outcome: DemoResult) -> str:
    total = len(outcome.asked)
    right = _judged(outcome).right(outcome.asked)
    if outcome.qnn is None:
        return f"{right} of {total} right, computed by the CPU provider only."
    agreed = sum(bool(_agree(outcome, number)) for number in range(total))
    return (
        f"{right} of {total} right. QNN and CPU agree on {agreed} of {total}; "
        f"their probabilities differ by {outcome.largest_difference:.4f} at most."
    )


def _time_pairs(outcome: DemoResult) -> list[tuple[str, str]]:
    pairs = [("host start-up", reporting.startup_text(outcome.host, outcome.ready_s))]
    for name, computed in (("QNN", outcome.qnn), ("CPU", outcome.cpu)):
        if computed is not None:
            load, run = output.seconds(computed.load_s), output.seconds(computed.run_s)
            pairs.append((name, f"load {load}, run {run} for a line (median)"))
    if outcome.qnn is not None and outcome.qnn.placement.simulator:
        pairs.append(("", "The simulator computes in software: its times do not apply to an NPU."))
    return pairs


def _found(answer: LineAnswer) -> str:
    return f"{'upside down' if answer.upside_down else 'upright'}, {output.percent(answer.sure)} sure"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _answer_document(computed: Computed | None, number: int) -> dict[str, Any] | None:
    return None if computed is None else dataclasses.asdict(computed.answers[number])


def _times_document(computed: Computed | None) -> dict[str, float] | None:
    if computed is None:
        return None
    return {"load_seconds": computed.load_s, "run_seconds": computed.run_s}
