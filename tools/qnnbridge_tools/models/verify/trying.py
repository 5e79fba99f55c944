"""The sets of inputs, the CPU's answers to them, and QNN's answers held against those: one `Row` for each set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge._compiling import inputs as plain
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.models.shared.comparing import compare
from qnnbridge_tools.models.shared.sampling import NotMade, make_samples
from qnnbridge_tools.models.verify import extremes, traps
from qnnbridge_tools.models.verify.bisection import short
from qnnbridge_tools.models.verify.judging import judge, largest
from qnnbridge_tools.models.verify.result import Kind, Row, TrapFound
from qnnbridge_tools.models.verify.running import Answer, Side
from qnnbridge_tools.models.verify.samples import Given

if TYPE_CHECKING:
    from qnnbridge._compiling.compare import Tolerance

_SPREADS = ("values in 0..1", "values with both signs", "zeros")
_AGAIN_WITHIN = 1e-4


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs with the CPU's answer. reason: why it is not tried, then `feeds` is empty."""

    name: str
    kind: Kind
    counts: bool
    feeds: dict[str, Any]
    expected: Answer
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """trials: of all kinds. stable: the CPU gives the same twice. scales: largest values of each output."""

    trials: tuple[Trial, ...]
    stable: bool
    outputs: tuple[str, ...]
    scales: Mapping[str, float]


def prepare(
    cpu: Side,
    given: Sequence[Given],
    operators: Mapping[str, int],
    *,
    seed: int,
    extreme: bool,
    strict: bool,
) -> Prepared:
    """Runs all of it on the CPU. Raises `OptionError` if there is nothing to try, or given inputs do not fit."""
    trials = [Trial(f"given: {one.name}", "given", True, one.feeds, _expected(cpu, one)) for one in given]
    try:
        samples = make_samples(cpu.inputs, seed=seed, accepts=cpu.values)
    except NotMade as error:
        trials += _plain(cpu, seed)
        if not any(trial.expected.values is not None for trial in trials):
            raise OptionError(
                "There is nothing to verify with: inputs cannot be made up for this model.",
                cause=f"{str(error)[:1].upper()}{str(error)[1:]}.",
                fix="Give some: --input FILE.npz, with an array for each input under its name.",
            ) from None
    else:
        for name, feeds in zip(_names(samples.feeds), samples.feeds, strict=True):
            answer = cpu.answer(feeds)
            trials.append(Trial(name, "made up", True, feeds, answer))
    first = next(trial for trial in trials if trial.expected.values is not None)
    stable = _same(cpu, first)
    scales = {
        name: max(largest(trial.expected.values[place]) for trial in trials if trial.expected.values is not None)
        for place, name in enumerate(cpu.outputs)
    }
    if extreme:
        trials += _extreme_trials(cpu, first.feeds, operators, strict)
    return Prepared(tuple(trials), stable, tuple(cpu.outputs), scales)


def _expected(cpu: Side, given: Given) -> Answer:
    answer = cpu.answer(given.feeds)
    if answer.error is not None:
        raise OptionError(
            f"The CPU does not run the model on {given.name}.",
            cause=short(answer.error),
            fix=answer.error.fix or "Give inputs that the model takes.",
        )
    return answer


def _plain(cpu: Side, seed: int) -> list[Trial]:
    """Ones, and random numbers although the CPU refuses such: a model that divides integers takes no zeros."""
    nodes = [NodeInfo(node.name, node.type, tuple(node.shape)) for node in cpu.inputs if node.shape is not None]
    if len(nodes) != len(cpu.inputs):
        return []
    try:
        made = {"made up: ones": plain.ones(nodes), "made up: random numbers": plain.random(nodes, seed)}
    except plain.CannotMakeUp:
        return []
    return [Trial(name, "made up", True, feeds, cpu.answer(feeds)) for name, feeds in made.items()]


def _names(feeds: Sequence[Mapping[str, Any]]) -> list[str]:
    floats = any(getattr(value, "dtype", np.dtype(bool)).kind == "f" for value in feeds[0].values())
    if floats:
        return [f"made up: {text}" for text in _SPREADS]
    return [f"made up: set {number}" for number in range(1, len(feeds) + 1)]


def _same(cpu: Side, trial: Trial) -> bool:
    again = cpu.values(trial.feeds)
    return all(one.within(_AGAIN_WITHIN) for one in compare(cpu.outputs, [trial.expected.values or []], [again]))


def _extreme_trials(
    cpu: Side, ordinary: Mapping[str, Any], operators: Mapping[str, int], strict: bool
) -> list[Trial]:
    found: list[Trial] = []
    for extreme in extremes.EXTREMES:
        feeds = extremes.applied(extreme, ordinary)
        if feeds is None:
            continue
        counts = strict or not extreme.limit
        reason = extremes.why_not(extreme, operators)
        answer = Answer(None) if reason else cpu.answer(feeds)
        found.append(Trial(extreme.name, "extreme", counts, {} if reason else feeds, answer, reason))
    return found


def tried(qnn: Side, trial: Trial, prepared: Prepared, tolerance: Tolerance) -> Row:
    """QNN's answer to one set of inputs, judged."""
    if trial.reason:
        return _row(trial, "skipped", reason=trial.reason)
    if trial.expected.died:
        return _row(trial, "skipped", reason=f"the CPU does not answer: {short_of(trial.expected)}")
    answer = qnn.answer(trial.feeds)
    if trial.expected.values is None:
        return _without_reference(trial, answer)
    if answer.values is None:
        return dataclasses.replace(_row(trial, "failed", reason=short_of(answer)), died=answer.died)
    judged = judge(prepared.outputs, trial.expected.values, answer.values, prepared.scales, tolerance)
    differs = any(one.differs for one in judged)
    found = _value_traps(prepared.outputs, trial, answer.values) if differs else ()
    return dataclasses.replace(_row(trial, "differs" if differs else "agrees"), outputs=judged, traps=found)


def _without_reference(trial: Trial, answer: Answer) -> Row:
    refusal = short_of(trial.expected)
    if answer.values is None:
        return dataclasses.replace(
            _row(trial, "failed" if answer.died else "refused", reason=refusal), died=answer.died
        )
    trap = TrapFound(
        "unchecked",
        "QNN does not check what the CPU refuses, and gives some numbers (measured: index 10**8 in ScatterND, a "
        "token id of 2**40 + 3 read as 3, division of integers by zero).",
        f"{trial.name}; the CPU says: {refusal}",
        "Check the inputs before the run.",
    )
    return dataclasses.replace(_row(trial, "unchecked", reason=f"the CPU refuses it: {refusal}"), traps=(trap,))


def _value_traps(names: Sequence[str], trial: Trial, found: Sequence[Any]) -> tuple[TrapFound, ...]:
    assert trial.expected.values is not None
    seen = (
        dataclasses.replace(trap, evidence=f"{trial.name}; {trap.evidence}")
        for name, expected, got in zip(names, trial.expected.values, found, strict=True)
        for trap in traps.of_values(name, expected, got)
    )
    return tuple(seen)


def _row(trial: Trial, status: Any, reason: str = "") -> Row:
    return Row(trial.name, trial.kind, trial.counts, status, reason=reason)


def short_of(answer: Answer) -> str:
    return short(answer.error) if answer.error is not None else ""
