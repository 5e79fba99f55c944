"""A text line drawn with half-block characters, two pixels to a character cell. Pure functions."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_tools import output, reporting
from qnnbridge_tools.demo.compute import Computed, DemoResult, LineAnswer

GLYPHS = " ▀▄█"
SCALE = 3  # image pixels to one pixel of the preview, both ways
_INK_SHARE = 0.4  # of the strongest contrast to the paper


def preview(image: npt.NDArray[np.uint8]) -> list[str]:
    """Rows of text that show the ink of the image, without empty rows above and below."""
    grey = image.mean(axis=2)
    rows, columns = (size // SCALE for size in grey.shape)
    grey = grey[: rows * SCALE, : columns * SCALE].reshape(rows, SCALE, columns, SCALE).mean(axis=(1, 3))
    # What is at the edge is paper, whether the text is dark or light.
    paper = np.median(np.concatenate([grey[0], grey[-1]]))
    contrast = np.abs(grey - paper)
    ink = contrast > contrast.max() * _INK_SHARE
    # A character cell shows two rows.
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
    """Before the work, which takes seconds on the simulator."""
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
        print(f"QNN could not be used: {outcome.qnn_error}")
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
    """QNN's answers; the CPU's only where there is no QNN."""
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
        pairs.append(("", "The simulator does in software what the NPU does: its times say nothing of an NPU."))
    return pairs


def _found(answer: LineAnswer) -> str:
    return f"{'upside down' if answer.upside_down else 'upright'}, {output.percent(answer.sure)} sure"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _answer_document(computed: Computed | None, number: int) -> dict[str, Any] | None:
    if computed is None:
        return None
    answer = computed.answers[number]
    return {"upside_down": answer.upside_down, "sure": answer.sure}


def _times_document(computed: Computed | None) -> dict[str, float] | None:
    if computed is None:
        return None
    return {"load_seconds": computed.load_s, "run_seconds": computed.run_s}
