"""Tries each set of inputs: the CPU's answer, QNN's answer, and the verdict of `qnnbridge_host.numerics.judge`.

Inputs are given in files (nothing is ever unpickled), made up with content, or extreme. `limit` marks extremes on
which no computation in half floats can agree with the CPU: a difference there is reported, and does not make a
model bad. Made-up inputs that the model answers with the same for everything, or with NaN, show nothing: then
others are tried, as far as the CPU says that they show more.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qnnbridge_host.graph.shapes import Dimensions, FreeAxis, options_text
from qnnbridge_host.numerics.judge import (
    NumberFormat,
    judge,
    judge_over_inputs,
    largest,
    movement,
    rank,
)
from qnnbridge_host.numerics.pairing import judge_all, paired
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
from qnnbridge_models.verify import traps
from qnnbridge_models.verify.verification import InputKind, InputSetResult, InputStatus, OutputVerdict, TrapFound
from qnnbridge_protocol.errors import OptionError
from qnnbridge_protocol.specs import NodeInfo
from qnnbridge_tools import feeds
from qnnbridge_tools.arguments import InputFile, read_input_files, refuse_unknown_of
from qnnbridge_tools.sessions import ProviderSession, RunAnswer, one_line

# --- sizes, given inputs, extreme inputs ---

Array = npt.NDArray[Any]
# Every seventh value is NaN or infinite: data with some holes in it.
_EVERY = 7
_WIDE_BYTES = 4
# The lower half is 5: what comes back shows whether the upper one was lost.
BIG_INTEGER = 2**33 + 5
# Half floats hold 1e4 and end at 65504, below 1e5; the square of 1e-5 is 0 in them.
LARGE = 1e4
HUGE = 1e5
TINY = 1e-5
# Operators that make a tensor as large as a number says: with 2**33 there they ask for gigabytes, or never end.
SIZE_MAKERS = frozenset(
    (
        *("ConstantOfShape", "EyeLike", "Expand", "OneHot", "Pad", "Range", "Resize", "Tile", "Upsample"),
        *("HammingWindow", "HannWindow", "BlackmanWindow", "RandomNormal", "RandomUniform", "Loop", "Scan"),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizes:
    """Of all free dimensions.

    Args:
        by_name: those that a session takes by name.
        all_named: these are all there are.
    """

    by_axis: Mapping[tuple[str, int], int]
    by_name: Mapping[str, int]
    all_named: bool

    @property
    def dimensions(self) -> Dimensions:
        return Dimensions({}, dict(self.by_axis))

    def of(self, inputs: Iterable[NodeInfo]) -> list[NodeInfo]:
        """The inputs as they are with these sizes."""
        return [
            dataclasses.replace(
                node,
                shape=tuple(self.by_axis.get((node.name, axis), dim) for axis, dim in enumerate(node.shape)),
            )
            if node.shape is not None
            else node
            for node in inputs
        ]

    def shown(self) -> dict[str, int]:
        """For a person: by name where there is one."""
        named = dict(self.by_name)
        return named if self.all_named else {f"{name}:{axis}": size for (name, axis), size in self.by_axis.items()}


def read_given(texts: Iterable[str | os.PathLike[str]], inputs: Sequence[NodeInfo]) -> list[NamedFeeds]:
    """Each file has all inputs: an .npz by their names, an .npy for a model with one. `NAME=FILE` together are one
    set. Raises `OptionError`."""
    files, paths = read_input_files(os.fspath(text) for text in texts)
    given = [_read_one(path, inputs) for path in paths]
    if files:
        found = {feed.name: feed.value for feed in feeds.load(files, None)}
        given.append(_complete("files", ", ".join(str(file.path) for file in files), found, inputs))
    return given


def _read_one(path: Path, inputs: Sequence[NodeInfo]) -> NamedFeeds:
    names = [node.name for node in inputs]
    if path.suffix.lower() == ".npy":
        if len(names) != 1:
            raise OptionError(
                f"{path} holds one array, and the model has {len(names)} inputs: {', '.join(names) or 'none'}.",
                fix="Put all of them into one .npz file by their names: numpy.savez(FILE, name=array, ...).",
            )
        loaded = feeds.load([InputFile(names[0], path)], None)
    else:
        loaded = feeds.load([], path)
    return _complete(path.name, str(path), {feed.name: feed.value for feed in loaded}, inputs)


def _complete(name: str, where: str, found: dict[str, Any], inputs: Sequence[NodeInfo]) -> NamedFeeds:
    names = [node.name for node in inputs]
    unknown, missing = [n for n in found if n not in names], [n for n in names if n not in found]
    if unknown or missing:
        wrong = f"has no array {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, which is no input"
        raise OptionError(
            f"{where} {wrong}.",
            cause=f"The model's inputs: {', '.join(names) or 'none'}. The arrays: {', '.join(found) or 'none'}.",
            fix="Save them under the names of the inputs: numpy.savez(FILE, name=array, ...).",
        )
    return NamedFeeds(name, {name: found[name] for name in names})


def sizes_of(inputs: Sequence[NodeInfo], dims: Dimensions, given: Sequence[NamedFeeds]) -> FixedSizes:
    """The sizes of `--dim`, and for the rest those of the given inputs. Raises `OptionError` for missing ones."""
    by_axis: dict[tuple[str, int], int] = {}
    by_name: dict[str, int] = {}
    all_named, missing = True, list[FreeAxis]()
    for node in inputs:
        for axis, dim in enumerate(node.shape or ()):
            if isinstance(dim, int) and dim >= 0:
                continue
            # 0 is no size: given inputs that are empty say nothing about it.
            size = dims.size_of(node.name, axis, dim) or _size_in(given, node.name, axis)
            if not size:
                missing.append(FreeAxis(node.name, axis, dim if isinstance(dim, str) and dim else None))
                continue
            by_axis[node.name, axis] = size
            # ONNX does not forbid one name for two sizes: a PaddleOCR model calls height and width "?". A session's
            # override by name would give both the same size.
            if not isinstance(dim, str) or by_name.setdefault(dim, size) != size:
                all_named = False
    # Before the missing ones: a misspelt --dim leaves a size missing, too, and the message is about the spelling.
    refuse_unknown_of(inputs, dims)
    if missing:
        names = ", ".join(dict.fromkeys(one.option for one in missing))
        raise OptionError(
            f"The model has free dimensions without a size: {names}.",
            cause="QNN takes fixed shapes only.",
            fix=f"Give the sizes that it is used with: {options_text(missing)}",
        )
    return FixedSizes(by_axis, by_name, all_named)


def _size_in(given: Sequence[NamedFeeds], name: str, axis: int) -> int | None:
    for one in given:
        shape = one.feeds[name].shape
        if axis < len(shape):
            return int(shape[axis])
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class ExtremeInput:
    """One kind of extreme values.

    Args:
        takes: whether an array can hold it.
        put: the array with it, made from an ordinary one.
    """

    name: str
    limit: bool
    takes: Callable[[Array], bool]
    put: Callable[[Array], Array]
    # Must not be tried on a model that may take the numbers for sizes.
    as_sizes: bool = False
    # Of integers: ids, masks and the like are left as they are.
    of_numbers: bool = False


def _is_float(value: Array) -> bool:
    return value.dtype.kind == "f"


def _holds(number: float) -> Callable[[Array], bool]:
    # float16 ends at 65504: such an input gets the row of 1e4, and none of 1e5.
    return lambda value: value.dtype.kind == "f" and float(np.finfo(value.dtype).max) > number


def _scattered(numbers: tuple[float, ...]) -> Callable[[Array], Array]:
    def put(value: Array) -> Array:
        changed = np.array(value)
        flat = changed.reshape(-1)
        for start, number in enumerate(numbers):
            # The second number begins elsewhere, so that it does not replace the first.
            flat[min(start * (_EVERY // 2), flat.size - 1) :: _EVERY] = number
        return changed

    return put


def _spread(most: float) -> Callable[[Array], Array]:
    """0..1 becomes -most..most."""
    return lambda value: np.asarray((value.astype(np.float64) * 2 - 1) * most).astype(value.dtype)


def _full_of(number: int) -> Callable[[Array], Array]:
    return lambda value: np.asarray(np.full_like(value, number))


# Ordinary numbers do not show these faults. A speech detector (Silero) gave -98304 and 98304 in place of
# probabilities for frames of a real recording, and lost its state after digital silence; on random inputs its
# cosine was 1.
EXTREMES = (
    ExtremeInput("NaN", True, _is_float, _scattered((float("nan"),))),
    ExtremeInput("infinity", True, _is_float, _scattered((float("inf"), float("-inf")))),
    # `verifier._WORTH_BISECTING` has this name.
    ExtremeInput("large: up to 1e4", True, _holds(LARGE), _spread(LARGE)),
    ExtremeInput("beyond half floats: up to 1e5", True, _holds(HUGE), _spread(HUGE)),
    ExtremeInput("tiny: up to 1e-5", True, _is_float, _spread(TINY)),
    ExtremeInput(
        # As an index -1 counts from the end, which QNN does not do with every operator.
        "negative numbers (-1)",
        False,
        lambda value: value.dtype.kind == "i" and value.dtype.itemsize >= _WIDE_BYTES,
        _full_of(-1),
        of_numbers=True,
    ),
    ExtremeInput(
        "integers beyond 32 bits",
        False,
        lambda value: value.dtype.kind in "iu" and value.dtype.itemsize > _WIDE_BYTES,
        _full_of(BIG_INTEGER),
        as_sizes=True,
        of_numbers=True,
    ),
)


def applied(extreme: ExtremeInput, feeds: Mapping[str, Any], codes: Collection[str] = ()) -> dict[str, Any] | None:
    """The feeds with the extreme in every input that takes it; None if none does. codes: inputs of ids, masks."""
    taking = [
        name
        for name, value in feeds.items()
        if isinstance(value, np.ndarray) and extreme.takes(value) and not (extreme.of_numbers and name in codes)
    ]
    # Arrays without elements hold no extreme value.
    if not any(feeds[name].size for name in taking):
        return None
    return {name: extreme.put(value) if name in taking else value for name, value in feeds.items()}


def why_not(extreme: ExtremeInput, operators: Mapping[str, int]) -> str:
    """The reason against trying it on a model with these operators; empty if there is none."""
    makers = sorted(SIZE_MAKERS & set(operators))
    if not extreme.as_sizes or not makers:
        return ""
    return f"the model may take the numbers for sizes ({', '.join(makers[:3])}), and would ask for gigabytes"


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
        constant: outputs that no input reaches.
        steps: of the quantisation of tensors that are quantised.
    """

    trials: tuple[Trial, ...]
    stable: bool
    outputs: tuple[str, ...]
    number_format: NumberFormat
    scales: Mapping[str, float]
    constant: frozenset[str] = frozenset()
    steps: Mapping[str, float] = dataclasses.field(default_factory=dict)


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
    for extreme in EXTREMES:
        feeds = applied(extreme, ordinary, held)
        if feeds is None:
            continue
        reason = why_not(extreme, operators)
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
        return _row(trial, "skipped", f"the CPU does not answer: {short_of(trial.expected)}", True), RunAnswer(None)
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
    judged = judge_all(
        prepared.outputs,
        trial.expected.values,
        found,
        prepared.number_format,
        prepared.scales,
        prepared.steps,
    )
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
        state, reason, judged = judge_over_inputs(pairs, prepared.number_format, prepared.steps.get(name, 0.0))
        if name in prepared.constant and {one.state for one in judged} == {"agrees"}:
            state, reason = "agrees", ""  # it has not to be seen to follow the inputs
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
