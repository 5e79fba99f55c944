"""Tries each set of inputs: the CPU's answer, QNN's answer, and the verdict of `qnnbridge_host.numerics.judge`.

Inputs are given in files, made up with content, or extreme. Made-up ones that the model answers with the same for
everything, or with NaN, show nothing: then others are tried, as far as the CPU says that they show more.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from qnnbridge_host.numerics.judge import NumberFormat, judge, judge_over_inputs, largest, movement, rank
from qnnbridge_host.numerics.ranking import judge_all, paired
from qnnbridge_host.numerics.sampling import (
    InputKnowledge,
    NamedFeeds,
    NotMade,
    codes,
    further_inputs,
    is_guess,
    ordinary_inputs,
    varied,
)
from qnnbridge_models.command_options import VerifyOptions
from qnnbridge_models.verify import input_sets, traps
from qnnbridge_models.verify.verification import InputKind, InputSetResult, InputStatus, OutputVerdict, TrapFound
from qnnbridge_protocol.errors import OptionError
from qnnbridge_tools.sessions import ProviderSession, RunAnswer, one_line

# The CPU gives the same again up to here; threads may add in another order.
_AGAIN_DB = 80.0
# Seconds for trying further inputs on the CPU, and for a search of some where these are not enough.
_FURTHER_S = 60.0
_SEARCH_S = 8.0
_MOST_SEARCHED = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs with the CPU's answer.

    Args:
        reason: why it is not tried, then `feeds` is empty.
        guess: larger than anything that the model is known to take: it may show agreement, and no difference.
    """

    name: str
    kind: InputKind
    counts: bool
    feeds: dict[str, Any]
    expected: RunAnswer
    reason: str = ""
    guess: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class TrialSet:
    """All sets of inputs with the CPU's answers.

    Args:
        trials: of all kinds.
        stable: the CPU gives the same twice.
        outputs: names.
        number_format: what QNN computes in.
        scales: largest values of each output on inputs that count.
    """

    trials: tuple[Trial, ...]
    stable: bool
    outputs: tuple[str, ...]
    number_format: NumberFormat
    scales: Mapping[str, float]


def prepare_trials(
    cpu: ProviderSession,
    given: Sequence[NamedFeeds],
    operators: Mapping[str, int],
    knowledge: InputKnowledge,
    number_format: NumberFormat,
    how: VerifyOptions,
) -> TrialSet:
    """Runs all of it on the CPU. Raises `OptionError` if there is nothing to try, or given inputs do not fit.

    Where real inputs are given, what made-up and extreme ones show does not count against a model.
    """
    # The CPU has to answer given inputs (`_expected` raises); made-up ones it may refuse.
    trials = [Trial(f"given: {one.name}", "given", True, one.feeds, _expected(cpu, one)) for one in given]
    reason = ""
    try:
        trials += [_trial(cpu, one, knowledge) for one in ordinary_inputs(cpu.inputs, knowledge, how.seed)]
        trials += _further(cpu, trials, knowledge, number_format, how.seed)
    except NotMade as error:
        # No error yet: given inputs alone are enough.
        reason = str(error)
    answered = [trial for trial in trials if trial.expected.values is not None]
    if not answered:
        refusals = [short_of(trial.expected) for trial in trials if trial.expected.error is not None]
        reason = reason or f"the CPU does not run it on made-up inputs ({(refusals or ['no answer'])[0][:300]})"
        raise OptionError(
            "There is nothing to verify with: inputs cannot be made up for this model.",
            cause=f"{reason[:1].upper()}{reason[1:]}.",
            fix="Give some: --input FILE.npz, with an array for each input under its name.",
        )
    # Made-up values that the CPU refuses are no inputs of this model; one is kept, to see what QNN makes of it.
    refused = [trial for trial in trials if _is_refused(trial)]
    trials = [trial for trial in trials if not _is_refused(trial)] + refused[:1]
    if given:
        trials = [trial if trial.kind == "given" else dataclasses.replace(trial, counts=False) for trial in trials]
    # Before the extremes are added: beside 1e5 every ordinary difference would be the noise of the format.
    scales = {
        name: max(largest(trial.expected.values[place]) for trial in answered if trial.expected.values is not None)
        for place, name in enumerate(cpu.outputs)
    }
    # A given one where there are any: extremes are put into values that the model takes.
    first = answered[0]
    if how.extreme:
        # Ids and masks stay as they are, unless --strict asks for all.
        held = frozenset[str]() if how.strict else codes(cpu.inputs, knowledge)
        trials += _extreme_trials(cpu, first.feeds, operators, held, strict=how.strict, counts=not given)
    return TrialSet(tuple(trials), _is_stable(cpu, first), tuple(cpu.outputs), number_format, scales)


def _trial(cpu: ProviderSession, one: NamedFeeds, knowledge: InputKnowledge) -> Trial:
    answer = cpu.answer(one.feeds)
    return Trial(f"made up: {one.name}", "made up", True, one.feeds, answer, guess=is_guess(one.feeds, knowledge))


def _is_refused(trial: Trial) -> bool:
    return trial.expected.values is None and not trial.expected.died


def _expected(cpu: ProviderSession, given: NamedFeeds) -> RunAnswer:
    answer = cpu.answer(given.feeds)
    if answer.error is not None:
        raise OptionError(
            f"The CPU does not run the model on {given.name}.",
            cause=one_line(answer.error),
            fix=answer.error.fix or "Give inputs that the model takes.",
        )
    return answer


def _further(
    cpu: ProviderSession,
    trials: Sequence[Trial],
    knowledge: InputKnowledge,
    number_format: NumberFormat,
    seed: int,
) -> list[Trial]:
    """More inputs, as long as an output does not follow those that there are, and these make it move."""
    begun = time.monotonic()
    kept: list[Trial] = []
    # From 1 on an output moves by clearly more than the noise of the number format (`movement`).
    moves = [_movement(trials, place, number_format) for place in range(len(cpu.outputs))]
    for one in further_inputs(cpu.inputs, knowledge, seed):
        if all(move >= 1.0 for move in moves) or time.monotonic() - begun > _FURTHER_S:
            break
        trial = _trial(cpu, one, knowledge)
        if trial.expected.values is None:
            continue
        # The first that the CPU answers at all is worth keeping, whatever it shows.
        if not any(t.expected.values is not None for t in (*trials, *kept)):
            kept.append(trial)
            continue
        now = [_movement([*trials, *kept, trial], place, number_format) for place in range(len(cpu.outputs))]
        # Twice as much: a smaller step may be chance.
        if any(new > 2 * old and old < 1.0 for new, old in zip(now, moves, strict=True)):
            kept.append(trial)
            moves = now
    if min(moves, default=1.0) < 1.0:
        kept += _searched(cpu, [*trials, *kept], knowledge, number_format, seed)
    return kept


def _searched(
    cpu: ProviderSession,
    trials: Sequence[Trial],
    knowledge: InputKnowledge,
    number_format: NumberFormat,
    seed: int,
) -> list[Trial]:
    """Climbs from one set of inputs to the next, as long as an output that does not move moves more by it."""
    begun = time.monotonic()
    answered = [trial for trial in trials if trial.expected.values is not None]
    # A stream of its own: the ordinary and further inputs have [seed, number of the set].
    rng = np.random.default_rng([seed, 1000])
    found: list[Trial] = []
    for place in range(len(cpu.outputs)):
        best, move = answered[:1], _movement([*answered, *found], place, number_format)
        first = move
        for _ in range(_MOST_SEARCHED):
            if not best or move >= 1.0 or time.monotonic() - begun > _SEARCH_S:
                break
            feeds = varied(best[0].feeds, knowledge, rng)
            trial = _trial(cpu, NamedFeeds("searched", feeds), knowledge)
            # The CPU's host has died of made-up values: no further ones are tried.
            if trial.expected.died:
                return found
            new = _movement([*answered, *found, trial], place, number_format)
            if trial.expected.values is not None and new > move:
                best, move = [trial], new
        # Below 1 the output moves within the noise of the number format, which is worth no row.
        if best and move > 2 * first and move >= 1.0:
            found.append(dataclasses.replace(best[0], name=f"made up: searched for {cpu.outputs[place]}"))
    return found


def _movement(trials: Sequence[Trial], place: int, number_format: NumberFormat) -> float:
    return movement([t.expected.values[place] for t in trials if t.expected.values is not None], number_format)


def _is_stable(cpu: ProviderSession, trial: Trial) -> bool:
    again = cpu.values(trial.feeds)
    judged = [judge(a, b) for a, b in zip(trial.expected.values or [], again, strict=True)]
    return all(one.state != "differs" and (one.snr_db is None or one.snr_db >= _AGAIN_DB) for one in judged)


def _extreme_trials(
    cpu: ProviderSession,
    ordinary: Mapping[str, Any],
    operators: Mapping[str, int],
    held: Collection[str],
    *,
    strict: bool,
    counts: bool,
) -> list[Trial]:
    found: list[Trial] = []
    for extreme in input_sets.EXTREMES:
        feeds = input_sets.applied(extreme, ordinary, held)
        if feeds is None:
            continue
        reason = input_sets.why_not(extreme, operators)
        # With a reason it does not run on the CPU either: that would ask for the same gigabytes.
        answer = RunAnswer(None) if reason else cpu.answer(feeds)
        matters = strict or (counts and not extreme.limit)
        found.append(Trial(extreme.name, "extreme", matters, {} if reason else feeds, answer, reason))
    return found


def try_on_qnn(qnn: ProviderSession, trial: Trial, prepared: TrialSet) -> tuple[InputSetResult, RunAnswer]:
    """QNN's answer to one set of inputs, judged, and as it is."""
    if trial.reason:
        return _row(trial, "skipped", trial.reason), RunAnswer(None)
    if trial.expected.died:
        return _row(trial, "skipped", f"the CPU does not answer: {short_of(trial.expected)}"), RunAnswer(None)
    answer = qnn.answer(trial.feeds)
    if trial.expected.values is None:
        # QNN's values are dropped: `verdicts_on` pairs them with the CPU's by their place in the list, and the CPU
        # has none here.
        return _without_reference(trial, answer), RunAnswer(None, answer.error)
    if answer.values is None:
        return _row(trial, "failed", short_of(answer), answer.died), answer
    return judged_row(trial, prepared, answer.values), answer


def judged_row(trial: Trial, prepared: TrialSet, found: Sequence[Any]) -> InputSetResult:
    """The verdict on QNN's values for one set of inputs."""
    assert trial.expected.values is not None
    judged = judge_all(prepared.outputs, trial.expected.values, found, prepared.number_format, prepared.scales)
    states = [one.state for _, one in judged]
    seen: tuple[TrapFound, ...] = ()
    if trial.kind == "extreme" or "differs" in states:
        seen = tuple(
            dataclasses.replace(trap, evidence=f"{trial.name}; {trap.evidence}")
            for name, expected, got in zip(prepared.outputs, trial.expected.values, found, strict=True)
            for trap in traps.of_values(name, expected, got, prepared.number_format)
        )
    # An extreme that the CPU answers with NaN proves nothing about numbers; a number in its place is worth a word.
    differs = "differs" in states or (trial.kind == "extreme" and bool(seen))
    status: InputStatus = "differs" if differs else "agrees" if "agrees" in states else "not shown"
    counts = trial.counts and not (differs and trial.guess)
    return dataclasses.replace(_row(trial, status), outputs=judged, traps=seen, counts=counts)


def verdicts_of(prepared: TrialSet, found: Mapping[str, Sequence[Any]]) -> tuple[OutputVerdict, ...]:
    """The verdict on each output. That of the given inputs holds; what they do not show, made-up ones may show.

    Args:
        found: QNN's values by the name of the set.
    """
    given = verdicts_on(prepared, found, ("given",))
    if not given:
        return verdicts_on(prepared, found, ("made up", "extreme"))
    every = verdicts_on(prepared, found, ("given", "made up"))
    return tuple(
        one if one.state != "unknown" or other.state == "differs" else other
        for one, other in zip(given, every, strict=True)
    )


def verdicts_on(
    prepared: TrialSet, found: Mapping[str, Sequence[Any]], kinds: Sequence[InputKind]
) -> tuple[OutputVerdict, ...]:
    """The verdict on each output over the sets of inputs of these kinds that both sides answered; nothing where
    there is none."""
    trials = [
        trial
        for trial in prepared.trials
        if trial.name in found and trial.kind in kinds and (trial.counts or trial.kind == "made up")
        # A guess that differs is no evidence against the model; one that agrees is evidence for it.
        if not trial.guess or judged_row(trial, prepared, found[trial.name]).status != "differs"
    ]
    verdicts = []
    runs = [
        paired(t.expected.values, found[t.name], prepared.number_format)
        for t in trials
        if t.expected.values is not None
    ]
    # No verdict on inputs that were not given. Without made-up ones each output is "unknown": nothing was compared.
    if not runs and "given" in kinds:
        return ()
    for place, name in enumerate(prepared.outputs):
        pairs = [(mine[place], theirs[place]) for mine, theirs in runs]
        state, reason, judged = judge_over_inputs(pairs, prepared.number_format)
        # The worst of those that have the state of the verdict: it is the evidence for it.
        worst = min(range(len(judged)), key=lambda k: (judged[k].state != state, rank(judged[k])), default=None)
        verdicts.append(
            OutputVerdict(
                name,
                state,
                reason,
                trials[worst].name if worst is not None else "",
                judged[worst] if worst is not None else None,
            )
        )
    return tuple(verdicts)


def _without_reference(trial: Trial, answer: RunAnswer) -> InputSetResult:
    refusal = short_of(trial.expected)
    if answer.values is None:
        return _row(trial, "failed" if answer.died else "refused", refusal, answer.died)
    trap = TrapFound(
        "unchecked",
        "QNN does not check what the CPU refuses, and gives some numbers (measured: index 10**8 in ScatterND, a "
        "token id of 2**40 + 3 read as 3, division of integers by zero).",
        f"{trial.name}; the CPU says: {refusal}",
        "Check the inputs before the run.",
        "the CPU refuses these inputs, QNN answers them",
    )
    return dataclasses.replace(_row(trial, "unchecked", f"the CPU refuses it: {refusal}"), traps=(trap,))


def _row(trial: Trial, status: InputStatus, reason: str = "", died: bool = False) -> InputSetResult:
    return InputSetResult(trial.name, trial.kind, trial.counts, status, reason=reason, died=died)


def short_of(answer: RunAnswer) -> str:
    return one_line(answer.error) if answer.error is not None else ""
