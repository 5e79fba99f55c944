"""Runs a compiled model in a worker and compares its numbers with the original's on the CPU.

A model can compile without an error and compute wrong numbers: 16-bit floats overflow, or QNN differs
from the ONNX standard. So by default only a model that was run is delivered. The reference runs first, in the
same process: it does no harm. The inputs are generated with content
(`qnnbridge_host.numerics.input_content`), the same on every machine; those that the original answers with
NaN, or all alike, are followed by others. Any thread.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.create.jobs import CompiledFiles, CompilerInput, compiled_spec
from qnnbridge_host.create.order import WorkOrder
from qnnbridge_host.create.worker import Worker, WorkerSession, open_original
from qnnbridge_host.model.compiled_checks import before_session
from qnnbridge_host.model.scan import scan_model
from qnnbridge_host.model.source import ModelSource
from qnnbridge_host.numerics.input_content import (
    ORDINARY,
    further_inputs,
    is_guess,
    knowledge_in,
    ordinary_inputs,
)
from qnnbridge_host.numerics.judge import (
    LIMITS,
    NumberFormat,
    as_array,
    judge_over_inputs,
    largest,
    movement,
    precision_of_operators,
)
from qnnbridge_host.numerics.ranking import paired
from qnnbridge_host.numerics.sampling import Feeds, NotMade
from qnnbridge_protocol.connection import Hello
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    CompileFailed,
    ContextUnusable,
    DeadlineExceeded,
    InvalidArgument,
    OptionError,
    WorkerDied,
)
from qnnbridge_protocol.model_records import NOT_SHOWN, Difference, DifferenceLevel, JudgedNumbers, Validation
from qnnbridge_protocol.specs import NodeInfo

# Further inputs are tried if these show nothing; each costs a run of both.
MOST_FURTHER: Final = 4
GIVEN: Final = "the given inputs"


def validate(job: CompilerInput, files: CompiledFiles, order: WorkOrder, host: Hello) -> Validation:
    """Run the compiled model on all ones and on random inputs, and the original on the CPU.

    Args:
        job: the compiled job.
        files: the result.
        order: for the worker that runs both.
        host: its versions and chip, for the check of the compiled model before it is loaded.

    Raises:
        CompileFailed: the compiled model cannot be loaded or run, or its numbers are not the original's.
        Cancelled, DeadlineExceeded: the worker was ended.
    """
    try:
        return _validate(job, files, order, host)
    except DeadlineExceeded as error:
        raise _too_late(job, error) from None


def _validate(job: CompilerInput, files: CompiledFiles, order: WorkOrder, host: Hello) -> Validation:
    begun = time.monotonic()
    number_format = precision_of(job)
    unloadable = _cannot_load_here(files)
    if unloadable:
        return Validation(skipped=unloadable)
    with Worker(order).running() as worker:
        try:
            reference = open_original(worker, job)
            outputs = [node.name for node in reference.info.outputs]
            trials, expected = _answered(reference, job)
        except (Cancelled, DeadlineExceeded, OptionError):
            raise
        except NotMade as reason:
            return Validation(skipped=f"{str(reason)[:1].upper()}{str(reason)[1:]}.")
        except BridgeError as error:
            # Given inputs are the user's own, and so is the error about them.
            if job.inputs and isinstance(error, InvalidArgument):
                raise
            return Validation(skipped=f"The original cannot be run on the CPU to compare with: {error.message}")
        try:
            compiled = _open_compiled(worker, job, os.path.join(files.folder, files.model), host)
            got = {name: compiled.run(feeds) for name, feeds in trials.items()}
        except (Cancelled, DeadlineExceeded):
            raise
        except BridgeError as error:
            if _for_another_chip(job, files, error):
                return Validation(skipped=f"It cannot be loaded on this machine's chip: {error.message}")
            raise _unusable(job, error) from None
    # Detections whose order differs are brought together before they are compared.
    for trial, values in expected.items():
        expected[trial], got[trial] = paired(values, got[trial], number_format)
    found = [
        compare(
            name,
            {trial: values[index] for trial, values in got.items()},
            {trial: values[index] for trial, values in expected.items()},
            number_format,
        )
        for index, name in enumerate(outputs)
    ]
    differences = tuple(one for one in found if one is not None)
    result = Validation(differences, tolerance_text(number_format), None, time.monotonic() - begun)
    if any(one.level == "wrong" for one in differences):
        raise _wrong_numbers(job, result)
    return result


def _answered(reference: WorkerSession, job: CompilerInput) -> tuple[dict[str, Feeds], dict[str, list[Any]]]:
    """Inputs, and the original's answers to them. Raises `NotMade`, and the error of the first if it takes none."""
    if job.inputs:
        _check_names(job, [node.name for node in reference.info.inputs])
        return {GIVEN: dict(job.inputs)}, {GIVEN: reference.run(job.inputs)}
    knowledge = knowledge_in(job.source.path if job.source.path is not None else job.source.data or b"")
    declared = [dataclasses.replace(node, shape=_sizes(node)) for node in reference.info.inputs]
    trials: dict[str, Feeds] = {}
    expected: dict[str, list[Any]] = {}
    first: BridgeError | None = None
    # Floats far beyond the ordinary can show that a model is right, not that it is wrong: half floats end at 65504.
    sure = (one for one in further_inputs(declared, knowledge) if not is_guess(one.feeds, knowledge))
    further = itertools.islice(sure, MOST_FURTHER)
    for number, one in enumerate(itertools.chain(ordinary_inputs(declared, knowledge), further)):
        # The ordinary ones are always tried, further ones only as long as some output does not change with the
        # input.
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


def _check_names(job: CompilerInput, names: Sequence[str]) -> None:
    unknown = [name for name in job.inputs if name not in names]
    missing = [name for name in names if name not in job.inputs]
    if unknown or missing:
        what = f"no input {unknown[0]!r}" if unknown else f"an input {missing[0]!r}, which is not given"
        raise OptionError(
            f"{job.source.label} has {what}.", fix=f"Give all of its inputs (--input): {', '.join(names)}."
        )


def _sizes(node: NodeInfo) -> tuple[int, ...]:
    """Free dimensions, which only parts on the CPU can have, are 1."""
    return tuple(size if isinstance(size, int) and size >= 0 else 1 for size in node.shape or ())


def _all_move(expected: Mapping[str, Sequence[Any]], number_format: NumberFormat) -> bool:
    answers = list(expected.values())
    return all(
        movement([answer[place] for answer in answers], number_format) >= 1.0 for place in range(len(answers[0]))
    )


def _open_compiled(worker: Worker, job: CompilerInput, path: str, host: Hello) -> WorkerSession:
    """The compiled model, as strict as the job says."""
    spec = dataclasses.replace(compiled_spec(job.spec), model_path=path)
    before_session(ModelSource.open(path), spec.providers, host, spec.config_entries)
    return WorkerSession(worker, spec)


def precision_of(job: CompilerInput) -> NumberFormat:
    """The NPU's number format: 16-bit floats for a float model, its own steps for one with Q/DQ nodes."""
    source = job.source.path if job.source.path is not None else job.source.data or b""
    return precision_of_operators(scan_model(source).ops)


def _cannot_load_here(files: CompiledFiles) -> str | None:
    chips = [chip for chip in (files.soc_model or "").split(",") if chip.strip()]
    simulator = files.placement.simulator if files.placement is not None else False
    if simulator and len(chips) > 1:
        return "The simulator cannot load a context binary for several chips at once."
    return None


def _for_another_chip(job: CompilerInput, files: CompiledFiles, error: BridgeError) -> bool:
    """A real NPU cannot load a model for a newer chip, and does not report its own number; the compiled
    model may then be good. The simulator computes for any single chip."""
    named = any("soc_model" in p.options or "htp_arch" in p.options for p in job.spec.providers)
    simulator = files.placement is None or files.placement.simulator
    return named and not simulator and not isinstance(error, WorkerDied)


def _too_late(job: CompilerInput, error: DeadlineExceeded) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{job.source.label} was compiled, and the time was over before the result was compared with the CPU.",
        cause="The time that was given is for both; a large model takes longest on the CPU.",
        fix="Give it more time (timeout=, --timeout), or leave the comparison out (validate=False, --no-validate); "
        "nothing was written.",
        details={**error.details, "model": job.source.label},
    )


def _unusable(job: CompilerInput, error: BridgeError) -> CompileFailed:
    # The application explains the death, and books it on the model.
    died_details = {"worker_died": error.details} if isinstance(error, WorkerDied) else {}
    died = isinstance(error, (WorkerDied, ContextUnusable))
    return CompileFailed(
        f"{job.source.label} was compiled, and the result {'kills the host' if died else 'cannot be used'}.",
        cause=error.message if error.cause is None else f"{error.message} {error.cause}",
        fix="Nothing was written. To keep the result all the same, compile with validate=False (--no-validate).",
        evidence=error.evidence,
        details={"validation_error": error.code, **error.details, **died_details},
    )


def _wrong_numbers(job: CompilerInput, result: Validation) -> CompileFailed:
    wrong = [one for one in result.differences if one.level == "wrong"]
    return CompileFailed(
        f"{job.source.label} was compiled, and the result computes other numbers than the original on the CPU.",
        cause=f"Output {wrong[0].output!r} ({wrong[0].inputs}): {wrong[0].remark}. Allowed for {result.tolerance}.",
        fix="Look for values that 16-bit floats cannot hold (above 65504), or quantize the model anew; nothing was "
        "written. To keep the result all the same, compile with validate=False (--no-validate).",
        evidence=[f"{one.output} ({one.inputs}): {one.remark}" for one in wrong[1:4]],
        details={"validation": result.to_json()},
    )


# --- the difference of an output -------------------------------------------------------------------------
#
# The verdict is that of `numerics.judge`, as for sessions and for `qnnbridge verify`: an output that differs is
# wrong; one that these inputs do not show, or that is only just good, is unusual and reported.


def tolerance_text(number_format: NumberFormat) -> str:
    """The limits as text."""
    return f"{number_format}: {LIMITS[number_format]}"


def compare(
    output: str, got: Mapping[str, Any], expected: Mapping[str, Any], number_format: NumberFormat
) -> Difference | None:
    """The difference of one output. ``None`` if it holds no numbers.

    Args:
        output: its name.
        got: its values by the name of the inputs.
        expected: the same of the original.
        number_format: in which it was computed.
    """
    names = list(expected)
    arrays = [as_array(value) for value in (*got.values(), *expected.values())]
    if any(array is None or array.dtype.kind not in "biuf" for array in arrays):
        return None
    state, reason, judged = judge_over_inputs([(expected[name], got[name]) for name in names], number_format)
    decisive = min(range(len(names)), key=lambda number: _rank(judged[number], state))
    worst = judged[decisive]
    level: DifferenceLevel = "wrong" if state == "differs" else "ok"
    remark: str | None = reason or None
    if state == "unknown":
        level, remark = "unusual", f"{NOT_SHOWN}: {reason}"
    elif state == "agrees" and worst.snr_db is not None and worst.snr_db < LIMITS[number_format].good_db:
        level, remark = "unusual", f"its SNR is {worst.snr_db:.1f} dB; {worst.off:.1%} of its values are off"
    scale = max((largest(value) for value in expected.values()), default=0.0)
    most = max((one.max_abs for one in judged), default=0.0)
    relative = most / scale if scale else (math.inf if most else 0.0)
    if worst.lost or (worst.snr_db is None and state == "differs"):
        most = relative = math.inf
    return Difference(output, level, most, relative, _cosine(got, expected, names), names[decisive], remark)


def _rank(one: JudgedNumbers, state: str) -> tuple[bool, float]:
    """Those of the state that decides first, then the lowest SNR."""
    return one.state != state, -math.inf if one.lost or one.snr_db is None else one.snr_db


def _cosine(got: Mapping[str, Any], expected: Mapping[str, Any], names: Iterable[str]) -> float | None:
    """Of all values that are finite on both sides; ``None`` if one of them is all zeros."""
    import numpy as np

    pairs = [(np.asarray(got[name], np.float64), np.asarray(expected[name], np.float64)) for name in names]
    if any(x.shape != y.shape for x, y in pairs):
        return None
    x, y = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    finite = np.isfinite(x) & np.isfinite(y)
    length = float(np.linalg.norm(x[finite])) * float(np.linalg.norm(y[finite]))
    return float(np.vdot(x[finite], y[finite])) / length if length and math.isfinite(length) else None
