"""What a reader has to know to read the figures rightly. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qnnbridge_tools.models.profiling.recording import Recording
    from qnnbridge_tools.models.profiling.result import ProfileResult

MIN_RUNS: Final = 3
WIDE_SPREAD: Final = 1.5


def notes_on(result: ProfileResult, recorded: Recording, *, attributed: bool) -> tuple[str, ...]:
    return tuple(_notes(result, recorded, attributed))


def _notes(result: ProfileResult, recorded: Recording, attributed: bool) -> Iterator[str]:
    placement = result.placement
    if not result.partitions:
        yield "Nothing ran on QNN: all times are those of the CPU. See the placement above for the reason."
    elif placement.simulator:
        yield (
            "This is QNN's simulator on the CPU. Its times say nothing about an NPU, neither in total nor which "
            "operator is the slow one. What carries over: which operators there are, what runs on the CPU, the "
            "number of parts, the bytes that are handed over, the time to compile, and what the bridge adds."
        )
    if result.partitions and not attributed:
        executed = sum(call.kind.name == "EXECUTE" for call in recorded.calls)
        yield (
            f"QNN told of {executed} executions, ONNX Runtime of another number: QNN's figures cannot be "
            "attributed to the parts and are left out."
        )
    if result.partitions and attributed and not result.operators:
        if result.level == "basic":
            yield "The level basic has no times of operators; --level detailed has, but slows QNN down."
        else:
            yield "QNN told no times of operators."
    elif result.operators:
        yield (
            "QNN counts the cycles of operators and tells no times: times of operators are their share of the "
            "accelerator's time. An operator without cycles was merged into a neighbour, which has its time: that "
            "of a convolution may stand at the Relu behind it. Counting costs time, too: the times of --level "
            "basic are the truer ones."
        )
    if result.runs < MIN_RUNS:
        yield "Few runs: the first one pays for what is done once. Give --runs 10 for medians."
    elif result.call_s.least > 0 and result.call_s.most / result.call_s.least > WIDE_SPREAD:
        yield (
            f"The slowest run took {result.call_s.most / result.call_s.least:.1f} times as long as the quickest "
            "(the first one aside): look at medians, not at single figures."
        )
    if result.placement.cause and result.cpu_nodes and result.partitions:
        yield f"Part of the model ran on the CPU. {result.placement.cause}"
