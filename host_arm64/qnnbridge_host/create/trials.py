"""Inputs for comparing a model with its reference, and the reference's outputs. The inputs are given or generated.

The reference is a session of the original model in a worker. Thread-safe.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.create.publish import CompilerInput
from qnnbridge_host.create.worker import WorkerSession
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.numerics.judge import NumberFormat, movement, precision_of_operators
from qnnbridge_host.numerics.sampling import (
    ORDINARY,
    Feeds,
    further_inputs,
    is_guess,
    knowledge_in,
    ordinary_inputs,
)
from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded, OptionError, WorkerDied
from qnnbridge_protocol.specs import NodeInfo

# Maximum number of further sets of inputs. They are used as long as an output was the same for all previous sets.
# Each set is run twice.
MOST_FURTHER: Final = 4
GIVEN: Final = "the given inputs"

Trials = dict[str, Feeds]
Answers = dict[str, list[Any]]


def answered(reference: WorkerSession, job: CompilerInput) -> tuple[Trials, Answers]:
    """Return sets of inputs by name, and the original's outputs for them.

    Raises:
        NotMade: inputs cannot be generated for this model.
        OptionError: the given inputs do not match the model's.
        BridgeError: the error for the first generated inputs, if the original runs with none of them.
    """
    if job.inputs:
        _check_names(job, [node.name for node in reference.info.inputs])
        return {GIVEN: dict(job.inputs)}, {GIVEN: reference.run(job.inputs)}
    knowledge = knowledge_in(job.source.given)
    declared = [dataclasses.replace(node, shape=_sizes(node)) for node in reference.info.inputs]
    trials: dict[str, Feeds] = {}
    expected: dict[str, list[Any]] = {}
    first: BridgeError | None = None
    # Omit generated floats far outside of the ordinary range: 16-bit floats overflow at 65504, which does not prove
    # that the model is wrong.
    sure = (one for one in further_inputs(declared, knowledge) if not is_guess(one.feeds, knowledge))
    further = itertools.islice(sure, MOST_FURTHER)
    for number, one in enumerate(itertools.chain(ordinary_inputs(declared, knowledge), further)):
        # Always use the ordinary inputs. Use further inputs only while an output does not change with the input.
        if number >= ORDINARY and len(expected) > 1 and _all_move(expected, precision_of(job)):
            break
        try:
            expected[one.name] = reference.run(one.feeds)
            trials[one.name] = one.feeds
        except (Cancelled, DeadlineExceeded, WorkerDied):
            raise
        except BridgeError as error:
            first = first or error
    if first is not None and not expected:
        raise first
    return trials, expected


def few(reference: WorkerSession, job: CompilerInput, most: int, slow_s: float) -> tuple[Trials, Answers]:
    """Return at most `most` generated sets of inputs that quantisation does not clip, with the original's outputs.

    Args:
        reference: session of the original.
        job: the model.
        most: maximum number of sets.
        slow_s: seconds; after a slower run, no further set is used.

    Raises:
        NotMade: inputs cannot be generated for this model.
        BridgeError: the error for the last set, if the original runs with none of them.
    """
    knowledge = knowledge_in(job.source.given)
    declared = [dataclasses.replace(node, shape=_sizes(node)) for node in reference.info.inputs]
    # For quantised inputs, the first set of `further_inputs` spans the quantisation ranges.
    of_range = itertools.islice(further_inputs(declared, knowledge), 1 if knowledge.ranges else 0)
    trials: dict[str, Feeds] = {}
    expected: dict[str, list[Any]] = {}
    failed: BridgeError | None = None
    for one in (*of_range, *reversed(ordinary_inputs(declared, knowledge)[:2])):
        begun = time.monotonic()
        try:
            expected[one.name] = reference.run(one.feeds)
            trials[one.name] = one.feeds
        except (Cancelled, DeadlineExceeded, WorkerDied):
            raise
        except BridgeError as error:
            failed = error
        if len(trials) == most or (trials and time.monotonic() - begun > slow_s):
            break
    if failed is not None and not expected:
        raise failed
    return trials, expected


def _check_names(job: CompilerInput, names: Sequence[str]) -> None:
    unknown = [name for name in job.inputs if name not in names]
    missing = [name for name in names if name not in job.inputs]
    if unknown or missing:
        what = f"no input {unknown[0]!r}" if unknown else f"an input {missing[0]!r}, which is not given"
        raise OptionError(
            f"{job.source.label} has {what}.", fix=f"Give values for all inputs (--input): {', '.join(names)}."
        )


def _sizes(node: NodeInfo) -> tuple[int, ...]:
    """Return an input's shape with 1 for each free dimension, which remains only if its nodes run on the CPU."""
    return tuple(size if isinstance(size, int) and size >= 0 else 1 for size in node.shape or ())


def _all_move(expected: Mapping[str, Sequence[Any]], number_format: NumberFormat) -> bool:
    answers = list(expected.values())
    return all(
        movement([answer[place] for answer in answers], number_format) >= 1.0 for place in range(len(answers[0]))
    )


def precision_of(job: CompilerInput) -> NumberFormat:
    """Return the number format on the NPU: 16-bit floats for a float model, quantised integers for a model with
    Q/DQ nodes."""
    source = job.source.given
    return precision_of_operators(scan_model(source).ops)
