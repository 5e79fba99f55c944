"""Tries each set of inputs: the CPU's answer, QNN's answer, and whether the two agree up to rounding.

The NPU computes floats in 16 bits and quantised models in steps: how far that may move a result is the table that
compiling judges with. Differences are measured against the largest value that the output has on ordinary inputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnbridge_host.compile import compare as made_up
from qnnbridge_host.numerics.comparing import OutputComparison, compare
from qnnbridge_host.numerics.sampling import NotMade, make_samples
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools.models.shared.sessions import ProviderSession, RunAnswer, one_line
from qnnbridge_tools.models.verify import input_sets, traps
from qnnbridge_tools.models.verify.input_sets import GivenInputs
from qnnbridge_tools.models.verify.result import InputKind, InputSetResult, JudgedOutput, TrapFound

if TYPE_CHECKING:
    from qnnbridge_host.compile.compare import Tolerance


# An integer more or less than this many decides by itself; of more, some may fall to the other side.
_FEW = 8
_OF_INTEGERS = 0.1
_NARROW_BYTES = 2

_SPREADS = ("values in 0..1", "values with both signs", "zeros")
_AGAIN_WITHIN = 1e-4


def judge(
    names: Sequence[str],
    expected: Sequence[Any],
    found: Sequence[Any],
    scales: Mapping[str, float],
    tolerance: Tolerance,
) -> tuple[JudgedOutput, ...]:
    """One set of inputs. scales: the largest value of each output on ordinary inputs, as far as known."""
    differences = compare(names, [expected], [found])
    return tuple(
        _judged(one, wanted, scales.get(one.name, 0.0), tolerance)
        for one, wanted in zip(differences, expected, strict=True)
    )


def largest(value: Any) -> float:
    """The largest finite magnitude in an array; 0 for what is none."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or not value.size:
        return 0.0
    magnitudes = np.abs(value.astype(np.float64))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0.0))


def _judged(one: OutputComparison, expected: Any, scale: float, tolerance: Tolerance) -> JudgedOutput:
    remark = (
        one.mismatch or _float_remark(one, max(scale, largest(expected)), tolerance)
        if one.kind == "float"
        else one.mismatch or _other_remark(one, expected, tolerance)
    )
    return JudgedOutput(one, bool(remark), remark)


def _float_remark(one: OutputComparison, scale: float, tolerance: Tolerance) -> str:
    if one.different:
        return f"{one.different} values are NaN or infinite on one side only"
    if one.max_abs <= tolerance.absolute:
        return ""
    if one.max_abs > tolerance.usual.of_range * scale:
        return f"off by up to {one.max_abs:.3g}, where the CPU's values reach {scale:.3g}"
    if one.cosine is not None and one.cosine < tolerance.usual.cosine:
        return f"it points elsewhere: cosine {one.cosine:.4f}"
    return ""


def _other_remark(one: OutputComparison, expected: Any, tolerance: Tolerance) -> str:
    if not one.different:
        return ""
    dtype = getattr(expected, "dtype", None)
    if dtype is not None and dtype.kind in "iu" and dtype.itemsize <= _NARROW_BYTES:
        span = float(np.iinfo(dtype).max) - float(np.iinfo(dtype).min)
        return f"off by up to {one.max_abs:.3g} steps" if one.max_abs > tolerance.usual.of_range * span else ""
    if one.elements >= _FEW and one.different <= _OF_INTEGERS * one.elements:
        return ""
    return f"{one.different} of {one.elements} values are other ones"


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs with the CPU's answer. reason: why it is not tried, then `feeds` is empty."""

    name: str
    kind: InputKind
    counts: bool
    feeds: dict[str, Any]
    expected: RunAnswer
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class TrialSet:
    """All sets of inputs with the CPU's answers.

    Args:
        trials: of all kinds.
        stable: the CPU gives the same twice.
        scales: largest values of each output.
    """

    trials: tuple[Trial, ...]
    stable: bool
    outputs: tuple[str, ...]
    scales: Mapping[str, float]


def prepare_trials(
    cpu: ProviderSession,
    given: Sequence[GivenInputs],
    operators: Mapping[str, int],
    *,
    seed: int,
    extreme: bool,
    strict: bool,
) -> TrialSet:
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
    return TrialSet(tuple(trials), stable, tuple(cpu.outputs), scales)


def _expected(cpu: ProviderSession, given: GivenInputs) -> RunAnswer:
    answer = cpu.answer(given.feeds)
    if answer.error is not None:
        raise OptionError(
            f"The CPU does not run the model on {given.name}.",
            cause=one_line(answer.error),
            fix=answer.error.fix or "Give inputs that the model takes.",
        )
    return answer


def _plain(cpu: ProviderSession, seed: int) -> list[Trial]:
    """Ones, and random numbers although the CPU refuses such: a model that divides integers takes no zeros."""
    nodes = [NodeInfo(node.name, node.type, tuple(node.shape)) for node in cpu.inputs if node.shape is not None]
    if len(nodes) != len(cpu.inputs):
        return []
    try:
        made = {
            "made up: ones": made_up.made_up_ones(nodes),
            "made up: random numbers": made_up.made_up_random(nodes, seed),
        }
    except made_up.CannotMakeUp:
        return []
    return [Trial(name, "made up", True, feeds, cpu.answer(feeds)) for name, feeds in made.items()]


def _names(feeds: Sequence[Mapping[str, Any]]) -> list[str]:
    floats = any(getattr(value, "dtype", np.dtype(bool)).kind == "f" for value in feeds[0].values())
    if floats:
        return [f"made up: {text}" for text in _SPREADS]
    return [f"made up: set {number}" for number in range(1, len(feeds) + 1)]


def _same(cpu: ProviderSession, trial: Trial) -> bool:
    again = cpu.values(trial.feeds)
    return all(one.within(_AGAIN_WITHIN) for one in compare(cpu.outputs, [trial.expected.values or []], [again]))


def _extreme_trials(
    cpu: ProviderSession, ordinary: Mapping[str, Any], operators: Mapping[str, int], strict: bool
) -> list[Trial]:
    found: list[Trial] = []
    for extreme in input_sets.EXTREMES:
        feeds = input_sets.applied(extreme, ordinary)
        if feeds is None:
            continue
        counts = strict or not extreme.limit
        reason = input_sets.why_not(extreme, operators)
        answer = RunAnswer(None) if reason else cpu.answer(feeds)
        found.append(Trial(extreme.name, "extreme", counts, {} if reason else feeds, answer, reason))
    return found


def try_on_qnn(qnn: ProviderSession, trial: Trial, prepared: TrialSet, tolerance: Tolerance) -> InputSetResult:
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


def _without_reference(trial: Trial, answer: RunAnswer) -> InputSetResult:
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


def _row(trial: Trial, status: Any, reason: str = "") -> InputSetResult:
    return InputSetResult(trial.name, trial.kind, trial.counts, status, reason=reason)


def short_of(answer: RunAnswer) -> str:
    return one_line(answer.error) if answer.error is not None else ""
